"""The container of a job that names an image: one on each machine, in which setup and training run.

It shares the machine's network, processes and memory, and sees the node's directories under their own names.
So ranks meet, notices arrive and checkpoints leave as they do without it, and the agent knows its processes
by the same marks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pwd
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cloudspot.agent.node import Node
from cloudspot.agent.training.runtime import Command, Runtime
from cloudspot.errors import CloudspotError
from cloudspot.jobfile.spec import JobSpec

_log = logging.getLogger(__name__)

ENGINES = ("docker", "podman")
"""The programs that can run it, in the order in which they are tried."""
NUM_PULLS = 4
PULL_WAIT_SECONDS = 5.0
"""Before the second pull; twice as long before each further one."""
LOOK_SECONDS = 0.1
ENGINE_SECONDS = 60.0
"""How long the engine may take for what needs no network."""
_GPU_DEVICE = Path("/dev/nvidiactl")
_GPU_OPTIONS = {"docker": ("--gpus", "all"), "podman": ("--device", "nvidia.com/gpu=all")}
_WAIT = 'trap "exit 0" TERM; while :; do sleep 86400 & wait $!; done'
_LIMITS = {
    "nofile": (resource.RLIMIT_NOFILE, 1048576),
    "nproc": (resource.RLIMIT_NPROC, 32768),
    "memlock": (resource.RLIMIT_MEMLOCK, None),
}
"""The agent's own limits are set, up to these: what engines set by themselves needs a privilege."""
_PREFIX = "CLOUDSPOT_"


def runtime_of(node: Node, spec: JobSpec) -> Runtime:
    """Return where the programs of the job run on the node."""
    run = spec.run
    if run.image is None:
        return Runtime(node, run.python or node.train_python)
    paths = (one.path_or_default(name) for name, one in spec.data.items() if one.is_staged)
    return Container(node, run.python or "python3", run.image, [path for path in paths if path[0] == "/"])


class Container(Runtime):
    """The container of this node."""

    can_fork = False

    def __init__(self, node: Node, python: str, image: str, data_paths: Iterable[str] = ()) -> None:
        """``image`` has a digest. ``data_paths`` are the absolute paths at which inputs are to be found."""
        super().__init__(node, python)
        self._image = re.sub(":[^/:@]*@", "@", image)  # podman 4 takes no tag beside a digest
        self._data_paths = [*data_paths]
        self._shown = self._image[:-52]
        """With the first digits of its digest."""
        tag = hashlib.sha256(str(node.directory).encode()).hexdigest()[:12]
        self._name = f"cloudspot-{node.job_id}-{tag}"
        self._engine = ""

    @property
    def inherited(self) -> Mapping[str, str]:
        return {}

    def start(self, *, setup_is_done: bool, check: Callable[[], None]) -> None:
        self._engine = _find_engine()
        if self._ask("inspect", "--format", "{{.State.Running}}", self._name) == "true":
            return  # an earlier agent of this machine has started it
        if setup_is_done:
            raise CloudspotError("the job's container has ended, and with it what its setup had changed")
        self.stop()
        if self._ask("image", "inspect", "--format", "{{.Id}}", self._image) is None:
            self._pull(check)
        _log.info("starting the container of %s", self._shown)
        done = self._run([*self._start_words()])
        if done.returncode != 0:
            raise CloudspotError(f"the container of {self._shown} does not start: {_last_line(done.stderr)}")

    def stop(self) -> None:
        if self._engine:
            self._run(["rm", "--force", self._name])

    def with_programs(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {**environment}

    def command(self, words: Sequence[str], environment: Mapping[str, str]) -> Command:
        """Values stay out of the command line, which every user of the machine can read.

        The engine has to keep its own HOME and PATH, so what differs from the agent's is the exception.
        """
        named = [
            name if name != "HOME" and os.environ.get(name, value) == value else f"{name}={value}"
            for name, value in environment.items()
        ]
        options = [word for one in named for word in ("--env", one)]
        start = [self._engine, "exec", "--workdir", str(self.node.work), *options, self._name]
        return Command([*start, *words], {**environment, **os.environ, "HOME": _home()})

    def has_program(self, program: str, environment: Mapping[str, str]) -> bool:
        words, variables = self.command(["/bin/sh", "-c", 'command -v "$0"', program], environment)
        return subprocess.run(words, env=variables, capture_output=True, check=False).returncode == 0

    def _start_words(self) -> Iterator[str]:
        yield from ("run", "--detach", "--rm", "--name", self._name, "--pull=never")
        yield from ("--network=host", "--pid=host", "--ipc=host", "--security-opt", "label=disable")
        # A rootless podman's root is the user; docker's is root, and the agent could not remove its files.
        is_podman = Path(self._engine).name == "podman"
        yield from ("--user", "0:0" if is_podman else f"{os.getuid()}:{os.getgid()}")
        for name, (number, most) in _LIMITS.items():
            soft, hard = (
                limit if most is None or 0 <= limit < most else most for limit in resource.getrlimit(number)
            )
            yield from ("--ulimit", f"{name}={soft}:{hard}")
        if _GPU_DEVICE.exists():
            yield from _GPU_OPTIONS[Path(self._engine).name]
        for path, options in self._mounts():
            yield from ("--volume", f"{path}:{path}{options}")
        for name, value in os.environ.items():
            if name.startswith(_PREFIX):
                yield from ("--env", f"{name}={value}")
        yield from ("--workdir", str(self.node.work), "--entrypoint", "/bin/sh", self._image, "-c", _WAIT)

    def _mounts(self) -> Iterator[tuple[Path, str]]:
        node = self.node
        yield node.directory, ""
        yield node.arena, ""
        node.data_cache.mkdir(parents=True, exist_ok=True)
        if node.directory not in node.data_cache.parents:
            yield node.data_cache, ""
        for package in node.python_path.iterdir():
            yield package.resolve(), ":ro"
        for parent in {Path(path).parent for path in self._data_paths}:
            parent.mkdir(parents=True, exist_ok=True)
            yield parent, ""

    def _pull(self, check: Callable[[], None]) -> None:
        for number in range(NUM_PULLS):
            _log.info("pulling %s", self._shown)
            with subprocess.Popen(
                [self._engine, "pull", "--quiet", self._image],
                env=_own_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                try:
                    while process.poll() is None:
                        check()
                        time.sleep(LOOK_SECONDS)
                except BaseException:
                    process.kill()
                    raise
                _, said = process.communicate()
            if process.returncode == 0:
                return
            _log.warning("the pull of %s failed: %s", self._shown, _last_line(said))
            if number + 1 < NUM_PULLS:
                again_at = time.monotonic() + PULL_WAIT_SECONDS * 2**number
                while time.monotonic() < again_at:
                    check()
                    time.sleep(LOOK_SECONDS)
        raise CloudspotError(f"{self._shown} cannot be pulled: {_last_line(said)}")

    def _ask(self, *words: str) -> str | None:
        """Return what the engine prints; None: it fails, since what it is asked about is not there."""
        done = self._run(words)
        return done.stdout.strip() if done.returncode == 0 else None

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return _run([self._engine, *words])


def _find_engine() -> str:
    said = ""
    for name in ENGINES:
        path = shutil.which(name)
        if path is None:
            continue
        done = _run([path, "info"])
        if done.returncode == 0:
            return path
        said += f"; {name}: {_last_line(done.stderr)}"
    raise CloudspotError(f"run.image needs docker or podman on the machine, and neither works{said}")


def _home() -> str:
    """Return the user's own directory, where engines keep images and log-ins; a local machine has another."""
    return pwd.getpwuid(os.getuid()).pw_dir


def _own_environment() -> dict[str, str]:
    """Return the environment of the engine.

    What it leaves running looks after the container, and must outlive the machine's marked processes.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}
    return {**own, "HOME": _home()}


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words,
            env=_own_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ENGINE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CloudspotError(f"{words[0]} {words[1]} takes longer than {ENGINE_SECONDS:.0f} s") from error


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it says nothing"
