"""Check a checkpoint's records for consistency: pure; trusts no writer and unpickles nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from cloudspot.errors import CorruptData
from cloudspot.host.names import is_safe_name
from cloudspot.jobstore.layout.records import Manifest, Part
from cloudspot.jobstore.layout.seals import Item, Seal, plan_digest
from cloudspot.train.state import boxes

MAX_CHUNK_BYTES = 64 << 20
"""The largest chunk that writers make: readers hold several whole chunks in memory at once."""
MAX_PARTS = 10_000
"""The limit for the number of ranks, which have four digits in keys."""
_HASH = re.compile(r"[0-9a-f]{32}")


def check_manifest(manifest: Manifest) -> None:
    """Check that the manifest describes one whole checkpoint and nothing unsafe.

    Every part is valid by itself, the ranks that bring parts are in order without repetition, and all parts
    belong to this save. A session's parts come from one plan: the items in the seals form the table whose
    digest is in every seal, so each item of the plan appears once. The shards of a tensor cover each of its
    elements exactly once. The state of each rank appears exactly once.

    Raises:
        CorruptData: the message names the checkpoint and the first problem.
    """
    for problem in _manifest_problems(manifest):
        raise CorruptData(f"checkpoint {manifest.id}: {problem}")


def check_part(part: Part) -> None:
    """Check that the record of a part is valid by itself.

    Raises:
        CorruptData: the message names the part and the first problem.
    """
    for problem in _part_problems(part):
        raise CorruptData(f"part {part.rank} of save {part.save}: {problem}")


# --- problems, the most important first -------------------------------------------------


def _manifest_problems(manifest: Manifest) -> Iterator[str]:
    if not manifest.parts:
        yield "it has no parts"
    ranks = tuple(part.rank for part in manifest.parts)
    for part in manifest.parts:
        rank = part.rank
        if part.ranks != ranks:
            yield f"it has parts of ranks {ranks[:20]}, but part {rank} names ranks {part.ranks[:20]}"
        if (part.save, part.kind) != (manifest.save, manifest.kind):
            yield f"its part {rank} belongs to the {part.kind} save {part.save}, not to {manifest.save}"
        for problem in _part_problems(part):
            yield f"part {rank}: {problem}"
    total = sum(part.size for part in manifest.parts)
    if manifest.size != total:
        yield f"its size is {manifest.size}, but its parts have {total} bytes"
    if manifest.kind == "session":
        yield from _plan_problems([part.parsed_seal for part in manifest.parts])
    else:
        yield from _collisions(manifest.parts)


def _part_problems(part: Part) -> Iterator[str]:
    if part.generation < 0 or part.step < 0:
        yield "its generation or its step is negative"
    has_places = len(part.ranks) == part.num_parts <= MAX_PARTS - len(part.relieved)
    if not has_places or part.rank not in part.ranks:
        yield f"rank {part.rank} of {part.num_parts} without {part.relieved[:20]} is impossible"
    for number, chunk in enumerate(part.chunks):
        if not 0 < chunk.size <= MAX_CHUNK_BYTES or _HASH.fullmatch(chunk.xxh3_128) is None:
            yield f"chunk {number} has size {chunk.size} and checksum {chunk.xxh3_128[:64]!r}"
        if chunk.stored is not None and not 0 < chunk.stored < chunk.size:
            yield f"chunk {number} of size {chunk.size} claims to be compressed to {chunk.stored}"
        if chunk.home is not None and chunk.home.save.checkpoint >= part.save.checkpoint:
            yield f"chunk {number} claims to belong to save {chunk.home.save}, which is not earlier"
    total = sum(chunk.size for chunk in part.chunks)
    if part.size != total:
        yield f"its size is {part.size}, but its chunks have {total} bytes"
    if part.kind == "session":
        if part.files or part.directory is not None:
            yield "it belongs to a session, which has no files"
        yield from _seal_problems(part, part.parsed_seal)
    elif part.kind == "directory":
        if part.seal is not None or part.relieved:
            yield "it belongs to a directory, which has no seal and relieves no node"
        yield from _file_problems(part)
    else:
        yield f"its kind is {part.kind!r}"


def _seal_problems(part: Part, seal: Seal) -> Iterator[str]:
    for name, found, expected in (
        ("generation", seal.generation, part.generation),
        ("step", seal.step, part.step),
        ("round", seal.round, part.round),
        ("rank", seal.rank, part.rank),
        ("relieved", seal.relieved, part.relieved),
        ("rescue", seal.rescue, part.rescue),
        ("world_size", seal.world_size, part.num_parts + len(part.relieved)),
        ("nbytes", seal.nbytes, part.size),
    ):
        if found != expected:
            yield f"its seal's {name} is {found}, not {expected}"
    end = 0
    for item in sorted(seal.items, key=lambda item: (item.offset, item.nbytes)):
        count = math.prod(item.shape)
        if min((*item.shape, item.offset, item.nbytes)) < 0 or item.nbytes % max(count, 1):
            yield f"item {item.name!r} of shape {item.shape} has {item.nbytes} bytes at {item.offset}"
        if item.offset < end:
            yield f"item {item.name!r} overlaps another"
        end = max(end, item.offset + item.nbytes)
    if end > part.size:
        yield f"its items end at byte {end} of {part.size}"


def _plan_problems(seals: Sequence[Seal]) -> Iterator[str]:
    digests = {seal.plan for seal in seals}
    if len(digests) != 1:
        yield "its parts come from different plans"
    states = sorted(rank for seal in seals for rank in seal.rank_states)
    rescue = seals[0].rescue
    lost = set() if rescue is None else set(rescue.lost)
    kept = set() if rescue is None else set(rescue.kept)
    if any(seal.rescue != rescue for seal in seals) or not kept <= lost <= set(seals[0].relieved):
        yield "its parts disagree on which ranks were lost"
    lost -= kept
    if states != sorted(str(rank) for rank in range(seals[0].world_size) if rank not in lost):
        yield f"it does not hold the state of each of {seals[0].world_size} ranks once: {states[:20]}"
    shards: dict[str, list[Item]] = {}
    whole: set[str] = set()
    for seal in seals:
        for item in seal.items:
            # An item that is stored whole has no shards. The boxes of shards are checked below.
            if item.name in whole or (item.name in shards and not item.is_shard):
                yield f"it holds item {item.name!r} twice"
            if item.is_shard:
                shards.setdefault(item.name, []).append(item)
            else:
                whole.add(item.name)
    for name, items in shards.items():
        yield from _shard_problems(name, items)
    if digests != {plan_digest(seals)}:
        yield "its items are not those of the plan"


def _shard_problems(name: str, items: Sequence[Item]) -> Iterator[str]:
    first = items[0]
    itemsizes = {item.nbytes // math.prod(item.shape) for item in items if math.prod(item.shape) > 0}
    if first.global_shape is None or any(item.global_offset is None for item in items):
        yield f"its shards of {name!r} lack a global_shape or a global_offset"
    elif {(item.dtype, item.global_shape) for item in items} != {(first.dtype, first.global_shape)}:
        yield f"its shards of {name!r} are of different tensors"
    elif (problem := boxes.problem([item.box for item in items], first.global_shape)) is not None:
        yield f"its shards of {name!r} have {problem}"
    elif len(itemsizes) > 1:
        yield f"its shards of {name!r} have elements of {sorted(itemsizes)} bytes"


def _file_problems(part: Part) -> Iterator[str]:
    if part.directory is None or not (part.directory == "." or is_safe_name(part.directory)):
        yield f"its directory {(part.directory or '')[:200]!r} is not a safe relative path"
    for file in part.files:
        if not is_safe_name(file.name):
            yield f"its file {file.path[:200]!r} is not a safe relative path"
        if file.size < 0 or file.mode < 0:
            yield f"its file {file.path!r} has size {file.size} and mode {file.mode:o}"
    total = sum(file.size for file in part.files)
    if part.size != total:
        yield f"its size is {part.size}, but its files have {total} bytes"


def _collisions(parts: Sequence[Part]) -> Iterator[str]:
    """Yield paths that cannot coexist: a path that a node has twice, or a path below a file."""
    directories = {part.directory or "" for part in parts}
    taken: set[str] = set()
    for part in parts:
        files = {f"{part.directory}/{file.name}" for file in part.files}
        if len(files) != len(part.files):
            yield "it holds a file twice"
        taken |= files
    for path in sorted(taken):
        for parent in parents(path):
            if parent in taken:
                yield f"it holds {parent[:200]!r} as a file and as a directory"
    for directory in directories:
        for parent in (*parents(directory), *(["."] if directory != "." else [])):
            if parent in directories:
                yield f"its directory {directory[:200]!r} is inside another"


def parents(path: str) -> Iterator[str]:
    """Yield the directories above a path with ``/`` as separator, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
