"""Runs a function's code as Cloud Run does: served over HTTP by Google's own functions-framework.

The process sees the unpacked archive, the framework with what it needs, and the standard library, and nothing
else that is installed here: what the archive lacks is missing. A metadata server of its own gives it the
tokens of its service account. Source: Cloud Run, "Container runtime contract"; functions-framework (3.10).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any, Final

FRAMEWORK: Final = "functions-framework"
_START: Final = (
    "import sys; sys.path[:0] = [sys.argv[1]]; sys.argv = ['functions-framework']; "
    "from functions_framework._cli import _cli; _cli()"
)
_START_SECONDS: Final = 240.0
"""How long Cloud Run waits for a container to listen, at most (Cloud Run, "Configure container startup
probes")."""
_FLAVOR: Final = ("Metadata-Flavor", "Google")


@dataclass(frozen=True)
class Code:
    """A revision of a function, as it was deployed."""

    name: str
    revision: str
    archive: bytes
    entry_point: str
    timeout_seconds: float
    email: str
    """The service account that it runs as."""
    project: str
    environment: Mapping[str, str]
    """All of its process's variables but those that the runtime itself sets."""


@dataclass(frozen=True)
class Answer:
    """What came of a request."""

    status: int
    body: bytes


class FunctionInstance:
    """An instance of one revision: it takes one request after the other. For one thread at a time."""

    def __init__(
        self,
        code: Code,
        directory: Path,
        *,
        layer: Path,
        issue: Callable[[str], str],
        on_line: Callable[[str], None],
    ) -> None:
        """Unpack the code below ``directory``, and start its process.

        ``layer`` has the framework, as ``copy_distribution`` lays it out. ``issue`` returns an access token
        of an account; ``on_line`` is given what the process prints.
        """
        self.code = code
        self._root = Path(tempfile.mkdtemp(prefix="function-", dir=directory))
        task = self._root / "workspace"
        with zipfile.ZipFile(io.BytesIO(code.archive)) as archive:
            archive.extractall(task)  # a user's own code, which runs anyway
        self._metadata = _serve_metadata(code, issue)
        host = f"127.0.0.1:{self._metadata.server_address[1]}"
        self._port = _free_port()
        environment = {
            **code.environment,
            "PATH": os.environ.get("PATH", os.defpath),
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
        command = [sys.executable, "-S", "-P" if sys.version_info >= (3, 11) else "-B", "-c", _START]
        self._process = subprocess.Popen(
            [*command, str(layer)],
            cwd=task,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(on_line,), name="function log", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """Return whether it can take another request."""
        return self._process.poll() is None

    def wait_until_ready(self) -> bool:
        """Return whether the process has come to listen."""
        end = time.monotonic() + _START_SECONDS
        while self.is_alive and time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
                return True
            time.sleep(0.1)
        return False

    def request(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a POST request, and return the answer; a dead or late instance gives 503 or 504."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/", data=body, headers=dict(headers), method="POST"
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self.code.timeout_seconds) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read())
        except (OSError, TimeoutError) as error:
            self.close()
            return Answer(504 if "timed out" in str(error) else 503, str(error).encode())

    def close(self) -> None:
        """End the process and its children; safe to repeat."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._metadata.shutdown()
        self._metadata.server_close()
        shutil.rmtree(self._root, ignore_errors=True)

    def _read(self, on_line: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                on_line(line.decode("utf-8", "replace").rstrip("\n"))


def copy_distribution(name: str, target: Path) -> None:
    """Lay an installed distribution out alone, with all that it needs here."""
    waiting, seen = [name], set[str]()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        distribution = metadata.distribution(one)
        for needed in distribution.requires or ():
            match = re.match(r"[A-Za-z0-9._-]+", needed)
            if match is not None and "extra ==" not in needed and _is_installed(match[0]):
                waiting.append(match[0])
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and source.is_file() and file.suffix != ".pyc":
                place = target / file
                place.parent.mkdir(parents=True, exist_ok=True)
                if not place.exists():
                    place.symlink_to(source)


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False  # Its marker is for another Python or platform.
    return True


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _serve_metadata(code: Code, issue: Callable[[str], str]) -> ThreadingHTTPServer:
    account = {
        "email": code.email,
        "aliases": ["default"],
        "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
    }
    base = "/computeMetadata/v1/"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Answer what Google's clients ask on Cloud Run."""
            path, _, query = self.path.partition("?")
            if path != "/" and self.headers.get(_FLAVOR[0]) != _FLAVOR[1]:
                self._send(403, b"Missing Metadata-Flavor:Google header.")
                return
            what = path.removeprefix(f"{base}instance/service-accounts/")
            holder, _, leaf = what.partition("/")
            is_own = holder in {"default", code.email}
            if path in {"/", base}:
                self._send(200, b"computeMetadata/\n")
            elif path == f"{base}project/project-id":
                self._send(200, code.project.encode())
            elif is_own and leaf == "token":
                token = {"access_token": issue(code.email), "expires_in": 3599, "token_type": "Bearer"}
                self._send(200, json.dumps(token).encode(), "application/json")
            elif is_own and leaf == "email":
                self._send(200, code.email.encode())
            elif is_own and leaf == "" and "recursive=true" in query.lower():
                self._send(200, json.dumps(account).encode(), "application/json")
            else:
                self._send(404, b"Not found")

        def _send(self, status: int, body: bytes, kind: str = "application/text") -> None:
            self.send_response(status)
            self.send_header(*_FLAVOR)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="function metadata", daemon=True).start()
    return server
