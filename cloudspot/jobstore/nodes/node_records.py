"""The records of nodes: their types by the form of their keys, and a function that reads one."""

from __future__ import annotations

from typing import Any

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.stored_records import find_record
from cloudspot.jobstore.journal.consistency import check_place
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Certificate, Exit, Heartbeat, Notice, Slot

TYPES: dict[keys.Form, Any] = {
    keys.slot: Slot,
    keys.certificate: Certificate,
    keys.heartbeat: Heartbeat,
    keys.notice: Notice,
    keys.exit_record: Exit,
}
"""The records that nodes write, and those that controllers write about nodes. Each record belongs to a
launch, and to a rank or a machine.
"""


def find_node_record(store: ObjectStore, form: keys.Form, job_id: str, launch: int, name: int | str) -> Any:
    """Return the record of a form in ``TYPES``, or None; ``name`` is the node's rank or the machine's id.

    Raises:
        CorruptData: the record is malformed, or names another node; the message names the key.
    """
    key = form(job_id, launch, name)
    record = find_record(store, key, TYPES[form])
    check_place(record, launch, name, key)
    return record
