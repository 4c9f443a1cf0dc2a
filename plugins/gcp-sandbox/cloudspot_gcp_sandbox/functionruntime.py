"""Runs a function's code as Cloud Run does, served over HTTP by Google's own functions-framework.

A metadata server of its own supplies it with the tokens of its service account. Source: Cloud Run, "Container
runtime contract"; functions-framework (3.10).
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from cloudspot.emulation.function_process import (
    Asked,
    FunctionProcess,
    Reply,
    copy_distribution,
    free_port,
    serve,
)

FRAMEWORK: Final = "functions-framework"
_START: Final = "sys.argv = ['functions-framework']; from functions_framework._cli import _cli; _cli()"
_START_SECONDS: Final = 240.0
"""The maximum time for which Cloud Run waits for a container to listen (Cloud Run, "Configure container
startup probes").
"""
_TEXT: Final = {"Metadata-Flavor": "Google", "Content-Type": "application/text"}
_JSON: Final = {**_TEXT, "Content-Type": "application/json"}


@dataclass(frozen=True)
class Code:
    """The code and the settings of a function's revision."""

    name: str
    revision: str
    archive: bytes
    entry_point: str
    timeout_seconds: float
    email: str
    """The service account that the function uses."""
    project: str
    environment: Mapping[str, str]
    """The process's variables, except those that the runtime sets by itself."""


@dataclass(frozen=True)
class Answer:
    """The response to a request."""

    status: int
    body: bytes


class FunctionInstance(FunctionProcess):
    """An instance of one revision."""

    def __init__(self, code: Code, directory: Path, *, issue: Callable[[str], str]) -> None:
        """Unpack the code in ``directory`` and start its process; ``issue`` returns an account's token."""
        super().__init__(code.archive, directory)
        self._timeout_seconds = code.timeout_seconds
        self._metadata = serve(partial(_metadata, code, issue))
        host = f"127.0.0.1:{self._metadata.server_address[1]}"
        self._port = free_port()
        environment = {
            **code.environment,
            "PYTHONUNBUFFERED": "1",
            "GCE_METADATA_HOST": host,
            "GCE_METADATA_IP": host,
            "HOST": "127.0.0.1",
            "PORT": str(self._port),
            "K_SERVICE": code.name,
            "K_CONFIGURATION": code.name,
            "K_REVISION": code.revision,
            "FUNCTION_TARGET": code.entry_point,
            "FUNCTION_SIGNATURE_TYPE": "cloudevent",
        }
        copy_distribution(FRAMEWORK, directory / FRAMEWORK)
        self.start_layer(directory / FRAMEWORK, _START, environment=environment)

    def request(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a POST request, and return the response: 503 or 504 if the instance is dead or late."""
        if not self.is_serving(self._port, within_seconds=_START_SECONDS):
            self.close()
            return Answer(503, b"The container failed to start and listen on the port of PORT.")
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/", data=body, headers=dict(headers), method="POST"
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self._timeout_seconds) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Answer(504 if "timed out" in str(error) else 503, str(error).encode())

    def close(self) -> None:
        """End the process; safe to repeat. Its log stays."""
        super().close()
        self._metadata.shutdown()
        self._metadata.server_close()


def _metadata(code: Code, issue: Callable[[str], str], asked: Asked) -> Reply:
    """Answer a request of Google's clients to the metadata server of Cloud Run."""
    path, _, query = asked.path.partition("?")
    if path != "/" and asked.headers.get("Metadata-Flavor") != "Google":
        return 403, _TEXT, b"Missing Metadata-Flavor:Google header."
    base = "/computeMetadata/v1/"
    what = path.removeprefix(f"{base}instance/service-accounts/")
    holder, _, leaf = what.partition("/")
    is_own = holder in {"default", code.email}
    if path in {"/", base}:
        return 200, _TEXT, b"computeMetadata/\n"
    if path == f"{base}project/project-id":
        return 200, _TEXT, code.project.encode()
    if is_own and leaf == "token":
        token = {"access_token": issue(code.email), "expires_in": 3599, "token_type": "Bearer"}
        return 200, _JSON, json.dumps(token).encode()
    if is_own and leaf == "email":
        return 200, _TEXT, code.email.encode()
    if is_own and leaf == "" and "recursive=true" in query.lower():
        scope = "https://www.googleapis.com/auth/cloud-platform"
        account = {"email": code.email, "aliases": ["default"], "scopes": [scope]}
        return 200, _JSON, json.dumps(account).encode()
    return 404, _TEXT, b"Not found"
