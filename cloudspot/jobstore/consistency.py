"""Check that a job's records fit each other and their keys, for the folds rely on their numbers; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloudspot.errors import CorruptData
from cloudspot.jobstore import keys
from cloudspot.jobstore.records import (
    Closed,
    Exit,
    Generation,
    Intent,
    JournalRecord,
    Moved,
    Notice,
    Resumed,
    Suspended,
)


def check_journal(job_id: str, journal: Sequence[JournalRecord]) -> None:
    """Check that launches and resumptions are numbered from 1, and that nothing overlaps them.

    Each launch is closed before anything else but the end, and only a resumption follows an end.

    Raises:
        CorruptData: the message names the first key that does not fit.
    """
    opened = closed = resumed = 0
    has_ended = False
    for number, record in enumerate(journal, start=1):
        if isinstance(record, Intent):
            fits = record.launch == opened + 1 == closed + 1 and not has_ended
            opened = record.launch
        elif isinstance(record, Closed):
            fits = record.launch == opened == closed + 1 and not has_ended
            closed = record.launch
        elif isinstance(record, Resumed):
            fits = record.resumption == resumed + 1 and opened == closed
            resumed, has_ended = record.resumption, False
        elif isinstance(record, Moved):
            fits = has_ended
        elif isinstance(record, Suspended):
            fits = opened == closed and not has_ended
        else:
            fits = not has_ended
            has_ended = True
        if not fits:
            key = keys.journal(job_id, number)
            raise CorruptData(f"{key} does not follow from the records before it: {_described(record)}")


def _described(record: JournalRecord) -> str:
    if isinstance(record, Intent | Closed):
        return f"it {'opens' if isinstance(record, Intent) else 'closes'} launch {record.launch}"
    if isinstance(record, Resumed):
        return f"it is resumption {record.resumption}"
    if isinstance(record, Suspended):
        return "it suspends the job"
    if isinstance(record, Moved):
        return "it moves the job"
    return "it ends the job"


def check_generation(generation: Generation, number: int, key: str) -> None:
    """Check a generation by itself: its own number, each node once, and a checkpoint of an older one.

    Raises:
        CorruptData: the message names ``key``.
    """
    ranks = [member.rank for member in generation.members]
    restored = generation.restore_from
    if generation.number != number:
        raise CorruptData(f"{key} holds the record of generation {generation.number}")
    if not ranks or len(ranks) != len(set(ranks)):
        raise CorruptData(f"{key} names no nodes, or one of them twice: {ranks[:20]}")
    if restored is not None and restored.generation >= number:
        raise CorruptData(f"{key} resumes from checkpoint {restored}, which is not of an older generation")


def check_members(job_id: str, generations: Sequence[Generation], num_nodes: Mapping[int, int]) -> None:
    """Check that the launches have the nodes that the generations name.

    ``num_nodes`` is by launch. It may lack the newest: its intent may have been written since it was made.

    Raises:
        CorruptData: the message names the key of the generation.
    """
    for generation in generations:
        most = num_nodes.get(generation.launch)
        ranks = [member.rank for member in generation.members]
        if most is not None and max(ranks) >= most:
            raise CorruptData(
                f"{keys.generation(job_id, generation.number)} names node {max(ranks)} of launch "
                f"{generation.launch}, which has {most} nodes"
            )


def check_place(record: object, launch: int, rank: int, key: str) -> None:
    """Check that a node's record names the node under whose key it is.

    Raises:
        CorruptData: the message names ``key``.
    """
    if isinstance(record, Exit | Notice) and (record.launch, record.rank) != (launch, rank):
        raise CorruptData(f"{key} holds a record of node {record.rank} of launch {record.launch}")
