"""The process of this machine from which the training is forked; it survives the agent."""

from __future__ import annotations

import contextlib
import logging
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cloudspot.agent.training.programs.runtime import Runtime
from cloudspot.host.kept_processes import KeptProcesses
from cloudspot.jobfile.spec import MODULE, RunSpec
from cloudspot.train.fork_server import fork_client
from cloudspot.train.fork_server.fork_server import MARK, PADDING, PADDING_BYTES, unwanted_path

_log = logging.getLogger(__name__)
CLIENT = str(Path(fork_client.__file__).resolve())
"""The command used instead of each program. In a container, the package is mounted only at its real path."""
WORTH_SECONDS = 1.0
"""``run.preload`` is suggested if the imports of a start take at least this many seconds."""
MAX_NAMES = 32
_KILL_SECONDS = 5.0
"""How long to wait for a killed process to end."""
_COMMAND_BYTES = 8 << 10
_START = """
import sys
sys.path[:] = filter(None, sys.path)  # the working directory's modules are the training's alone
from cloudspot.train.fork_server.fork_server import main
main()
"""
_LISTEN_AND_START = f"""
import os, sys
sys.path[:] = filter(None, sys.path)
from cloudspot.train.fork_server.fork_client import listen_at
listener = listen_at(os.environ["{MARK}"])
os.dup2(listener.fileno(), 0)
listener.close()
{_START}"""


def advice(preload: Sequence[str], seconds: Mapping[str, float]) -> str | None:
    """Return the job-file line that avoids slow imports, or None if it would save too little."""
    names = [name for name in seconds if re.fullmatch(MODULE, name)][:MAX_NAMES]
    saved = sum(seconds[name] for name in names)
    if saved < WORTH_SECONDS:
        return None
    line = ", ".join(f'"{name}"' for name in dict.fromkeys((*preload, *names)))
    return f"run.preload = [{line}] in the job file would save {saved:.1f} s of each later start on a machine"


class ForkServer:
    """The fork server of a node; it runs as long as the node trains, even without an agent."""

    def __init__(self, runtime: Runtime, run: RunSpec, environment: Mapping[str, str]) -> None:
        """Create it; ``environment`` is the training's environment: see TrainerPlan."""
        self._runtime = runtime
        self._node = runtime.node
        self._script = run.entrypoint or ""
        self._preload = run.preload
        self._environment = environment
        self._socket = str(self._node.fork_server)
        self._process: subprocess.Popen[bytes] | None = None
        self._processes = KeptProcesses(self._node.fork_server_processes)
        # Only Linux has a keeper for the processes that are forked.
        is_of_use = run.entrypoint is not None and run.launcher_or_default == "torchrun"
        self._is_used = run.fork_server and is_of_use and sys.platform == "linux"
        self._unwanted = unwanted_path(self._socket)

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words to put before a Python program's command, so that the program is forked if possible."""
        if not self._is_used or self._unwanted.exists():
            return ()
        python = sys.executable if self._runtime.inherits_files else self._runtime.python
        return (python, "-IS", CLIENT, self._socket)

    def start(self) -> None:
        """Start the server if it is not running, without waiting until it can fork."""
        if not self._is_used:
            return
        if self._unwanted.exists():
            if self._runs():
                _log.warning("the training starts without the fork server from now on; its log says why")
                self._processes.kill()
                if self._process is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(_KILL_SECONDS)
            return
        if self._runs():
            return
        if self._node.fork_server.exists():
            _log.warning("the fork server has ended: another one starts, and imports torch anew")
        self._node.fork_server.unlink(missing_ok=True)
        environment = {**self._environment, MARK: self._socket, PADDING: "x" * PADDING_BYTES}
        try:
            if not self._runtime.inherits_files:
                # A program whose client starts before the server listens is started as usual.
                self._start(_LISTEN_AND_START, environment, subprocess.DEVNULL)
                return
            # The socket is bound here, so that a client that starts too early waits for the server.
            with fork_client.listen_at(self._socket) as listener:
                self._start(_START, environment, listener.fileno())
        except OSError as error:  # the training's start reports it too
            _log.warning("the fork server did not start: %s", error)

    def _runs(self) -> bool:
        if self._process is not None and self._process.poll() is None:
            return True  # its record may not exist yet
        return self._processes.is_running()

    def _start(self, program: str, environment: Mapping[str, str], stdin: int) -> None:
        path = self._node.fork_server_log
        arguments = [
            self._runtime.python,
            "-u",
            "-c",
            program,
            self._script,
            " ".join(self._preload),
            " " * _COMMAND_BYTES,
        ]
        kept = self._processes.command(self._runtime.keeper_python, arguments, ended=self._unwanted)
        command = self._runtime.command(kept, environment, log=path)
        with path.open("ab") as log:
            self._process = subprocess.Popen(
                command.argv,
                cwd=self._node.work,
                env=command.environment,
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
