"""The smallest emulated cloud, as a plugin author would begin with one."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from cloudspot.emulation.cloud import (
    Answer,
    EmulatedCloud,
    EmulatedMachine,
    JobHint,
    MachineHost,
    MetadataService,
    Request,
)
from cloudspot.hookspecs import hookimpl
from cloudspot.model import Market

cloudspot_api_version = 2


@hookimpl
def cloudspot_sandbox(name: str) -> type[object] | None:
    return {"toy": ToyCloud, "play": PlayCloud}.get(name)


class ToyMetadata(MetadataService):
    def answer(self, request: Request) -> Answer:
        notice = self.view.notice
        answers = {
            "/user-data": self.view.user_data or None,
            "/facts": json.dumps(self.view.facts).encode(),
            "/tags": json.dumps(self.view.tags).encode(),
            "/at-end": self.view.tags.get("at-end", "").encode() or None,
            "/notice": None if notice is None else notice.action.encode(),
        }
        if request.path == "/change":
            return Answer(200, b"changed" if self.view.wait_for_change(60.0) else b"the same")
        body = answers.get(request.path)
        return Answer(404) if body is None else Answer(200, body)


class ToyCloud(EmulatedCloud):
    """Its whole API: POST a script to /machines/ID; GET /machines; DELETE /machines/ID."""

    name = "toy"
    notice_seconds = 60.0
    foreign_variables = ("TOY_",)
    metadata_addresses = ("169.254.169.254", "100.100.100.200")
    metadata_service = "cloudspot_toy:ToyMetadata"
    host_names: ClassVar = {"metadata.toy.internal": "169.254.169.254"}
    fetch_user_data = 'curl -sf "$METADATA_URL/user-data"'

    def start(self, host: MachineHost, *, address: str, directory: Path) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                script = self.rfile.read(int(self.headers["Content-Length"]))
                rank = len(host.states())
                job = JobHint(job_id="toy", launch=1, rank=rank)
                machine = EmulatedMachine(id=self.name, user_data=script, market=Market.SPOT, job=job)
                host.start(machine)
                self.answer({"id": self.name})

            def do_GET(self):
                self.answer({name: status.state.value for name, status in host.states().items()})

            def do_DELETE(self):
                host.terminate(self.name)
                self.answer({})

            @property
            def name(self) -> str:
                return self.path.rpartition("/")[2]

            def answer(self, value: object) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def environment(self) -> Mapping[str, str]:
        return {"TOY_ENDPOINT": self.url}

    def machine_environment(self) -> Mapping[str, str]:
        return {"TOY_ENDPOINT": self.url}

    def metadata_environment(self, url: str) -> Mapping[str, str]:
        return {"TOY_METADATA": url}

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class PlayCloud(ToyCloud):
    """Another cloud, beside the first."""

    name = "play"
    foreign_variables = ("PLAY_",)
    network = "10.78.0.0/16"

    def environment(self) -> Mapping[str, str]:
        return {"PLAY_ENDPOINT": self.url}
