"""What the machines of a launch are told about each other, and when; pure."""

from __future__ import annotations

from cloudspot.controller.actions import Announce
from cloudspot.controller.attempt import machines_of
from cloudspot.controller.observed import Observed
from cloudspot.jobstore.history import LaunchHistory
from cloudspot.model import DEFAULT_MASTER_PORT, Instance, InstanceState


def announcement(launch: LaunchHistory, observed: Observed) -> tuple[Announce, ...]:
    """Return what to announce, once each rank has a machine and it is clear which one.

    Every controller that sees the same announces the same. An expired token can make two machines of one
    rank: they are told nothing until one of them has claimed the rank, and the other is never told.
    """
    nodes: dict[int, Instance] = {}
    owners = {slot.instance_id: rank for rank, slot in launch.slots.items()}
    for one in machines_of(launch, observed):
        rank = owners.get(one.id, None if one.rank in launch.slots else one.rank)
        if rank is None or one.state not in {InstanceState.PENDING, InstanceState.RUNNING}:
            continue
        if rank in nodes:
            return ()
        nodes[rank] = one
    if 0 not in nodes or len(nodes) < launch.intent.num_nodes:
        return ()
    claim = launch.slots.get(0)
    address = (claim.address if claim else None) or nodes[0].address
    if address is None:
        return ()
    facts = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(DEFAULT_MASTER_PORT),
        "NUM_NODES": str(launch.intent.num_nodes),
    }
    return (Announce(launch.number, tuple(nodes[rank] for rank in sorted(nodes)), facts),)
