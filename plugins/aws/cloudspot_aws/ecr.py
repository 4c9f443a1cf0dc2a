"""Logins for ECR, AWS's registry of container images.

Source: ECR API reference, GetAuthorizationToken, and user guide, "Private registry authentication" (checked
2026-11): a token serves all registries of a region that the caller may pull from, for 12 hours.
"""

from __future__ import annotations

import base64
import re
from typing import Final

from cloudspot.model import RegistryLogin
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS

_HOST: Final = re.compile(r"\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")


def registry_login(clients: AwsClients, registry: str) -> RegistryLogin | None:
    """Return a new login for a private registry of ECR; see Provider."""
    match = _HOST.fullmatch(registry)
    if match is None:
        return None
    with ERRORS.translated(f"logging in to {registry} (ecr:GetAuthorizationToken)"):
        answer = clients.client("ecr", region=match[1]).get_authorization_token()
    token = base64.b64decode(answer["authorizationData"][0]["authorizationToken"]).decode()
    user, _, password = token.partition(":")
    origin = "the AWS credentials, which need ecr:BatchGetImage and ecr:GetDownloadUrlForLayer"
    return RegistryLogin(user=user, password=password, origin=origin)
