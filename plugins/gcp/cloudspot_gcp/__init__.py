"""cloudspot on Google Cloud. Importing the package imports no SDK; the service modules do so when used."""

from __future__ import annotations

from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import ObjectStore, Provider

cloudspot_api_version = 2


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
