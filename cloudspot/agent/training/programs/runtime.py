"""The runtime of the job's setup and training: the machine itself, or a container."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cloudspot.agent.node import Node
from cloudspot.agent.training.programs.interpreter import with_interpreter
from cloudspot.errors import CloudspotError


class RuntimeLost(CloudspotError):
    """No program can be run here any more, but another machine may succeed."""


class KeptSetupLost(CloudspotError):
    """The machine's image lacks the setup that ``keep`` stored, so the setup must be run."""


class Command(NamedTuple):
    """The command to start on the machine in order to run one of the job's programs."""

    argv: list[str]
    environment: dict[str, str]
    """The whole environment."""


class Runtime:
    """The machine itself; programs see its files and the agent's environment."""

    inherits_files = True
    """Whether a program inherits the standard input of the command that starts it."""

    def __init__(self, node: Node, python: str) -> None:
        """Create it; ``python`` is the training's interpreter, as a path or a name to look up on PATH."""
        self.node = node
        self.python = python

    @property
    def keeper_python(self) -> str:
        """The interpreter for the agent's scripts that start the job's programs; it may not exist."""
        return sys.executable if self.inherits_files else self.python

    @property
    def inherited(self) -> Mapping[str, str]:
        """Return the variables that programs have before the job's variables are added."""
        return os.environ

    def start(self, *, setup_is_done: bool, kept: str | None = None, check: Callable[[], None]) -> None:
        """Start the runtime; ``check`` is called repeatedly and raises to end the wait.

        ``kept`` is the key of the job's setup if this machine's image has it.

        Raises:
            KeptSetupLost: the ``kept`` setup is missing.
            CloudspotError: the runtime cannot start, or it no longer has the setup's changes.
        """

    def stop(self) -> None:
        """End all processes that ``start`` has started; it is safe to repeat the call."""

    def keep(self, key: str) -> None:
        """Store the setup's changes on the disk, where ``start`` on another machine finds them, and end.

        Raises:
            CloudspotError: the changes cannot be stored.
        """

    def with_programs(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with the training's ``python`` and ``pip``."""
        return with_interpreter(environment, self.python, self.node)

    def command(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        log: Path | None = None,
        ended: Path | None = None,
        has_input: bool = False,
    ) -> Command:
        """Return the command that runs a program with this environment in the working directory.

        The program writes to the log, which the caller must also use as the command's output. If
        ``has_input`` is True, the program reads the command's standard input. The program does not start if
        the file ``ended`` exists.
        """
        return Command([*argv], {**environment})

    def probe(self, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a short program; return its exit status.

        Raises:
            OSError: the program cannot be run.
            RuntimeLost: no program can be run any more.
        """
        return subprocess.run(argv, env=dict(environment), cwd=self.node.work, check=False).returncode

    def has_program(self, program: str, environment: Mapping[str, str]) -> bool:
        """Return whether the program, given as a path or a name on PATH, exists and is executable.

        RuntimeLost: no program can be run any more.
        """
        return shutil.which(program, path=environment.get("PATH")) is not None
