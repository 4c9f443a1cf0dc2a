"""The node's part of ``cloudspot stacks``: prints the stack of each rank on this machine.

Run as ``python -m cloudspot.agent.remote.stacks`` in the job's environment; it needs only the standard
library. py-spy reads each rank's stack, if it is installed in that environment. Otherwise, a rank with a
session writes its own stack to the training's log, by faulthandler, and that stack is printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cloudspot.train import handoff as files

WAIT_SECONDS = 5.0
_QUIET_SECONDS = 0.5
_PROC = Path("/proc")


_OF_DUMPS = ("Thread 0x", "Current thread", "  File ", "  <", "  ...", "Extension modules")
"""The beginnings of a dump's lines; the script may write other lines among them."""
_NODE = "CLOUDSPOT_NODE_DIR"


class Rank(NamedTuple):
    """The process of a rank."""

    number: int
    pid: int


def find_ranks(environ: Mapping[str, str]) -> list[Rank]:
    """Return the ranks of the job's newest start on this node, found by their processes; Linux only.

    A rank's process is the first process below its launcher that is Python and has the rank's variables.
    ``environ`` identifies the job and the node.
    """
    marks = {name: environ[name] for name in (files.JOB_ID, _NODE)}
    found: dict[tuple[int, int], list[int]] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = dict(
                line.split(b"=", 1) for line in (entry / "environ").read_bytes().split(b"\0") if b"=" in line
            )
            is_python = (entry / "exe").readlink().name.startswith("python")
        except OSError:
            continue
        is_jobs = all(variables.get(name.encode()) == value.encode() for name, value in marks.items())
        generation = variables.get(files.GENERATION.encode())
        if is_jobs and is_python and generation is not None:
            rank_text = variables.get(b"RANK", b"")
            number = (
                int(rank_text) if rank_text.isdigit() else -1
            )  # a job may use this name for another value
            found.setdefault((int(generation), number), []).append(int(entry.name))
    newest = max((generation for generation, _ in found), default=0)
    ranks = {rank: pids for (generation, rank), pids in sorted(found.items()) if generation == newest}
    launchers = ranks.pop(-1, [])  # or processes of a command without ranks
    if launchers and not ranks:
        ranks = {0: launchers}
    firsts = {
        rank: [pid for pid in pids if _parent_of(pid) not in pids] or pids for rank, pids in ranks.items()
    }
    return [Rank(rank, min(pids)) for rank, pids in firsts.items()]


def _parent_of(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def stack_of(rank: Rank) -> str:
    """Return a rank's stack, or a text that says why there is none."""
    problem = ""
    if shutil.which("py-spy"):
        command = ["py-spy", "dump", "--pid", str(rank.pid)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            problem = "py-spy has not answered for 60 s\n"
        else:
            if done.returncode == 0:
                return done.stdout
            problem = f"py-spy: {done.stderr.strip()}\n"
    if _handles(rank.pid, files.DUMP_SIGNAL):
        return problem + _dumped(rank.pid)
    return problem + (
        "it has no session, and py-spy is not there: add `pip install py-spy` to run.setup, or run now:"
        " cloudspot exec ID -- pip install py-spy\n" + _state_of(rank.pid)
    )


def _handles(pid: int, number: int) -> bool:
    """Return whether the process handles the signal, which would otherwise end it."""
    try:
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except OSError:
        pass
    return False


def _dumped(pid: int) -> str:
    """Make the process write its stacks to its log, and return them."""
    log = _PROC / str(pid) / "fd" / "2"
    try:
        before = log.stat().st_size
        os.kill(pid, files.DUMP_SIGNAL)
        size, end, quiet_since = before, time.monotonic() + WAIT_SECONDS, time.monotonic()
        while time.monotonic() < end and (size == before or time.monotonic() - quiet_since < _QUIET_SECONDS):
            time.sleep(0.05)
            if log.stat().st_size != size:
                size, quiet_since = log.stat().st_size, time.monotonic()
        with log.open("rb") as file:
            file.seek(before)
            lines = file.read(size - before).decode(errors="replace").splitlines()
            return "\n".join(line for line in lines if line.startswith(_OF_DUMPS)) or "it has written nothing"
    except OSError as error:
        return f"its log cannot be read: {error.strerror}\n"


def _state_of(pid: int) -> str:
    try:
        state = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0].decode()
        return f"its process is in state {state}\n"
    except OSError:
        return "its process has just ended\n"


def main() -> None:
    """Print the stacks of all ranks on this node."""
    ranks = find_ranks(os.environ)
    if not ranks:
        sys.stdout.write("no rank is running here\n")
    for rank in ranks:
        sys.stdout.write(f"--- rank {rank.number} (process {rank.pid})\n{stack_of(rank)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
