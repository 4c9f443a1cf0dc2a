"""The seats of a launch: which machine is which node, decided once and for all (protocol P2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType

import msgspec

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.access.stored_records import create_record, read_record
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Slot, new_nonce
from cloudspot.model import NodeIdentity


def claim_slot(
    store: ObjectStore,
    job_id: str,
    launch: int,
    rank: int,
    identity: NodeIdentity,
    *,
    now: Callable[[], datetime] | None = None,
) -> Slot:
    """Claim the seat for this machine and return its owner's record.

    A node's first act. Unless the record returned names this machine (``instance_id``), the machine
    must end before it runs any user code. A machine that asks again gets its own claim again.
    """
    slot = Slot(
        instance_id=identity.instance_id,
        address=identity.address,
        at=(now or clock_of(store).now)(),
        writer=new_nonce(),
    )
    return create_record(store, keys.slot(job_id, launch, rank), slot)


def claim_seat(
    store: ObjectStore, job_id: str, launch: int, identity: NodeIdentity, *, num_seats: Callable[[], int]
) -> NodeIdentity | None:
    """Claim a seat of the launch for this machine; return the identity with its rank, or None: it must end.

    Its seat is that of its index. If that is another machine's, the provider's indices repeat, and any other
    seat of the ``num_seats`` that is open will do: not every cloud promises that the machines of one request
    get different ones.
    """
    slot = claim_slot(store, job_id, launch, identity.rank, identity)
    if slot.instance_id == identity.instance_id:
        return identity
    if slot.instance_id is None:
        return None  # a controller has given this machine up
    for rank in range(num_seats()):
        if claim_slot(store, job_id, launch, rank, identity).instance_id == identity.instance_id:
            return msgspec.structs.replace(identity, rank=rank)
    return None


def void_slot(
    store: ObjectStore,
    job_id: str,
    launch: int,
    rank: int,
    detail: str,
    *,
    machines: tuple[str, ...] = (),
    cause: str = "",
    now: Callable[[], datetime] | None = None,
) -> Slot:
    """Forbid the seat to every machine, unless one has claimed it; return the record that stands.

    The seat is void only if the record returned says so (it has no ``instance_id``). ``machines`` are those
    that are there for it, and are on the bill until their end is proven; ``cause`` is what they said.
    """
    slot = Slot(
        instance_id=None,
        detail=detail,
        machines=machines,
        cause=cause,
        at=(now or clock_of(store).now)(),
        writer=new_nonce(),
    )
    return create_record(store, keys.slot(job_id, launch, rank), slot)


def read_slots(
    store: ObjectStore, job_id: str, launch: int, *, known: Mapping[int, Slot] = MappingProxyType({})
) -> dict[int, Slot]:
    """Return the seats of the launch that are claimed or void, by rank.

    ``known`` are those that an earlier call returned: they never change and are not read again.
    """
    store = with_retries(store)
    listed = [keys.slot.match(meta.key) for meta in store.list_objects(keys.slots_prefix(job_id, launch))]
    new = [match[2] for match in listed if match is not None and match[2] not in known]
    new_keys = [keys.slot(job_id, launch, rank) for rank in new]
    slots = map_parallel(lambda key: read_record(store, key, Slot), new_keys)
    return {**known, **dict(zip(new, slots, strict=True))}
