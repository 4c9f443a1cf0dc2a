"""Start the training once per generation, adopt a training that has outlived its agent, and end it.

The trainer is independent of the agent: it runs in its own session and writes to a file, and its shell writes
the exit status to another file. Therefore it survives when the agent is killed, and the machine's next agent
can adopt it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloudspot.agent.delivery.log_pump import split_lines
from cloudspot.agent.node import Node
from cloudspot.agent.rank_reports import RankError, read_report
from cloudspot.agent.training.programs.runtime import Runtime
from cloudspot.errors import CloudspotError
from cloudspot.host.bounded_reads import read_at_most, read_end
from cloudspot.host.capacity import usable_cores
from cloudspot.host.kept_processes import KeptProcesses
from cloudspot.host.process_marks import signal_process
from cloudspot.train import handoff as files

LOG_TAIL_LINES = 40
LOG_TAIL_BYTES = 65536
_KILLED = 137
_NOT_RUN = (126, 127)
"""The exit statuses of a shell that cannot run a program."""
_TORCHRUN_REPORT = re.compile(r"E\d{4} .*torch/distributed/elastic/.*\] failed \(exitcode")
"""The beginning of torchrun's report on a failed script (torch 2.13)."""
_STATUS = "trainer.status"
_ENDED = "trainer.ended"
"""The file in the hand-off directory that forbids, if it exists, processes of the generation to start."""
# $0 is the status file; it is written to another file and renamed once torchrun or the command has ended.
_KEEP_STATUS = '"$@"; status=$?; echo "$status" > "$0.tmp" && mv "$0.tmp" "$0"'
# The same is done for each rank, because torchrun takes one or two seconds to end after a rank has failed,
# and then always exits with 1. torchrun sends SIGTERM to this shell and waits for it; the trap lets the rank
# handle it.
_KEEP_RANK_STATUS = (
    f'to="${files.HANDOFF}/variables-$RANK"; [ ! -f "$to" ] || . "$to"; '
    f': > "${files.HANDOFF}/started-$RANK"; trap : TERM; "$@"; status=$?; '
    f'to="${files.HANDOFF}/exited-$RANK"; '
    'echo "$status" > "$to.tmp" && mv "$to.tmp" "$to"; exit "$status"'
)

OWN_SHELLS = (_KEEP_STATUS, _KEEP_RANK_STATUS)
"""The scripts of the shells between the agent, torchrun and the training script."""


@dataclass(frozen=True)
class TrainerPlan:
    """One start of the training on this node."""

    python: str
    program: Sequence[str]
    """The script or command and its arguments."""
    has_torchrun: bool
    """Whether torchrun starts it ``procs_per_node`` times; otherwise, it is started only once."""
    num_nodes: int
    node_rank: int
    procs_per_node: int
    endpoint: str
    rendezvous_id: str
    work: Path
    log: Path
    environment: Mapping[str, str]
    """The whole environment, except for the variables that the start adds."""
    prefix: Sequence[str] = ()
    """The words before each Python program's command: see ``fork_server``."""

    def command(self) -> tuple[str, ...]:
        """Return the command line; torchrun never restarts a worker, because the agent starts generations.

        The script gets its arguments unchanged: dollar signs are doubled, because torchrun would replace
        macros such as ``${local_rank}``, and ``--`` keeps torchrun's parser from treating an argument such as
        ``--log`` as an abbreviation of its own options.
        """
        if not self.has_torchrun:
            return tuple(self.program)
        rank = ("-c", _KEEP_RANK_STATUS, "rank", *self.prefix, *self.program)
        return (
            *self.prefix,
            self.python,
            "-m",
            "torch.distributed.run",
            f"--nnodes={self.num_nodes}",
            f"--node-rank={self.node_rank}",
            f"--nproc-per-node={self.procs_per_node}",
            "--max-restarts=0",
            "--monitor-interval=0.05",
            "--rdzv-backend=static",
            f"--rdzv-endpoint={self.endpoint}",
            f"--rdzv-id={self.rendezvous_id}",
            "--no-python",
            "--",
            "/bin/sh",
            *(argument.replace("$", "$$") for argument in rank),
        )


def launch_variables(
    *, num_nodes: int, max_nodes: int, node_rank: int, procs_per_node: int, endpoint: str
) -> dict[str, str]:
    """Return the environment variables for a command that is not started by torchrun.

    Such commands commonly use these names. RANK is not set, because the programs that the command starts set
    it. NNODES makes ms-swift start torchrun, so a job that can have only one node does not get this variable.
    """
    address, _, port = endpoint.rpartition(":")
    found = {
        "NODES": str(num_nodes),
        "NNODES": str(num_nodes),
        "NODE_RANK": str(node_rank),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "WORLD_SIZE": str(num_nodes * procs_per_node),
    }
    if max_nodes == 1:
        del found["NNODES"]
    return found


def launch_settings(
    environment: Mapping[str, str], *, has_torchrun: bool, procs_per_node: int
) -> dict[str, str]:
    """Return the environment with the variables that all starts on a machine have in common."""
    found = {
        **environment,
        # This is for commands that start torchrun with the c10d rendezvous and let it restart ranks: with a
        # shared store, a restart after a loss connects to dead peers and hangs in four of six runs
        # (pytorch#135712, #135957; torch 2.13). The agent's own torchrun is not affected: it is static and
        # restarts no rank.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if has_torchrun:  # otherwise, it is unknown how many processes share the cores
        found.setdefault("OMP_NUM_THREADS", str(omp_threads(procs_per_node, os.environ)))
    return found


def log_tail(log: Path) -> tuple[str, ...]:
    """Return the last lines of a log file, without torchrun's report, which follows the script's lines."""
    try:
        data = read_end(log, LOG_TAIL_BYTES)
    except FileNotFoundError:
        return ()
    lines = [line.decode("utf-8", errors="replace") for line in split_lines(data)]
    for number, line in enumerate(lines):
        if number and _TORCHRUN_REPORT.match(line):
            lines = lines[:number]
            break
    return tuple(lines[-LOG_TAIL_LINES:])


class Trainer:
    """One generation's training on this node."""

    def __init__(self, handoff: Path, pid: int, process: subprocess.Popen[bytes] | None = None) -> None:
        self.handoff = handoff
        self.pid = pid
        self._process = process
        """The child process; None if an earlier agent started it."""

    @classmethod
    def start(cls, plan: TrainerPlan, handoff: Path, runtime: Runtime) -> Trainer:
        """Start the training, which is independent of the agent."""
        keep_status = ["/bin/sh", "-c", _KEEP_STATUS, str(handoff / _STATUS), *plan.command()]
        command, environment = runtime.command(
            processes_of(handoff).command(runtime.keeper_python, keep_status, ended=handoff / _ENDED),
            {**plan.environment, files.HANDOFF: str(handoff)},
            log=plan.log,
            ended=handoff / _ENDED,
        )
        if not plan.has_torchrun:  # no torchrun must find its peers first
            files.started_path(handoff, plan.node_rank * plan.procs_per_node).touch()
        with plan.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=plan.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(handoff, process.pid, process)

    def poll(self) -> int | None:
        """Return the exit status of torchrun or the command; None while it runs; 137 if it left no status."""
        ended = self._ended()
        try:
            return int(read_at_most(self.handoff / _STATUS, files.MAX_NUMBER_BYTES))
        except FileNotFoundError:
            return _KILLED if ended else None

    def failed_status(self, ranks: Sequence[int]) -> int | None:
        """Return the exit status of the rank that failed first on this node, or None if no rank failed."""
        failed = []
        for rank in ranks:
            status = files.read_exited(self.handoff, rank)
            if status:
                failed.append((files.exited_path(self.handoff, rank).stat().st_mtime_ns, status))
        return min(failed)[1] if failed else None

    def has_started(self, ranks: Sequence[int]) -> bool:
        """Return whether a rank was started on this node; torchrun must find its peers first."""
        return any(files.started_path(self.handoff, rank).exists() for rank in ranks)

    def errors(self, ranks: Sequence[int]) -> list[RankError]:
        """Return the errors that this node's ranks have reported, earliest first."""
        paths = [path for rank in ranks if (path := files.failed_path(self.handoff, rank)).exists()]
        reports = (
            read_report(path, RankError) for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns)
        )
        return [error for error in reports if error is not None]

    def is_failing(self, ranks: Sequence[int]) -> bool:
        """Return whether a rank on this node had an error and is about to end."""
        return any(files.failed_path(self.handoff, rank).exists() for rank in ranks)

    def has_begun_loop(self, ranks: Sequence[int]) -> bool:
        """Return whether all ranks on this node have begun their loops, with the restored state loaded."""
        return all(files.begun_loop_path(self.handoff, rank).exists() for rank in ranks)

    def has_ended_loop(self, ranks: Sequence[int]) -> bool:
        """Return whether the loop of a rank on this node has ended without a later error."""
        if self.is_failing(ranks):
            return False
        return any(files.ended_loop_path(self.handoff, rank).exists() for rank in ranks)

    def has_drained(self, ranks: Sequence[int]) -> bool:
        """Return whether a rank on this node has left on request."""
        return any(files.drained_path(self.handoff, rank).exists() for rank in ranks)

    def _ended(self) -> bool:
        if self._process is not None:
            return self._process.poll() is not None
        return not processes_of(self.handoff).is_running()

    def dump_stacks(self, ranks: Sequence[int]) -> None:
        """Make each worker that has a session write the stacks of all its threads to the log."""
        living = processes_of(self.handoff).pids()
        for pid in self._workers(ranks).values():
            if pid in living:
                signal_process(pid, files.DUMP_SIGNAL)

    def vanished(self, ranks: Sequence[int]) -> set[int]:
        """Return this node's ranks that had a session and whose process disappeared without an exit status.

        If a command has started the ranks, they have no shell of the agent that records their status.
        """
        untold = [rank for rank in ranks if files.read_exited(self.handoff, rank) is None]
        workers = self._workers(untold)
        living = processes_of(self.handoff).pids() if workers else set()
        return {rank for rank, pid in workers.items() if pid not in living}

    def _workers(self, ranks: Sequence[int]) -> dict[int, int]:
        found = {}
        for rank in ranks:
            with suppress(FileNotFoundError, ValueError):  # no session, or it is being opened
                path = files.worker_pid_path(self.handoff, rank)
                found[rank] = int(read_at_most(path, files.MAX_NUMBER_BYTES))
        return found

    def kill(self) -> bool:
        """End every process of the generation; return whether all have ended."""
        have_ended = _end_generation(self.handoff)
        if self._process is not None:
            self._process.wait()
        return have_ended


def end_training(node: Node) -> None:
    """End the processes of all generations on this node, even unknown generations, and the fork server."""
    _end_generations(node)
    KeptProcesses(node.fork_server_processes).kill()
    node.fork_server.unlink(missing_ok=True)
    _end_generations(node)  # again, for processes that were forked meanwhile


def _end_generations(node: Node) -> None:
    for handoff in node.directory.glob("generations/*"):
        _end_generation(handoff)


def _end_generation(handoff: Path) -> bool:
    """End every process of a generation, even one that is about to start; return whether all have ended."""
    (handoff / _ENDED).touch()
    return processes_of(handoff).kill()


def processes_of(handoff: Path) -> KeptProcesses:
    """Return the processes of a generation."""
    return KeptProcesses(handoff / files.PROCESSES)


def omp_threads(procs_per_node: int, environ: Mapping[str, str]) -> int:
    """Return the number of threads per process, which is fixed because it changes the order of sums."""
    return max(1, usable_cores(environ) // procs_per_node)


def check_program(program: str, environment: Mapping[str, str], runtime: Runtime) -> None:
    """Check that the program of ``run.command`` exists.

    Raises:
        CloudspotError: the program does not exist.
    """
    path = str(runtime.node.work / program) if "/" in program else program
    if not runtime.has_program(path, environment):
        where = "is not an executable file in the working directory" if "/" in program else "is not on PATH"
        raise CloudspotError(f"run.command: {program!r} {where}; install it in run.setup")


def check_torch(environment: Mapping[str, str], runtime: Runtime) -> None:
    """Check for torch before torchrun is started, because torchrun's error would be harder to understand.

    Raises:
        CloudspotError: the interpreter cannot be run, or has no torch.
    """
    python = runtime.python
    probe = "import importlib.util, sys; sys.exit(9 if importlib.util.find_spec('torch') is None else 0)"
    try:
        found = runtime.probe([python, "-c", probe], environment)
    except OSError as error:
        raise CloudspotError(f"run.python {python!r} cannot be run: {error}") from error
    if found in _NOT_RUN:
        raise CloudspotError(f"run.python {python!r} cannot be run: it does not exist or is not executable")
    if found != 0:
        raise CloudspotError(
            f"{python} has no torch; install torch in run.setup, or name another interpreter in run.python"
        )
