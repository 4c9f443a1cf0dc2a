"""What the controller has announced to this machine: the first source of the first node's address."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from cloudspot.errors import CloudspotError

if TYPE_CHECKING:
    from cloudspot.agent.life import Life
    from cloudspot.jobstore.records import Member

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""How often what is not there yet is asked for again."""


def first_address(life: Life, first: Member) -> str:
    """Return the address at which the others meet: what was announced, else what the node's slot says.

    Waits for the announcement, for the provider's ``announce_seconds`` at most since all nodes were there: it
    may lag, or be switched off, or nobody may drive the job, and a job that can go on goes on. Where the
    two differ, the slot is right: the node itself has written it.

    Raises:
        LeavingError: an order to leave came.
    """
    slot_address = first.address
    if life.job.spec.nodes.max == 1 or first.rank != 0:  # nobody to meet; another node's address is announced
        return slot_address
    announced = _await_announcement(life)
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


def _await_announcement(life: Life) -> str | None:
    wait_until = life.gathered_at + life.provider.announce_seconds
    while True:
        try:
            found = life.provider.announced().get("MASTER_ADDR")
        except CloudspotError as error:
            _log.info("what was announced cannot be read: %s", error)
            found = None
        left = wait_until - time.monotonic()
        if found is not None or left <= 0:
            return found
        life.obey()
        life.orders.wait(min(LOOK_SECONDS, left))
