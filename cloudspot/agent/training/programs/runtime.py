"""Where the job's programs run, setup and training alike: on the machine itself, or in a container."""

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
    """No program can be run here any more; another machine may do."""


class KeptSetupLost(CloudspotError):
    """The machine's image lacks what ``keep`` has left: the setup has to run."""


class Command(NamedTuple):
    """What is started on the machine to run a program of the job."""

    words: list[str]
    environment: dict[str, str]
    """The whole of it."""


class Runtime:
    """The machine itself; the programs see its files and the agent's environment."""

    inherits_files = True
    """Whether a program has the standard input with which it is started."""

    def __init__(self, node: Node, python: str) -> None:
        """``python`` is the training's interpreter: a path, or a name that is looked up on PATH."""
        self.node = node
        self.python = python

    @property
    def keeper_python(self) -> str:
        """Return the interpreter, if it is there, for scripts of ours that start the job's programs."""
        return sys.executable if self.inherits_files else self.python

    @property
    def inherited(self) -> Mapping[str, str]:
        """Return the variables that programs have before the job adds its own."""
        return os.environ

    def start(self, *, setup_is_done: bool, kept: str | None = None, check: Callable[[], None]) -> None:
        """Have it ready for programs; ``check`` is asked all the while, and raises what ends the wait.

        ``kept`` is the key of the setup that this machine's image holds, if that is the job's.

        Raises:
            KeptSetupLost: what is ``kept`` is not there.
            CloudspotError: it cannot be had, or what the setup has changed in it is lost.
        """

    def stop(self) -> None:
        """End whatever ``start`` has started; safe to repeat."""

    def keep(self, key: str) -> None:
        """Leave what the setup has changed on the machine's disk, for ``start`` of another machine, and end.

        Raises:
            CloudspotError: it cannot be kept.
        """

    def with_programs(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment in which ``python`` and ``pip`` are those of the training."""
        return with_interpreter(environment, self.python, self.node)

    def command(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        log: Path | None = None,
        ended: Path | None = None,
        has_input: bool = False,
    ) -> Command:
        """Return how a program is started that is to have this environment and the working directory.

        It writes to the log, with which the caller starts it, too, and reads the standard input with which it
        is started if it ``has_input``. If the file ``ended`` exists by then, it must not start any more.
        """
        return Command([*words], {**environment})

    def probe(self, words: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a short program; return its exit status.

        Raises:
            OSError: it cannot be run.
            RuntimeLost: nothing can be run.
        """
        return subprocess.run(words, env=dict(environment), cwd=self.node.work, check=False).returncode

    def has_program(self, program: str, environment: Mapping[str, str]) -> bool:
        """Return whether the program, a name on PATH or a path, is there and may be run.

        Raises:
            RuntimeLost: nothing can be run.
        """
        return shutil.which(program, path=environment.get("PATH")) is not None
