"""AWS emulated on one host: moto made as strict as the real AWS, with machines that really boot."""

from __future__ import annotations

from cloudspot.hookspecs import hookimpl

cloudspot_api_version = 2


@hookimpl
def cloudspot_sandbox(name: str) -> type[object] | None:
    """Return the emulated AWS."""
    if name != "aws":
        return None
    from cloudspot_aws_sandbox.cloud import EmulatedAws

    return EmulatedAws
