"""The processes of emulated functions, which run their unpacked code without the packages installed here."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

Process = TypeVar("Process", bound="FunctionProcess")


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """The result of an invocation."""

    payload: bytes
    is_error: bool
    log: str


class FunctionProcess:
    """The process of one function, which handles one event after another.

    Only one thread may use it at a time.

    It sees only the unpacked archive, the runtime's files and the standard library. It cannot import other
    packages installed here.
    """

    def __init__(self, archive: bytes, directory: Path) -> None:
        """Unpack the archive below ``directory``; ``start`` starts the process."""
        self.code_path = _unpacked(archive, directory)
        handle, log = tempfile.mkstemp(prefix="function-", suffix=".log", dir=directory)
        os.close(handle)
        self._log = Path(log)
        self._num_read = 0

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run Python with these arguments and variables, in the directory of the code."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", *arguments],
                cwd=self.code_path,
                env={**environment, "PATH": os.environ.get("PATH", os.defpath)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_layer(self, layer: Path, code: str, *arguments: str, environment: Mapping[str, str]) -> None:
        """Run Python code that can import the packages of ``layer``; ``arguments`` are its arguments."""
        # The directory of the code is not on the path, unless the code itself adds it.
        apart = "-P" if sys.version_info >= (3, 11) else "-B"
        self.start(
            [apart, "-c", f"import sys; sys.path.insert(0, sys.argv.pop(1)); {code}", str(layer), *arguments],
            environment,
        )

    @property
    def is_alive(self) -> bool:
        """Return whether the process can handle another event."""
        return self._process.poll() is None

    def is_serving(self, port: int, *, within_seconds: float) -> bool:
        """Wait until the process listens on this port of the machine; return whether it does."""
        end = time.monotonic() + within_seconds
        while self.is_alive and time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return True
            time.sleep(0.05)
        return False

    def printed(self) -> str:
        """Return the process's output since the last call."""
        with self._log.open("rb") as log:
            log.seek(self._num_read)
            output = log.read()
        self._num_read += len(output)
        return output.decode("utf-8", "replace")

    def kill(self) -> None:
        """Kill the process and its children; safe to repeat, from any thread."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the process and its runtime; safe to repeat. The output remains available."""
        self.kill()


class FunctionProcesses(Generic[Process]):
    """All processes of an account's functions; a process handles many events. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Hashable, list[Process]] = {}
        self._running: list[tuple[Hashable, Process]] = []
        self._is_over = False

    @contextlib.contextmanager
    def one(self, version: Hashable, make: Callable[[], Process]) -> Iterator[Process]:
        """Yield a process for one event of this version of a function, made by ``make`` if none is idle."""
        with self._lock:
            waiting = self._idle.setdefault(version, [])
            process = waiting.pop() if waiting else None
        if process is not None and not process.is_alive:
            process.close()
            process = None
        lent = (version, process or make())
        with self._lock:
            self._running.append(lent)
        try:
            yield lent[1]
        finally:
            with self._lock:
                self._running.remove(lent)
                is_kept = lent[1].is_alive and not self._is_over
                if is_kept:
                    waiting.append(lent[1])
            if not is_kept:
                lent[1].close()

    def num_running(self, version: Hashable) -> int:
        """Return how many of the version's processes are handling an event."""
        with self._lock:
            return sum(one == version for one, _ in self._running)

    def kill_running(self) -> None:
        """Kill all processes that are handling an event, as a cloud may at any time."""
        with self._lock:
            running = [process for _, process in self._running]
        for one in running:
            one.kill()

    def close(self) -> None:
        """End all processes; processes started later end after their event."""
        with self._lock:
            self._is_over = True
            ended = [
                *(one for _, one in self._running),
                *(one for ones in self._idle.values() for one in ones),
            ]
            self._idle.clear()
        for one in ended:
            one.close()


def run_apart(name: str, invoke: Callable[[], Result], *, log: Path, refusal: type[Exception]) -> None:
    """Run a function for one event in its own thread, so that a late pass does not delay the next pass.

    ``invoke`` may raise ``refusal``, which is logged. The function's output and answer are appended to
    ``log``.
    """

    def run() -> None:
        try:
            result = invoke()
        except refusal as error:
            _log.warning("function %s: %s", name, error)
            return
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{result.log}{result.payload.decode('utf-8', 'replace')}\n")

    threading.Thread(target=run, name="function", daemon=True).start()


@dataclass(frozen=True)
class Asked:
    """A request from the process to its runtime."""

    method: str
    path: str
    headers: Message
    body: bytes


Reply = tuple[int, Mapping[str, str], bytes]
"""The status, the headers and the body."""


def serve(answer: Callable[[Asked], Reply | None]) -> ThreadingHTTPServer:
    """Serve GET and POST requests in threads at a free port of this machine, until shut down and closed.

    If ``answer`` returns None, the connection is closed without an answer.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = answer(Asked(self.command, self.path, self.headers, body))
            if reply is None:
                self.close_connection = True
                return
            status, headers, content = reply
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 # as its base calls it

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="function runtime", daemon=True).start()
    return server


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def copy_distribution(name: str, target: Path) -> None:
    """Link an installed distribution and its dependencies into ``target``, unless ``target`` exists."""
    if target.exists():
        return
    made = Path(tempfile.mkdtemp(dir=target.parent))
    waiting, seen = [name], set[str]()
    while waiting:
        required = waiting.pop()
        if required in seen:
            continue
        seen.add(required)
        distribution = metadata.distribution(required)
        for needed in distribution.requires or ():
            match = re.match(r"[A-Za-z0-9._-]+", needed)
            if match is not None and "extra ==" not in needed and _is_installed(match[0]):
                waiting.append(match[0])
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and source.is_file() and file.suffix != ".pyc":
                place = made / file
                place.parent.mkdir(parents=True, exist_ok=True)
                if not place.exists():
                    place.symlink_to(source)
    with contextlib.suppress(OSError):  # Another thread was faster.
        made.rename(target)


def _unpacked(archive: bytes, directory: Path) -> Path:
    """Return the directory of the unpacked archive, which all processes share because none changes it."""
    target = directory / f"code-{hashlib.sha256(archive).hexdigest()[:16]}"
    if not target.exists():
        made = Path(tempfile.mkdtemp(dir=directory))
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            packed.extractall(made)  # a user's own code, which runs anyway
        with contextlib.suppress(OSError):  # Another thread was first.
            made.rename(target)
    return target


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False  # Its marker is for a different Python or platform.
    return True
