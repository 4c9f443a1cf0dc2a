"""A job's records folded into one value, as every controller, ``ps`` and ``show`` look at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from cloudspot.jobstore.records import (
    CheckpointId,
    Closed,
    Commit,
    Exit,
    Finished,
    Generation,
    Heartbeat,
    Intent,
    JournalRecord,
    Moved,
    Notice,
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
    """Everything that the bucket says about one launch."""

    intent: Intent
    closed: Closed | None
    slots: Mapping[int, Slot]
    exits: Mapping[int, Exit]
    notices: Mapping[int, Notice]
    heartbeats: Mapping[int, Heartbeat]
    """The last that were read: with many nodes, some are not the newest, though each node's state is."""
    beats_listed: Mapping[int, tuple[datetime, int]] = field(default_factory=dict)
    """When each node's newest heartbeat was put, by the store's clock, and its size: they differ from beat to
    beat, whether it was read or not."""

    @property
    def number(self) -> int:
        """Count launches from 1."""
        return self.intent.launch

    @cached_property
    def own_exits(self) -> Mapping[int, Exit]:
        """Return the exit records of the machines that own their ranks, by rank; others' do not count."""
        return {
            rank: self.exits[rank]
            for rank, slot in sorted(self.slots.items())
            if rank in self.exits and self.exits[rank].instance_id == slot.instance_id
        }

    @property
    def is_void(self) -> bool:
        """Whether some slot is void, so that this launch can never become an attempt."""
        return any(slot.instance_id is None for slot in self.slots.values())

    @property
    def is_attempt(self) -> bool:
        """Whether every slot was claimed by a machine."""
        return len(self.slots) == self.intent.num_nodes and not self.is_void


@dataclass(frozen=True)
class History:
    """Everything that the bucket says about one job, at one moment."""

    first_submission: Submission
    submission: Submission
    """The newest, by which the job goes on."""
    submission_sha256: str
    """Of what that one says: see ``submission.hash_of``."""
    stop: StopRequest | None
    """Since the job was last resumed."""
    launches: tuple[LaunchHistory, ...]
    """In order; launch k is at index k - 1."""
    generations: tuple[Generation, ...]
    """In order; generation g is at index g - 1."""
    commits: tuple[Commit, ...]
    """In order; the checkpoints of old ones have been deleted."""
    head: CheckpointId | None
    """The checkpoint from which the job would resume if it verifies."""
    finished: Finished | None
    """The end that stands: an older one was taken back by a resumption."""
    num_records: int
    """The journal's length: the next record's number is one more."""
    turns: tuple[tuple[int, Turn], ...] = ()
    """Ends, suspensions and resumptions, in order, each with how many launches are before it."""

    @cached_property
    def current_launches(self) -> tuple[LaunchHistory, ...]:
        """Return the launches since the job was last resumed: those by which its future is judged."""
        return self.launches[max((n for n, turn in self.turns if isinstance(turn, Resumed)), default=0) :]

    @cached_property
    def asked_at(self) -> datetime:
        """Return when the job was resumed last, or was submitted."""
        times = [turn.at for _, turn in self.turns if isinstance(turn, Resumed)]
        return times[-1] if times else self.first_submission.at

    @cached_property
    def moved_to(self) -> str | None:
        """Return the URL of the only store in which the ended job may be resumed; None: it was not moved."""
        newest = self.turns[-1][1] if self.turns else None
        return newest.to if isinstance(newest, Moved) else None

    @cached_property
    def suspended(self) -> Suspended | None:
        """Return the suspension that stands: nothing of the job has run, and nobody resumed it, since."""
        num_launches, newest = self.turns[-1] if self.turns else (0, None)
        if not isinstance(newest, Suspended):
            return None
        return None if any(launch.is_attempt for launch in self.launches[num_launches:]) else newest

    @property
    def attempts(self) -> tuple[LaunchHistory, ...]:
        """Return the launches that became attempts, in order."""
        return tuple(launch for launch in self.launches if launch.is_attempt)

    @cached_property
    def commits_by_generation(self) -> Mapping[int, Sequence[Commit]]:
        """Return the commits of each generation that has any, in order."""
        found: dict[int, list[Commit]] = {}
        for commit in self.commits:
            found.setdefault(commit.generation, []).append(commit)
        return found

    def find_commit(self, checkpoint: CheckpointId | None) -> Commit | None:
        """Return the commit of a checkpoint, or None."""
        return None if checkpoint is None else self._commits_by_id.get(checkpoint)

    @cached_property
    def _commits_by_id(self) -> Mapping[CheckpointId, Commit]:
        return {one.id: one for one in self.commits}

    @cached_property
    def generations_by_launch(self) -> Mapping[int, Sequence[Generation]]:
        """Return the generations that had nodes of each launch, in order."""
        found: dict[int, list[Generation]] = {}
        for generation in self.generations:
            for launch in {member.launch for member in generation.members}:
                found.setdefault(launch, []).append(generation)
        return found

    def launch_of(self, seat: Seat) -> LaunchHistory | None:
        """Return the launch of a node, or None."""
        return self.launches[seat.launch - 1] if 1 <= seat.launch <= len(self.launches) else None

    @cached_property
    def has_no_session(self) -> bool:
        """Return whether the script is known to open no session."""
        words: list[Heartbeat | Exit] = []
        for launch in self.launches:
            words += [*launch.heartbeats.values(), *launch.own_exits.values()]
        said = [word.has_session for word in words if word.generation > 0]
        return bool(said) and not any(said)

    @property
    def open_launch(self) -> LaunchHistory | None:
        """Return the launch that is not closed, or None; only the newest can be open."""
        if self.launches and self.launches[-1].closed is None:
            return self.launches[-1]
        return None


def turns_of(journal: Iterable[JournalRecord]) -> tuple[tuple[int, Turn], ...]:
    """Return what the journal says of the job as a whole, each with how many launches are before it."""
    found: list[tuple[int, Turn]] = []
    num_launches = 0
    for record in journal:
        if isinstance(record, Intent):
            num_launches += 1
        elif isinstance(record, Turn):
            found.append((num_launches, record))
    return tuple(found)
