"""Read a job's records into a History with few requests; read and write summaries."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from cloudspot.errors import CorruptData, JobNotFound
from cloudspot.interfaces import ObjectStore
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_record
from cloudspot.jobstore.jobs.submission import read_first_submission, read_submission_of, submission_key
from cloudspot.jobstore.journal.history import History, LaunchHistory, decode_job_file, turns_of
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import generations_of, head
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import (
    Commit,
    Finished,
    Intent,
    JournalRecord,
    Kept,
    Moved,
    Repriced,
    Resumed,
    StopRequest,
    Submission,
    Summary,
    Turn,
)
from cloudspot.jobstore.nodes.heartbeat_size import change_count
from cloudspot.jobstore.nodes.node_records import TYPES, find_node_record
from cloudspot.jobstore.nodes.settled_launches import find_settled
from cloudspot.model import ObjectMeta

MAX_REREADS = 8
"""How many new heartbeats one pass reads from nodes with unchanged state; later passes read the rest."""


class _Place(NamedTuple):
    """The record of a node or a machine, as listed."""

    form: keys.Form
    launch: int
    name: Any
    """The rank of the node, or the id of the machine."""
    key: str
    version: tuple[datetime, int]
    """The time of the last put, and the size."""


def read_summary(store: ObjectStore, job_id: str) -> Summary | None:
    """Return the job's advisory summary, which may be outdated, or None if none was written yet.

    Raises:
        CorruptData: the summary is malformed, or belongs to another job.
    """
    summary = find_record(with_retries(store), keys.summary(job_id), Summary)
    if summary is not None and summary.job_id != job_id:
        raise CorruptData(f"{keys.summary(job_id)} holds the summary of another job: {summary.job_id!r}")
    return summary


def _standing_end(journal: Sequence[JournalRecord]) -> Finished | None:
    for record in reversed(journal):
        if not isinstance(record, Moved):
            return record if isinstance(record, Finished) else None
    return None


def job_file_of(submission: Submission) -> JobSpec:
    """Return the job file of the submission.

    Raises:
        SpecError: this version of cloudspot cannot read the job file.
    """
    return decode_job_file(submission, submission_key(submission))


def has_finished(store: ObjectStore, job_id: str) -> bool:
    """Return whether the job has finished by its records; False if they are missing or corrupt."""
    with suppress(CorruptData, JobNotFound):
        return HistoryReader(store, job_id).read().finished is not None
    return False


def write_summary(store: ObjectStore, summary: Summary) -> None:
    """Replace the job's advisory summary."""
    with_retries(store).put(keys.summary(summary.job_id), codec.encode(summary))


class HistoryReader:
    """Reads one job repeatedly; records that never change are read only once. For one thread at a time.

    The first pass reads copies of the journal and of the settled launches, so that its cost does not grow
    with the history.

    A pass over a job without news costs one get for the journal. Until all machines have provably ended, a
    pass also costs a listing of seats and certificates, a listing of the nodes' records, and gets of new
    heartbeats: those of all nodes whose state has changed, and of ``MAX_REREADS`` other nodes, in turn.
    Later, a pass costs a get of the stop request instead, which the listing would otherwise show.
    """

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self._store = with_retries(store)
        self._job_id = job_id
        self.journal = Journal(self._store, job_id)
        self._submissions: list[tuple[Submission, str]] = []
        """The first submission and the submissions that resumed the job, each with its hash."""
        self._stop: StopRequest | None = None
        self._records: dict[keys.Form, defaultdict[int, dict[Any, Any]]]
        self._records = {form: defaultdict(dict) for form in TYPES}
        """The records by form, launch, and then rank; certificates by machine id instead of rank."""
        self._beats_listed: dict[int, dict[int, tuple[datetime, int]]] = {}
        """The time and the size of each node's newest listed heartbeat, by launch and rank."""
        self._history: History | None = None
        self._beats_read: dict[str, tuple[datetime, int]] = {}
        """The time and the size of the heartbeats that have been read, by key."""
        self._has_recalled = False
        self.num_copied = 0
        """The number of launches that were read from the copy of settled launches."""
        self.task_times: dict[tuple[str, bool], datetime] = {}
        """The time of each task's request (by name and False) and of its last start (by name and True), as
        of the newest listing of the nodes' records."""
        self._first_unsettled = 1
        """The first launch that was not settled in the previous pass; earlier launches have been read
        completely.
        """

    def read(self) -> History:
        """Return all of the job's records that are in the bucket now.

        If a node's record names a generation or a commit, the history contains that generation or commit.

        Raises:
            JobNotFound: there is no such job, or its submission was interrupted.
            CorruptData: a record is malformed or contradicts others; the message names its key.
            TransientError: the store does not answer; the reader keeps the records that it has read.
        """
        journal = self._read_journal()
        turns = turns_of(journal)
        submission, sha256 = self._read_submissions(turns)
        intents = [record for record in journal if isinstance(record, Intent)]
        listed = self._read_launches(intents)
        key = keys.stop(self._job_id, submission.resumption)
        if self._stop is None and (listed is None or key in listed):
            self._stop = find_record(self._store, key, StopRequest)
        commits = [record for record in journal if isinstance(record, Commit)]
        if self._is_behind(commits, len(generations_of(journal))):
            journal = self._read_journal()
            turns = turns_of(journal)
            submission, sha256 = self._read_submissions(turns)
            intents = [record for record in journal if isinstance(record, Intent)]
        prices = [record for record in journal if isinstance(record, Repriced)]
        kept = {record.launch: record for record in journal if isinstance(record, Kept)}
        launches = tuple(
            self._fold_launch(
                intent, [one for one in prices if one.launch == intent.launch], kept.get(intent.launch)
            )
            for intent in intents
        )
        for launch in launches[self._first_unsettled - 1 :]:
            if not launch.is_settled:
                break
            self._first_unsettled = launch.number + 1
        self._history = History(
            first_submission=self._submissions[0][0],
            submission=submission,
            submission_sha256=sha256,
            stop=self._stop,
            launches=launches,
            generations=generations_of(journal),
            commits=tuple(record for record in journal if isinstance(record, Commit)),
            head=head(journal),
            finished=_standing_end(journal),
            num_records=len(journal),
            turns=turns,
        )
        return self._history

    def glance(self, *, rereads: bool = True) -> History | None:
        """Return the history with newer heartbeats, or None if other records may be new: call ``read`` then.

        A glance costs a listing of the nodes' records, and gets of the heartbeats of a quarter of the nodes:
        at most ``MAX_REREADS``, and at least one with ``rereads``. News that only the journal or a
        certificate holds is missing until the next ``read``.

        Raises:
            CorruptData: a heartbeat is malformed.
            TransientError: the store does not answer.
        """
        known = self._history
        if known is None or known.finished is not None or self._first_unsettled > len(known.launches):
            return None
        unsettled = {
            launch.number: launch.intent.num_nodes for launch in known.launches[self._first_unsettled - 1 :]
        }
        if any(len(self._records[keys.slot][number]) < num_nodes for number, num_nodes in unsettled.items()):
            return None
        listed = self._list_nodes()
        new, beating = self._sort(listed, unsettled)
        stop = keys.stop(self._job_id, known.submission.resumption)
        if new or (self._stop is None and any(meta.key == stop for meta in listed)):
            return None
        num_read = min(MAX_REREADS, max(len(beating) // 4, int(rereads)))
        self._read_places(beating[:num_read])
        if self._is_behind(known.commits, len(known.generations)):
            return None
        changed = [known.launches[number - 1] for number in sorted(unsettled)]
        changed = [self._fold_launch(launch.intent, launch.prices, launch.kept) for launch in changed]
        launches = (*known.launches[: self._first_unsettled - 1], *changed)
        self._history = dataclasses.replace(known, launches=launches)
        return self._history

    def read_job(self) -> tuple[Submission, JobSpec]:
        """Return the job's newest submission and its job file, without the rest of the history.

        Raises:
            CorruptData: a record of the journal is malformed or contradicts others.
            JobNotFound: there is no such job, or its submission was interrupted.
            SpecError: this version of cloudspot cannot read the job file.
        """
        submission, _ = self._read_submissions(turns_of(self._read_journal()))
        return submission, job_file_of(submission)

    @property
    def submission_sha256(self) -> str | None:
        """The ``hash_of`` of the submission read last, or None before any was read."""
        return self._submissions[-1][1] if self._submissions else None

    def _read_journal(self) -> tuple[JournalRecord, ...]:
        if not self._submissions:
            self._submissions.append(read_first_submission(self._store, self._job_id))
        journal = self.journal.read()
        if not self._has_recalled:
            self._recall(self._submissions[0][0], journal)
        return journal

    def _read_submissions(self, turns: Sequence[tuple[int, Turn]]) -> tuple[Submission, str]:
        """Return the submission that counts, and its ``hash_of``; earlier submissions are not read."""
        resumptions = [turn for _, turn in turns if isinstance(turn, Resumed)]
        if len(resumptions) >= len(self._submissions):
            newest = resumptions[-1]
            submission = read_submission_of(self._store, self._job_id, newest.submission_sha256)
            if submission.resumption != newest.resumption:
                key = keys.submission(self._job_id, newest.submission_sha256)
                raise CorruptData(f"{key} belongs to another resumption than {newest.resumption}")
            missing = len(resumptions) + 1 - len(self._submissions)
            self._submissions += [(submission, newest.submission_sha256)] * missing
            self._stop = None
        return self._submissions[-1]

    def _recall(self, submission: Submission, journal: Sequence[JournalRecord]) -> None:
        """Take over the records of settled launches that another reader has copied."""
        num_launches = sum(1 for record in journal if isinstance(record, Intent))
        settled = find_settled(self._store, submission, journal) if num_launches > 1 else None
        self._has_recalled = True
        if settled is None:
            return
        for records in settled.launches:
            launch = records.launch
            self._records[keys.slot][launch] = records.slots
            self._records[keys.heartbeat][launch] = records.heartbeats
            self._records[keys.notice][launch] = records.notices
            self._records[keys.exit_record][launch] = records.exits
            proofs = {proof.instance_id: proof for proof in records.certificates}
            self._records[keys.certificate][launch] = proofs
        self.num_copied = len(settled.launches)
        self._first_unsettled = self.num_copied + 1

    def _read_launches(self, intents: Sequence[Intent]) -> set[str] | None:
        """Read the new records of all launches that are new or were not settled in the previous pass.

        Return the listed keys, or None if there is no such launch, so that nothing was listed.
        """
        first = self._first_unsettled
        unsettled = [intent for intent in intents if intent.launch >= first]
        if not unsettled:
            return None
        # "machines" sorts before "nodes".
        before = keys.certificates_prefix(self._job_id, first)
        new = list(self._store.list_objects(keys.launches_prefix(self._job_id), after=before))
        new += self._list_nodes()
        places, beating = self._sort(new, {intent.launch: intent.num_nodes for intent in unsettled})
        self._read_places([*places, *beating[:MAX_REREADS]])
        return {meta.key for meta in new}

    def _list_nodes(self) -> Sequence[ObjectMeta]:
        """List the nodes' records, from the first unsettled launch on."""
        after = keys.launch_nodes_prefix(self._job_id, self._first_unsettled)
        found = list(self._store.list_objects(keys.nodes_prefix(self._job_id), after=after))
        forms = (keys.task, False), (keys.task_done, True)
        self.task_times = {
            (match[1], is_done): meta.modified_at
            for meta in found
            for form, is_done in forms
            if (match := form.match(meta.key)) is not None
        }
        return found

    def _is_behind(self, commits: Sequence[Commit], number: int) -> bool:
        """Return whether nodes name a commit or a generation that is missing from these."""
        newest = max((one.id for one in commits), default=None)
        reports = [
            one
            for form in (keys.heartbeat, keys.exit_record)
            for launch, records in self._records[form].items()
            if launch >= self._first_unsettled
            for one in records.values()
        ]
        return any(
            one.generation > number
            or (one.committed is not None and (newest is None or one.committed > newest))
            for one in reports
        )

    def _sort(
        self, found: Iterable[ObjectMeta], num_nodes: Mapping[int, int]
    ) -> tuple[list[_Place], list[_Place]]:
        """Return the new records, and the newer heartbeats of nodes whose state is unchanged.

        In the second list, the heartbeats that were read longest ago come first.
        """
        new: list[_Place] = []
        beating: list[_Place] = []
        for meta in found:
            form, (_, launch, name) = keys.recognize(meta.key, TYPES) or (None, (None, 0, 0))
            most = num_nodes.get(launch, 0)
            if form is None or most == 0 or (form is not keys.certificate and name >= most):
                continue  # A foreign record, or one of a launch that is newer than the journal as read.
            place = _Place(form, launch, name, meta.key, (meta.modified_at, meta.size))
            if form is keys.heartbeat:
                self._beats_listed.setdefault(launch, {})[name] = place.version
                read = self._beats_read.get(meta.key)
                if read is None or change_count(read[1]) != change_count(meta.size):
                    new.append(place)
                elif read != place.version:
                    beating.append(place)
            elif name not in self._records[form][launch]:
                new.append(place)
        return new, sorted(beating, key=lambda place: self._beats_read[place.key])

    def _read_places(self, places: Sequence[_Place]) -> None:
        def read(place: _Place) -> Any:
            return find_node_record(self._store, place.form, self._job_id, place.launch, place.name)

        for place, record in zip(places, map_parallel(read, places), strict=True):
            if record is not None:
                self._records[place.form][place.launch][place.name] = record
                if place.form is keys.heartbeat:
                    self._beats_read[place.key] = place.version

    def _fold_launch(self, intent: Intent, prices: Sequence[Repriced], kept: Kept | None) -> LaunchHistory:
        launch = intent.launch
        return LaunchHistory(
            intent=intent,
            slots=dict(self._records[keys.slot][launch]),
            exits=dict(self._records[keys.exit_record][launch]),
            notices=dict(self._records[keys.notice][launch]),
            heartbeats=dict(self._records[keys.heartbeat][launch]),
            certificates=dict(self._records[keys.certificate][launch]),
            beats_listed=dict(self._beats_listed.get(launch, {})),
            prices=tuple(prices),
            kept=kept,
        )
