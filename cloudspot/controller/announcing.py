"""What the machines of a generation are told about it; pure."""

from __future__ import annotations

from cloudspot.controller.actions import Announce
from cloudspot.controller.deaths import find_instance
from cloudspot.controller.observed import Observed
from cloudspot.jobstore.journal.history import History
from cloudspot.model import InstanceState


def announcement(history: History, observed: Observed) -> tuple[Announce, ...]:
    """Return what to announce to the machines of the newest generation, as far as they are listed.

    Every controller that sees the same announces the same.
    """
    if not history.generations:
        return ()
    newest = history.generations[-1]
    listed = (find_instance(member.instance_id, observed) for member in newest.members)
    is_up = {InstanceState.PENDING, InstanceState.RUNNING}
    running = tuple(one for one in listed if one is not None and one.state in is_up)
    if not running:
        return ()
    address, _, port = newest.endpoint.rpartition(":")
    facts = {"MASTER_ADDR": address, "MASTER_PORT": port, "NUM_NODES": str(len(newest.members))}
    return (Announce(running, facts),)
