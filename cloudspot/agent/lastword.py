"""The end of a node: everything is delivered, and then its last word is said, the exit record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from cloudspot.agent.leaving import Leaving
from cloudspot.agent.node import Node
from cloudspot.agent.status import Status
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import codec, creation, keys, manifests
from cloudspot.jobstore.records import CheckpointId, Exit, new_nonce
from cloudspot.model import NodeIdentity

if TYPE_CHECKING:
    from cloudspot.agent.life import Life

_log = logging.getLogger(__name__)

UPLOAD_SECONDS = 3600.0
"""How long a node without a deadline tries to deliver its last checkpoint: nobody else has it."""
LAST_WORD_SECONDS = 600.0
"""How long it tries to deliver each of the rest: artifacts, log lines, the exit record."""
POLL_SECONDS = 0.25
"""How often it is asked for the others' parts of the last checkpoint."""
_COMMITTED, _MISSING, _GIVEN_UP = "committed", "a part of another node is missing", "given up"
KEEP_BACK_SECONDS = 1.0
KEEP_BACK_SHARE = 0.15
"""Of a notice, at most ``KEEP_BACK_SECONDS``: what uploads leave to the last lines and the exit record."""


def leave(life: Life, leaving: Leaving) -> None:
    """Deliver everything and say the last word, in this order: commit, artifacts, lines, exit record.

    A notice may come while this goes on, and then all has to be done by its deadline.
    """
    life.status.state = "ending"
    # What a superseded node commits is no candidate for any resume.
    upload_seconds = 0.0 if leaving.outcome == "superseded" else UPLOAD_SECONDS
    uploaded = life.courier.finish(until=_until(life, upload_seconds))
    life.artifacts.stop()
    until = _until(life, LAST_WORD_SECONDS)
    synced = _attempt(
        lambda: life.insist(lambda: life.artifacts.sync(until=until), deadline=until()), "artifacts"
    )
    if leaving.outcome == "succeeded":
        leaving = _without_loss(life, leaving, uploaded=uploaded, synced=synced)
    _log.info("leaving: %s (%s)", leaving.outcome, leaving.detail)
    now = time.monotonic()
    deadline = life.orders.deadline(otherwise=now + LAST_WORD_SECONDS)
    if not life.logs.finish(deadline=now + 0.7 * max(0.0, deadline - now)):
        _log.error("log lines were lost: the sink did not take them in time")
    life.stop_beating()
    deadline = life.orders.deadline(otherwise=time.monotonic() + LAST_WORD_SECONDS)
    _attempt(
        lambda: life.insist(
            lambda: say_last_word(life.store, life.node, life.job.identity, leaving, life.status),
            deadline=deadline,
        ),
        "the exit record",
    )


def say_last_word(
    store: ObjectStore, node: Node, identity: NodeIdentity, leaving: Leaving, status: Status | None = None
) -> None:
    """Write the exit record, unless there is one.

    Raises:
        TransientError: the outcome is unknown; say it again.
    """
    status = Status() if status is None else status
    step = status.progress()[0]
    if leaving.outcome in {"drained", "stopped"} and leaving.saved_step is not None:
        step = leaving.saved_step
    record = Exit(
        launch=node.launch,
        rank=identity.rank,
        instance_id=identity.instance_id,
        outcome=leaving.outcome,
        detail=leaving.detail,
        exit_code=leaving.exit_code,
        permanent=leaving.permanent,
        log_tail=leaving.log_tail,
        generation=status.generation,
        restored_step=status.restored_step,
        step=step,
        has_session=status.has_session,
        committed=status.committed,
        final=leaving.final,
        at=datetime.now(timezone.utc),
        writer=new_nonce(),
    )
    creation.create(store, keys.exit_record(node.job_id, node.launch, identity.rank), codec.encode(record))


def _until(life: Life, seconds: float) -> Callable[[], float]:
    """Return what says by when (monotonic) uploads must end: after ``seconds``, or shortly before the end."""
    otherwise = time.monotonic() + seconds

    def until() -> float:
        reclaim = life.orders.reclaim
        if reclaim is None:
            return otherwise
        kept = min(KEEP_BACK_SECONDS, KEEP_BACK_SHARE * max(0.0, reclaim.deadline - reclaim.seen))
        return min(reclaim.deadline - kept, otherwise)

    return until


def _without_loss(life: Life, leaving: Leaving, *, uploaded: bool, synced: bool) -> Leaving:
    """Return the success, or what lets the job go on where what it has made is not in the bucket."""
    if uploaded and not _is_committed(life, leaving):
        # Given up by the courier, or another node has yet to deliver its part.
        uploaded = life.orders.reclaim is None
        _log.error("the state of the last step is in no checkpoint")
    if uploaded and synced:
        return leaving
    what = "artifacts" if uploaded else "last checkpoint"
    if life.orders.reclaim is not None:
        detail = f"reclaimed after the training finished, before its {what} could be delivered"
        return replace(leaving, outcome="drained", detail=detail, final=None)
    detail = f"the training finished, but its {what} could not be delivered"
    return replace(leaving, outcome="failed", detail=detail, exit_code=1, final=None)


def _is_committed(life: Life, leaving: Leaving) -> bool:
    """Say whether the state of the last step is a checkpoint, where a session has sealed one.

    The store is asked, since an earlier agent of this machine may have committed it. With a notice the
    others' parts are waited for: the last of them makes it one.
    """
    step, status = leaving.saved_step, life.status
    if step is None or step <= status.restored_step:
        return True
    checkpoint = CheckpointId(status.generation, step)
    until = _until(life, LAST_WORD_SECONDS)
    try:
        while True:
            found = life.insist(lambda: _commit(life, checkpoint), deadline=until())
            # Only before a reclaim does it matter: else the others live to deliver what is missing.
            if found != _MISSING or life.orders.reclaim is None or time.monotonic() >= until():
                return found == _COMMITTED
            time.sleep(POLL_SECONDS)
    except CloudspotError as error:
        _log.error("checkpoint %s: %s", checkpoint, error)
        return False


def _commit(life: Life, checkpoint: CheckpointId) -> str:
    store, job_id, status = life.store, life.node.job_id, life.status
    if manifests.try_commit(store, job_id, checkpoint) is not None:
        status.committed = max(checkpoint, status.committed or checkpoint)
        return _COMMITTED
    # What this node itself has given up is waited for by nobody.
    return _MISSING if set(status.ranks) <= manifests.present_parts(store, job_id, checkpoint) else _GIVEN_UP


def _attempt(call: Callable[[], object], what: str) -> bool:
    try:
        call()
    except CloudspotError as error:
        _log.error("%s: %s", what, error)
        return False
    return True
