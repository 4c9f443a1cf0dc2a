"""Turns Compute Engine's description of a machine, or of its end, into cloudspot's."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from cloudspot.model import EndReason, Instance, InstanceState, Market
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import moment
from cloudspot_gcp import attributes, selfend

_STATES: Final = {
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "PENDING": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    # The machine's host failed and it is moving to another host, so it may run again.
    "REPAIRING": InstanceState.RUNNING,
    # A machine that shut itself down stays in this state, and its disk is billed until `release` deletes it.
    # If somebody starts it again, it boots a second time, and then ends itself.
    "TERMINATED": InstanceState.ENDED,
}
_OTHER: Final = InstanceState.SHUTTING_DOWN
"""The state for STOPPING and DEPROVISIONING, and for SUSPENDED, which a user has caused and may undo."""
PREEMPTED: Final = "compute.instances.preempted"
END_OPERATIONS: Final = {
    PREEMPTED: EndReason.RECLAIMED,
    "compute.instances.guestTerminate": EndReason.SELF,
    "compute.instances.hostError": EndReason.LOST,
    "compute.instances.terminateOnHostMaintenance": EndReason.LOST,
    "stop": EndReason.TERMINATED,
    "delete": EndReason.TERMINATED,
}
"""Operations that end a machine, the most specific first: a reclaimed machine is deleted as well (Compute
Engine documentation, "View preempted VMs", "Troubleshooting VM shutdowns"; and Google's own
github.com/GoogleCloudPlatform/gcpdiag; checked 2026-11)."""


class Place(NamedTuple):
    """A machine's zone, name and number."""

    zone: str
    name: str
    number: str
    """Compute Engine's own id. The id distinguishes machines of the same name: a launch that is repeated too
    late, or a later job of the same id, may use a name again.
    """

    @property
    def id(self) -> str:
        """Return ``ZONE/NAME/NUMBER``."""
        return "/".join(self)

    @property
    def instance(self) -> str:
        """Return the identifier for API requests: the number, or the name if an operation has no number."""
        return self.name if self.number == "0" else self.number


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's end according to its operations."""

    place: Place
    reason: EndReason
    at: datetime | None
    is_over: bool
    """Whether an operation that ends the machine is done. Until then the machine may still be running."""


def place_of_id(instance_id: str) -> Place | None:
    """Return the place in a machine's id, or None if the id is not cloudspot's."""
    parts = instance_id.split("/")
    if len(parts) != len(Place._fields) or not parts[0] or not parts[2].isdigit():
        return None
    return None if attributes.launch_and_rank(parts[1]) is None else Place(*parts)


def place_of(described: Any) -> Place:
    """Return the place of the machine that Compute Engine describes."""
    return Place(last_part(described.zone), described.name, str(described.id))


def last_part(url: str) -> str:
    """Return the last part of a resource's URL: ``us-central1-a`` of ``.../zones/us-central1-a``."""
    return url.rpartition("/")[2]


def to_instance(described: Any, ending: Ending | None) -> Instance | None:
    """Return the machine that Compute Engine describes, or None if it has none of cloudspot's labels.

    ``ending`` is the machine's end according to the operations. The rank is in the machine's name, from which
    the machine reads it too.
    """
    labels = dict(described.labels)
    if not labels.get(machinetags.JOB):  # an empty label names no job, and must not break the listing
        return None
    state = _STATES.get(described.status, _OTHER)
    is_ending = state in {InstanceState.ENDED, InstanceState.SHUTTING_DOWN}
    launch = machinetags.launch_of(labels)
    named = attributes.launch_and_rank(described.name)
    place = place_of(described)
    stores = [one.value for one in described.metadata.items if one.key == machinetags.STORE]
    return Instance(
        id=place.id,
        state=state,
        job_id=labels[machinetags.JOB],
        # A machine whose label was changed gets launch 0, which does not exist, and so is ended.
        launch=launch if named is not None and named[0] == launch else 0,
        rank=None if named is None else named[1],
        end_reason=(EndReason.UNKNOWN if ending is None else ending.reason) if is_ending else None,
        address=next((one.network_i_p or None for one in described.network_interfaces), None),
        zone=place.zone,
        instance_type=last_part(described.machine_type),
        market=Market.SPOT if described.scheduling.provisioning_model == "SPOT" else Market.ON_DEMAND,
        store_url=stores[0] if stores else "",
        launched_at=to_time(described.creation_timestamp),
        ended_at=ending.at if ending is not None and state is InstanceState.ENDED else None,
    )


def to_vanished_instance(ending: Ending, *, job_id: str, store_url: str) -> Instance:
    """Return a machine that is no longer listed, as its operations describe it."""
    launch, rank = attributes.launch_and_rank(ending.place.name) or (0, None)
    return Instance(
        id=ending.place.id,
        state=InstanceState.ENDED if ending.is_over else InstanceState.SHUTTING_DOWN,
        job_id=job_id,
        launch=launch,
        rank=rank,
        end_reason=ending.reason,
        zone=ending.place.zone,
        store_url=store_url,
        ended_at=ending.at if ending.is_over else None,
    )


def endings(operations: Iterable[Any]) -> dict[str, Ending]:
    """Return the ends of cloudspot's machines according to operations, by the machine's id.

    A machine's most specific operation, the first in ``END_OPERATIONS``, determines the reason.
    """
    order = list(END_OPERATIONS)
    by_id: dict[str, tuple[int, Ending]] = {}
    for operation in operations:
        place = target_of(operation)
        if place is None or operation.operation_type not in END_OPERATIONS or has_failed(operation):
            continue
        rank = order.index(operation.operation_type)
        ending = Ending(
            place=place,
            reason=_reason(operation, place),
            at=to_time(operation.end_time or operation.insert_time),
            is_over=is_done(operation),
        )
        if place.id in by_id:
            both = (by_id[place.id], (rank, ending))
            (rank, ending), (_, lesser) = sorted(both, key=lambda one: one[0])
            if lesser.is_over and not ending.is_over:
                # An operation in progress states only the time of its request.
                ending = msgspec.structs.replace(ending, is_over=True, at=lesser.at)
        by_id[place.id] = (rank, ending)
    return {key: ending for key, (_, ending) in by_id.items()}


def _reason(operation: Any, place: Place) -> EndReason:
    # An operation states its request's id.
    is_own = operation.client_operation_id == selfend.request_id(*place)
    return EndReason.SELF if is_own else END_OPERATIONS[operation.operation_type]


def target_of(operation: Any) -> Place | None:
    """Return the machine that an operation is about, or None if the machine is not cloudspot's."""
    where = operation.target_link.partition("/zones/")[2].split("/")
    if len(where) != 3 or where[1] != "instances" or attributes.launch_and_rank(where[2]) is None:
        return None
    return Place(where[0], where[2], str(operation.target_id))


def is_done(operation: Any) -> bool:
    """Return whether an operation is over, successful or not."""
    return getattr(operation.status, "name", "") == "DONE"


def has_failed(operation: Any) -> bool:
    """Return whether an operation has failed, which it may have even if it is done."""
    return bool(operation.error.errors or operation.http_error_status_code)


def to_time(text: str) -> datetime | None:
    """Return the time that Compute Engine writes as ``2026-11-20T00:22:00.000-08:00``."""
    return moment(text)
