"""A job's records combined into one value, which controllers, ``ps`` and ``show`` use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from cloudspot.errors import SpecError
from cloudspot.jobfile.spec import JobSpec, spec_from_json
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import (
    Certificate,
    CheckpointId,
    Commit,
    Exit,
    Finished,
    Generation,
    Heartbeat,
    Intent,
    JournalRecord,
    Kept,
    Moved,
    Notice,
    Repriced,
    Resumed,
    Seat,
    Slot,
    StopRequest,
    Submission,
    Suspended,
    Turn,
)


@dataclass(frozen=True)
class LaunchHistory:
    """All records in the bucket about one launch."""

    intent: Intent
    slots: Mapping[int, Slot]
    exits: Mapping[int, Exit]
    notices: Mapping[int, Notice]
    heartbeats: Mapping[int, Heartbeat]
    """The heartbeats that were read last. With many nodes, some heartbeats may be outdated, but the states in
    them are current.
    """
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    """The certificates of machines that have provably ended, by machine id, whether or not they had claimed a
    seat.
    """
    beats_listed: Mapping[int, tuple[datetime, int]] = field(default_factory=dict)
    """The time of each node's newest heartbeat, by the store's clock, and the heartbeat's size. Both change
    with each heartbeat, even if the heartbeat was not read.
    """
    prices: tuple[Repriced, ...] = ()
    """The price changes since the intent, in order."""
    kept: Kept | None = None
    """The node whose machine was kept for inspection after the job had failed."""

    @property
    def number(self) -> int:
        """The number of the launch, counted from 1."""
        return self.intent.launch

    @property
    def price_per_hour(self) -> float:
        """The present price per hour of one of the launch's nodes."""
        return self.prices[-1].price_per_hour if self.prices else self.intent.offer.price_per_hour

    @cached_property
    def own_exits(self) -> Mapping[int, Exit]:
        """The exit records by rank, only those of the machines that own the ranks."""
        return {
            rank: self.exits[rank]
            for rank, slot in sorted(self.slots.items())
            if rank in self.exits and self.exits[rank].instance_id == slot.instance_id
        }

    @cached_property
    def claimed(self) -> Mapping[int, Slot]:
        """The seats that machines have claimed, by rank."""
        return {rank: slot for rank, slot in sorted(self.slots.items()) if slot.instance_id is not None}

    @property
    def open_ranks(self) -> tuple[int, ...]:
        """The seats that are neither claimed nor void."""
        return tuple(rank for rank in range(self.intent.num_nodes) if rank not in self.slots)

    def certificate(self, rank: int) -> Certificate | None:
        """Return the certificate of the machine that owns the seat, or None while it may still run."""
        slot = self.slots.get(rank)
        return None if slot is None or slot.instance_id is None else self.certificates.get(slot.instance_id)

    def is_over(self, rank: int) -> bool:
        """Return whether the seat's owner no longer runs anything, by its exit record or its certificate."""
        return rank in self.own_exits or self.certificate(rank) is not None

    @cached_property
    def live_ranks(self) -> tuple[int, ...]:
        """The ranks of the seats that hold or may still get a machine: neither void nor over."""
        return tuple(
            rank
            for rank in range(self.intent.num_nodes)
            if rank not in self.slots or (rank in self.claimed and not self.is_over(rank))
        )

    def over_at(self, rank: int) -> datetime | None:
        """Return when the seat's owner ended or the seat became void, or None if the seat is live."""
        if rank not in self.slots or rank in self.live_ranks:
            return None
        exit_record, certificate = self.own_exits.get(rank), self.certificate(rank)
        if exit_record is not None:
            return exit_record.at
        return self.slots[rank].at if certificate is None else certificate.ended_at

    @cached_property
    def ended_at(self) -> datetime | None:
        """When the last of the launch's seats became void or over; None if the launch is live."""
        ends = [self.over_at(rank) for rank in range(self.intent.num_nodes)]
        known = [end for end in ends if end is not None]
        return max(known) if len(known) == len(ends) else None

    @property
    def is_settled(self) -> bool:
        """Whether the launch's records are final: no seat is open, and all machines have provably ended."""
        return not self.open_ranks and not self.unproven

    @property
    def unproven(self) -> frozenset[str]:
        """The launch's machines without a certificate of their end."""
        owed = {machine for slot in self.slots.values() for machine in slot.owed}
        return frozenset(owed - self.certificates.keys())


@dataclass(frozen=True)
class History:
    """All records in the bucket about one job, at one moment."""

    first_submission: Submission
    submission: Submission
    """The newest submission, which the job follows now."""
    submission_sha256: str
    """The hash of the newest submission; see ``submission.hash_of``."""
    stop: StopRequest | None
    """The stop request since the newest resumption."""
    launches: tuple[LaunchHistory, ...]
    """The launches in order; launch k is at index k - 1."""
    generations: tuple[Generation, ...]
    """The generations in order; generation g is at index g - 1."""
    commits: tuple[Commit, ...]
    """The commits in order; the checkpoints of old commits have been deleted."""
    head: CheckpointId | None
    """The checkpoint from which the job would resume, provided that it verifies."""
    finished: Finished | None
    """The record of the job's end, which a resumption revokes."""
    num_records: int
    """The number of records in the journal; the next record gets the number after it."""
    turns: tuple[tuple[int, Turn], ...] = ()
    """The ends, suspensions, resumptions and moves, in order, each with the number of launches before it."""

    @cached_property
    def job_file(self) -> JobSpec:
        """The job file that the job follows now.

        Raises:
            SpecError: this version of cloudspot cannot read the job file.
        """
        submission = self.submission
        key = keys.spec(submission.job_id)
        if submission.resumption:
            key = keys.submission(submission.job_id, self.submission_sha256)
        return decode_job_file(submission, key)

    @cached_property
    def current_launches(self) -> tuple[LaunchHistory, ...]:
        """The launches since the newest resumption, on which decisions about the job are based."""
        return self.launches[max((n for n, turn in self.turns if isinstance(turn, Resumed)), default=0) :]

    @cached_property
    def kept(self) -> Kept | None:
        """The node that was kept for inspection since the job was last resumed, or None if none was.

        ``keeping.kept_now`` tells whether the node is still kept.
        """
        return next((launch.kept for launch in self.current_launches if launch.kept is not None), None)

    @cached_property
    def asked_at(self) -> datetime:
        """The time at which the job was last resumed or, without a resumption, submitted."""
        times = [turn.at for _, turn in self.turns if isinstance(turn, Resumed)]
        return times[-1] if times else self.first_submission.at

    @cached_property
    def moved_to(self) -> str | None:
        """The URL of the only store in which the ended job may be resumed, or None if it was not moved."""
        newest = self.turns[-1][1] if self.turns else None
        return newest.to if isinstance(newest, Moved) else None

    @cached_property
    def suspended(self) -> Suspended | None:
        """The present suspension, since which nothing of the job has run and nobody has resumed it."""
        num_launches, newest = self.turns[-1] if self.turns else (0, None)
        if not isinstance(newest, Suspended):
            return None
        return None if any(launch.claimed for launch in self.launches[num_launches:]) else newest

    @cached_property
    def commits_by_generation(self) -> Mapping[int, Sequence[Commit]]:
        """The commits of each generation, in order; generations without commits are missing."""
        found: dict[int, list[Commit]] = {}
        for commit in self.commits:
            found.setdefault(commit.generation, []).append(commit)
        return found

    def find_commit(self, checkpoint: CheckpointId | None) -> Commit | None:
        """Return the commit of a checkpoint, or None if it has none."""
        return None if checkpoint is None else self._commits_by_id.get(checkpoint)

    @cached_property
    def _commits_by_id(self) -> Mapping[CheckpointId, Commit]:
        return {one.id: one for one in self.commits}

    @cached_property
    def generations_by_launch(self) -> Mapping[int, Sequence[Generation]]:
        """The generations that had nodes of each launch, in order."""
        by_launch: dict[int, list[Generation]] = {}
        for generation in self.generations:
            for launch in {member.launch for member in generation.members}:
                by_launch.setdefault(launch, []).append(generation)
        return by_launch

    def launch_of(self, seat: Seat) -> LaunchHistory | None:
        """Return the launch of a node, or None if there is no such launch."""
        return self.launches[seat.launch - 1] if 1 <= seat.launch <= len(self.launches) else None

    @cached_property
    def has_no_session(self) -> bool:
        """Whether the script is known not to open a session."""
        reports: list[Heartbeat | Exit] = []
        for launch in self.launches:
            reports += [*launch.heartbeats.values(), *launch.own_exits.values()]
        have_session = [report.has_session for report in reports if report.generation > 0]
        return bool(have_session) and not any(have_session)

    @cached_property
    def live_launches(self) -> tuple[LaunchHistory, ...]:
        """The launches that have a live seat, in order."""
        return tuple(launch for launch in self.launches if launch.live_ranks)

    @cached_property
    def num_nodes(self) -> int:
        """The number of nodes in the newest generation; 0 before the first."""
        return len(self.generations[-1].members) if self.generations else 0


def decode_job_file(submission: Submission, key: str) -> JobSpec:
    """Return the job file in the submission that is stored under ``key``.

    Raises:
        SpecError: this version of cloudspot cannot read the job file.
    """
    try:
        return spec_from_json(submission.spec)
    except SpecError as error:
        raise SpecError(f"{key}: {error}") from error


def turns_of(journal: Iterable[JournalRecord]) -> tuple[tuple[int, Turn], ...]:
    """Return the journal's records about the job as a whole, each with the number of launches before it."""
    turns: list[tuple[int, Turn]] = []
    num_launches = 0
    for record in journal:
        if isinstance(record, Intent):
            num_launches += 1
        elif isinstance(record, Turn):
            turns.append((num_launches, record))
    return tuple(turns)
