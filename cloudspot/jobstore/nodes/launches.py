"""The seats of a launch: which machine is which node, decided once and permanently (protocol P2)."""

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

    A claim is the first act of a node. Unless the returned record names this machine (``instance_id``), the
    machine must end before it runs any user code. A machine that asks again gets its own claim again.
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
    """Claim a seat of the launch for this machine; return the identity with its rank, or None if it must end.

    The machine first claims the seat of its own index. If another machine has that seat, the provider's
    indices are not unique, and this machine claims any other open seat of the ``num_seats``: not every cloud
    promises that the machines of one request get different indices.
    """
    slot = claim_slot(store, job_id, launch, identity.rank, identity)
    if slot.instance_id == identity.instance_id:
        return identity
    if slot.instance_id is None:
        return None  # a controller has given up on this machine
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
    """Make the seat void for all machines, unless a machine has claimed it; return the stored record.

    The seat is void only if the returned record has no ``instance_id``. ``machines`` were launched for the
    seat, and stay on the bill until they have provably ended; ``cause`` was read from their consoles.
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
    """Return the claimed and void seats of the launch, by rank.

    ``known`` are seats that an earlier call returned; these never change and are not read again.
    """
    store = with_retries(store)
    listed = [keys.slot.match(meta.key) for meta in store.list_objects(keys.slots_prefix(job_id, launch))]
    new = [match[2] for match in listed if match is not None and match[2] not in known]
    new_keys = [keys.slot(job_id, launch, rank) for rank in new]
    slots = map_parallel(lambda key: read_record(store, key, Slot), new_keys)
    return {**known, **dict(zip(new, slots, strict=True))}
