"""The end of a node: deliver all files and lines that only the node has, then write its exit record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from cloudspot.agent.delivery.artifact_sync import ArtifactSync
from cloudspot.agent.delivery.courier import Courier
from cloudspot.agent.delivery.log_pump import LogPump
from cloudspot.agent.ending.exit_record import write_exit_record
from cloudspot.agent.leaving import Leaving
from cloudspot.agent.node_context import NodeContext
from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.jobstore.checkpoints import manifests
from cloudspot.jobstore.journal.lineage import counts
from cloudspot.jobstore.layout.records import CheckpointId

_log = logging.getLogger(__name__)

UPLOAD_SECONDS = 3600.0
"""How long a node without a deadline tries to deliver its last checkpoint, which only this node has."""
EXIT_RECORD_SECONDS = 600.0
"""How long a node without a deadline tries to deliver artifacts, log lines and exit record, each."""
POLL_SECONDS = 0.25
"""The interval at which a node looks for the other nodes' parts of the last checkpoint."""
_COMMITTED, _INCOMPLETE, _GIVEN_UP = "committed", "parts of other nodes are missing", "given up"
_UNKNOWN = "the store does not say"
PASS_SECONDS = 10.0
PASS_SHARE = 0.3
"""The share of the remaining time, up to ``PASS_SECONDS``, for which the last log lines wait for a pass."""
KEEP_BACK_SECONDS = 1.0
KEEP_BACK_SHARE = 0.15
"""The part of a notice, up to ``KEEP_BACK_SECONDS``, that is kept for the last lines and the exit record."""


class FinalDelivery:
    """Takes a node from the end of its training to its exit record."""

    def __init__(
        self,
        context: NodeContext,
        *,
        courier: Courier,
        artifacts: ArtifactSync,
        logs: LogPump,
        stop_heartbeat: Callable[[], None],
        end_pass: Callable[[float], None],
    ) -> None:
        """Create it; ``end_pass`` waits until the current pass has ended, or for a number of seconds."""
        self._context = context
        self._courier = courier
        self._artifacts = artifacts
        self._logs = logs
        self._stop_heartbeat = stop_heartbeat
        self._end_pass = end_pass

    def leave(self, leaving: Leaving) -> None:
        """Deliver the checkpoints, the artifacts, the log lines and the exit record, in this order.

        If a notice comes meanwhile, the delivery ends by the notice's deadline.
        """
        leaving = self.deliver(leaving)
        self.fall_silent()
        self.write_exit_record(leaving)

    def deliver(self, leaving: Leaving) -> Leaving:
        """Deliver checkpoints and artifacts; return the outcome, which may change if some were lost."""
        context = self._context
        context.status.state = "ending"
        # Even an unneeded node may be the only one with its last checkpoint, until another generation begins.
        is_outrun = not counts(context.journal.known, context.status.generation)
        upload_seconds = 0.0 if leaving.outcome == "superseded" and is_outrun else UPLOAD_SECONDS
        uploaded = self._courier.finish(until=self._until(upload_seconds))
        self._artifacts.stop()
        until = self._until(EXIT_RECORD_SECONDS)
        synced = _attempt(
            lambda: context.retry_until(lambda: self._artifacts.sync(until=until), deadline=until),
            "artifacts",
        )
        if leaving.outcome == "succeeded":
            leaving = self._without_loss(leaving, uploaded=uploaded, synced=synced)
        # The last lines must include the pass's output about the job and about a missing permission.
        now = time.monotonic()
        left = context.orders.deadline(otherwise=now + EXIT_RECORD_SECONDS) - now
        self._end_pass(min(PASS_SECONDS, PASS_SHARE * max(0.0, left)))
        _log.info("leaving: %s (%s)", leaving.outcome, leaving.detail)
        return leaving

    def fall_silent(self) -> None:
        """Deliver the last log lines, and end the heartbeat."""
        now = time.monotonic()
        deadline = self._context.orders.deadline(otherwise=now + EXIT_RECORD_SECONDS)
        if not self._logs.finish(deadline=now + 0.7 * max(0.0, deadline - now)):
            _log.error("log lines were lost because their sink did not accept them in time")
        self._stop_heartbeat()

    def write_exit_record(self, leaving: Leaving) -> bool:
        """Write the exit record; return whether it was written."""
        context = self._context
        end = time.monotonic() + EXIT_RECORD_SECONDS
        return _attempt(
            lambda: context.retry_until(
                lambda: write_exit_record(
                    context.store, context.node, context.job.identity, leaving, context.status
                ),
                deadline=lambda: context.orders.deadline(otherwise=end),
            ),
            "the exit record",
        )

    def _until(self, seconds: float) -> Callable[[], float]:
        """Return a function that returns the moment at which uploads must end (monotonic).

        It is ``seconds`` from now or, after a notice, shortly before the machine is reclaimed.
        """
        otherwise = time.monotonic() + seconds

        def until() -> float:
            reclaim = self._context.orders.reclaim
            if reclaim is None:
                return otherwise
            kept = min(KEEP_BACK_SECONDS, KEEP_BACK_SHARE * max(0.0, reclaim.deadline - reclaim.seen))
            return min(reclaim.deadline - kept, otherwise)

        return until

    def _without_loss(self, leaving: Leaving, *, uploaded: bool, synced: bool) -> Leaving:
        """Return the outcome; it is not a success if the bucket lacks work, because the job must continue."""
        orders = self._context.orders
        if uploaded:
            checkpoint_state = self._find_last_checkpoint(leaving)
            if checkpoint_state == _INCOMPLETE and orders.reclaim is None:
                _log.info("the last checkpoint is uploaded here; the other nodes complete it")
            elif checkpoint_state != _COMMITTED:
                uploaded = orders.reclaim is None and checkpoint_state != _UNKNOWN
                where = "may be in no checkpoint" if checkpoint_state == _UNKNOWN else "is in no checkpoint"
                _log.error("the state of the last step %s", where)
        if uploaded and synced:
            return leaving
        undelivered = "artifacts" if uploaded else "last checkpoint"
        if orders.reclaim is not None:
            detail = f"reclaimed after the training finished, before its {undelivered} could be delivered"
            return replace(leaving, outcome="drained", detail=detail, final=None)
        detail = f"the training finished, but its {undelivered} could not be delivered"
        return replace(leaving, outcome="failed", detail=detail, exit_code=1, final=None)

    def _find_last_checkpoint(self, leaving: Leaving) -> str:
        """Return whether the last step's state was committed, if a session sealed it.

        Look in the store, because an earlier agent of this machine may have committed it. After a notice,
        wait for the other nodes' parts; otherwise, those nodes stay and complete the checkpoint.
        """
        context = self._context
        step, status = leaving.saved_step, context.status
        if step is None or step < status.restored_step:
            return _COMMITTED
        checkpoint = CheckpointId(status.generation, step)
        until = self._until(EXIT_RECORD_SECONDS)
        try:
            while True:
                found = context.retry_until(lambda: self._commit(checkpoint), deadline=until)
                if found != _INCOMPLETE or context.orders.reclaim is None or time.monotonic() >= until():
                    return found
                time.sleep(POLL_SECONDS)
        except CloudspotError as error:
            _log.error("checkpoint %s: %s", checkpoint, error)
            return _UNKNOWN if isinstance(error, TransientError | AuthError) else _GIVEN_UP

    def _commit(self, checkpoint: CheckpointId) -> str:
        context = self._context
        store, job_id, status = context.store, context.job_id, context.status
        commit = manifests.commit_whole(
            store, context.journal, job_id, checkpoint, is_of_the_end=True, known=context.known_parts
        )
        if commit is not None:
            status.committed = max(commit.id, status.committed or commit.id)
            return _COMMITTED
        missing = manifests.missing_ranks(store, job_id, checkpoint)
        # Do not wait for a part that this node itself has abandoned.
        return _GIVEN_UP if missing is None or missing & set(status.ranks) else _INCOMPLETE


def _attempt(call: Callable[[], object], what: str) -> bool:
    try:
        call()
    except CloudspotError as error:
        _log.error("%s: %s", what, error)
        return False
    return True
