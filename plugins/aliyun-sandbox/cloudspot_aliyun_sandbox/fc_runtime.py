"""Runs a function's code as Function Compute's custom runtimes do, in a process that serves HTTP.

All instances share a network here, so each of them listens on a port of its own. Source: Function Compute,
"Event handlers" and "Specifications" of custom runtimes, "Configure environment variables" (checked 2026-11).
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudspot.emulation.function_process import FunctionProcess, Result, free_port
from cloudspot.emulation.role_credentials import Credentials

START_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Code:
    """The code and the settings of a deployed function."""

    name: str
    archive: bytes
    handler: str
    command: Sequence[str]
    timeout_seconds: float
    memory_mib: int
    region: str
    account: str
    environment: Mapping[str, str]
    """The process's variables, except those that the runtime sets by itself."""


class CustomRuntime(FunctionProcess):
    """An instance of one function."""

    def __init__(self, code: Code, key: Credentials, directory: Path) -> None:
        """Unpack the code in ``directory`` and start its process, with a key of its role."""
        super().__init__(code.archive, directory)
        self._code = code
        self._port = free_port()
        environment = {
            **code.environment,
            "ALIBABA_CLOUD_ACCESS_KEY_ID": key.access_key,
            "ALIBABA_CLOUD_ACCESS_KEY_SECRET": key.secret_key,
            "ALIBABA_CLOUD_SECURITY_TOKEN": key.token,
            "FC_ACCOUNT_ID": code.account,
            "FC_CUSTOM_LISTEN_PORT": str(self._port),
            "FC_FUNCTION_HANDLER": code.handler,
            "FC_FUNCTION_MEMORY_SIZE": str(code.memory_mib),
            "FC_FUNCTION_NAME": code.name,
            "FC_FUNC_CODE_PATH": str(self.code_path),
            "FC_REGION": code.region,
        }
        # The runtime's Python is the current one, without its installed packages.
        self.start(code.command[1:], environment)

    def invoke(self, event: bytes, key: Credentials, request_id: str) -> Result:
        """Pass the event to the function, and return its result, a failure if the process dies or is late."""
        log = self.printed()
        try:
            if not self.is_serving(self._port, within_seconds=START_SECONDS):
                raise ConnectionRefusedError("no server is listening")
            is_error, payload = self._ask(event, key, request_id)
        except (OSError, http.client.HTTPException) as error:
            is_late = isinstance(error, TimeoutError)
            self.close()
            log += self.printed()
            late = f"Function time out after {self._code.timeout_seconds:g} seconds"
            why = late if is_late else f"Function instance exited unexpectedly: {log[-500:]}"
            is_error, payload = True, json.dumps({"errorMessage": why}).encode()
        log += self.printed()
        if self.is_alive and f"FC Invoke End RequestId: {request_id}\n" not in log:
            why = "SandboxContract: the server did not print where the invocation ends"
            is_error, payload = True, json.dumps({"errorMessage": why}).encode()
        return Result(payload, is_error, log)

    def _ask(self, event: bytes, key: Credentials, request_id: str) -> tuple[bool, bytes]:
        code = self._code
        headers = {
            "Content-Type": "application/octet-stream",
            "x-fc-request-id": request_id,
            "x-fc-access-key-id": key.access_key,
            "x-fc-access-key-secret": key.secret_key,
            "x-fc-security-token": key.token,
            "x-fc-account-id": code.account,
            "x-fc-control-path": "/invoke",
            "x-fc-function-handler": code.handler,
            "x-fc-function-memory": str(code.memory_mib),
            "x-fc-function-name": code.name,
            "x-fc-region": code.region,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=code.timeout_seconds)
        try:
            connection.request("POST", "/invoke", event, headers)
            answer = connection.getresponse()
            payload = answer.read()
        finally:
            connection.close()
        return answer.status != 200 or answer.getheader("x-fc-status", "200") != "200", payload
