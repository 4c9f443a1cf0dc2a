"""Runs a function's code as Lambda does: in a process with AWS's own runtime client, which asks for events.

The process sees the unpacked archive, the runtime client and the standard library, and nothing else that is
installed here: what the archive lacks is missing. Source: Lambda developer guide, "Using the Lambda runtime
API for custom runtimes" and "Defined runtime environment variables" (checked 2026-11).
"""

from __future__ import annotations

import io
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

_RUNTIME: Final = ("awslambdaric", "simplejson", "snapshot-restore-py")
_BASE: Final = "/2018-06-01/runtime/"
_START: Final = (
    "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]; "
    "sys.argv = ['awslambdaric', sys.argv[3]]; from awslambdaric.__main__ import main; main(sys.argv)"
)
_INIT_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Code:
    """A function as it was deployed."""

    name: str
    archive: bytes
    handler: str
    timeout_seconds: float
    memory_mib: int
    environment: Mapping[str, str]
    """All of its process's variables but those that the runtime itself sets."""


@dataclass(frozen=True)
class Result:
    """What came of an invocation."""

    payload: bytes
    is_error: bool
    log: str


@dataclass
class _Invocation:
    event: bytes
    id: str = field(default_factory=lambda: str(uuid4()))
    done: queue.Queue[tuple[bytes, bool]] = field(default_factory=lambda: queue.Queue(1))


class LambdaRuntime:
    """An execution environment of one function: it takes one event after the other.

    For one thread at a time.
    """

    def __init__(self, code: Code, directory: Path) -> None:
        """Unpack the code below ``directory`` and start its process."""
        self.code = code
        self._events: queue.Queue[_Invocation | None] = queue.Queue()
        self._current: _Invocation | None = None
        self._root = Path(tempfile.mkdtemp(prefix="environment-", dir=directory))
        task, runtime = self._root / "task", self._root / "runtime"
        with zipfile.ZipFile(io.BytesIO(code.archive)) as archive:
            archive.extractall(task)  # a user's own code, which runs anyway
        _copy_runtime(runtime)
        self._server = _serve(self)
        host, port = self._server.server_address[:2]
        self._log = self._root / "log"
        environment = {
            **code.environment,
            "PATH": os.environ.get("PATH", os.defpath),
            "AWS_LAMBDA_RUNTIME_API": f"{host!s}:{port}",
            "AWS_LAMBDA_FUNCTION_NAME": code.name,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(code.memory_mib),
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "LAMBDA_TASK_ROOT": str(task),
            "_HANDLER": code.handler,
        }
        command = [sys.executable, "-S", "-P" if sys.version_info >= (3, 11) else "-B", "-c", _START]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(task), str(runtime), code.handler],
                cwd=task,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether it can take another event."""
        return self._process.poll() is None

    def invoke(self, event: bytes) -> Result:
        """Hand the event to the function, and return what it answers; a dead or late one has failed."""
        start = self._log.stat().st_size
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
        return Result(*answer, log=self._log.read_bytes()[start:].decode("utf-8", "replace"))

    def close(self) -> None:
        """End the process; safe to repeat. Its log stays."""
        self._process.kill()
        self._process.wait()
        self._events.put(None)
        self._server.shutdown()
        self._server.server_close()
        for name in ("task", "runtime"):
            shutil.rmtree(self._root / name, ignore_errors=True)

    def next_event(self) -> _Invocation | None:
        """Wait for the next event; None: there will be none."""
        return self._events.get()

    def answer(self, invocation_id: str, payload: bytes, *, is_error: bool) -> None:
        """Take what the process answers; ``init`` is for one that cannot start."""
        current = self._current
        if current is not None and invocation_id in {current.id, "init"} and current.done.empty():
            current.done.put((payload, is_error))


def _error(message: str) -> bytes:
    return json.dumps({"errorMessage": message, "errorType": "Sandbox.Timedout"}).encode()


def _copy_runtime(target: Path) -> None:
    """Lay AWS's runtime client out alone, as /var/runtime has it."""
    for name in _RUNTIME:
        distribution = metadata.distribution(name)
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and source.is_file() and file.suffix != ".pyc":
                place = target / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)


def _serve(runtime: LambdaRuntime) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Answer the long poll for the next event."""
            if self.path != f"{_BASE}invocation/next":
                self._send(404, b"{}")
                return
            invocation = runtime.next_event()
            if invocation is None:  # The process that asks has been ended.
                self.close_connection = True
                return
            deadline = int((time.time() + runtime.code.timeout_seconds) * 1000)
            arn = f"arn:aws:lambda:us-east-1:123456789012:function:{runtime.code.name}"
            headers = {
                "Lambda-Runtime-Aws-Request-Id": invocation.id,
                "Lambda-Runtime-Deadline-Ms": str(deadline),
                "Lambda-Runtime-Invoked-Function-Arn": arn,
            }
            self._send(200, invocation.event, headers)

        def do_POST(self) -> None:
            """Take an answer, or the error of an event or of the start."""
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            words = self.path.removeprefix(_BASE).split("/")
            if words[:2] == ["init", "error"]:
                runtime.answer("init", body, is_error=True)
            elif len(words) == 3 and words[0] == "invocation" and words[2] in {"response", "error"}:
                runtime.answer(words[1], body, is_error=words[2] == "error")
            else:
                self._send(404, b"{}")
                return
            self._send(202, b'{"status": "OK"}')

        def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="lambda runtime", daemon=True).start()
    return server
