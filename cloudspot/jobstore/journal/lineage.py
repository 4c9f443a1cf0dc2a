"""Generations and checkpoints in the journal: who trains, and where the next generation resumes; pure.

A generation's writer has read all commits before it, and after it only the generation's own commits count. So
the lineage is found by reading the journal backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloudspot.jobstore.layout.records import (
    CheckpointId,
    Commit,
    Finished,
    Generation,
    Intent,
    JournalRecord,
    Moved,
    Resumed,
    SaveId,
)


def generations_of(journal: Iterable[JournalRecord]) -> tuple[Generation, ...]:
    """Return the generations in order; generation ``g`` is at index ``g - 1``."""
    return tuple(record for record in journal if isinstance(record, Generation))


def newest_generation(journal: Sequence[JournalRecord]) -> Generation | None:
    """Return the generation that counts, or None before the first."""
    return next((record for record in reversed(journal) if isinstance(record, Generation)), None)


def why_over(journal: Sequence[JournalRecord], launch: int, *, is_kept: bool = False) -> str | None:
    """Return the reason why the launch's nodes have nothing left to do in the job, or None.

    The end of the job is not a reason for a node that ``is_kept`` for inspection.
    """
    for record in reversed(journal):
        if is_kept and isinstance(record, Finished):
            continue
        if isinstance(record, Finished | Moved):
            return "the job is over"
        if isinstance(record, Resumed):
            return "the job had ended and was resumed with other machines"
        if isinstance(record, Intent) and record.launch == launch:
            return None
    return None


def counts(journal: Sequence[JournalRecord], generation: int) -> bool:
    """Return whether commits of this generation count: it is the newest, and the job is not over.

    Generation 0 is the time before the first generation.
    """
    newest = newest_generation(journal)
    is_over = bool(journal) and isinstance(journal[-1], Finished | Moved)
    return not is_over and generation == (0 if newest is None else newest.number)


def head(journal: Sequence[JournalRecord]) -> CheckpointId | None:
    """Return the newest checkpoint that counts; the next commit must satisfy ``may_follow``."""
    for record in reversed(journal):
        if isinstance(record, Commit):
            return record.id
        if isinstance(record, Generation):
            return record.restore_from
    return None


def may_follow(save: SaveId, base: CheckpointId | None) -> bool:
    """Return whether a save may become the checkpoint after ``base``: a later step, or the end of the loop.

    The state at the end of the loop may have the same step as the checkpoint from which its generation
    started, and still differ, because a drain between the last batch and the epoch's own code misses the
    effects of that code. The ranks save this state without a round (P4), so the number of its round is 0.
    """
    if base is None or save.step > base.step:
        return True
    return save.round == 0 and save.step == base.step and save.generation > base.generation


def lineage(journal: Sequence[JournalRecord]) -> tuple[CheckpointId, ...]:
    """Return the checkpoints from which the next generation may resume, best first.

    The result consists of the committed checkpoints, newest first. Checkpoints that a generation skipped
    because they did not verify come last, since they may be the only ones left. Any of them may have been
    deleted since.
    """
    current: list[CheckpointId] = []
    passed: list[CheckpointId] = []
    restored: CheckpointId | None = None
    is_passed = False
    for record in reversed(journal):
        if isinstance(record, Generation) and not is_passed:
            restored, is_passed = record.restore_from, True
        elif isinstance(record, Commit):
            is_passed = is_passed and record.id != restored
            (passed if is_passed else current).append(record.id)
    return (*current, *passed)
