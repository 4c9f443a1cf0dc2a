"""Decides what follows a training that failed on this node: another start, or the end of the job."""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from cloudspot.agent.node import NodeMemory
from cloudspot.agent.rank_reports import RankError
from cloudspot.jobstore.layout.records import CheckpointId, Commit, FailureKind, Generation

FAILED: Final = "trainer-failed"
STUCK: Final = "trainer-stuck"
NOT_CONNECTED: Final = "not-connected"
NOT_RESTORED: Final = "not-restored"
"""Why the next generation starts (``records.Generation.why``): this one failed, made no step in time, could
not connect its ranks (a port was taken, a connection failed), or waited for a checkpoint that does not verify
or fits only on the disk. The last two are not the script's error."""
WEIGHT = {NOT_CONNECTED: 0, FAILED: 1, STUCK: 2, NOT_RESTORED: 3}
"""When nodes disagree about how a generation ended, the heaviest reason is true: a rank that fails leaves
others without a connection, and when a stuck one is ended that looks like a failure to the others."""
CONNECTION_ERRORS = frozenset({"torch.distributed.DistNetworkError", "torch.distributed.DistStoreError"})
"""The types of errors that a rank may meet while it joins the others."""
SENT_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
"""What others end a process with: the kernel when memory is short, a person, a machine that goes down."""
_FULL_DISK = re.compile(
    r"no space left on device|disk quota exceeded"
    # torch.save says no more; seen with torch 2.13 on a full file system.
    r"|inline_container\.cc:\d+\] \. unexpected pos|PytorchStreamWriter failed writing",
    re.IGNORECASE,
)
_LOST_CONNECTION = re.compile(
    r"connection (was )?(likely )?(closed|reset|aborted)|broken pipe|ncclRemoteError|remote process exit",
    re.IGNORECASE,
)
"""What gloo, NCCL and sockets say when the process at the other end is gone."""
_WITH_DIGIT = re.compile(r"\S*\d\S*")
AT_ONCE_SECONDS = 60.0
"""A script without a session that fails sooner than this twice in the same way fails for good."""
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
    fingerprint: str | None
    """The same for failures of the same kind; None: it may have come from outside the script."""
    is_cut_short: bool = False
    """It exited 0 in the middle of its session's loop."""
    is_consequence: bool = False
    """Another node's failure has ended it, as far as is known."""
    brings_part: bool = True
    """Whether a new checkpoint is progress of this node's script, too."""

    @property
    def tells_where(self) -> bool:
        """Whether it is known how far it came: a script without a session says nothing of its steps."""
        return self.has_session or self.seconds < AT_ONCE_SECONDS

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


def fingerprint_of(exit_code: int, error: RankError | None) -> str | None:
    """Return what is the same for two failures of the same kind, or None if this one proves nothing.

    ``error`` is the first one that a rank reported; without it the exit status counts. Numbers, addresses and
    paths with digits in the error's message do not count, nor does what follows its first line.

    A signal that others send, a full disk and a connection to another rank that is gone may hit any script.
    """
    if exit_code - 128 in SENT_SIGNALS:
        return None
    if error is None:
        return f"exit status {exit_code}"
    if has_lost_another(error) or any(_FULL_DISK.search(text) for text in (error.message, *error.causes)):
        return None
    first_line = error.message.strip().partition("\n")[0]
    text = f"{error.type} {_WITH_DIGIT.sub('#', first_line)}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def has_lost_another(error: RankError) -> bool:
    """Return whether the error says that another rank has ended or was not found."""
    texts = (error.message, *error.causes)
    return error.type in CONNECTION_ERRORS or any(_LOST_CONNECTION.search(text) for text in texts)


def saved_without_progress(commits: Collection[Commit]) -> frozenset[CheckpointId]:
    """Return what was saved after failures, of the generations that have saved nothing else.

    A training that fails now and then, and saves in between, makes progress all the same.
    """
    failed = {each for each in commits if each.rescue is not None and each.rescue.cause == "failed"}
    others = {each.generation for each in commits if each not in failed}
    return frozenset(each.id for each in failed if each.generation not in others)


def restarts_in_a_row(
    generations: Sequence[Generation],
    kind: Collection[str],
    *,
    saved_by_failures: Collection[CheckpointId] = (),
) -> int:
    """Return how many of the newest generations follow a failure of that kind, since the last new checkpoint.

    The failure before which that checkpoint was made is the first in its row. What the newest generation has
    committed does not count: all nodes see the same records of the others. Nor do checkpoints that were
    ``saved_by_failures`` alone: each failure makes one.
    """
    count = 0
    for number in reversed(range(len(generations))):
        generation = generations[number]
        count += generation.why in kind
        is_new = number and _restored_step(generation) > _restored_step(generations[number - 1])
        if is_new and generation.restore_from not in saved_by_failures:
            break
    return count


def _restored_step(generation: Generation) -> int:
    return -1 if generation.restore_from is None else generation.restore_from.step


def decide_restart(
    failure: Failure, memory: NodeMemory, *, num_restarts: int, max_restarts: int
) -> float | GiveUp:
    """Return the seconds to wait before the next start, or that there is none.

    Notes the failure in ``memory``, which the caller saves.

    Two failures at the same step and with the same fingerprint are an error of the script, whatever came from
    outside between them; otherwise ``max_restarts`` decides. Ranks that could not connect are no error of the
    script, and may connect on other machines.

    ``num_restarts`` counts the restarts of the same kind: after failures of the script, or of the connection.
    """
    wait = min(2.0**num_restarts - 1.0, MAX_RESTART_WAIT_SECONDS)
    if failure.why == NOT_CONNECTED:
        if num_restarts >= max_restarts:
            return GiveUp(f"the training {failure}, after {num_restarts} restarts", permanent=False)
        return wait
    if not failure.tells_where:  # the next one counts as the first of its kind
        memory.failed_at_step, memory.failed_with = -1, ""
    elif failure.why == FAILED and failure.fingerprint is not None:
        is_there_again = failure.step == memory.failed_at_step or not failure.brings_part
        if is_there_again and failure.fingerprint == memory.failed_with:
            return GiveUp(f"the training {failure} twice at step {failure.step}")
        memory.failed_at_step, memory.failed_with = failure.step, failure.fingerprint
    if num_restarts >= max_restarts:
        return GiveUp(f"the training {failure} at step {failure.step}, after {num_restarts} restarts")
    # At once the first time: most faults pass, and the machines are paid for.
    return wait
