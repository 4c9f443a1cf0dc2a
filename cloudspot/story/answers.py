"""What came of each notice: the checkpoint that the nodes made in the time that was left; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.history import History
from cloudspot.jobstore.records import CheckpointId, Commit, Notice
from cloudspot.story.stretches import newest_commit_of, ranks_of


@dataclass(frozen=True)
class Answer:
    """A notice, and the checkpoint that came after it."""

    notice: Notice
    rank: int
    commit: CheckpointId | None
    """None: no checkpoint was committed after it, or that is no longer known."""
    committed_at: datetime | None

    @property
    def commit_seconds(self) -> float | None:
        """Return the seconds from the notice to the commit."""
        return None if self.committed_at is None else (self.committed_at - self.notice.at).total_seconds()


def answers(history: History, commits: Mapping[CheckpointId, Commit]) -> Iterator[Answer]:
    """Yield an answer for each notice, by launch and rank; ``commits`` is as for the timeline."""
    for launch in history.launches:
        for rank, notice in sorted(launch.notices.items()):
            checkpoint, at = _commit_behind(history, launch.number, rank, notice, commits)
            if at is None or at < notice.at:
                checkpoint = at = None
            yield Answer(notice, rank, checkpoint, at)


def _commit_behind(
    history: History, launch: int, rank: int, notice: Notice, commits: Mapping[CheckpointId, Commit]
) -> tuple[CheckpointId | None, datetime | None]:
    """Return the checkpoint in which the generation with the notice left its state, and its time."""
    mine = [one for one in history.generations if one.launch == launch and rank in ranks_of(one)]
    during = [one for one in mine if one.at <= notice.at]
    if not during:
        return None, None
    number = during[-1].number
    if number < len(history.generations):
        after = history.generations[number]
        checkpoint, at = after.restore_from, after.committed_at
        if checkpoint is None or checkpoint.generation != number:
            return None, None
    else:
        checkpoint, at = newest_commit_of(history, during[-1]), None
    if at is None and checkpoint is not None and checkpoint in commits:
        at = commits[checkpoint].at
    return checkpoint, at
