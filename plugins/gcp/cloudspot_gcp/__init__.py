"""cloudspot on Google Cloud. Importing this imports no SDK; the service modules do, when used."""

from __future__ import annotations

import importlib.util

from cloudspot.errors import PluginError
from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import ObjectStore, Provider


@hookimpl
def cloudspot_provider(name: str) -> type[Provider] | None:
    """Return the provider ``gcp``."""
    if name != "gcp":
        return None
    from cloudspot_gcp.provider import GcpProvider

    return GcpProvider


@hookimpl
def cloudspot_object_store(url: str) -> ObjectStore | None:
    """Open ``gs://bucket/prefix``."""
    if not url.lower().startswith("gs://"):
        return None
    from cloudspot_gcp.gcs import GcsStore

    return GcsStore(url)


@hookimpl
def cloudspot_sandbox(name: str) -> type[object] | None:
    """Return the emulated Google Cloud.

    Raises:
        PluginError: what only the emulation needs is not installed.
    """
    if name != "gcp":
        return None
    if importlib.util.find_spec("googleapiclient") is None or importlib.util.find_spec("werkzeug") is None:
        raise PluginError(
            "the emulated Google Cloud needs Google's discovery documents; "
            'run: pip install "cloudspot-gcp[sandbox]"'
        )
    from cloudspot_gcp.sandbox.cloud import EmulatedGcp

    return EmulatedGcp
