"""The container of a job with an image; each machine has one container, in which setup and training run.

It shares the machine's network, processes and memory, and contains the node's directories at the same paths.
Therefore ranks connect, notices arrive and checkpoints are uploaded as without a container, and the agent
recognizes processes in it by the same marks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cloudspot.agent.node import Node
from cloudspot.agent.training.programs.interpreter import PROGRAMS
from cloudspot.agent.training.programs.runtime import Command, KeptSetupLost, Runtime, RuntimeLost
from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.host.bounded_reads import read_end
from cloudspot.host.job_containers import (
    ENGINE_SECONDS,
    ENGINES,
    PREFIX,
    engine_environment,
    forget_container,
    record_container,
    user_home,
)
from cloudspot.host.partial_files import write_whole
from cloudspot.host.private_directories import make_private
from cloudspot.jobfile.image import HUB, image_parts, login_key
from cloudspot.jobfile.spec import JobSpec
from cloudspot.model import RegistryLogin

_log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""How long to wait for an engine, which may start at the same time as the agent."""
NUM_PULLS = 4
PULL_WAIT_SECONDS = 5.0
"""The wait before the second pull; it doubles with each further pull."""
_PRIVATE = "engine-"
"""The prefix of directories that contain a login or variables for an engine."""
_REFUSED = re.compile(
    r"unauthorized|authentication required|no basic auth|(?<!permission )denied", re.IGNORECASE
)
"""The errors of registries that require a different login, as engines report them."""
ERRORS_BYTES = 64 << 10
"""The number of bytes that are read at the end of an engine's error output."""
LOOK_SECONDS = 0.1
_KEPT = "localhost/cloudspot-setup:"
"""The name of an image that contains a finished setup; its tag is the setup's key."""
COMMIT_SECONDS = 1800.0
"""The time limit for copying the setup's changes."""
_GPU_SIGNS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"))
_GPU_OPTIONS = {"docker": ("--gpus", "all"), "podman": ("--device", "nvidia.com/gpu=all")}
# If the engine is stopped, as at the machine's shutdown, the training must still be able to save.
_WAIT = 'trap "" TERM; while :; do sleep 86400 & wait $!; done'
_STOP_SECONDS = 3600
_LIMITS = {
    "nofile": (resource.RLIMIT_NOFILE, 1048576),
    "nproc": (resource.RLIMIT_NPROC, 32768),
    "memlock": (resource.RLIMIT_MEMLOCK, None),
}
"""The agent's own limits are set, up to these values, because the engines' defaults need a privilege."""
_OF_ENGINES = re.compile(
    r"HOME|PATH|TMPDIR|GO[A-Z]+|(DOCKER|XDG|CONTAINERS?|REGISTRY|LD|SSL|HTTPS?|NO)_\w*", re.IGNORECASE
)
"""Variables that engines read themselves: an engine keeps its own values, and the program's values are passed
under other names."""
_RENAMED = f"{PREFIX}RENAMED_"
# The program writes to the log directly, because output through the engine could be lost at the end. If the
# agent has already abandoned the start, a slow engine must not start the program later.
_BEGIN = (
    'log=$0 ended=$1 programs=$2 path=$3; shift 3; [ ! -e "$ended" ] || exit 137; '
    'PATH="$programs:$PATH" PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}"; export PATH PYTHONPATH; '
    '[ -z "$log" ] || exec >> "$log" 2>&1; exec "$@"'
)
_HAS_PROGRAM = 'case "$0" in */*) [ -f "$0" ] && [ -x "$0" ];; *) command -v "$0";; esac || exit 9'
_ANSWERS = (0, 9, 126, 127)
"""The exit statuses of a probe that ran: yes, no, and a shell's statuses if it cannot start the program."""


def runtime_of(
    node: Node, spec: JobSpec, find_login: Callable[[str], RegistryLogin | None] = lambda _: None
) -> Runtime:
    """Return the job's runtime on the node; ``find_login`` returns the login for a registry's host."""
    run = spec.run
    if run.image is None:
        return Runtime(node, run.python or node.train_python)
    return Container(node, run.python or "python3", run.image, find_login)


class Container(Runtime):
    """The container of this node."""

    inherits_files = False

    def __init__(
        self,
        node: Node,
        python: str,
        image: str,
        find_login: Callable[[str], RegistryLogin | None] = lambda _: None,
    ) -> None:
        super().__init__(node, python)
        self._find_login = find_login
        self._image = _full_name(image)
        self._shown = self._image[:-52]
        """The image's name with the first digits of its digest."""
        tag = hashlib.sha256(str(node.directory).encode()).hexdigest()[:12]
        self._name = f"cloudspot-{node.job_id}-{tag}"
        self._engine = ""

    @property
    def inherited(self) -> Mapping[str, str]:
        return {}

    def start(self, *, setup_is_done: bool, kept: str | None = None, check: Callable[[], None]) -> None:
        for left in self.node.arena.glob(f"{_PRIVATE}*"):  # left by a killed agent
            shutil.rmtree(left, ignore_errors=True)
        engines = [self._engine] if self._engine else _wait_for_engines(check)
        for self._engine in engines:
            if self._ask("inspect", "--format", "{{.State.Running}}", self._name) == "true":
                return  # this agent or an earlier one has started it
        image = self._image
        if setup_is_done:
            if kept is None:
                raise CloudspotError(
                    "the job's container has ended, so the changes that its setup made are lost"
                )
            image = _KEPT + kept
        for self._engine in engines:
            if self._ask("image", "inspect", "--format", "{{.Id}}", image) is not None:
                break
        else:
            if setup_is_done:
                raise KeptSetupLost("the container in which the setup was run no longer exists")
            self._engine = engines[0]
            self._pull(check)
        self.stop()
        record_container(self.node.directory, self._engine, self._name)
        _log.info("starting the container of %s", self._shown)
        # The engine's background processes outlive the machine's marked processes, so the engine's
        # environment must not contain the variables. Its command line must not contain them either, because
        # every user of the machine can read it.
        with tempfile.TemporaryDirectory(prefix=_PRIVATE, dir=self.node.arena) as directory:
            variables = Path(directory, "variables")
            variables.touch(mode=0o600)
            given = [*_inherited_lines()]
            variables.write_text("".join(f"{one}\n" for one in given), encoding="utf-8")
            done = self._run([*self._start_arguments(image, variables)])
        if done.returncode != 0:
            raise CloudspotError(f"the container of {self._shown} did not start: {_last_line(done.stderr)}")
        # podman 4.7.0 cuts values at "#" (github.com/containers/podman/issues/20255); docker keeps all
        # quotes.
        taken = self._ask("inspect", "--format", "{{json .Config.Env}}", self._name)
        changed = {*given} - {*json.loads(taken)} if taken else ()
        if changed:
            self.stop()
            names = ", ".join(sorted(one.partition("=")[0] for one in changed))
            engine = Path(self._engine).name
            raise CloudspotError(
                f"run.image: {engine} changes the value of {names}; use another version of {engine}"
            )

    def stop(self) -> None:
        if not self._engine:
            return
        # The container ignores SIGTERM, and podman's `rm` would wait for its end.
        self._run(["kill", "--signal", "KILL", self._name])
        self._run(["rm", "--force", "--volumes", self._name])
        if self._ask("inspect", "--format", "{{.Id}}", self._name) is not None:
            _log.warning("the container %s could not be removed", self._name)
        else:
            forget_container(self.node.directory)

    def keep(self, key: str) -> None:
        # podman does not report the volumes of a container, only those of an image.
        volumes = self._ask("image", "inspect", "--format", "{{json .Config.Volumes}}", self._image)
        if volumes not in {"null", "{}", ""}:
            raise CloudspotError(
                f"{self._shown} declares volumes ({volumes}), which are not kept in a machine's image; "
                "build it without volumes, or run the setup on each machine"
            )
        done = _run([self._engine, "commit", self._name, _KEPT + key], seconds=COMMIT_SECONDS)
        if done.returncode != 0:
            raise CloudspotError(f"the job's container cannot be kept: {_last_line(done.stderr)}")
        self.stop()

    def with_programs(self, environment: Mapping[str, str]) -> dict[str, str]:
        self.node.programs.mkdir(exist_ok=True)
        if self.python not in PROGRAMS:
            python = str(self.node.work / self.python) if "/" in self.python else self.python
            for name, options in PROGRAMS.items():
                write_whole(self.node.programs / name, self._wrapper(name, python, options), mode=0o755)
        return {**environment}

    def command(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        log: Path | None = None,
        ended: Path | None = None,
        has_input: bool = False,
    ) -> Command:
        """Keep values out of the command line, which every user of the machine can read."""
        node, named, own, renames = self.node, list[str](), {**os.environ, "HOME": user_home()}, ""
        for name, value in environment.items():
            if name == "PYTHONPATH":
                continue
            passed = name
            if _OF_ENGINES.fullmatch(name) is not None:
                passed = _RENAMED + name
                renames += f'export {name}="${passed}"; unset {passed}; '
            named += ("--env", passed)
            own[passed] = value
        begin = ("/bin/sh", "-c", renames + _BEGIN, str(log or ""), str(ended or ""), str(node.programs))
        path = environment.get("PYTHONPATH", str(node.python_path))
        interactive = ("--interactive",) if has_input else ()
        start = (self._engine, "exec", *interactive, "--workdir", str(node.work), *named, self._name)
        return Command([*start, *begin, path, *argv], own)

    def has_program(self, program: str, environment: Mapping[str, str]) -> bool:
        return self.probe(["/bin/sh", "-c", _HAS_PROGRAM, program], environment) == 0

    def probe(self, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        argv, variables = self.command(argv, environment)
        try:
            done = subprocess.run(
                argv, env=variables, capture_output=True, text=True, timeout=ENGINE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeLost(f"the job's container has not answered for {ENGINE_SECONDS:.0f} s") from error
        if done.returncode not in _ANSWERS:
            raise RuntimeLost(f"nothing can be run in the job's container: {_last_line(done.stderr)}")
        return done.returncode

    def _wrapper(self, name: str, python: str, options: str) -> bytes:
        """Return a script that runs the training's interpreter or, until that exists, the image's."""
        python, programs = shlex.quote(python), shlex.quote(f"{self.node.programs}:")
        return (
            f'#!/bin/sh\nif command -v {python} >/dev/null; then exec {python}{options} "$@"; fi\n'
            f'PATH=${{PATH#{programs}}}; exec {name} "$@"\n'
        ).encode()

    def _start_arguments(self, image: str, variables: Path) -> Iterator[str]:
        yield from ("run", "--detach", "--rm", "--name", self._name, "--pull=never")
        yield from ("--network=host", "--pid=host", "--ipc=host", "--security-opt", "label=disable")
        yield from ("--pids-limit=-1", "--stop-timeout", str(_STOP_SECONDS))
        # In a rootless podman, root is the user; in docker, it is real root, whose files the agent cannot
        # remove.
        is_podman = Path(self._engine).name == "podman"
        yield from ("--user", "0:0" if is_podman else f"{os.getuid()}:{os.getgid()}")
        for name, (number, most) in _LIMITS.items():
            soft, hard = (
                limit if most is None or 0 <= limit < most else most for limit in resource.getrlimit(number)
            )
            yield from ("--ulimit", f"{name}={soft}:{hard}")
        if any(sign.exists() for sign in _GPU_SIGNS):
            yield from _GPU_OPTIONS[Path(self._engine).name]
        for path, options in self._mounts():
            yield from ("--volume", f"{path}:{path}{options}")
        yield from ("--env-file", str(variables))
        yield from ("--workdir", str(self.node.work), "--entrypoint", "/bin/sh", image, "-c", _WAIT)

    def _mounts(self) -> Iterator[tuple[Path, str]]:
        node = self.node
        yield node.directory, ""
        yield node.arena, ""
        make_private(node.data_cache)
        if node.directory not in node.data_cache.parents:
            yield node.data_cache, ""
        for package in node.python_path.iterdir():
            yield package.resolve(), ":ro"

    def _pull(self, check: Callable[[], None]) -> None:
        registry, name, _ = image_parts(self._image)
        for number in range(NUM_PULLS):
            _log.info("pulling %s", self._shown)
            login, fault = None, None
            try:
                login = self._find_login(registry)  # again, because the login may have expired
            except CloudspotError as error:
                fault = error
            with (
                tempfile.NamedTemporaryFile() as errors,  # a pipe that nobody reads would fill up
                self._pull_command(registry, login) as command,
                subprocess.Popen(
                    [*command, "--quiet", self._image],
                    env=engine_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                ) as process,
            ):
                try:
                    while process.poll() is None:
                        check()
                        time.sleep(LOOK_SECONDS)
                except BaseException:
                    process.kill()
                    raise
                errors_text = read_end(Path(errors.name), ERRORS_BYTES).decode(errors="replace")
            if process.returncode == 0:
                return
            why = _last_line(errors_text) + (f"; {fault}" if fault else "")
            _log.warning("the pull of %s failed: %s", self._shown, why)
            if number + 1 < NUM_PULLS:
                _pause(PULL_WAIT_SECONDS * 2**number, check)
        if (
            isinstance(fault, TransientError)
            or _REFUSED.search(errors_text.replace(name.partition("@")[0], "")) is None
        ):
            raise CloudspotError(f"{self._shown} cannot be pulled: {why}")
        refusal = "requires a login, such as run.image_login" if login is None else f"refuses {login.origin}"
        raise AuthError(f"{self._shown} cannot be pulled: {registry} {refusal}: {why}")

    @contextmanager
    def _pull_command(self, registry: str, login: RegistryLogin | None) -> Iterator[list[str]]:
        """Provide the first words of the pull command, with the login or, without one, the engine's own.

        The login is in a separate file in memory, because an image of the machine's disk must not contain
        it.
        """
        if login is None:
            yield [self._engine, "pull"]
            return
        with tempfile.TemporaryDirectory(prefix=_PRIVATE, dir=self.node.arena) as directory:
            path = Path(directory, "config.json")
            path.touch(mode=0o600)
            path.write_text(json.dumps({"auths": {login_key(registry): {"auth": login.basic}}}))
            if Path(self._engine).name == "podman":
                yield [self._engine, "pull", "--authfile", str(path)]
                return
            # The user's configuration may select a different engine from the default.
            host = self._ask("context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
            where = ("--host", host) if host else ()
            yield [self._engine, "--config", directory, *where, "pull"]

    def _ask(self, *arguments: str) -> str | None:
        """Return the engine's output, or None if the command fails because the object does not exist."""
        done = self._run(arguments)
        return done.stdout.strip() if done.returncode == 0 else None

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return _run([self._engine, *arguments])


def _full_name(image: str) -> str:
    """Return the image's name with its registry, which podman does not guess, and without a tag."""
    name, _, digest = image.partition("@")
    registry, path, _ = image_parts(name)
    return f"{'docker.io' if registry == HUB else registry}/{path}@{digest}"


def _wait_for_engines(check: Callable[[], None]) -> list[str]:
    """Return the paths of the engines that work, waiting until at least one does."""
    if sys.platform != "linux":
        raise CloudspotError("run.image needs machines with Linux")
    end = time.monotonic() + START_SECONDS
    while True:
        found, problems = [], ""
        for name in ENGINES:
            path = shutil.which(name)
            if path is None:
                continue
            try:
                done = _run([path, "info"])
            except CloudspotError as error:
                problems += f"; {error}"
                continue
            if done.returncode == 0:
                found.append(path)
            else:
                problems += f"; {name}: {_last_line(done.stderr)}"
        if found:
            return found
        if not problems or time.monotonic() > end:
            raise CloudspotError(
                f"run.image needs docker or podman on the machine, but neither works{problems}"
            )
        _pause(1.0, check)


def _pause(seconds: float, check: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        check()
        time.sleep(LOOK_SECONDS)


def _inherited_lines() -> Iterator[str]:
    """Yield one line of the engine's variables file for each of cloudspot's variables in this process.

    Raises:
        CloudspotError: the file format cannot represent one of the variables.
    """
    for name, value in os.environ.items():
        if name.startswith(PREFIX):
            if "\n" in value or "\r" in value:
                raise CloudspotError(f"run.image: the machine's variable {name} has more than one line")
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise CloudspotError(f"run.image: the machine's variable {name} is not UTF-8") from error
            yield f"{name}={value}"


def _run(command: Sequence[str], *, seconds: float = ENGINE_SECONDS) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=engine_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CloudspotError(f"{command[0]} {command[1]} took longer than {seconds:.0f} s") from error


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it says nothing"
