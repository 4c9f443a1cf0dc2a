"""Generations: who trains, and from which checkpoint the next one resumes (protocol P3)."""

from __future__ import annotations

from collections.abc import Sequence

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.consistency import check_generation
from cloudspot.jobstore.numbered import read_after
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.records import CheckpointId, Generation
from cloudspot.jobstore.stored_records import create_record


def read_generations(
    store: ObjectStore, job_id: str, *, known: Sequence[Generation] = ()
) -> tuple[Generation, ...]:
    """Return the job's generations in order; generation ``g`` is at index ``g - 1``.

    ``known`` are those that an earlier call returned: they never change and are not read again.
    """
    new = read_after(
        patient(store),
        keys.generations_prefix(job_id),
        lambda number: keys.generation(job_id, number),
        _decode,
        known=len(known),
    )
    return (*known, *new)


def _decode(data: bytes, number: int, key: str) -> Generation:
    generation = codec.decode(data, Generation, key=key)
    check_generation(generation, number, key)
    return generation


def propose(store: ObjectStore, job_id: str, generation: Generation) -> Generation:
    """Write the generation unless its number is taken; return the record that stands.

    The loser of the race adopts the winner's record; whoever is not a member of it ends itself.
    """
    return create_record(store, keys.generation(job_id, generation.number), generation)


def lineage(generations: Sequence[Generation], commits: Sequence[CheckpointId]) -> tuple[CheckpointId, ...]:
    """Return the checkpoints that the next generation may resume from, best first.

    These are the commits of the newest generation, newest first; then the checkpoint from which it was
    restored and the older ones of that generation; and so on back. What a generation committed after its
    successor had chosen an older checkpoint is no candidate: a zombie outranks nobody. It becomes one only if
    that older checkpoint is gone and nothing was committed since, so that there is nobody to outrank.
    """
    by_number: dict[int, Generation | None] = {one.number: one for one in generations}
    by_number[0] = None  # no training: the checkpoint with which the job was forked
    kept = set(commits)
    steps_of: dict[int, list[int]] = {}
    for commit in sorted(kept, reverse=True):
        steps_of.setdefault(commit.generation, []).append(commit.step)
    candidates: list[CheckpointId] = []
    number = max(by_number, default=0)
    newest_step: int | None = None  # Of this generation's commits, the newest that still counts.
    while number in by_number:
        candidates += [
            CheckpointId(number, step)
            for step in steps_of.get(number, ())
            if newest_step is None or step <= newest_step
        ]
        generation = by_number[number]
        restored = None if generation is None else generation.restore_from
        if restored is None or restored.generation >= number:
            break  # The first of its line, or a record that no reader lets through.
        is_gone = not candidates and restored not in kept
        number, newest_step = restored.generation, None if is_gone else restored.step
    return tuple(candidates)
