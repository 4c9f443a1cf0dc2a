"""Watches a forked script for effects that differ because modules were imported before the script began.

A script may set a variable before it imports the module that reads it, or add a directory to ``sys.path``
that contains another module of that name. If the script has not yet opened a socket, written a file or
started a process, its process starts over without the fork server, and lines that it has printed appear
twice. Otherwise, it continues, the log shows a warning, and later starts on this machine do not use the fork
server.

Importing an already imported module raises no event, so ``__import__`` and ``importlib.import_module`` are
replaced. A module that is reached in another way, such as an attribute, counts as not imported, so a script
may start over or cause a warning unnecessarily. Acts of native code, such as setting variables (``setenv``)
or writing files, are not seen, with one exception: joining a process group.
"""

from __future__ import annotations

import _posixsubprocess
import builtins
import contextlib
import functools
import importlib.util
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudspot.train import handoff as files
from cloudspot.train.fork_server.preloaded import Preloaded, differing, recording

MEASURED_SECONDS = 60.0
"""How long after a script's start its imports are timed."""
LEAST_SECONDS = 0.1
"""Imports that take less time are not worth a line in the job file."""
_ACTS = ("os.", "socket.", "subprocess.", "pty.", "sqlite3.")
"""The prefixes of audit events for acts that other processes can observe, apart from ``open``."""
_LOOKS = frozenset(
    (
        *("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr", "os.chdir"),
        "socket.gethostname",
    )
)
"""Events that have these prefixes but change nothing."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NOTHING = contextlib.nullcontext()
_BYTECODE = re.compile(r"__pycache__$|\.pyc(\.\d+)?$")


class Watch:
    """Watches the script that this forked process is about to run, and times its imports."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        preloaded: Preloaded,
        of_server: Mapping[str, str],
        own: Collection[str],
        unwanted: Path,
    ) -> None:
        """Start over with ``argv`` and ``environment`` if needed; if too late, write why to ``unwanted``.

        ``own`` are the modules beside the script, and ``of_server`` is the environment of the server's
        imports.
        """
        self._argv, self._environment, self._of_server = argv, environment, of_server
        self._preloaded, self._own, self._unwanted = preloaded, own, unwanted
        self._directory, self._pid, self._path = Path.cwd(), os.getpid(), [*sys.path]
        self._pending = [*preloaded.names]
        """The preloaded modules that the script has not imported yet."""
        self._packages = preloaded.packages()
        self._has_acted = self._is_own_doing = self._is_timing = False
        self._differing = set[str]()
        self._until = time.monotonic() + MEASURED_SECONDS
        self._seconds: dict[str, float] = {}
        """The slow imports that could be done once per machine."""
        self._import, self._import_module = builtins.__import__, importlib.import_module

    def begin(self) -> None:
        """Start to watch."""

        @functools.wraps(self._import)  # pickle and others look them up by name
        def import_(
            name: str,
            globals: Any = None,  # noqa: A002 - callers may name them
            locals: Any = None,  # noqa: A002
            fromlist: Any = (),
            level: int = 0,
        ) -> Any:
            taken = fromlist or ()
            if level == 0:
                self._note_import(name, taken)
            with self._timing(name, taken) if level == 0 and self._is_worth_timing(name, taken) else _NOTHING:
                return self._import(name, globals, locals, fromlist, level)

        @functools.wraps(self._import_module)
        def import_module(name: str, package: str | None = None) -> Any:
            self._note_import(name if package is None else importlib.util.resolve_name(name, package), ())
            return self._import_module(name, package)

        fork_exec = _posixsubprocess.fork_exec

        def start_process(*arguments: Any) -> int:  # multiprocessing's spawn raises no event
            self._has_acted = True
            return fork_exec(*arguments)

        builtins.__import__, importlib.import_module = import_, import_module
        _posixsubprocess.fork_exec = start_process
        sys.addaudithook(self._audit)  # it can never be removed

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_own_doing:
            return
        if event in ("os.putenv", "os.unsetenv"):
            name, value = map(os.fsdecode, (*arguments, b"")[:2])
            readers = self._preloaded.readers(name).intersection(self._pending)
            if readers and os.environ.get(name) != (value if event == "os.putenv" else None):
                self._differs(name, f"{min(readers)} was imported", "has no effect")
        elif not self._has_acted:
            self._has_acted = _is_act(event, arguments)

    def _differs(self, name: str, why: str, consequence: str) -> None:
        """Start over or, if it is too late, print the consequence of ``name`` and the reason ``why``."""
        with self._unheard():
            if not self._has_acted and not _has_joined() and os.getpid() == self._pid:
                self._start_over(f"{name} comes after {why}")
            if name not in self._differing:
                self._differing.add(name)
                text = f"{name} {consequence}: {why} before the script began (run.preload, run.fork_server)"
                with contextlib.suppress(OSError):
                    os.write(
                        2, f"cloudspot: {text}; later starts on this machine are ordinary ones\n".encode()
                    )
                with contextlib.suppress(OSError):
                    self._unwanted.write_text(text)

    def _start_over(self, why: str) -> None:
        """Become the program as if started normally; return only if that fails."""
        with contextlib.suppress(Exception):  # the script may have replaced sys.stdout
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            os.write(2, f"cloudspot: {why}: this process starts over\n".encode())
        with contextlib.suppress(OSError):
            os.chdir(self._directory)
            os.execvpe(self._argv[0], list(self._argv), dict(self._environment))  # noqa: S606 - itself

    @contextlib.contextmanager
    def _unheard(self) -> Iterator[None]:
        self._is_own_doing = True
        try:
            yield
        finally:
            self._is_own_doing = False

    def _is_worth_timing(self, name: str, taken: Collection[str]) -> bool:
        there = getattr(sys.modules.get(name), "__dict__", None)
        is_there = there is not None and all(one in there for one in taken)
        is_own = self._is_timing or name.partition(".")[0] in self._own  # own modules' imports are timed
        return not is_there and not is_own and time.monotonic() < self._until

    @contextlib.contextmanager
    def _timing(self, name: str, taken: Collection[str]) -> Iterator[None]:
        self._is_timing, started, num_threads = True, time.perf_counter(), threading.active_count()
        before = dict(os.environ)
        try:
            with recording() as read:
                yield
        finally:
            self._is_timing = False
            seconds = time.perf_counter() - started
            is_alike = not differing(read.names, self._of_server, before)
            if seconds >= LEAST_SECONDS and is_alike and threading.active_count() == num_threads:
                names = [f"{name}.{one}" for one in taken if one != "*"] or [name]
                self._seconds |= dict.fromkeys(names, 0.0) | {names[0]: seconds}
                self._report()

    def _report(self) -> None:
        handoff, rank = self._environment.get(files.HANDOFF), self._environment.get("RANK", "0")
        if handoff is not None:
            with self._unheard(), contextlib.suppress(OSError):
                path = files.imports_path(Path(handoff), int(rank))
                files.write_json(path, {"seconds": self._seconds})

    def _note_import(self, name: str, taken: Iterable[str]) -> None:
        """Record an import by the script, and change the environment as the module's first import did."""
        package = name.partition(".")[0]
        origin = self._packages.get(package)
        if origin is not None:
            for companion in self._preloaded.imported_with(package):
                self._packages.pop(companion, None)
        if origin is not None and sys.path != self._path:
            specs = (finder.find_spec(package, None, None) for finder in sys.meta_path)
            first = next((spec.origin for spec in specs if spec is not None), None)
            if first is not None and os.path.realpath(first) != origin:
                what = f"{first}, now the first {package} on sys.path,"
                self._differs(what, f"{origin} was imported", "is imported all the same")
                for module in [one for one in sys.modules if one.partition(".")[0] == package]:
                    del sys.modules[module]
        pending = [one for one in self._pending if one.partition(".")[0] == package]
        names = [f"{name}.", *(f"{name}.{one}." for one in taken)] if pending else []
        for preloaded in pending:
            if not any(imported.startswith(f"{preloaded}.") for imported in names):
                continue
            with contextlib.suppress(ValueError):  # another thread was first
                self._pending.remove(preloaded)
            with self._unheard():
                for variable, value in self._preloaded.changed[preloaded].items():
                    if os.environ.get(variable) != self._environment.get(variable):
                        continue  # the script has set it
                    if value is None:
                        os.environ.pop(variable, None)
                    else:
                        os.environ[variable] = value


def _has_joined() -> bool:
    """Return whether this process has joined a process group, which opens sockets in native code."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _is_act(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether an event is an act that starting over would repeat; bytecode files do not count."""
    if event == "open":
        path, _, flags = arguments
        is_act = not isinstance(path, int) and bool((flags or 0) & _WRITES)
    else:
        path, is_act = arguments[0] if arguments else "", event.startswith(_ACTS) and event not in _LOOKS
    return is_act and not (isinstance(path, str) and _BYTECODE.search(path))
