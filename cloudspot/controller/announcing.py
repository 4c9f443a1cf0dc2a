"""The facts about a generation that are announced to its machines; pure."""

from __future__ import annotations

from cloudspot.controller.actions import Announce
from cloudspot.controller.assess.observed import Observed
from cloudspot.controller.deaths import find_instance
from cloudspot.jobstore.journal.history import History


def announcement(history: History, observed: Observed) -> tuple[Announce, ...]:
    """Return the announcement to the machines of the newest generation that are listed.

    Controllers that see the same records and machines announce the same facts.
    """
    if not history.generations:
        return ()
    newest = history.generations[-1]
    listed = (find_instance(member.instance_id, observed) for member in newest.members)
    running = tuple(one for one in listed if one is not None and one.state.is_up)
    if not running:
        return ()
    address, _, port = newest.endpoint.rpartition(":")
    facts = {"MASTER_ADDR": address, "MASTER_PORT": port, "NUM_NODES": str(len(newest.members))}
    return (Announce(running, facts),)
