"""What follows a training that failed on this node: another start, or the end of the job."""

from __future__ import annotations

from dataclasses import dataclass

from cloudspot.agent.node import NodeMemory

FAILED = "trainer-failed"
STUCK = "trainer-stuck"
"""Why the next generation starts (``records.Generation.why``): this one failed, or made no step in time."""
AT_ONCE_SECONDS = 60.0
"""A script without a session that fails sooner than this, twice, fails for good."""
MAX_RESTART_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Failure:
    """The end of a training that neither finished nor was asked to leave."""

    exit_code: int
    step: int
    """The newest one begun; of a script without a session the restored one."""
    seconds: float
    """How long it ran."""
    has_session: bool
    is_stuck: bool
    """We ended it, since it made no step."""

    def __str__(self) -> str:
        return "made no step in time" if self.is_stuck else f"failed with exit status {self.exit_code}"


@dataclass(frozen=True)
class Again:
    """Start the next generation."""

    wait_seconds: float


@dataclass(frozen=True)
class GiveUp:
    """End the job: no other machine will mend it."""

    detail: str


def judge(failure: Failure, memory: NodeMemory, *, num_restarts: int, max_restarts: int) -> Again | GiveUp:
    """Say what follows the failure, and note it in ``memory``, which the caller saves.

    Twice in a row at the same step is an error of the script; otherwise ``max_restarts`` counts.
    """
    if not failure.has_session and failure.seconds >= AT_ONCE_SECONDS:
        # Nobody knows how far it came: it is the first of its kind, whatever follows.
        memory.failure_streak, memory.failed_at_step = 0, -1
    elif failure.step == memory.failed_at_step:
        memory.failure_streak += 1
    else:
        memory.failure_streak, memory.failed_at_step = 1, failure.step
    if memory.failure_streak >= 2 and not failure.is_stuck:
        return GiveUp(f"the training {failure} twice at step {failure.step}")
    if num_restarts >= max_restarts:
        return GiveUp(f"the training {failure} at step {failure.step}, after {num_restarts} restarts")
    # At once the first time: most often it is a passing fault, and the machines are paid for.
    return Again(min(2.0**num_restarts - 1.0, MAX_RESTART_WAIT_SECONDS))
