"""Fetch the ranges of a sharded checkpoint that the ranks ask for; no node reads the whole checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from cloudspot.agent.delivery.checkpoint_restore import Restored
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.store_retry import retry_until
from cloudspot.agent.worker import Stopped, Worker
from cloudspot.decoding import Tally, decode
from cloudspot.errors import CloudspotError, CorruptData, ObjectMissing
from cloudspot.host.bounded_reads import read_at_most
from cloudspot.host.partial_files import write_whole
from cloudspot.jobstore.checkpoints import manifests, retention
from cloudspot.jobstore.checkpoints.fetching import fetch_ranges, part_file
from cloudspot.jobstore.layout.records import Intent, Manifest
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
IDLE_SECONDS = 2.0
MAX_WANTED_BYTES = 64 << 20
"""The maximum size of a rank's request."""
Ranges = Mapping[str, Sequence[tuple[int, int]]]
"""By file, the ranges to fetch: the first byte, and the end after the last byte."""


class Wanted(msgspec.Struct, frozen=True):
    """``wanted-R.json``: the ranges that rank R reads."""

    nonce: str
    """The answer ``fetched-R`` repeats this nonce."""
    ranges: dict[str, tuple[tuple[Tally, Tally], ...]]


def bring(
    context: NodeContext, restored: Restored, ranges: Ranges, *, what: str, pause: Callable[[float], None]
) -> None:
    """Fetch and verify ranges of a checkpoint's files; the log line begins with ``what``.

    During an outage of the store, wait with ``pause``, which takes a number of seconds and raises to end the
    call early.

    Raises:
        CorruptData: a chunk fails verification even after a second read. This was reported to all nodes,
            unless the checkpoint has been deleted.
        CloudspotError: the store or the disk fails permanently.
    """
    manifest, directory, store, job_id = restored.on_demand, restored.directory, context.store, context.job_id
    assert manifest is not None
    assert directory is not None
    total = sum(end - start for found in ranges.values() for start, end in found)
    with context.status.transferring("restoring", total) as add:

        def progress(num_bytes: int) -> None:
            pause(0.0)
            add(num_bytes)

        try:
            num_bytes, num_here = retry_until(
                lambda: fetch_ranges(store, job_id, manifest, directory, ranges, progress=progress),
                sleep=pause,
            )
        except CorruptData as error:
            reason = str(error)
            if retry_until(lambda: manifests.exists(store, job_id, manifest.id), sleep=pause):
                retry_until(lambda: retention.note_damage(store, job_id, manifest.id, reason), sleep=pause)
            raise
    _log.info(
        "%s %d of the %d bytes of checkpoint %s; %d of them were here",
        what, num_bytes, manifest.size, manifest.id, num_here,
    )  # fmt: skip


def likely_ranges(context: NodeContext, manifest: Manifest) -> Ranges:
    """Return the parts of the ranks that the ranks of this new node will probably replace, as ranges.

    A launch replaces either all nodes of the job or the last ones.
    """
    procs, seat = context.job.spec.procs_per_node, context.seat
    intents = (one for one in context.journal.known if isinstance(one, Intent) and one.launch == seat.launch)
    num_new = next((one.num_nodes for one in intents), 1)
    num_nodes = manifest.parts[0].parsed_seal.world_size // procs
    first = (max(0, num_nodes - num_new) + seat.rank) * procs
    return {
        part_file(part.rank): [(0, part.size)]
        for part in manifest.parts
        if first <= part.rank < first + procs
    }


class OnDemandFetch(Worker):
    """A thread that answers a generation's ranks on this node; it ends with the ``with`` block.

    After an agent is killed, the next one answers the waiting ranks.
    """

    def __init__(self, context: NodeContext, find: Callable[[], Restored | None], handoff: Path) -> None:
        """Create the thread, which calls ``find`` until it returns the checkpoint to resume from.

        If that checkpoint is not fetched ``on_demand``, the thread does nothing.
        """
        super().__init__("on-demand fetch")
        self._context = context
        self._find = find
        self._handoff = handoff
        self.error: Exception | None = None
        """Why waiting ranks will get no answer, if there is an error."""
        self.may_succeed_otherwise = False
        """Whether the next start may avoid the error, with another checkpoint or one restored to the disk."""

    def __enter__(self) -> OnDemandFetch:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        # No thread may write to these files once the next generation's checkpoint replaces them.
        self.stop()
        self._join()

    def _run(self) -> None:
        try:
            restored = retry_until(self._find, sleep=self._pause)
            if restored is not None and restored.on_demand is not None:
                self._serve(restored)
        except Stopped:
            return
        except (CorruptData, ObjectMissing) as error:
            self.may_succeed_otherwise = True
            self.error = error
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.error = error

    def _serve(self, restored: Restored) -> None:
        # Answer not only the known ranks of this node, because a command may start more.
        while not self._stopped.wait(IDLE_SECONDS if self._has_begun() else POLL_SECONDS):
            asked = {}
            for path in self._handoff.glob("wanted-*.json"):
                wanted, answer = _read(path), files.answer_to(path)
                if not answer.exists() or answer.read_text(encoding="ascii") != wanted.nonce:
                    asked[answer] = wanted
            if not asked:
                continue
            ranges: dict[str, list[tuple[int, int]]] = {}
            for wanted in asked.values():
                for file, found in wanted.ranges.items():
                    ranges.setdefault(file, []).extend(found)
            ranks = ", ".join(answer.name.removeprefix("fetched-") for answer in sorted(asked))
            try:
                bring(self._context, restored, ranges, what=f"ranks {ranks} read", pause=self._pause)
            except CloudspotError as error:
                in_memory = restored.directory == self._context.node.restore_in_memory
                self.may_succeed_otherwise = in_memory and isinstance(error.__cause__, OSError)
                raise
            for answer, wanted in asked.items():
                write_whole(answer, wanted.nonce.encode())

    def _has_begun(self) -> bool:
        """Return whether all known ranks have finished reading; a command may start more ranks later."""
        ranks = self._context.status.ranks
        return all(files.begun_loop_path(self._handoff, rank).exists() for rank in ranks)


def _read(path: Path) -> Wanted:
    try:
        wanted: Wanted = decode(read_at_most(path, MAX_WANTED_BYTES), Wanted)
    except (ValueError, msgspec.DecodeError) as error:
        raise CloudspotError(f"{path} is malformed: {error}") from error
    return wanted
