"""The commit of a drain, after which the survivors go on: whoever sees all its parts writes it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from cloudspot.agent.hearing import Hearing
from cloudspot.errors import CorruptData
from cloudspot.jobstore import manifests
from cloudspot.jobstore.records import CheckpointId, Generation

if TYPE_CHECKING:
    from cloudspot.agent.life import Life

_log = logging.getLogger(__name__)

COMMIT_SECONDS = 60.0
"""How long the survivors of a drain wait for parts of nodes that have no notice."""


def await_commit(life: Life, hearing: Hearing, current: Generation, step: int) -> None:
    """Wait until the drain's checkpoint is committed, or a part of it will never come.

    Whoever sees all parts commits: the node that brought the last one may be gone since.
    """
    if not hearing.others:
        return
    checkpoint = CheckpointId(current.number, step)
    own = life.job.identity.rank
    others = tuple(member.rank for member in current.members if member.rank != own)
    hearing.ask()
    end = time.monotonic() + COMMIT_SECONDS
    while not life.orders.pending and life.orders.newer_than(current) is None:
        # In this order: who is gone now has put its parts before, or never will.
        gone = {rank for rank in others if hearing.is_gone(rank)}
        try:
            commit = life.insist(lambda: manifests.try_commit(life.store, life.node.job_id, checkpoint))
        except CorruptData as error:
            _log.error("checkpoint %s is given up: %s", checkpoint, error)
            return
        if commit is not None:
            life.status.committed = max(checkpoint, life.status.committed or checkpoint)
            return
        missing = _missing_parts(life, checkpoint, current)
        if missing <= gone:
            return
        if time.monotonic() >= end and not any(hearing.has_notice(r) for r in missing - gone):
            return
        hearing.pause()


def _missing_parts(life: Life, checkpoint: CheckpointId, current: Generation) -> set[int]:
    """Return the nodes that have yet to bring a part of the checkpoint."""
    procs = life.job.spec.procs_per_node
    there = life.insist(lambda: manifests.present_parts(life.store, life.node.job_id, checkpoint))
    return {
        member.rank
        for index, member in enumerate(current.members)
        for rank in range(index * procs, (index + 1) * procs)
        if rank not in there
    }
