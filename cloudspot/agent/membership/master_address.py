"""The address at which the ranks meet (MASTER_ADDR): as the controller announced it, or as in the slot."""

from __future__ import annotations

import logging
import time

from cloudspot.agent.node_context import NodeContext
from cloudspot.errors import CloudspotError
from cloudspot.jobstore.records import Member

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""How often it looks for an announcement that is not there yet."""


def master_address(context: NodeContext, first: Member, *, gathered_at: float) -> str:
    """Return the address at which the others meet: what was announced, else what the first node's slot says.

    Waits for the announcement until at most the provider's ``announce_seconds`` after ``gathered_at``
    (monotonic), when all nodes were there. It may lag, or be switched off, or nobody may drive the job; the
    job goes on all the same. Where the two differ the slot is right: the node itself has written it.

    Raises:
        LeavingError: an order to leave came.
    """
    slot_address = first.address
    if context.job.spec.nodes.max == 1 or first.rank != 0:  # only node 0 is announced, and only to others
        return slot_address
    announced = _await_announcement(context, gathered_at + context.provider.announce_seconds)
    if announced is None:
        _log.info("MASTER_ADDR is %s, by the first node's slot: it was not announced here", slot_address)
        return slot_address
    if slot_address and slot_address != announced:
        _log.warning(
            "MASTER_ADDR was announced as %s, but the first node's slot says %s, which is taken",
            announced,
            slot_address,
        )
        return slot_address
    _log.info("MASTER_ADDR is %s, as announced", announced)
    return announced


def _await_announcement(context: NodeContext, wait_until: float) -> str | None:
    while True:
        try:
            found = context.provider.announced().get("MASTER_ADDR")
        except CloudspotError as error:
            _log.info("what was announced cannot be read: %s", error)
            found = None
        left = wait_until - time.monotonic()
        if found is not None or left <= 0:
            return found
        context.obey()
        context.orders.wait(min(LOOK_SECONDS, left))
