"""Chunks that a save need not send, because a committed checkpoint of the job already holds the same bytes.

Protocol P5 in docs/protocols.md explains why deletion stays safe: a save puts a mark that names its base, and
then checks that the base is still the last commit; a deletion reads the journal, and then looks for marks
(``retention.collect``).
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
"""Smaller chunks are always sent, which takes no longer than the requests that sharing needs."""

ChunkContent = tuple[int, str]
"""The size and the checksum of a chunk."""


def contents(chunks: Sequence[Chunk]) -> frozenset[ChunkContent]:
    """Return the sizes and checksums of these chunks."""
    return frozenset((chunk.size, chunk.xxh3_128) for chunk in chunks)


def known_chunks(manifest: Manifest) -> dict[ChunkContent, Chunk]:
    """Return the chunks of a checkpoint by content, each with the home by which later checkpoints name it."""
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
    """Return the commit's manifest, or None if the manifest was deleted or cannot be read.

    A slow commit may have replaced that manifest with one of another save of the same step; then return None
    as well.

    Raises:
        CloudspotError: the store failed.
    """
    try:
        manifest = find_record(store, keys.manifest(job_id, commit.generation, commit.step), Manifest)
    except CorruptData:
        return None
    return manifest if manifest is not None and manifest.save == commit.save else None


class Sharing:
    """The chunks that one rank's part may share with its base, the last committed checkpoint."""

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
        """Take ``likely``, the contents that the base probably has; the base is read once one is looked up.

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
        """The chunks of the base, or None if no content was likely so far."""

    def find(self, content: ChunkContent) -> Chunk | None:
        """Return the chunk with this content and its home, or None if the chunk has to be sent.

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
        """Mark the base as used, so that nobody deletes its chunks; return them, or none if it is unfit."""
        base = self._last_commit()
        if base is None or base.id >= self._save.checkpoint:  # the save is too late to count
            return {}
        self._store.put(keys.base_mark(self._job_id, self._save, self._rank, base.id), b"")
        # The order matters: a deletion of the base first reads a later commit in the journal, then looks for
        # marks.
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
        """Return the last commit, or None if a generation resumed from an older one: it may be deleted."""
        records = self._journal.read()
        last = next((one for one in reversed(records) if isinstance(one, Commit)), None)
        return last if last is not None and last.id == head(records) else None
