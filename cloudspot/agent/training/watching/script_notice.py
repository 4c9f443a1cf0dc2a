"""Ask a script without a session to save, through a signal or a file.

A signal is sent only to processes that handle it, and not to launchers. It would kill any other process: the
launchers `swift` and `accelerate launch`, whose training would continue, a script that has not installed its
handler yet, or a worker of a data loader.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from cloudspot.agent.node import Node
from cloudspot.agent.training.launching.fork_server import CLIENT
from cloudspot.agent.training.launching.trainer import OWN_SHELLS, processes_of
from cloudspot.host.job_containers import ENGINES
from cloudspot.host.partial_files import write_whole
from cloudspot.host.process_marks import signal_process
from cloudspot.jobfile.spec import SIGNALS
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often to look for processes that have newly installed a handler."""
_LAUNCHERS = {
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "deepspeed",
    "deepspeed.launcher.launch",
    CLIENT,
}
"""Programs and modules that start ranks; some pass a signal on, then kill the ranks 30 s later."""
_LAUNCHER_ARGUMENTS = 4
"""A launcher's name is one of this many first words, as in ``python -u -m torch.distributed.run``."""
_WORKER = "--multiprocessing-fork"
"""The argument that marks a process spawned by ``multiprocessing``."""


@dataclass(frozen=True)
class Process:
    """A process of the training, as described by the kernel."""

    parent: int
    command_line: tuple[str, ...]
    """Its command line."""
    handles: frozenset[int]
    """The numbers of the signals that the process handles."""


class ScriptNotice:
    """The notice that is given to one generation's script."""

    def __init__(self, on_notice: str, handoff: Path, node: Node) -> None:
        self._on_notice = on_notice
        self._handoff = handoff
        self._node = node
        self._notified_path = handoff / "notified.json"  # a restarted agent must not notify a process again
        self._notified: set[int] = set(
            (files.read_json(self._notified_path) or {"processes": ()})["processes"]
        )
        self._looked_at = float("-inf")

    @property
    def reached_script(self) -> bool:
        """Whether the script can have noticed the notice."""
        return self._on_notice not in SIGNALS or bool(self._notified)

    def notify(self, now: float, *, before: Callable[[], None] = lambda: None) -> None:
        """Ask the script to save and leave; call this repeatedly until the script has left.

        Every process is notified once, even if it installs its handler late. ``before`` is called immediately
        before processes are notified.
        """
        if now < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        if self._on_notice not in SIGNALS:
            path = self._node.work / self._on_notice
            if not path.exists():
                before()
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, b"save and leave\n")
                _log.info("asked the script to save, by the file %s", self._on_notice)
            return
        number = signal.Signals[self._on_notice]
        found = receivers(described(processes_of(self._handoff).pids()), number)
        new = [pid for pid in found if pid not in self._notified]
        if new:
            before()
            self._notified.update(new)
            files.write_json(self._notified_path, {"processes": sorted(self._notified)})
            for pid in new:
                signal_process(pid, number)
            _log.info("asked the script to save, by %s to %d process(es)", self._on_notice, len(new))


def withdraw(on_notice: str | None, node: Node) -> None:
    """Remove the file of an earlier notice, because a script is about to start."""
    if on_notice is not None and on_notice not in SIGNALS:
        (node.work / on_notice).unlink(missing_ok=True)


def receivers(processes: Mapping[int, Process], number: int) -> tuple[int, ...]:
    """Return the topmost processes that handle the signal, without launchers and data loaders' workers."""

    def below(parent: int) -> Iterator[int]:
        above = processes.get(parent)
        for pid, process in processes.items():
            if process.parent != parent:
                continue
            if _WORKER in process.command_line or (
                above is not None and above.command_line == process.command_line
            ):
                continue  # the script itself has spawned or forked it
            if number in process.handles and not _is_launcher(process):
                yield pid
            else:
                yield from below(pid)

    roots = {process.parent for process in processes.values()} - processes.keys()
    return tuple(sorted(pid for root in roots for pid in below(root)))


def described(pids: Collection[int]) -> dict[int, Process]:
    """Return the kernel's data about the processes; empty on other systems than Linux."""
    found = {}
    for pid in pids:
        directory = Path("/proc", str(pid))
        try:
            arguments = directory.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            status = dict(
                line.split(":", 1) for line in directory.joinpath("status").read_text().splitlines() if line
            )
            mask = int(status["SigCgt"], 16)
            handles = frozenset(number for number in signal.Signals if mask >> (number - 1) & 1)
            found[pid] = Process(int(status["PPid"]), tuple(arguments), handles)
        except (OSError, KeyError, ValueError):  # ended meanwhile
            continue
    return found


def _is_launcher(process: Process) -> bool:
    arguments = process.command_line
    if any(shell in arguments for shell in OWN_SHELLS) or PurePath(*arguments[:1]).name in ENGINES:
        return True
    return any(
        argument in _LAUNCHERS or PurePath(argument).name in _LAUNCHERS
        for argument in arguments[:_LAUNCHER_ARGUMENTS]
    )
