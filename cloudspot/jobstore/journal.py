"""The journal: numbered, create-only records. A writer of number n has read all before it."""

from __future__ import annotations

from collections.abc import Sequence

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.creation import create
from cloudspot.jobstore.numbered import read_after
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import JournalRecord


class Journal:
    """A job's journal, for one thread. Keeps what it has read, since records never change."""

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self._store = patient(store)
        self._job_id = job_id
        self._records: list[JournalRecord] = []

    def read(self) -> tuple[JournalRecord, ...]:
        """Return all records; record ``n`` is at index ``n - 1``.

        Costs one request more than the number of new records.
        """
        self._records += read_after(
            self._store,
            keys.journal_prefix(self._job_id),
            lambda number: keys.journal(self._job_id, number),
            lambda data, _, key: codec.decode_journal(data, key=key),
            known=len(self._records),
        )
        return tuple(self._records)

    def recall(self, records: Sequence[JournalRecord]) -> None:
        """Take in the first records, which were read elsewhere; ``read`` continues after them."""
        self._records = list(records)

    def append(self, record: JournalRecord, number: int) -> bool:
        """Write the record as number ``number``, the next after those that its writer has read.

        Returns False if another writer has that number: read the journal again and decide anew.

        Raises:
            TransientError: the outcome is unknown; append the same record again.
        """
        if number < 1:
            raise ValueError(f"number must be >= 1: got {number}")
        key = keys.journal(self._job_id, number)
        return create(self._store, key, codec.encode(record)) is None
