"""The journal: numbered, create-only records. The writer of number n has read all records before it (P1).

Controllers and nodes append records. The first missing number marks the end, so a reader asks for numbers in
turn until one is missing: a single cheap request if nothing is new.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from cloudspot.errors import CorruptData
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_bytes, find_record
from cloudspot.jobstore.journal.consistency import JournalOrder
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Intent, JournalCopy, JournalRecord
from cloudspot.model import LaunchRequest

COPY_EVERY = 4
"""The number of new records after which another copy is made, by controllers and by nodes after their
commits.
"""
_RUNS = tuple(COPY_EVERY * 4**power for power in range(6))
"""The possible lengths of a copy's run of records. A run begins at a multiple of its own length."""


class Journal:
    """A job's journal, which keeps the records that it has read: records never change. Thread-safe."""

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self._store = with_retries(store)
        self._job_id = job_id
        self._lock = threading.Lock()
        """Never held during a request, because a commit must not wait for a poll."""
        self._records: tuple[JournalRecord, ...] = ()
        self._order = JournalOrder(job_id)
        self.num_copied = 0
        """The number of records that were read from copies, or that are in copies as far as this journal
        knows.
        """
        self._unfit: set[range] = set()
        """The runs whose copies belong to another journal or are damaged."""

    @property
    def known(self) -> tuple[JournalRecord, ...]:
        """The records that have been read so far; this property makes no request."""
        return self._records

    def read(self) -> tuple[JournalRecord, ...]:
        """Return all records; record ``n`` is at index ``n - 1``.

        A call takes one request more than there are new records. The first call reads the first record, a
        listing of the copies, and a few of the copies.

        Raises:
            CorruptData: a record is malformed, or contradicts earlier records.
        """
        records = list(self._records) or self._begin()
        while records:
            record = self._find(len(records) + 1)
            if record is None:
                break
            records.append(record)
        return self._take_in(records)

    def append(self, record: JournalRecord, number: int) -> bool:
        """Write the record as number ``number``, the next after the records that its writer has read.

        Return False if another writer has taken that number: read the journal again and decide anew.

        Raises:
            TransientError: the outcome is unknown; append the same record again.
            ValueError: the record contradicts earlier records, so that no reader could continue.
        """
        if number < 1:
            raise ValueError(f"number must be >= 1: got {number}")
        if self._order.count < number - 1:  # the writer has read those records with another journal
            self.read()
        with self._lock:
            what = self._order.problem(record) if self._order.count == number - 1 else None
        if what is not None:
            raise ValueError(f"journal record {number} would contradict those before it: {what}")
        if create(self._store, keys.journal(self._job_id, number), codec.encode(record)) is not None:
            return False
        known = self._records
        if len(known) == number - 1:
            self._take_in([*known, record])
        return True

    def request(self, launch: int) -> LaunchRequest:
        """Return the rendered request of a launch; takes a request if the launch was read from a copy."""
        for number, record in enumerate(self._records, start=1):
            if isinstance(record, Intent) and record.launch == launch:
                whole = record if record.request.body else self._find(number)
                assert isinstance(whole, Intent), "records never change"
                return whole.request
        raise ValueError(f"launch {launch} was not read")

    def copy(self) -> None:
        """Write the missing copies, once at least ``COPY_EVERY`` of the known records are in no copy.

        A copy holds a run of records and is only rewritten if it is unfit. So each record is copied at most
        once per length of run, however long the journal becomes.
        """
        records = self._records
        if len(records) - self.num_copied < COPY_EVERY:
            return
        standing = set(self._list_copies(after=self.num_copied)) - self._unfit
        start = 0
        for size in reversed(_RUNS):
            while start + size <= len(records):
                run = range(start, start + size)
                if run.stop > self.num_copied and run not in standing:
                    copy = JournalCopy(
                        first_writer=records[0].writer,
                        records=tuple(_without_request(one) for one in records[run.start : run.stop]),
                    )
                    self._store.put(self._copy_key(run), codec.encode(copy))
                start = run.stop
        self.num_copied = start
        self._unfit.clear()

    def _begin(self) -> list[JournalRecord]:
        """Return the first records from the copies, or from a listing if the copies do not suffice."""
        first = self._find(1)
        if first is None:
            return []
        longest = {run.start: run for run in sorted(self._list_copies(after=0), key=len)}
        runs = list[range]()
        while (start := runs[-1].stop if runs else 0) in longest:
            runs.append(longest[start])
        known, order = list[JournalRecord](), JournalOrder(self._job_id)
        for run, records in zip(
            runs, map_parallel(partial(self._read_copy, first.writer), runs), strict=True
        ):
            with suppress(CorruptData):
                order.extend(records)
                known += records
            if len(known) < run.stop:
                self._unfit.add(run)
                break
        self.num_copied = len(known)
        if self._unfit or not known:
            known = known or [first]
            known += self._listed(after=len(known))
        return known

    def _read_copy(self, first_writer: str, run: range) -> tuple[JournalRecord, ...]:
        """Return the records of a run, or none if the run's copy is missing, damaged or from another journal.

        A driver that was suspended while its job was removed may write a copy of that earlier job under the
        same id. Each writer knew all records before its own, so if the first record has the same writer, all
        later records are the same, too.
        """
        with suppress(CorruptData):
            copy = find_record(self._store, self._copy_key(run), JournalCopy)
            if copy is not None and copy.first_writer == first_writer and len(copy.records) == len(run):
                return copy.records
        return ()

    def _list_copies(self, *, after: int) -> Iterator[range]:
        """Yield the runs whose copies reach beyond record number ``after``."""
        prefix = keys.journal_copies_prefix(self._job_id)
        for meta in self._store.list_objects(prefix, after=keys.journal_copy(self._job_id, after + 1, 0)):
            match = keys.journal_copy.match(meta.key)
            if match is not None:
                _, last, first = match
                run = range(first - 1, last)
                if len(run) in _RUNS and run.start % len(run) == 0:
                    yield run

    def _copy_key(self, run: range) -> str:
        return keys.journal_copy(self._job_id, run.stop, run.start + 1)

    def _find(self, number: int) -> JournalRecord | None:
        key = keys.journal(self._job_id, number)
        data = find_bytes(self._store, key)
        return None if data is None else codec.decode_journal(data, key=key)

    def _listed(self, *, after: int) -> list[JournalRecord]:
        """Return the records after number ``after`` that a listing shows, up to the first gap.

        A listing may miss a concurrent record and show a later one, so its length is only a hint; the caller
        asks for the rest.
        """
        listed = self._store.list_objects(
            keys.journal_prefix(self._job_id), after=keys.journal(self._job_id, after)
        )
        numbers = range(after + 1, after + 1 + sum(1 for _ in listed))
        records: list[JournalRecord] = []
        for record in map_parallel(self._find, numbers):
            if record is None:
                break
            records.append(record)
        return records

    def _take_in(self, found: Sequence[JournalRecord]) -> tuple[JournalRecord, ...]:
        """Add those records that are new, because another thread may have been faster."""
        with self._lock:
            new = found[len(self._records) :]
            try:
                self._order.extend(new)
            finally:
                self._records = (*self._records, *new[: self._order.count - len(self._records)])
            return self._records


def _without_request(record: JournalRecord) -> JournalRecord:
    """Return an intent without its large rendered request, which ``Journal.request`` reads again."""
    if not isinstance(record, Intent):
        return record
    return msgspec.structs.replace(record, request=msgspec.structs.replace(record.request, body={}))
