"""The chunks that this node knows to be in the bucket, so that a save does not upload them again."""

from __future__ import annotations

from collections.abc import Mapping

from cloudspot.agent.node_context import NodeContext
from cloudspot.jobstore.checkpoints.shared_chunks import ChunkContent, Sharing, contents
from cloudspot.jobstore.layout.records import CheckpointId, Chunk, Part, SaveId


class SentChunks:
    """The contents of the restored chunks and of the last part that each rank uploaded."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._restored: frozenset[ChunkContent] = frozenset()
        self._sent: dict[int, frozenset[ChunkContent]] = {}
        self._known: dict[CheckpointId, Mapping[ChunkContent, Chunk]] = {}
        """The chunks of the newest base, for all ranks of this node."""

    def begin(self, restored: frozenset[ChunkContent]) -> None:
        """Begin a generation with the restored chunks; ranks may have moved to other nodes."""
        self._restored = restored
        self._sent.clear()

    def note(self, part: Part) -> None:
        """Record that a part was uploaded."""
        self._sent[part.rank] = contents(part.chunks)

    def sharing(self, save: SaveId, rank: int) -> Sharing:
        """Return the known chunks that a rank's part of a save may refer to instead of uploading them."""
        context = self._context
        likely = self._restored.union(*self._sent.values())
        return Sharing(
            context.store, context.journal, context.job_id, save, rank, likely=likely, known=self._known
        )
