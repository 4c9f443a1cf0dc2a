"""An emulated Google Cloud: strict fakes of its APIs over HTTP. For tests and sandboxes only."""

from __future__ import annotations

from cloudspot.hookspecs import hookimpl

cloudspot_api_version = 2


@hookimpl
def cloudspot_sandbox(name: str) -> type[object] | None:
    """Return the emulated Google Cloud."""
    if name != "gcp":
        return None
    from cloudspot_gcp_sandbox.cloud import EmulatedGcp

    return EmulatedGcp
