"""Logins for Artifact Registry, Google's registry of container images, and for its old host names.

Source: Artifact Registry, "Configure authentication to Artifact Registry for Docker", access token (checked
2026-11).
"""

from __future__ import annotations

import re
from typing import Final

import google.auth.transport.requests

from cloudspot.model import RegistryLogin
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.errors import ERRORS

_HOST: Final = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev|(?:[a-z0-9-]+\.)?gcr\.io")


def registry_login(clients: GcpClients, registry: str) -> RegistryLogin | None:
    """Return a new login for one of Google's registries; see Provider."""
    if _HOST.fullmatch(registry) is None:
        return None
    credentials = clients.credentials()
    with ERRORS.translated(f"logging in to {registry}"):
        credentials.refresh(google.auth.transport.requests.Request())
    origin = "the Google credentials, which need roles/artifactregistry.reader"
    return RegistryLogin(user="oauth2accesstoken", password=str(credentials.token), origin=origin)
