"""An emulated Kubernetes cluster: a real control plane, and nodes whose pods are machines of this host."""

from __future__ import annotations

from cloudspot.hookspecs import hookimpl

cloudspot_api_version = 2


@hookimpl
def cloudspot_sandbox(name: str) -> type[object] | None:
    """Return the emulated cluster; raise PluginError if its control plane is not built."""
    if name != "kubernetes":
        return None
    from cloudspot_kubernetes_sandbox.build import binaries
    from cloudspot_kubernetes_sandbox.cloud import EmulatedKubernetes

    binaries()
    return EmulatedKubernetes
