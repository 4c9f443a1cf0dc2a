"""cloudspot on Kubernetes. Importing the package imports no SDK; the service modules do so when used."""

from __future__ import annotations

from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import Provider

cloudspot_api_version = 2


@hookimpl
def cloudspot_provider(name: str) -> type[Provider] | None:
    """Return the provider ``kubernetes``."""
    if name != "kubernetes":
        return None
    from cloudspot_kubernetes.provider import KubernetesProvider

    return KubernetesProvider
