"""The journal: numbered, create-only records. A writer of number n has read all before it (protocol P1).

Controllers and nodes append. The first missing number is the end, so whoever follows a job asks for the next
number until it is missing: a single cheap request where nothing is new.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from cloudspot.errors import CorruptData
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.consistency import JournalOrder
from cloudspot.jobstore.creation import create
from cloudspot.jobstore.parallel import each
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import Intent, JournalCopy, JournalRecord
from cloudspot.jobstore.stored_records import find_bytes, find_record
from cloudspot.model import LaunchRequest

COPY_EVERY = 4
"""After so many records the journal's copy is renewed: by nodes behind their commits, and by controllers."""


class Journal:
    """A job's journal. Keeps what it has read, since records never change. Thread-safe."""

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self._store = patient(store)
        self._job_id = job_id
        self._lock = threading.Lock()
        """Never held during a request: who commits must not wait for who polls."""
        self._records: tuple[JournalRecord, ...] = ()
        self._order = JournalOrder(job_id)
        self.num_copied = 0
        """How many records came from the copy, or are in the one that this journal has written."""

    @property
    def known(self) -> tuple[JournalRecord, ...]:
        """Return the records that were read so far; asks no store."""
        return self._records

    def read(self) -> tuple[JournalRecord, ...]:
        """Return all records; record ``n`` is at index ``n - 1``.

        Costs one request more than the number of new records; for a reader that comes new to a job with a
        copy, three more than there are records since that.

        Raises:
            CorruptData: a record is malformed, or does not follow from those before it.
        """
        found = list(self._records)
        if not found:
            found = self._begin()
            if len(found) == 1:
                found += self._listed(after=1)
        while found:
            record = self._find(len(found) + 1)
            if record is None:
                break
            found.append(record)
        return self._take_in(found)

    def append(self, record: JournalRecord, number: int) -> bool:
        """Write the record as number ``number``, the next after those that its writer has read.

        Returns False if another writer has that number: read the journal again and decide anew.

        Raises:
            TransientError: the outcome is unknown; append the same record again.
            ValueError: the record does not follow from those before it, which would stop every reader.
        """
        if number < 1:
            raise ValueError(f"number must be >= 1: got {number}")
        with self._lock:
            what = self._order.problem(record) if self._order.count == number - 1 else None
        if what is not None:
            raise ValueError(f"journal record {number} would not follow: {what}")
        if create(self._store, keys.journal(self._job_id, number), codec.encode(record)) is not None:
            return False
        known = self._records
        if len(known) == number - 1:
            self._take_in([*known, record])
        return True

    def request(self, launch: int) -> LaunchRequest:
        """Return the rendered request of a launch; one more request where the copy told of the launch."""
        for number, record in enumerate(self._records, start=1):
            if isinstance(record, Intent) and record.launch == launch:
                whole = record if record.request.body else self._find(number)
                assert isinstance(whole, Intent), "records never change"
                return whole.request
        raise ValueError(f"launch {launch} was not read")

    def renew_copy(self) -> None:
        """Replace the job's copy of the journal if it lacks ``COPY_EVERY`` records that were read here."""
        if len(self._records) - self.num_copied >= COPY_EVERY:
            self.write_copy()

    def write_copy(self) -> None:
        """Replace the job's copy of the journal by what was read so far."""
        records = self._records
        copy = JournalCopy(records=tuple(_without_request(one) for one in records))
        self._store.put(keys.journal_copy(self._job_id), codec.encode(copy))
        self.num_copied = len(records)

    def _begin(self) -> list[JournalRecord]:
        """Return the first record, and those that follow it in the copy if it is of this journal.

        A driver that was suspended while its job was removed may write the copy of a job that had the id
        before. Each writer knew what stands before its record, so a first record of the same writer proves
        that all others are the same too.
        """
        first = self._find(1)
        if first is None:
            return []
        with suppress(CorruptData):
            copy = find_record(self._store, keys.journal_copy(self._job_id), JournalCopy)
            if copy is not None and copy.records and copy.records[0].writer == first.writer:
                order = JournalOrder(self._job_id)
                order.extend(copy.records)
                self.num_copied = len(copy.records)
                return list(copy.records)
        return [first]

    def _find(self, number: int) -> JournalRecord | None:
        key = keys.journal(self._job_id, number)
        data = find_bytes(self._store, key)
        return None if data is None else codec.decode_journal(data, key=key)

    def _listed(self, *, after: int) -> list[JournalRecord]:
        """Return the records behind number ``after`` that a listing shows, up to the first gap.

        A listing may miss a record that is written meanwhile and show a later one, so its length is only a
        hint; the caller asks for what it missed.
        """
        listed = self._store.list_objects(
            keys.journal_prefix(self._job_id), after=keys.journal(self._job_id, after)
        )
        numbers = range(after + 1, after + 1 + sum(1 for _ in listed))
        found: list[JournalRecord] = []
        for record in each(self._find, numbers):
            if record is None:
                break
            found.append(record)
        return found

    def _take_in(self, found: Sequence[JournalRecord]) -> tuple[JournalRecord, ...]:
        """Keep what is new among all records that were found; another thread may have been faster."""
        with self._lock:
            new = found[len(self._records) :]
            try:
                self._order.extend(new)
            finally:
                self._records = (*self._records, *new[: self._order.count - len(self._records)])
            return self._records


def _without_request(record: JournalRecord) -> JournalRecord:
    """Return an intent without its rendered request, which is large; ``Journal.request`` reads it again."""
    if not isinstance(record, Intent):
        return record
    return msgspec.structs.replace(record, request=msgspec.structs.replace(record.request, body={}))
