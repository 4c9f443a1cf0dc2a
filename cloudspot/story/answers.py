"""The answer to each notice: the checkpoint that the nodes made in the time that was left; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import CheckpointId, Commit, Notice


@dataclass(frozen=True)
class Answer:
    """A notice, and the checkpoint that answered it."""

    notice: Notice
    rank: int
    commit: CheckpointId | None
    """The checkpoint committed after the notice, or None if there was none."""
    committed_at: datetime | None

    @property
    def commit_seconds(self) -> float | None:
        """The seconds from the notice to the commit."""
        return None if self.committed_at is None else (self.committed_at - self.notice.at).total_seconds()


def answers(history: History) -> Iterator[Answer]:
    """Yield an answer for each notice, by launch and rank."""
    for launch in history.launches:
        for rank, notice in sorted(launch.notices.items()):
            commit = _commit_behind(history, launch.number, rank, notice)
            if commit is None or commit.at < notice.at:
                yield Answer(notice, rank, None, None)
            else:
                yield Answer(notice, rank, commit.id, commit.at)


def _commit_behind(history: History, launch: int, rank: int, notice: Notice) -> Commit | None:
    """Return the commit of the final state of the generation that had the notice, or None."""
    mine = [one for one in history.generations if rank in one.ranks(launch)]
    during = [one for one in mine if one.at <= notice.at]
    if not during:
        return None
    number = during[-1].number
    if number < len(history.generations):
        commit = history.find_commit(history.generations[number].restore_from)
    else:
        commit = history.find_commit(history.head)
    return None if commit is None or commit.generation != number else commit
