"""An emulated Google Cloud whose machines, from the second launch on, cannot ask whether they are preempted."""

from __future__ import annotations

from typing import ClassVar

from cloudspot.emulation.cloud import Answer, Request
from cloudspot.hookspecs import hookimpl
from cloudspot_gcp.attributes import launch_and_rank
from cloudspot_gcp_sandbox.cloud import EmulatedGcp
from cloudspot_gcp_sandbox.metadata_server import GceMetadata

cloudspot_api_version = 2


@hookimpl
def cloudspot_sandbox(name: str) -> type[object] | None:
    return DeafGcp if name == "deaf-gcp" else None


class DeafMetadata(GceMetadata):
    def answer(self, request: Request) -> Answer:
        named = launch_and_rank(str(self.view.facts["name"]))
        if "/instance/preempted" in request.path and named is not None and named[0] > 1:
            return Answer(503, b"not now\n", headers={"Metadata-Flavor": "Google"})
        return super().answer(request)


class DeafGcp(EmulatedGcp):
    name: ClassVar[str] = "deaf-gcp"
    metadata_service: ClassVar[str] = "cloudspot_deaf:DeafMetadata"
