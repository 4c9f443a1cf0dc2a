"""A process that has imported torch, from which torchrun and the training processes of a machine are forked.

Importing torch, and the modules that DistributedDataParallel imports on first use, takes seconds in each of
these processes, at every start of the training. Here this happens once per machine, while the node is still
preparing. ``fork_client`` runs in place of each program; a program that must not run here is started as
usual.

A forked program differs as little as possible from one that is started normally: it has its own arguments,
environment (also in ``/proc``), directory, streams, process group, random numbers and ``__main__``. However,
all programs on a machine share one seed of ``hash()``. The server rejects a program that would import or see
something different here: see ``_why_not``.

Between the server and each program is a watcher: a forked process that waits for the program and adopts the
processes that it leaves behind. If the server ends, the program continues, its client still learns how it
ended, and the agent finds it.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import importlib.util
import io
import os
import runpy
import select
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path

from cloudspot.host import process_keeper
from cloudspot.train import handoff
from cloudspot.train.fork_server import fork_client
from cloudspot.train.fork_server.fork_client import ANSWER, GO
from cloudspot.train.fork_server.preload_watch import LEAST_SECONDS, Watch
from cloudspot.train.fork_server.preloaded import BEFORE_TORCH, Preloaded

MARK = "CLOUDSPOT_FORK_SERVER"
"""The variable that identifies the server; its value is the path of the server's socket."""
PADDING = "CLOUDSPOT_FORK_PADDING"
"""The variable that reserves room for programs' environments; an argument reserves it for their words."""
PADDING_BYTES = 64 << 10
IMPORTED = (
    "torch",
    "torch.distributed.argparse_util",  # torchrun imports these three
    "torch.distributed.launcher.api",
    "torch.distributed.elastic.rendezvous.registry",
    "torch.nn.parallel.distributed",
    "torch.utils.data",
    "cloudspot.train.sessions.opening",  # the session
    "torch._dynamo",  # imported by each optimizer and DistributedDataParallel; as large as torch
)
"""The modules to import before the first fork: during an import, ended programs cannot be reaped."""
OF_RANKS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
"""Some of the variables that torchrun sets differently for each rank or start."""
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
_REQUEST_SECONDS = 5.0


@dataclass(frozen=True)
class Program:
    """The program that a client wants to run."""

    directory: bytes
    argv: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def module(self) -> str | None:
        """The module that ``-m`` names, or None if the program is a script."""
        _, *arguments = (argument for argument in self.argv if argument != "-u")
        return arguments[1] if arguments[0] == "-m" else None

    @property
    def arguments(self) -> list[str]:
        """The script or ``-m``, and the arguments that follow."""
        rest = list(self.argv[2:] if self.argv[1] == "-u" else self.argv[1:])
        return ["-m", *rest[2:]] if rest[0] == "-m" else rest

    @property
    def import_directory(self) -> str:
        """The directory that Python searches first for modules: the script's, or the working directory."""
        here = os.fsdecode(self.directory)
        if self.module is not None:
            return here
        return str((Path(here) / self.arguments[0]).resolve().parent)


def serve(listener: socket.socket, script: Path, names: Sequence[str]) -> Program:
    """Fork the programs that clients request, in an endless loop; in each fork, return the program to run.

    ``names`` are additional imports from the job file, and ``script`` is the job's entrypoint.

    Raises:
        ImportError: this Python has no torch.
        OSError: the kernel lacks a feature that is needed.
    """
    room = _Room()
    os.close(os.pidfd_open(os.getpid()))
    unwanted = unwanted_path(os.environ[MARK])
    environment = {name: value for name, value in os.environ.items() if name not in {MARK, PADDING}}
    # Copy the environment: libraries must not keep pointers to the memory where the programs' environments
    # are written.
    os.environ.clear()
    os.environ.update(environment)
    gc.disable()  # garbage collection would take a fifth of the imports' time
    preloaded = Preloaded()
    for name in IMPORTED:
        preloaded.add(name)
    own = _modules_in(str(script.resolve().parent))
    for name in names:
        if name.partition(".")[0] in own:
            sys.stderr.write(f"run.preload: {name} is the job's own module; each process imports it itself\n")
            continue
        try:
            preloaded.add(name)
        except Exception as error:  # the script will report it
            sys.stderr.write(f"run.preload: {name} cannot be imported: {error!r}\n")
    gc.collect()
    gc.freeze()  # so that garbage collection in the programs does not copy shared pages
    gc.enable()
    watchers = _Watchers(listener)
    while True:
        for connection in watchers.wait():
            asked = _receive(connection)
            why_not = _why_not(asked[0], environment, room, preloaded) if asked else ""
            if asked is None or why_not:
                sys.stderr.write(f"not forked: {' '.join(asked[0].argv)}: {why_not}\n" if asked else "")
            elif (pid := _fork()) > 0:
                watchers.add(pid)
            elif pid == 0:
                watchers.forget()
                _watch(*asked, connection, room)  # returns in another forked process
                is_wanted = False
                _become(*asked, room)
                with contextlib.suppress(OSError):
                    is_wanted = connection.recv(1) == GO
                if not is_wanted:
                    os._exit(1)
                connection.close()
                if asked[0].module is None:
                    own = _modules_in(asked[0].import_directory)
                    Watch(asked[0].argv, asked[0].environment, preloaded, environment, own, unwanted).begin()
                return asked[0]
            connection.close()
            for stream in asked[1] if asked else ():
                os.close(stream)


def measure(names: Sequence[str]) -> dict[str, float]:
    """Import the usual modules and ``names``; return the seconds that ``run.preload`` would save, by name.

    Raises:
        ImportError: this Python has no torch.
    """
    preloaded, seconds = Preloaded(), {}
    for name in IMPORTED:
        preloaded.add(name)
    for name in names:
        started, num_threads = time.perf_counter(), threading.active_count()
        with contextlib.suppress(Exception):
            preloaded.add(name)
            took = time.perf_counter() - started
            differs = any(name in preloaded.readers(variable) for variable in OF_RANKS)
            if took >= LEAST_SECONDS and not differs and threading.active_count() == num_threads:
                seconds[name] = took
    return seconds


def unwanted_path(path: str) -> Path:
    """Return the path of the file that states why later starts must not use the server at this socket."""
    return Path(f"{path}.unwanted")


class _Watchers:
    """The forked processes, each of which watches one program."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._waits = selectors.DefaultSelector()
        self._waits.register(listener, selectors.EVENT_READ)

    def add(self, pid: int) -> None:
        """Watch the process, and reap it when it ends."""
        self._waits.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)

    def wait(self) -> list[socket.socket]:
        """Wait for an event; return the connections of new clients."""
        connections = []
        for key, _ in self._waits.select():
            if key.fileobj is self._listener:
                connections.append(self._listener.accept()[0])
            else:
                self._waits.unregister(key.fd)
                os.close(key.fd)
                os.waitpid(key.data, 0)
        return connections

    def forget(self) -> None:
        """Close all files; called in a forked process."""
        for key in self._waits.get_map().values():
            if key.fileobj is not self._listener:
                os.close(key.fd)
        self._waits.close()
        self._listener.close()


def _watch(program: Program, streams: Sequence[int], client: socket.socket, room: _Room) -> None:
    """Fork the program and return in it; in this process, wait, report to the client how it ended, and exit.

    Only a program's parent learns its exit status. If the server were that parent, no program could outlive
    the server.
    """
    os.setpgid(0, 0)  # so that the program signals no other process, and can begin its own session
    # These words make this process one of the generation's, and a launcher in a search for its scripts.
    argv = (program.argv[0], os.path.realpath(fork_client.__file__), *program.argv)
    room.show(replace(program, argv=argv))
    records = f"{program.environment.get(handoff.HANDOFF, '')}/{handoff.PROCESSES}"
    process_keeper.adopt_orphans()
    process_keeper.join_group(records)
    pid = _fork()
    if pid == 0:
        return
    for stream in streams:
        os.close(stream)
    if pid > 0:
        for number in fork_client.FORWARDED:  # at a machine's shutdown, the program also gets these signals
            signal.signal(number, signal.SIG_IGN)
        if handoff.HANDOFF in program.environment:  # recorded before the program begins
            process_keeper.record(records, process_keeper.WATCHER)
        pidfd = os.pidfd_open(pid)
        waits: list[socket.socket | int] = [client, pidfd]
        with contextlib.suppress(OSError):
            client.sendall(ANSWER % pid)
        while pidfd not in (ready := select.select(waits, [], [])[0]):
            if client in ready and _has_ended(client):  # then the program must end too
                waits = [pidfd]
                os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError):
            client.sendall(ANSWER % (code if code >= 0 else 128 - code))
        client.close()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()  # reap the processes left behind by the program
    os._exit(0)


def _receive(connection: socket.socket) -> tuple[Program, Sequence[int]] | None:
    """Return the request and the three streams that came with it, or None if the client has disconnected."""
    connection.settimeout(_REQUEST_SECONDS)
    streams: list[int] = []
    try:
        length, streams, _, _ = socket.recv_fds(connection, 4, 3)
        rest = int.from_bytes(length, "big")
        parts = []
        while rest > 0 and (part := connection.recv(min(rest, 1 << 16))):
            parts.append(part)
            rest -= len(part)
        if rest > 0:
            raise ConnectionError
        connection.setblocking(True)
        if _has_ended(connection):  # the client ended while its request waited
            raise ConnectionError
    except OSError:
        for stream in streams:
            os.close(stream)
        return None
    directory, number, *strings = b"".join(parts).split(b"\0")
    argv, variables = strings[: int(number)], strings[int(number) :]
    pairs = (os.fsdecode(one).partition("=") for one in variables)
    environment = {name: value for name, _, value in pairs}
    return Program(directory, tuple(map(os.fsdecode, argv)), environment), streams


def _has_ended(client: socket.socket) -> bool:
    """Return immediately whether the client has closed its end of the socket."""
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:  # no data, or the program has already read it
        return False
    except OSError:
        return True


def _why_not(program: Program, environment: Mapping[str, str], room: _Room, preloaded: Preloaded) -> str:
    """Return why the program must not be forked from this server, or an empty string if it may be."""
    why_not = preloaded.why_not(environment, program.environment)
    if why_not:
        return why_not
    if program.directory != os.fsencode(Path.cwd()):
        return "it starts in another directory"
    if not room.holds(program):
        return "its environment is too large"
    opened = (os.path.realpath(one) for one in Path("/proc/self/fd").iterdir())
    device = next((one for one in opened if one.startswith(_DEVICES)), None)
    if device:
        return f"{device} is in use here, and a forked process could not use it"
    if threading.active_count() > 1:
        return f"one of the imports has started a thread, which a fork lacks: {', '.join(preloaded.names)}"
    if program.module is None and importlib.util.find_spec(BEFORE_TORCH) is not None:
        return f"{BEFORE_TORCH} is installed, and has to be imported before torch"
    shadowed = _modules_in(program.import_directory) & sys.modules.keys()
    return f"it has its own {min(shadowed)}, but another one was imported here" if shadowed else ""


def _modules_in(directory: str) -> set[str]:
    """Return the names of the modules that a program could import from its own directory."""
    modules = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            name, dot, ending = entry.name.partition(".")
            is_package = not dot and os.path.exists(os.path.join(entry.path, "__init__.py"))  # noqa: PTH110, PTH118
            if is_package or ending.endswith(("py", "pyc", "so")):
                modules.add(name)
    return modules


def _fork() -> int:
    """Return the id of the forked process, 0 in that process, or -1 if the fork fails."""
    with warnings.catch_warnings():  # Python warns of threads, but OpenBLAS ends its own for a fork
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except OSError as error:
            sys.stderr.write(f"not forked: {error}\n")
            return -1


def _become(program: Program, streams: Sequence[int], room: _Room) -> None:
    """Make this forked process look as if it had been started to run the program."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(program.directory)
    os.environ.clear()
    os.environ.update(program.environment)
    room.show(program)
    sys.argv = program.arguments
    sys.orig_argv = list(program.argv)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, program.import_directory)
    importlib.invalidate_caches()
    # Each process draws its own seeds when it starts; ``random`` takes care of this itself.
    sys.modules["torch"].default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "datasets.fingerprint" in sys.modules:  # names of its cache files must differ between processes
        generator = getattr(sys.modules["datasets.fingerprint"], "fingerprint_rng", None)
        if generator is not None:
            generator.seed()


def run(program: Program) -> None:
    """Run the program in this process as Python would run it."""
    if program.module is not None:
        runpy.run_module(program.module, run_name="__main__", alter_sys=True)
        return
    path = os.path.abspath(program.arguments[0])  # noqa: PTH100 - Python itself follows no links here
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __annotations__={},
        __builtins__=builtins,
        __cached__=None,
        __file__=path,
        __loader__=SourceFileLoader("__main__", path),
    )
    sys.modules["__main__"] = main
    try:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, main.__dict__)  # noqa: S102 - the program that was asked for
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this frame
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            atexit._run_exitfuncs()  # noqa: SLF001 - as Python does before it ends by SIGINT
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit(1)


class _Room:
    """The memory from which the kernel shows this process's arguments and environment: proc(5), ``stat``."""

    def __init__(self) -> None:
        """Find the memory; raise OSError if it is not writable."""
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        self._argv = range(int(fields[45]), int(fields[46]))
        self._environment = range(int(fields[47]), int(fields[48]))
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
            memory.seek(self._argv.start)
            first = memory.read(1)
            memory.seek(self._argv.start)
            memory.write(first)

    def holds(self, program: Program) -> bool:
        """Return whether the program's environment fits."""
        return len(_joined(program)) <= len(self._environment)

    def show(self, program: Program) -> None:
        """Make the kernel show the program's words and environment as this process's own."""
        argv = b"\0".join(map(os.fsencode, program.argv))[: len(self._argv) - 1] + b"\0"
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
            for place, data in ((self._argv, argv), (self._environment, _joined(program))):
                memory.seek(place.start)
                memory.write(data.ljust(len(place), b"\0"))


def _joined(program: Program) -> bytes:
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in program.environment.items())


def main() -> None:
    """Serve at the socket passed as standard input.

    The arguments are the path of the script and a single string with the additional imports, separated by
    spaces.
    """
    try:
        forked = serve(socket.socket(fileno=sys.stdin.fileno()), Path(sys.argv[1]), sys.argv[2].split())
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    run(forked)
