"""Decides what follows a training that failed on this node: another start, or the end of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cloudspot.agent.node import NodeMemory
from cloudspot.agent.rank_reports import RankError
from cloudspot.jobstore.records import FailureKind

FAILED: Final = "trainer-failed"
STUCK: Final = "trainer-stuck"
NOT_CONNECTED: Final = "not-connected"
"""Why the next generation starts (``records.Generation.why``): this one failed, made no step in time, or
could not connect its ranks (a port was taken, a connection failed), which is not the script's error."""
WEIGHT = {NOT_CONNECTED: 0, FAILED: 1, STUCK: 2}
"""When nodes disagree about how a generation ended, the heaviest reason is true: a rank that fails leaves
others without a connection, and when a stuck one is ended that looks like a failure to the others."""
CONNECTION_ERRORS = frozenset({"torch.distributed.DistNetworkError", "torch.distributed.DistStoreError"})
"""The types of errors that a rank may meet while it joins the others."""
AT_ONCE_SECONDS = 60.0
"""A script without a session that fails sooner than this twice fails for good."""
MAX_RESTART_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Failure:
    """The end of a training that neither finished nor was asked to leave."""

    exit_code: int
    step: int
    """The newest one begun; for a script without a session, the restored one."""
    seconds: float
    """How long it ran."""
    has_session: bool
    why: FailureKind
    is_cut_short: bool = False
    """It exited 0 in the middle of its session's loop."""

    def __str__(self) -> str:
        if self.is_cut_short:
            return "exited 0 before the end of its loop"
        if self.why == STUCK:
            return "made no step in time"
        if self.why == NOT_CONNECTED:
            return "could not connect its ranks"
        return f"failed with exit status {self.exit_code}"


@dataclass(frozen=True)
class GiveUp:
    """Leave."""

    detail: str
    permanent: bool = True
    """No other machine will help: the job ends."""


def has_connected(error: RankError) -> bool:
    """Return whether an error before the first step is more than a failed connection of the ranks."""
    # torch turns gloo's errors into plain RuntimeErrors.
    gloo = error.type == "builtins.RuntimeError" and "connectFullMesh" in error.message
    return error.type not in CONNECTION_ERRORS and not gloo


def judge(failure: Failure, memory: NodeMemory, *, num_restarts: int, max_restarts: int) -> float | GiveUp:
    """Return the seconds to wait before the next start, or that there is none.

    Notes the failure in ``memory``, which the caller saves.

    Two failures in a row at the same step are an error of the script; otherwise ``max_restarts`` decides.
    Ranks that could not connect are no error of the script, and may connect on other machines.

    ``num_restarts`` counts the restarts of the same kind: after failures of the script, or of the connection.
    """
    wait = min(2.0**num_restarts - 1.0, MAX_RESTART_WAIT_SECONDS)
    if failure.why == NOT_CONNECTED:
        if num_restarts >= max_restarts:
            return GiveUp(f"the training {failure}, after {num_restarts} restarts", permanent=False)
        return wait
    if not failure.has_session and failure.seconds >= AT_ONCE_SECONDS:
        # Nobody knows how far it came, so it counts as the first of its kind.
        memory.failure_streak, memory.failed_at_step = 0, -1
    elif failure.step == memory.failed_at_step:
        memory.failure_streak += 1
    else:
        memory.failure_streak, memory.failed_at_step = 1, failure.step
    if memory.failure_streak >= 2 and failure.why != STUCK:
        return GiveUp(f"the training {failure} twice at step {failure.step}")
    if num_restarts >= max_restarts:
        return GiveUp(f"the training {failure} at step {failure.step}, after {num_restarts} restarts")
    # At once the first time: most faults pass, and the machines are paid for.
    return wait
