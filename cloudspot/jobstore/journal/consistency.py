"""Check that a job's records fit one another and their keys, because later code relies on that; pure."""

from __future__ import annotations

from collections.abc import Iterable

from cloudspot.errors import CorruptData
from cloudspot.jobstore.journal.lineage import may_follow
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import (
    Certificate,
    CheckpointId,
    Commit,
    Exit,
    Finished,
    Generation,
    Intent,
    JournalRecord,
    Kept,
    Moved,
    Notice,
    Repriced,
    Resumed,
    Seat,
    Suspended,
)


class JournalOrder:
    """Checks that each record is a valid successor of the records before it.

    Launches, generations and resumptions are numbered from 1; after the job's end, only a resumption may
    follow. A generation has only nodes of launches since the newest resumption, has no node that an earlier
    generation left out, and resumes from a commit. Only the newest generation commits, and each commit may
    follow the head. Once a machine is kept for inspection, no launch and no generation follows until the job
    is resumed.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self.count = 0
        """The number of records accepted so far."""
        self._num_nodes: list[int] = []
        """The number of nodes of each launch."""
        self._num_launches_before = 0
        """The number of launches at the newest resumption."""
        self._resumed = 0
        self._has_ended = False
        self._has_kept = False
        """Whether a machine has been kept since the job was last resumed, so that the job has failed."""
        self._generation = 0
        self._members: frozenset[Seat] = frozenset()
        """The nodes of the newest generation."""
        self._ever: set[Seat] = set()
        """The nodes of all generations."""
        self._head: CheckpointId | None = None
        """The newest commit of the newest generation or, before its first commit, the checkpoint that was
        restored.
        """
        self._commits: set[CheckpointId] = set()

    def extend(self, records: Iterable[JournalRecord]) -> None:
        """Accept the next records.

        Raises:
            CorruptData: a record cannot follow; the message names its key. The records before it were
                accepted.
        """
        for record in records:
            problem = self.problem(record)
            if problem is not None:
                key = keys.journal(self._job_id, self.count + 1)
                raise CorruptData(f"{key} contradicts the records before it: {problem}")
            self.count += 1
            self._note(record)

    def problem(self, record: JournalRecord) -> str | None:
        """Return the reason why the record cannot be the next one, or None if it can."""
        if isinstance(record, Intent):
            fits = record.launch == len(self._num_nodes) + 1 and not self._is_over
            return self._intent_problem(record) if fits else f"it opens launch {record.launch}"
        if isinstance(record, Generation):
            fits = record.number == self._generation + 1 and not self._is_over
            return self._generation_problem(record) if fits else f"it is generation {record.number}"
        if isinstance(record, Commit):
            is_next = may_follow(record.save, self._head) and not self._has_ended
            fits = record.generation == self._generation and is_next
            return None if fits else f"it commits checkpoint {record.id}"
        if isinstance(record, Repriced):
            fits = 1 <= record.launch <= len(self._num_nodes) and not self._has_ended
            return None if fits else f"it prices launch {record.launch}"
        if isinstance(record, Kept):
            is_known = record.launch > self._num_launches_before and self._has_seat(record.seat)
            return None if is_known and not self._is_over else f"it keeps node {record.seat}"
        if isinstance(record, Resumed):
            fits = record.resumption == self._resumed + 1
            return None if fits else f"it is resumption {record.resumption}"
        if isinstance(record, Moved):
            return None if self._has_ended else "it moves the job"
        what = "suspends" if isinstance(record, Suspended) else "ends"
        return None if not self._has_ended else f"it {what} the job"

    @property
    def _is_over(self) -> bool:
        return self._has_ended or self._has_kept

    def _intent_problem(self, record: Intent) -> str | None:
        principals = [seat for seat in record.stands_in_for if seat is not None]
        if len(record.stands_in_for) not in {0, record.num_nodes} or len(principals) != len(set(principals)):
            return f"its {record.num_nodes} nodes stand in for {', '.join(map(str, principals[:20]))}"
        unknown = [seat for seat in principals if not self._has_seat(seat)]
        return f"it stands in for node {unknown[0]}, which is in no launch" if unknown else None

    def _generation_problem(self, record: Generation) -> str | None:
        seats = record.seats
        if not seats or len(seats) != len(set(seats)):
            return f"it names no nodes, or one of them twice: {', '.join(map(str, seats[:20]))}"
        for seat in seats:
            if not self._has_seat(seat) or seat.launch <= self._num_launches_before:
                return f"it names node {seat}, which is in no launch of this run"
            if seat in self._ever and seat not in self._members:
                return f"it names node {seat}, which an earlier generation has left out"
        if record.restore_from is not None and record.restore_from not in self._commits:
            return f"it resumes from checkpoint {record.restore_from}, which was not committed"
        return None

    def _has_seat(self, seat: Seat) -> bool:
        return 1 <= seat.launch <= len(self._num_nodes) and seat.rank < self._num_nodes[seat.launch - 1]

    def _note(self, record: JournalRecord) -> None:
        if isinstance(record, Intent):
            self._num_nodes.append(record.num_nodes)
        elif isinstance(record, Generation):
            self._generation, self._head = record.number, record.restore_from
            self._members = frozenset(record.seats)
            self._ever |= self._members
        elif isinstance(record, Commit):
            self._head = record.id
            self._commits.add(record.id)
        elif isinstance(record, Resumed):
            self._resumed, self._has_ended, self._has_kept = record.resumption, False, False
            self._num_launches_before = len(self._num_nodes)
        elif isinstance(record, Kept):
            self._has_kept = True
        elif isinstance(record, Finished):
            self._has_ended = True


def check_place(record: object, launch: int, name: int | str, key: str) -> None:
    """Check that a record names the node (by rank) or the machine under whose key it is stored.

    Raises:
        CorruptData: the message names ``key``.
    """
    if isinstance(record, Certificate) and (record.launch, record.instance_id) != (launch, name):
        raise CorruptData(
            f"{key} holds the certificate of another machine: {record.instance_id} of launch {record.launch}"
        )
    if isinstance(record, Exit | Notice) and (record.launch, record.rank) != (launch, name):
        raise CorruptData(
            f"{key} holds a record of another node: node {record.rank} of launch {record.launch}"
        )
