"""From Compute Engine's description of a machine, or of its end, to ours."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

from cloudspot.model import EndReason, Instance, InstanceState, Market
from cloudspot_gcp import attributes

_STATES: Final = {
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "PENDING": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    # Its host failed, and another one is looked for: it may come back.
    "REPAIRING": InstanceState.RUNNING,
    # Shut down from the inside, a machine stays as this, with a disk that is billed: `release` deletes it.
    # Started again by hand, it boots a second time, and ends itself for that.
    "TERMINATED": InstanceState.ENDED,
}
_OTHER: Final = InstanceState.SHUTTING_DOWN
"""STOPPING, DEPROVISIONING; and SUSPENDED, which somebody did by hand and may undo."""
PREEMPTED: Final = "compute.instances.preempted"
END_OPERATIONS: Final = {
    PREEMPTED: EndReason.RECLAIMED,
    "compute.instances.guestTerminate": EndReason.SELF,
    "compute.instances.hostError": EndReason.LOST,
    "compute.instances.terminateOnHostMaintenance": EndReason.LOST,
    "stop": EndReason.TERMINATED,
    "delete": EndReason.TERMINATED,
}
"""Operations that end a machine, by their types, the telling ones first: a machine that is taken is deleted
as well (Compute Engine documentation, "View preempted VMs", "Troubleshooting VM shutdowns"; and Google's own
github.com/GoogleCloudPlatform/gcpdiag; checked 2026-11)."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What the operations say of a machine's end."""

    zone: str
    name: str
    reason: EndReason
    at: datetime | None
    is_over: bool
    """An operation that ends it is done. Until then it may still run something."""


def machine_id(zone: str, name: str) -> str:
    """Return a machine's id: ``ZONE/NAME``. Compute Engine finds it by that, and so do people."""
    return f"{zone}/{name}"


def split_id(instance_id: str) -> tuple[str, str] | None:
    """Return the zone and the name that an id says; None: it is none of ours."""
    zone, _, name = instance_id.partition("/")
    return None if not zone or attributes.launch_and_rank(name) is None else (zone, name)


def last_part(url: str) -> str:
    """Return what a resource's URL ends in: ``us-central1-a`` of ``.../zones/us-central1-a``."""
    return url.rpartition("/")[2]


def to_instance(described: Any, ending: Ending | None) -> Instance | None:
    """Return a machine as Compute Engine describes it, or None when it carries no label of cloudspot's.

    ``ending`` is what the operations say of it. Its name says its rank; the machine itself reads the same.
    """
    labels = dict(described.labels)
    if attributes.JOB not in labels:
        return None
    state = _STATES.get(described.status, _OTHER)
    is_ending = state in {InstanceState.ENDED, InstanceState.SHUTTING_DOWN}
    launch = labels.get(attributes.LAUNCH, "")
    named = attributes.launch_and_rank(described.name)
    zone = last_part(described.zone)
    stores = [one.value for one in described.metadata.items if one.key == attributes.STORE]
    return Instance(
        id=machine_id(zone, described.name),
        state=state,
        job_id=labels[attributes.JOB],
        # Launch 0 is in nobody's journal: a machine whose label was tampered with is ended.
        launch=int(launch) if launch.isdigit() and named is not None and named[0] == int(launch) else 0,
        rank=None if named is None else named[1],
        end_reason=(EndReason.UNKNOWN if ending is None else ending.reason) if is_ending else None,
        address=next((one.network_i_p or None for one in described.network_interfaces), None),
        zone=zone,
        instance_type=last_part(described.machine_type),
        market=Market.SPOT if described.scheduling.provisioning_model == "SPOT" else Market.ON_DEMAND,
        store_url=stores[0] if stores else "",
        launched_at=to_time(described.creation_timestamp),
        ended_at=ending.at if ending is not None and state is InstanceState.ENDED else None,
    )


def to_vanished_instance(ending: Ending, *, job_id: str, store_url: str) -> Instance:
    """Return a machine that is not listed any more, from the operations alone."""
    launch, rank = attributes.launch_and_rank(ending.name) or (0, None)
    return Instance(
        id=machine_id(ending.zone, ending.name),
        state=InstanceState.ENDED if ending.is_over else InstanceState.SHUTTING_DOWN,
        job_id=job_id,
        launch=launch,
        rank=rank,
        end_reason=ending.reason,
        zone=ending.zone,
        store_url=store_url,
        ended_at=ending.at if ending.is_over else None,
    )


def endings(operations: Iterable[Any]) -> dict[str, Ending]:
    """Return what operations say of the ends of cloudspot's machines, by the machine's id.

    The most telling operation of a machine names the reason: the first in ``END_OPERATIONS``.
    """
    order = list(END_OPERATIONS)
    found: dict[str, tuple[int, Ending]] = {}
    for operation in operations:
        target = target_of(operation)
        if target is None or operation.operation_type not in END_OPERATIONS or operation.error.errors:
            continue
        is_over, rank = is_done(operation), order.index(operation.operation_type)
        before = found.get(machine_id(*target))
        ending = Ending(
            zone=target[0],
            name=target[1],
            reason=END_OPERATIONS[operation.operation_type],
            at=to_time(operation.end_time or operation.insert_time),
            is_over=is_over,
        )
        if before is not None:
            is_over = is_over or before[1].is_over
            rank, ending = min((before, (rank, ending)), key=lambda one: one[0])
            ending = msgspec.structs.replace(ending, is_over=is_over)
        found[machine_id(*target)] = (rank, ending)
    return {key: ending for key, (_, ending) in found.items()}


def target_of(operation: Any) -> tuple[str, str] | None:
    """Return the zone and the name of the machine that an operation is about; None: none of ours."""
    where = operation.target_link.partition("/zones/")[2].split("/")
    if len(where) != 3 or where[1] != "instances" or attributes.launch_and_rank(where[2]) is None:
        return None
    return where[0], where[2]


def is_done(operation: Any) -> bool:
    """Say whether an operation is over, well or not."""
    return getattr(operation.status, "name", "") == "DONE"


def to_time(text: str) -> datetime | None:
    """Return the moment that Compute Engine writes as ``2026-11-20T00:22:00.000-08:00``."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError:
        return None
