"""Decide what follows a failed training run on this node: another start, or the end of the job."""

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
not connect its ranks (a port was taken, a connection failed), or waited for a checkpoint that fails
verification or fits only on the disk. The script is not to blame for the last two."""
WEIGHT = {NOT_CONNECTED: 0, FAILED: 1, STUCK: 2, NOT_RESTORED: 3}
"""If nodes report different reasons for a generation's end, the one with the greatest weight is used: if a
rank fails, the other ranks lose their connection, and they take a stuck rank's end for a failure."""
CONNECTION_ERRORS = frozenset({"torch.distributed.DistNetworkError", "torch.distributed.DistStoreError"})
"""The types of errors that may end a rank while it joins the process group."""
SENT_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
"""The signals that may come from outside: the kernel (if memory is short), a person, or a shutdown."""
_FULL_DISK = re.compile(
    r"no space left on device|disk quota exceeded"
    # The only message that torch.save gives on a full file system (seen with torch 2.13).
    r"|inline_container\.cc:\d+\] \. unexpected pos|PytorchStreamWriter failed writing",
    re.IGNORECASE,
)
_LOST_CONNECTION = re.compile(
    r"connection (was )?(likely )?(closed|reset|aborted)|broken pipe|ncclRemoteError|remote process exit",
    re.IGNORECASE,
)
"""The errors of gloo, NCCL and sockets when the remote process is gone."""
_WITH_DIGIT = re.compile(r"\S*\d\S*")
AT_ONCE_SECONDS = 60.0
"""A script without a session that fails twice in the same way within this time is not restarted."""
MAX_RESTART_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Failure:
    """The end of a training run that neither finished nor was asked to leave."""

    exit_code: int
    step: int
    """The newest step begun; for a script without a session, the restored step."""
    seconds: float
    """How long the training ran."""
    has_session: bool
    why: FailureKind
    fingerprint: str | None
    """A value that is equal for failures of the same kind; None if the cause may lie outside the script."""
    is_cut_short: bool = False
    """Whether the training exited 0 in the middle of its session's loop."""
    is_consequence: bool = False
    """Whether another node's failure caused this one, as far as is known."""
    contributes_part: bool = True
    """Whether a new checkpoint proves progress of this node's script."""

    @property
    def is_step_known(self) -> bool:
        """Whether the failure's step is known: a script without a session does not report its steps."""
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
    """The decision not to start the training again."""

    detail: str
    permanent: bool = True
    """Whether the job ends, because other machines would not help."""


def has_connected(error: RankError) -> bool:
    """Return whether an error before the first step is more than a failure to connect the ranks."""
    # torch raises a plain RuntimeError for gloo's errors.
    gloo = error.type == "builtins.RuntimeError" and "connectFullMesh" in error.message
    return error.type not in CONNECTION_ERRORS and not gloo


def fingerprint_of(exit_code: int, error: RankError | None) -> str | None:
    """Return a value that is equal for failures of the same kind, or None if the cause may be external.

    ``error`` is the first error that a rank reported; without it, the exit status is used. Of the error's
    message, only the first line is used, without words that contain digits, such as addresses and paths.

    A signal from outside, a full disk and a lost connection to another rank may hit any script.
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
    """Return whether the error means that another rank has ended or was not found."""
    texts = (error.message, *error.causes)
    return error.type in CONNECTION_ERRORS or any(_LOST_CONNECTION.search(text) for text in texts)


def saved_without_progress(commits: Collection[Commit]) -> frozenset[CheckpointId]:
    """Return the checkpoints that were saved after failures, in generations without any other checkpoint.

    A training run that saves between its failures makes progress.
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
    """Return how many generations since the last new checkpoint started after failures of these kinds.

    The first failure after that checkpoint is included. Commits of the newest generation do not count,
    because all nodes must see the same records. Checkpoints ``saved_by_failures`` do not count, because each
    failure makes one.
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
    """Return the number of seconds to wait before the next start, or the decision to give up.

    Record the failure in ``memory``, which the caller saves.

    Two failures at the same step and with the same fingerprint are the script's fault, even if other failures
    came between them; otherwise ``max_restarts`` decides. A failure to connect the ranks is not the script's
    fault, and other machines may succeed.

    ``num_restarts`` counts the restarts after failures of the same kind, either of the script or of the
    connection.
    """
    wait = min(2.0**num_restarts - 1.0, MAX_RESTART_WAIT_SECONDS)
    if failure.why == NOT_CONNECTED:
        if num_restarts >= max_restarts:
            return GiveUp(f"the training {failure}, after {num_restarts} restarts", permanent=False)
        return wait
    if not failure.is_step_known:  # the next failure counts as the first of its kind
        memory.failed_at_step, memory.failed_with = -1, ""
    elif failure.why == FAILED and failure.fingerprint is not None:
        is_there_again = failure.step == memory.failed_at_step or not failure.contributes_part
        if is_there_again and failure.fingerprint == memory.failed_with:
            return GiveUp(f"the training {failure} twice at step {failure.step}")
        memory.failed_at_step, memory.failed_with = failure.step, failure.fingerprint
    if num_restarts >= max_restarts:
        return GiveUp(f"the training {failure} at step {failure.step}, after {num_restarts} restarts")
    # The first restart is immediate, because most faults are temporary and the machines are paid for.
    return wait
