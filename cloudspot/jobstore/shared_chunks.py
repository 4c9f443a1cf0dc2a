"""Chunks that a save need not send, because a committed checkpoint of the job holds the same bytes.

How deletion stays safe is described in docs/protocols.md, P5: a save first puts a mark that names its base,
then looks whether that is still the newest commit. Whoever deletes reads the journal first, then looks for
marks (``retention.collect``).
"""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import keys
from cloudspot.jobstore.journal import Journal
from cloudspot.jobstore.lineage import head
from cloudspot.jobstore.records import Chunk, ChunkHome, Manifest, SaveId
from cloudspot.jobstore.stored_records import find_record

MIN_BYTES = 1 << 20
"""Smaller chunks are sent: that takes no longer than the requests that would spare it."""

ChunkContent = tuple[int, str]
"""A chunk's size and checksum."""


def contents(chunks: Sequence[Chunk]) -> frozenset[ChunkContent]:
    """Return what is in these chunks."""
    return frozenset((chunk.size, chunk.xxh3_128) for chunk in chunks)


def homes(manifest: Manifest) -> dict[ChunkContent, ChunkHome]:
    """Return where the chunks of a checkpoint are stored, by their content."""
    return {
        (chunk.size, chunk.xxh3_128): chunk.home
        or ChunkHome(
            generation=part.generation, step=part.step, round=part.round, rank=part.rank, number=number
        )
        for part in manifest.parts
        for number, chunk in enumerate(part.chunks)
    }


class Sharing:
    """What the part of one rank may share with the newest committed checkpoint, its base."""

    def __init__(
        self,
        store: ObjectStore,
        journal: Journal,
        job_id: str,
        save: SaveId,
        rank: int,
        *,
        likely: Container[ChunkContent],
    ) -> None:
        """``likely`` are the contents that the base probably has: the first of them makes it worth a look."""
        self._store = store
        self._journal = journal
        self._job_id = job_id
        self._save = save
        self._rank = rank
        self._likely = likely
        self._lock = threading.Lock()
        self._homes: dict[ChunkContent, ChunkHome] | None = None
        """Of the base; None: nothing was likely so far."""

    def home(self, content: ChunkContent) -> ChunkHome | None:
        """Return where this content is stored, or None: it has to be sent.

        Raises:
            CloudspotError: the store failed.
        """
        if content[0] < MIN_BYTES:
            return None
        with self._lock:
            if self._homes is None:
                if content not in self._likely:
                    return None
                self._homes = self._claim()
            return self._homes.get(content)

    def _claim(self) -> dict[ChunkContent, ChunkHome]:
        """Mark the base as used, so that nobody deletes its chunks; return them, if there are any."""
        base = head(self._journal.read())
        if base is None or base >= self._save.checkpoint:  # the save comes too late to count
            return {}
        self._store.put(keys.base_mark(self._job_id, self._save, self._rank, base), b"")
        # In this order: whoever deletes the base has read of a newer commit, and looks for marks after that.
        if head(self._journal.read()) != base:
            return {}
        manifest = find_record(self._store, keys.manifest(self._job_id, base.generation, base.step), Manifest)
        return {} if manifest is None else homes(manifest)
