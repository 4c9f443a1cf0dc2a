"""Runs a function's code in a process with AWS's own runtime client, which asks for events, as on Lambda.

Source: Lambda developer guide, "Using the Lambda runtime API for custom runtimes" and "Defined runtime
environment variables" (checked 2026-11).
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

from cloudspot.emulation.function_process import (
    Asked,
    FunctionProcess,
    Reply,
    Result,
    copy_distribution,
    serve,
)

_CLIENT: Final = "awslambdaric"
_BASE: Final = "/2018-06-01/runtime/"
_ARN: Final = "arn:aws:lambda:us-east-1:123456789012:function:"
_START: Final = (
    "sys.path.insert(0, sys.argv.pop(1)); sys.argv[0] = 'awslambdaric'; "
    "from awslambdaric.__main__ import main; main(sys.argv)"
)


@dataclass(frozen=True)
class Code:
    """The code and the settings of a deployed function."""

    name: str
    archive: bytes
    handler: str
    timeout_seconds: float
    memory_mib: int
    environment: Mapping[str, str]
    """The process's variables, except those that the runtime sets by itself."""


@dataclass
class _Invocation:
    event: bytes
    id: str = field(default_factory=lambda: str(uuid4()))
    done: queue.Queue[tuple[bytes, bool]] = field(default_factory=lambda: queue.Queue(1))


class LambdaRuntime(FunctionProcess):
    """An execution environment of one function."""

    def __init__(self, code: Code, directory: Path) -> None:
        """Unpack the code in ``directory`` and start its process."""
        super().__init__(code.archive, directory)
        self.code = code
        self._events: queue.Queue[_Invocation | None] = queue.Queue()
        self._current: _Invocation | None = None
        copy_distribution(_CLIENT, directory / _CLIENT)
        self._server = serve(partial(_answer, self))
        host, port = self._server.server_address[:2]
        environment = {
            **code.environment,
            "AWS_LAMBDA_RUNTIME_API": f"{host!s}:{port}",
            "AWS_LAMBDA_FUNCTION_NAME": code.name,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(code.memory_mib),
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "LAMBDA_TASK_ROOT": str(self.code_path),
            "_HANDLER": code.handler,
        }
        layer, task = directory / _CLIENT, str(self.code_path)
        self.start_layer(layer, _START, task, code.handler, environment=environment)

    def invoke(self, event: bytes) -> Result:
        """Pass the event to the function, and return its result, a failure if the process dies or is late."""
        self.printed()
        invocation = _Invocation(event)
        self._current = invocation
        self._events.put(invocation)
        end = time.monotonic() + self.code.timeout_seconds
        answer: tuple[bytes, bool] | None = None
        while answer is None and time.monotonic() < end and self.is_alive:
            try:
                answer = invocation.done.get(timeout=0.1)
            except queue.Empty:
                continue
        if answer is None and not invocation.done.empty():
            answer = invocation.done.get()
        if answer is None:
            is_late = self.is_alive
            self.close()
            late = f"Task timed out after {self.code.timeout_seconds:.2f} seconds"
            why = late if is_late else "Runtime exited"
            answer = _error(why), True
        return Result(*answer, log=self.printed())

    def close(self) -> None:
        """End the process; safe to repeat. Its log stays."""
        super().close()
        self._events.put(None)
        self._server.shutdown()
        self._server.server_close()

    def next_event(self) -> _Invocation | None:
        """Wait for the next event; return None if there will be no more."""
        return self._events.get()

    def answer(self, invocation_id: str, payload: bytes, *, is_error: bool) -> None:
        """Accept a response from the process; the id ``init`` means that it could not start."""
        current = self._current
        if current is not None and invocation_id in {current.id, "init"} and current.done.empty():
            current.done.put((payload, is_error))


def _error(message: str) -> bytes:
    return json.dumps({"errorMessage": message, "errorType": "Sandbox.Timedout"}).encode()


def _answer(runtime: LambdaRuntime, asked: Asked) -> Reply | None:
    """Return the next event, or accept a response or an error."""
    kind = {"Content-Type": "application/json"}
    parts = [asked.method, *asked.path.removeprefix(_BASE).split("/")]
    if parts == ["GET", "invocation", "next"]:
        invocation = runtime.next_event()
        if invocation is None:  # The process that asks has been ended.
            return None
        deadline = int((time.time() + runtime.code.timeout_seconds) * 1000)
        headers = {
            "Lambda-Runtime-Aws-Request-Id": invocation.id,
            "Lambda-Runtime-Deadline-Ms": str(deadline),
            "Lambda-Runtime-Invoked-Function-Arn": f"{_ARN}{runtime.code.name}",
        }
        return 200, {**kind, **headers}, invocation.event
    if parts == ["POST", "init", "error"]:
        runtime.answer("init", asked.body, is_error=True)
    elif parts[:2] == ["POST", "invocation"] and parts[3:] in (["response"], ["error"]):
        runtime.answer(parts[2], asked.body, is_error=parts[3] == "error")
    else:
        return 404, kind, b"{}"
    return 202, kind, b'{"status": "OK"}'
