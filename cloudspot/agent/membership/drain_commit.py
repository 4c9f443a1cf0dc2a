"""Wait for a drain's commit before the survivors continue.

Any node that sees all parts writes the commit. The wait also ends if a missing part can no longer appear.
"""

from __future__ import annotations

import logging
import time

from cloudspot.agent.membership.peer_heartbeats import PeerHeartbeats
from cloudspot.agent.node_context import NodeContext
from cloudspot.errors import CorruptData
from cloudspot.jobstore.checkpoints import manifests
from cloudspot.jobstore.layout.records import CheckpointId, Generation, Seat

_log = logging.getLogger(__name__)

COMMIT_SECONDS = 60.0
"""How long the survivors of a drain wait for parts of nodes without a notice."""


def await_commit(context: NodeContext, peers: PeerHeartbeats, current: Generation, step: int) -> None:
    """Wait until the drain's checkpoint is committed, or one of its parts can no longer appear.

    Another save of the same step may be completed first. Any node that sees all parts commits, because the
    node that uploaded the last part may be gone.
    """
    others = tuple(seat for seat in current.seats if seat != context.seat)
    if not others:
        return
    checkpoint = CheckpointId(current.number, step)
    peers.ask()
    end = time.monotonic() + COMMIT_SECONDS
    seems_whole = False
    while not context.orders.pending and context.orders.newer_than(current) is None:
        peers.refresh()
        # First check which nodes are gone, then the parts: a gone node uploaded its parts before, or never
        # will.
        gone = {seat for seat in others if peers.is_gone(seat)} | _settled(peers, current)
        if commit_if_whole(context, checkpoint) is not False:
            return
        missing = _missing_parts(context, checkpoint, current)
        if not missing and not seems_whole:
            seems_whole = True  # the last part arrived after the commit failed: try again
            continue
        if missing <= gone:
            return
        if time.monotonic() >= end and not any(peers.has_notice(seat) for seat in missing - gone):
            return
        peers.pause()


def commit_if_whole(context: NodeContext, checkpoint: CheckpointId) -> bool | None:
    """Commit the checkpoint if a save of it is complete; return whether it is, or None if it never can be."""
    try:
        commit = context.retry_until(
            lambda: manifests.commit_whole(
                context.store, context.journal, context.job_id, checkpoint, known=context.known_parts
            )
        )
    except (CorruptData, manifests.Superseded) as error:
        _log.error("checkpoint %s is given up: %s", checkpoint, error)
        return None
    if commit is not None:
        context.status.committed = max(commit.id, context.status.committed or commit.id)
    return commit is not None


def await_uploads(context: NodeContext, peers: PeerHeartbeats, current: Generation) -> None:
    """Wait until the other nodes have delivered their parts of the script's checkpoint, or no longer can.

    By default, only the node of rank 0 uploads a part. A commit after the record of the next generation would
    not count.
    """
    bringing = current.seats if context.job.spec.checkpoint.nodes == "all" else current.seats[:1]
    others = {seat for seat in bringing if seat != context.seat}
    if not others:
        return
    peers.ask()
    end = time.monotonic() + COMMIT_SECONDS
    while not context.orders.pending and context.orders.newer_than(current) is None:
        peers.refresh()
        left = {seat for seat in others if not peers.is_gone(seat)} - _settled(peers, current)
        if not left or (time.monotonic() >= end and not any(map(peers.has_notice, left))):
            return
        peers.pause()


def _settled(peers: PeerHeartbeats, current: Generation) -> set[Seat]:
    """Return the nodes that have delivered all their saves of the generation."""
    beats = peers.beats()
    return {
        seat
        for seat, beat in beats.items()
        if beat is not None and beat.generation == current.number and beat.state in {"restoring", "ready"}
    }


def _missing_parts(context: NodeContext, checkpoint: CheckpointId, current: Generation) -> set[Seat]:
    """Return the nodes that have not uploaded all their parts of the checkpoint."""
    procs = context.job.spec.procs_per_node
    ranks = context.retry_until(lambda: manifests.missing_ranks(context.store, context.job_id, checkpoint))
    if ranks is None:
        return set(current.seats)
    return {current.seats[rank // procs] for rank in ranks if rank // procs < len(current.seats)}
