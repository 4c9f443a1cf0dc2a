"""The smallest emulated cloud, as a plugin author would begin with one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from cloudspot.testing.emulation import Answer, EmulatedCloud, MachineHost, MetadataService, Request


class ToyMetadata(MetadataService):
    def answer(self, request: Request) -> Answer:
        notice = self.view.notice
        answers = {
            "/user-data": self.view.user_data or None,
            "/facts": json.dumps(self.view.facts).encode(),
            "/tags": json.dumps(self.view.tags).encode(),
            "/notice": None if notice is None else notice.action.encode(),
        }
        if request.path == "/change":
            return Answer(200, b"changed" if self.view.wait_for_change(60.0) else b"the same")
        body = answers.get(request.path)
        return Answer(404) if body is None else Answer(200, body)


class ToyCloud(EmulatedCloud):
    name = "toy"
    metadata_addresses = ("169.254.169.254", "100.100.100.200")
    metadata_service = "toycloud:ToyMetadata"
    host_names: ClassVar = {"metadata.toy.internal": "169.254.169.254"}
    fetch_user_data = 'curl -sf "$METADATA_URL/user-data"'

    def start(self, host: MachineHost, *, address: str, directory: Path) -> None:
        self.host = host
        self.address = address

    def environment(self) -> Mapping[str, str]:
        return {"TOY_ENDPOINT": f"http://{self.address}:8080"}

    def machine_environment(self) -> Mapping[str, str]:
        return {"TOY_ENDPOINT": f"http://{self.address}:8080"}

    def metadata_environment(self, url: str) -> Mapping[str, str]:
        return {"TOY_METADATA": url}

    def stop(self) -> None:
        return
