"""Check that a job's records fit each other and their keys, for the folds rely on their numbers; pure."""

from __future__ import annotations

from collections.abc import Iterable

from cloudspot.errors import CorruptData
from cloudspot.jobstore import keys
from cloudspot.jobstore.records import (
    CheckpointId,
    Closed,
    Commit,
    Exit,
    Finished,
    Generation,
    Intent,
    JournalRecord,
    Moved,
    Notice,
    Resumed,
    Suspended,
)


class JournalOrder:
    """Checks record after record that each follows from those before it.

    Launches, generations and resumptions are numbered from 1. Each launch is closed before anything else but
    the end, and only a resumption follows an end. A generation is of the open launch, has only nodes of it,
    and resumes from a commit. Only the newest generation commits, each time a later step.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self.count = 0
        """How many records were taken in."""
        self._opened = self._closed = self._resumed = 0
        self._num_nodes = 0
        """Of the launch that was opened last."""
        self._has_ended = False
        self._generation = 0
        self._head: CheckpointId | None = None
        """What the newest generation has committed last, or what it was restored from."""
        self._commits: set[CheckpointId] = set()

    def extend(self, records: Iterable[JournalRecord]) -> None:
        """Take in the records that come next.

        Raises:
            CorruptData: one does not follow; the message names its key. Those before it were taken in.
        """
        for record in records:
            what = self.problem(record)
            if what is not None:
                key = keys.journal(self._job_id, self.count + 1)
                raise CorruptData(f"{key} does not follow from the records before it: {what}")
            self.count += 1
            self._note(record)

    def problem(self, record: JournalRecord) -> str | None:
        """Return what keeps the record from being the next one, or None."""
        is_open = self._opened > self._closed
        if isinstance(record, Intent):
            fits = record.launch == self._opened + 1 and not is_open and not self._has_ended
            return None if fits else f"it opens launch {record.launch}"
        if isinstance(record, Closed):
            fits = record.launch == self._opened and is_open and not self._has_ended
            return None if fits else f"it closes launch {record.launch}"
        if isinstance(record, Generation):
            fits = record.number == self._generation + 1 and is_open and not self._has_ended
            return self._generation_problem(record) if fits else f"it is generation {record.number}"
        if isinstance(record, Commit):
            is_later = self._head is None or record.step > self._head.step
            fits = record.generation == self._generation and is_later and not self._has_ended
            return None if fits else f"it commits checkpoint {record.id}"
        if isinstance(record, Resumed):
            fits = record.resumption == self._resumed + 1 and not is_open
            return None if fits else f"it is resumption {record.resumption}"
        if isinstance(record, Moved):
            return None if self._has_ended else "it moves the job"
        if isinstance(record, Suspended):
            return None if not is_open and not self._has_ended else "it suspends the job"
        return None if not self._has_ended else "it ends the job"

    def _generation_problem(self, record: Generation) -> str | None:
        seats = record.seats
        if not seats or len(seats) != len(set(seats)):
            return f"it names no nodes, or one of them twice: {', '.join(map(str, seats[:20]))}"
        for seat in seats:
            if seat.launch != self._opened or seat.rank >= self._num_nodes:
                return f"it names node {seat}; launch {self._opened} is open, with {self._num_nodes} nodes"
        if record.restore_from is not None and record.restore_from not in self._commits:
            return f"it resumes from checkpoint {record.restore_from}, which was not committed"
        return None

    def _note(self, record: JournalRecord) -> None:
        if isinstance(record, Intent):
            self._opened, self._num_nodes = record.launch, record.num_nodes
        elif isinstance(record, Closed):
            self._closed = record.launch
        elif isinstance(record, Generation):
            self._generation, self._head = record.number, record.restore_from
        elif isinstance(record, Commit):
            self._head = record.id
            self._commits.add(record.id)
        elif isinstance(record, Resumed):
            self._resumed, self._has_ended = record.resumption, False
        elif isinstance(record, Finished):
            self._has_ended = True


def check_place(record: object, launch: int, rank: int, key: str) -> None:
    """Check that a node's record names the node under whose key it is.

    Raises:
        CorruptData: the message names ``key``.
    """
    if isinstance(record, Exit | Notice) and (record.launch, record.rank) != (launch, rank):
        raise CorruptData(f"{key} holds a record of node {record.rank} of launch {record.launch}")
