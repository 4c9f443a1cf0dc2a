"""The exit record of a node: its outcome, and proof that the node no longer runs user code."""

from __future__ import annotations

from cloudspot.agent.leaving import Leaving
from cloudspot.agent.node import Node
from cloudspot.agent.status import Status
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.access.stored_records import create_record
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Exit, new_nonce
from cloudspot.model import NodeIdentity


def write_exit_record(
    store: ObjectStore, node: Node, identity: NodeIdentity, leaving: Leaving, status: Status | None = None
) -> None:
    """Write the exit record, unless it exists."""
    status = Status() if status is None else status
    step = status.progress()[0]
    if leaving.outcome in {"drained", "stopped"} and leaving.saved_step is not None:
        step = leaving.saved_step
    record = Exit(
        launch=node.launch,
        rank=identity.rank,
        instance_id=identity.instance_id,
        outcome=leaving.outcome,
        detail=leaving.detail,
        exit_code=leaving.exit_code,
        permanent=leaving.permanent,
        waits_until=leaving.waits_until,
        is_cut_off=leaving.is_cut_off,
        fingerprint=leaving.fingerprint,
        log_tail=leaving.log_tail,
        generation=status.generation,
        restored_step=status.restored_step,
        step=step,
        reached_step=status.reached_step,
        has_session=status.has_session,
        committed=status.committed,
        final=leaving.final,
        at=clock_of(store).now(),
        writer=new_nonce(),
    )
    create_record(store, keys.exit_record(node.job_id, node.launch, identity.rank), record)
