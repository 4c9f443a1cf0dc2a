"""Chunks that a save need not send, because a committed checkpoint of the job holds the same bytes.

How deletion stays safe is described in docs/protocols.md, P5: a save first puts a mark that names its base,
then looks whether that is still the last commit. Whoever deletes reads the journal first, then looks for
marks (``retention.collect``).
"""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping, MutableMapping, Sequence

import msgspec

from cloudspot.errors import CorruptData
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_meta, find_record
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import head
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, Chunk, ChunkHome, Commit, Manifest, SaveId

MIN_BYTES = 1 << 20
"""Smaller chunks are sent: that takes no longer than the requests that would spare it."""

ChunkContent = tuple[int, str]
"""A chunk's size and checksum."""


def contents(chunks: Sequence[Chunk]) -> frozenset[ChunkContent]:
    """Return what is in these chunks."""
    return frozenset((chunk.size, chunk.xxh3_128) for chunk in chunks)


def known_chunks(manifest: Manifest) -> dict[ChunkContent, Chunk]:
    """Return the chunks of a checkpoint as a later one names them, with their homes, by their content."""
    return {
        (chunk.size, chunk.xxh3_128): msgspec.structs.replace(
            chunk,
            home=chunk.home
            or ChunkHome(
                generation=part.generation, step=part.step, round=part.round, rank=part.rank, number=number
            ),
        )
        for part in manifest.parts
        for number, chunk in enumerate(part.chunks)
    }


def committed_manifest(store: ObjectStore, job_id: str, commit: Commit) -> Manifest | None:
    """Return the manifest that was committed; None: it was deleted, or cannot be read.

    What a slow commit has put since may be that of another save of the step.

    Raises:
        CloudspotError: the store failed.
    """
    try:
        manifest = find_record(store, keys.manifest(job_id, commit.generation, commit.step), Manifest)
    except CorruptData:
        return None
    return manifest if manifest is not None and manifest.save == commit.save else None


class Sharing:
    """What the part of one rank may share with the last committed checkpoint, its base."""

    def __init__(
        self,
        store: ObjectStore,
        journal: Journal,
        job_id: str,
        save: SaveId,
        rank: int,
        *,
        likely: Container[ChunkContent],
        known: MutableMapping[CheckpointId, Mapping[ChunkContent, Chunk]] | None = None,
    ) -> None:
        """``likely`` are the contents that the base probably has: it is looked up when the first one comes.

        ``known`` keeps the chunks of the base for the other parts of this node.
        """
        self._store = with_retries(store)
        self._journal = journal
        self._job_id = job_id
        self._save = save
        self._rank = rank
        self._likely = likely
        self._known = {} if known is None else known
        self._lock = threading.Lock()
        self._chunks: Mapping[ChunkContent, Chunk] | None = None
        """Of the base; None: nothing was likely so far."""

    def find(self, content: ChunkContent) -> Chunk | None:
        """Return the chunk that has this content, with its home, or None: it has to be sent.

        Raises:
            CloudspotError: the store failed.
        """
        if content[0] < MIN_BYTES:
            return None
        with self._lock:
            if self._chunks is None:
                if content not in self._likely:
                    return None
                self._chunks = self._claim()
            return self._chunks.get(content)

    def _claim(self) -> Mapping[ChunkContent, Chunk]:
        """Mark the base as used, so that nobody deletes its chunks; return them, if there are any."""
        base = self._last_commit()
        if base is None or base.id >= self._save.checkpoint:  # the save comes too late to count
            return {}
        self._store.put(keys.base_mark(self._job_id, self._save, self._rank, base.id), b"")
        # In this order: whoever deletes the base has read of a later commit, and looks for marks after that.
        if self._last_commit() != base:
            return {}
        if base.id not in self._known:
            manifest = committed_manifest(self._store, self._job_id, base)
            if manifest is None or find_meta(self._store, keys.damage(self._job_id, base.id)) is not None:
                return {}
            self._known.clear()
            self._known[base.id] = known_chunks(manifest)
        return self._known[base.id]

    def _last_commit(self) -> Commit | None:
        """Return the last commit; None where a generation went on from an older one: that may be going."""
        records = self._journal.read()
        last = next((one for one in reversed(records) if isinstance(one, Commit)), None)
        return last if last is not None and last.id == head(records) else None
