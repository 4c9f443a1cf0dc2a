"""Upload the checkpoints that a script writes by itself."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from cloudspot.agent.delivery.checkpoint_files import CheckpointFiles, links_left_out
from cloudspot.agent.delivery.checkpoint_restore import Restored
from cloudspot.agent.delivery.checkpoint_shelf import CheckpointShelf
from cloudspot.agent.delivery.checkpoint_states import Look, Memory, State
from cloudspot.agent.delivery.checkpoint_watch import RESTLESS_SECONDS, CheckpointWatch
from cloudspot.agent.delivery.sent_chunks import SentChunks
from cloudspot.agent.delivery.set_aside import SetAside, set_aside
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.worker import Worker
from cloudspot.decoding import convert
from cloudspot.errors import CloudspotError, CorruptData, TransientError
from cloudspot.host.names import printable
from cloudspot.host.partial_files import write_whole
from cloudspot.jobfile.spec import SIGNALS
from cloudspot.jobstore.access.stored_records import find_meta
from cloudspot.jobstore.checkpoints import manifests, parts, retention
from cloudspot.jobstore.checkpoints.compression import Compression
from cloudspot.jobstore.code.extraction import extract_bundle
from cloudspot.jobstore.jobs.submission import code_key
from cloudspot.jobstore.journal.lineage import generations_of, head
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, Commit, SaveId

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""The minimum time between two looks."""
LOOK_SHARE = 0.05
"""The share of a core that the looks may take."""
NUM_TRIES = 100
"""The maximum number of looks in a row if a directory disappears during each."""
COMMIT_SECONDS = 5.0
"""The minimum time between two commits while the script trains."""
COMPARE_SECONDS = 5.0
"""How often a node that uploads no part of the checkpoints looks for a commit to compare its files with."""
BEGUN_SECONDS = 1.0
"""How often a node with a state to upload checks whether the first node has begun an upload."""
_EVIDENCE_TEXTS = {
    "marker": "proven complete by {marker}",
    "index": "proven complete by what its framework writes last",
    "next": "taken for complete since the next save had begun (not proven)",
    "quiet": "taken for complete since nothing wrote to it for {quiet:.0f} s (not proven)",
    "exit": "taken for complete since the script ended with status 0 (not proven)",
}


class _ChangedError(TransientError):
    """The files changed while they were uploaded."""


class DirectoryUploads(Worker):
    """Sets aside each new complete state of the checkpoints, then uploads it.

    A thread watches the checkpoints, even during an upload.

    A checkpoint's step is the number at the end of its name. If the name has no number, or the number is used
    or not beyond the newest commit, the checkpoint gets the next free step, which then only gives the order.

    If each node uploads a part (``checkpoint.nodes``), the number identifies the state whose parts belong
    together. While the script runs, the first node chooses this number and records it, and the others follow.
    """

    def __init__(
        self,
        context: NodeContext,
        sent: SentChunks,
        compression: Compression | None,
        *,
        before_upload: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("checkpoint watch")
        self._before_upload = before_upload
        job = context.job.spec
        self._context = context
        self._sent = sent
        self._compression = compression
        self._store = context.store
        self._node = node = context.node
        self._status = context.status
        self._spec = spec = job.checkpoint
        markers = [name for name in (spec.complete_file, spec.incomplete_file) if name is not None]
        notice_files = (
            [spec.on_notice] if spec.on_notice is not None and spec.on_notice not in SIGNALS else []
        )
        inputs = [data.path_or_default(name) for name, data in job.data.items()]
        self._files = CheckpointFiles(
            node.work, spec.patterns, (*spec.exclude, *notice_files, *inputs), markers
        )
        self._memory_path = node.directory / "checkpoint-watch.json"
        memory = Memory()
        with suppress(FileNotFoundError):
            # Names may not be valid UTF-8, but Python's json can escape such names and restore them.
            memory = convert(json.loads(self._memory_path.read_bytes()), Memory)
        self._watch = CheckpointWatch(spec.complete_file, spec.incomplete_file, memory)
        self._files.ignored = memory.code
        self._steps: dict[int, State | None] = {}
        """The steps used in this generation, with their states; None for a state of an earlier agent."""
        self._looking = threading.RLock()
        """Held while the watch or the shelf changes."""
        self._hurries = threading.Event()
        """Set to interrupt a copy that holds the lock, because its caller cannot wait for the lock."""
        self._looked_at, self._look_seconds = float("-inf"), 0.0
        self._looks: tuple[Look, ...] = ()
        self._shelf = CheckpointShelf(
            self._take, lambda kept: kept.holds(self._files.writers), self._watch.memory
        )
        self._number = itertools.count()
        self._num_linked = Counter[int]()
        self._committed_at = float("-inf")
        self._brought_step = 0
        """The newest step of this generation whose part this node has uploaded or abandoned."""
        self._lacking: tuple[int, float] | None = None
        """The oldest uncommitted step, with the time when this node's part of it was uploaded (monotonic)."""
        self._begun: tuple[int, ...] = ()
        self._begun_at = float("-inf")
        self._has_compared = False
        self._compare_at = float("-inf")
        """When to check next whether the newest commit contains this node's files (monotonic)."""
        self._alive = False
        self.answered_at: float | None = None
        """When the checkpoint that the script saved on request was committed (monotonic), or None."""
        for left in node.staging.glob("checkpoint-*"):
            shutil.rmtree(left, ignore_errors=True)

    # --- events -------------------------------------------------------------------------------------

    def begin(self, restored: Restored) -> None:
        """Watch the script of a new generation; the restored checkpoint is not uploaded again."""
        if self._watch.memory.before is not None:
            self.end_of_script()
        self._put_back_code()
        with self._looking:
            self._steps.clear()
            self._brought_step, self._lacking, self._begun = 0, None, ()
            memory = self._watch.memory
            is_first = memory.before is None
            if self._spec.nodes == "all" and not is_first:
                self._set_aside_newer(restored)
            looks = self._look_again()
            if is_first:
                memory.code = {
                    path: stamp
                    for look in looks
                    if look.name == "."
                    for path, stamp in look.files.items()
                    if path not in restored.files
                }
                self._files.ignored = memory.code
                looks = self._look_again()
            self._watch.begin(looks)
            self._shelf.begin(
                State(look.name, look.step, self._watch.own_version(look))
                for look in looks
                if restored.files & look.files.keys() or look.name == restored.directory_name
            )
            self._remember()
            self.answered_at = None
            self.adopt()

    def adopt(self) -> None:
        """Watch a script that is already running."""
        self._alive = True

    def ask(self) -> None:
        """Record that the script is now asked to save and leave."""
        self._hurries.set()
        with self._looking:
            try:
                if self._look(now=True):
                    self._watch.ask(self._looks)
                    self._remember()
            finally:
                self._hurries.clear()

    def has_answer(self) -> bool:
        """Return whether the script has completed a requested checkpoint."""
        with self._looking:
            found = [*self.unsent(), *self._watch.complete(self._looks)]
            return self.answered_at is not None or any(map(self._watch.is_answer, found))

    def end_of_script(self, *, exited_0: bool = False, is_leaving: bool = True) -> None:
        """Record that no script writes any more: an incomplete checkpoint stays incomplete."""
        with self._looking:
            self._alive = False
            self._watch.end(self._look_again(), exited_0=exited_0, is_leaving=is_leaving)
            self._remember()
            self._looked_at = float("-inf")

    def set_aside_torn(self) -> None:
        """Move the checkpoints that the script left incomplete when it ended out of its way.

        Otherwise, a script that resumes from its newest checkpoint would resume from a torn one. They stay on
        the node, because a checkpoint may be complete without proof of it.
        """
        if self._status.has_session:
            return
        with self._looking:
            # A node that uploads no part of the checkpoints has only files that no checkpoint contains.
            looks = self._look_again()
            torn = self._watch.torn(looks, only_incomplete=self._contributes_part)
            self._set_aside(looks, torn, "was not complete when the script ended")

    def _set_aside_newer(self, restored: Restored) -> None:
        """Move away states newer than the restored one: they were not committed, as other nodes lack them."""
        step = -1 if restored.checkpoint is None else restored.checkpoint.step
        looks = self._look_again()
        newer = [
            look
            for look in looks
            if self._watch.is_new(look)
            and not restored.files & look.files.keys()
            and (look.step is None or look.step > step)
        ]
        self._set_aside(looks, newer, "is not what the job resumes from")

    def _set_aside(self, looks: Sequence[Look], removed: Sequence[Look], why: str) -> None:
        # A file whose name has no step belongs to the kept checkpoints too.
        kept = {path for look in looks if look not in removed for path in look.files}
        for path in sorted({path for look in removed for path in (*look.roots, *_written_with(look))} - kept):
            if not os.path.lexists(self._node.work / path):
                continue  # it was moved with its parent directory
            target = self._move_away(path)
            _log.warning("%s %s; it is set aside as %s", printable(path), why, printable(str(target)))

    def _move_away(self, path: str) -> Path:
        target = _free_path(self._node.torn / path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(self._node.work / path, target)
        return target

    # --- looking ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            if self._alive:
                try:
                    with self._looking:
                        self._look()
                    self._suggest_all()
                except (OSError, CloudspotError) as error:
                    _log.warning("the checkpoints cannot be read at the moment: %s", error)

    def _look_again(self) -> tuple[Look, ...]:
        """Look at all checkpoints and return the looks; look again if a directory disappears meanwhile."""
        for _ in range(NUM_TRIES):
            if (looks := self._files.looks(lambda _: True)) is not None:
                self._looks = tuple(looks)
                break
            time.sleep(0.01)
        return self._looks

    def _look(self, *, now: bool = False) -> bool:
        """Look at the checkpoints if it is time, and set aside complete states; return whether any may exist.

        There are none while the script has a session, or if this node uploads no part of the checkpoints.
        """
        if self._status.has_session or not self._contributes_part:
            return False
        if self._status.generation != self._context.memory.generation:
            return False  # no script has started here: every file was restored or came with the code
        began, used = time.monotonic(), time.thread_time()
        if (
            not now
            and self._alive
            and began < self._looked_at + max(LOOK_SECONDS, self._look_seconds / LOOK_SHARE)
        ):
            return True
        # If no script runs, do not search for writing processes: the search is slow.
        looks = self._files.looks(self._watch.is_complete if self._alive else lambda _: True)
        if looks is None:
            return True
        self._looks = tuple(looks)
        proved = self._watch.look(looks, began) if self._alive else ()
        if not self._alive:
            self._watch.end(looks, exited_0=False, is_leaving=True)
        self._remember()
        complete = self._watch.complete(looks)
        self._shelf.look(proved, complete, self._watch.candidate() if self._alive else None)
        if self._watch.save_seconds is not None:
            self._status.stall_seconds = self._watch.save_seconds
        self._status.warn("directories", self._restlessness())
        self._status.warn("directory names", self._misnamed(complete))
        if self._num_parts > 1:
            unmatched = next(filter(None, map(self._unmatched, complete[-1:])), None)
            self._status.warn("nodes", unmatched or self._lacks_parts())
        self._looked_at = time.monotonic()
        self._look_seconds = time.thread_time() - used
        return True

    def _take(self, state: State) -> SetAside | None:
        look = next((one for one in self._looks if one.name == state.name), None)
        if look is None:
            return None
        root = self._node.staging / f"checkpoint-{next(self._number)}"
        links = {path for path in look.pointers if (self._node.work / path).is_symlink()}
        must_copy = self._alive and self._watch.memory.rewrites
        found = set_aside(
            state,
            self._node.work,
            root,
            logs=self._watch.logs_of(look),
            links=links,
            num_linked=self._num_linked,
            must_copy=must_copy,
            gives_up=self._hurries.is_set,
            writers=self._files.writers if self._alive else lambda _: frozenset(),
        )
        is_direct = found is not None and "direct" in found.ways
        name = printable(state.name)
        text = f"there is no room to set {name} aside: it is discarded if it changes before it is uploaded"
        self._status.warn("room", text if is_direct else None)
        self._status.warn("links", _links_warning(name, links_left_out(self._node.work, look)))
        return found

    # --- uploading ----------------------------------------------------------------------------------

    def carry(self, commit: Callable[[SaveId, float], Commit | None]) -> None:
        """Upload new complete states; call ``commit`` with the id and the upload's start (monotonic) of each.

        Raises:
            TransientError: the store failed; call again to continue.
        """
        hurries = not self._alive or self._watch.was_asked or self._context.orders.pending
        while (state := self._choose()) is not None:
            is_due = hurries or time.monotonic() >= self._committed_at + COMMIT_SECONDS
            if not is_due and self._leads:
                return
            with self._looking:
                if self._expects_answer():
                    return
                taken = self._shelf.begin_upload(None if self._num_parts == 1 else state)
                self._watch.has_news = True
                self._remember()
            if taken is None:
                return
            has_failed = True
            try:
                self._before_upload()
                self._carry_whole(taken, commit)
                has_failed = False
            finally:
                with self._looking:
                    self._shelf.end_upload(is_to_repeat=has_failed)

    def _expects_answer(self) -> bool:
        """Return whether the script has begun the requested save while an older state waits for its upload.

        Uploading the older state could take the time that the newer one needs. The older state is uploaded if
        the script ends without completing the newer one.
        """
        ready = self._shelf.ready
        if not self._alive or not self._watch.was_asked or ready is None:
            return False
        return not self._watch.is_answer(ready.state) and any(map(self._watch.is_answer, self._looks))

    def unsent(self) -> list[State]:
        """Return a list with the newest complete state that is not in the bucket, or an empty list."""
        with self._looking:
            may_have = self._look()
            ready = self._shelf.ready
            found = [ready.state] if may_have and ready is not None else []
            return found if self._num_parts == 1 else [one for one in found if self._may_bring(one)]

    def num_doubtful(self) -> int:
        """Return how many of the newest commits may be torn; one more older commit is kept for each."""
        with self._looking:
            return self._shelf.num_doubtful(self._watch.was_confirmed)

    def _carry_whole(self, taken: SetAside, commit: Callable[[SaveId, float], Commit | None]) -> None:
        state = taken.state
        try:
            while not self._carry(taken, save := self._choose_id(state), commit):
                pass  # another state has this step
        except _ChangedError as error:
            with self._looking:
                self._watch.memory.rewrites = True  # a link did not protect the file
            _log.info("%s; the next complete state will be uploaded", error)
            return
        with self._looking:
            self._shelf.note_commit(taken.state)  # the next save may have confirmed it by now
            self._watch.has_news = True
            self._committed_at = time.monotonic()
            self._brought_step = max(self._brought_step, save.step)
            if self.answered_at is None and self._watch.is_answer(state):
                self.answered_at = time.monotonic()

    def _carry(self, taken: SetAside, save: SaveId, commit: Callable[[SaveId, float], Commit | None]) -> bool:
        """Upload and commit a state, or abandon it; return False if the id is already used."""
        state, num_parts = taken.state, self._num_parts
        self._steps[save.step] = state
        began = time.monotonic()
        if num_parts > 1 and save.step not in self._begun:
            retention.note_begun(self._store, self._node.job_id, save.checkpoint)
        described = parts.directory_part(
            save,
            taken.files,
            directory=".",
            sealed_at=self._context.now(),
            evidence=self._evidence_text(state),
            rank=self._place,
            num_parts=num_parts,
        )
        upload = parts.Upload(self._store, self._node.job_id, described, compression=self._compression)

        def check() -> None:
            if not taken.holds(self._files.writers if self._alive else lambda _: frozenset()):
                raise _ChangedError(f"{printable(state.name)} changed during its upload")

        try:
            with self._status.transferring("uploading", described.size) as progress:
                part = upload.run(
                    partial(parts.lend_files, taken.root, taken.files),
                    sharing=self._sent.sharing(save, described.rank),
                    progress=progress,
                    check=check,
                    in_background=self._alive and not self._watch.was_asked,
                )
            self._sent.note(part)
            committed = commit(save, began)
            if num_parts > 1:
                if committed is None and self._lacking is None:
                    self._lacking = save.step, time.monotonic()
                return True  # the node with the last upload commits
            if committed is None:
                raise TransientError(f"{printable(state.name)} was uploaded, but the store does not list it")
            if committed.id != save.checkpoint:
                return False  # a later checkpoint was committed first
        except CorruptData:
            if num_parts == 1 and self._part_exists(save):
                self._steps[save.step] = None
                return False
            _log.exception("%s is given up", printable(state.name))
        except manifests.Superseded as error:
            _log.error("%s is given up: %s", printable(state.name), error)
        return True

    def _evidence_text(self, state: State) -> str | None:
        marker = self._spec.complete_file or self._spec.incomplete_file
        text = _EVIDENCE_TEXTS.get(state.evidence or "")
        return None if text is None else text.format(marker=marker, quiet=self._watch.quiet_seconds)

    def _choose_id(self, state: State) -> SaveId:
        if self._num_parts > 1 and state.step is not None:
            return SaveId(self._status.generation, state.step, 0)
        newest = head(self._context.journal.known)
        known_step = max(self._status.restored_step, 0 if newest is None else newest.step)
        step = max(state.step or 0, known_step + 1)
        while self._steps.get(step, state) != state:
            step += 1
        return SaveId(self._status.generation, step, 0)

    def _part_exists(self, save: SaveId) -> bool:
        key = keys.part(self._node.job_id, save, 0)
        return find_meta(self._store, key) is not None

    # --- several nodes -------------------------------------------------------------------------------

    @property
    def _num_parts(self) -> int:
        """The number of nodes that upload a part of each checkpoint."""
        number, known = self._status.generation, self._context.journal.known
        if self._spec.nodes == "first" or number == 0:
            return 1
        return len(generations_of(known)[number - 1].members)

    @property
    def _place(self) -> int:
        """The index of this node among those that upload a part."""
        return self._status.ranks[0] // self._context.job.spec.procs_per_node

    @property
    def _contributes_part(self) -> bool:
        """Whether the files that the script writes on this node are a part of the checkpoint."""
        return 0 in self._status.ranks or self._num_parts > 1

    @property
    def _leads(self) -> bool:
        """Whether this node may choose the state to upload: it is the first node, or its script has ended."""
        return 0 in self._status.ranks or not self._alive

    def _choose(self) -> State | None:
        """Return the state to upload next: the newest that another node has begun, or this node's choice."""
        ready = self.unsent()
        own = ready[0] if ready and self._leads else None
        if self._num_parts == 1 or (self._alive and self._leads):
            return own
        with self._looking:
            complete = (*self._watch.complete(self._looks), *ready)
            there = {one.step: one for one in complete if self._may_bring(one)}
        if there and time.monotonic() >= self._begun_at + BEGUN_SECONDS:
            self._begun = retention.begun_steps(self._store, self._node.job_id, self._status.generation)
            self._begun_at = time.monotonic()
        return next((there[step] for step in reversed(self._begun) if step in there), own)

    def _may_bring(self, state: State) -> bool:
        return self._unmatched(state) is None and (state.step or 0) > self._brought_step

    def _unmatched(self, state: State) -> str | None:
        """Return why a state's number does not identify the other nodes' parts, or None if it does so."""
        known_step = self._status.restored_step
        if state.step is None:
            why = "its name does not end with its step"
        elif state.name in self._watch.memory.repeated:
            why = "it was written more than once under the same number"
        elif state.step <= known_step:
            why = f"its number is not beyond step {known_step}, from which the job has resumed"
        else:
            return None
        name = printable(state.name)
        return f"{name} is not uploaded: {why}, so it is unknown which files of other nodes belong to it"

    def _lacks_parts(self) -> str | None:
        """Return a warning if a checkpoint lacks parts of other nodes, or None."""
        newest = head(self._context.journal.known)
        if self._lacking is None or time.monotonic() < self._lacking[1] + RESTLESS_SECONDS:
            return None
        if newest is not None and newest >= CheckpointId(self._status.generation, self._lacking[0]):
            self._lacking = None
            return None
        return (
            f"no checkpoint was committed since step {self._lacking[0]} because not every node has uploaded "
            "its part: check that all nodes save at the same steps and under the same numbers"
        )

    def _suggest_all(self) -> None:
        """Warn once if a commit lacks files of this node that the script may need to resume."""
        status, now = self._status, time.monotonic()
        if self._has_compared or self._contributes_part or status.has_session or now < self._compare_at:
            return
        self._compare_at = now + COMPARE_SECONDS
        newest = head(self._context.journal.read())
        if newest is None or newest.generation != self._context.memory.generation:
            return
        found = self._files.looks(lambda _: True)
        looks = [one for one in found or [] if one.step in {None, newest.step}]
        own = {
            path: stamp.size for one in looks if self._watch.is_new(one) for path, stamp in one.files.items()
        }
        if not own:
            return
        manifest = manifests.read_manifest(self._store, self._node.job_id, newest)
        self._has_compared = True
        saved = {file.name: file.size for part in manifest.parts for file in part.files}
        lacking = sorted(path for path, size in own.items() if saved.get(path) != size)
        if lacking:
            shown = printable(", ".join(lacking[:3])) + (", ..." if lacking[3:] else "")
            text = (
                f"{shown} of this node {'is' if len(lacking) == 1 else 'are'} in no checkpoint: only the "
                'first node\'s files are. If the script resumes from them, set checkpoint.nodes = "all"'
            )
            status.warn("nodes", text)
            _log.warning("%s", text)

    # --- warnings and memory -----------------------------------------------------------------------------

    def _remember(self) -> None:
        if not self._watch.has_news:
            return
        try:
            write_whole(self._memory_path, json.dumps(msgspec.to_builtins(self._watch.memory)).encode())
            self._watch.has_news = False
            self._status.warn("memory", None)
        except OSError as error:
            text = f"a later agent of this machine will not know what is complete: {error}"
            self._status.warn("memory", text)

    def _restlessness(self) -> str | None:
        """Return a warning about checkpoints that have been incomplete for too long, or None."""
        names = self._watch.restless(time.monotonic()) if self._alive else ()
        if not names:
            return None
        if self._spec.complete_file is not None:
            why = f"{self._spec.complete_file} is never the newest file there"
        elif self._spec.incomplete_file is not None:
            why = f"{self._spec.incomplete_file} is always there"
        else:
            seconds = self._watch.quiet_seconds
            why = (
                f"it was never quiet for {seconds:.0f} s; set complete_file, or exclude the files that change"
            )
        minutes = RESTLESS_SECONDS / 60
        shown = printable(", ".join(names))
        return f"{shown} was not complete for {minutes:.0f} minutes, so it is not uploaded: {why}"

    def _misnamed(self, ready: Sequence[State]) -> str | None:
        """Return a warning if the checkpoint that was written last does not count as the newest, or None."""
        written = [one for one in ready if one.step is not None and self._watch.is_new(one)]
        last = max(written, key=lambda one: one.written_at, default=None)
        if last is None or last.step == ready[-1].step:
            return None
        return (
            f"{printable(last.name)} was completed after {printable(ready[-1].name)}, but is not uploaded "
            "because its name ends with a smaller number: let the names end with the step"
        )

    def _put_back_code(self) -> None:
        """Restore code files that were set aside and not replaced: on a new machine they would exist."""
        node, submission = self._node, self._context.job.submission
        names = [
            name
            for name in self._watch.memory.came_with_code
            if (node.torn / name).exists() and not (node.work / name).exists()
        ]
        if not names:
            return
        data = self._context.retry_until(lambda: self._store.get(code_key(submission)))
        code = node.staging / "code"
        extract_bundle(data, code, sha256=submission.code_sha256)
        for name in names:
            if (code / name).exists():  # otherwise the job's setup created it
                (node.work / name).parent.mkdir(parents=True, exist_ok=True)
                (code / name).rename(node.work / name)
                _log.info("%s is restored as it came with the code", printable(name))
        shutil.rmtree(code)


def _written_with(look: Look) -> list[str]:
    """Return the pointers that were written since the first file of the checkpoint was written."""
    begun = min(
        (stamp.written_at for path, stamp in look.files.items() if path not in look.pointers), default=0
    )
    return [path for path in look.pointers if look.files[path].written_at >= begun > 0]


def _links_warning(name: str, links: Sequence[str]) -> str | None:
    """Return a warning about the links in a checkpoint directory that its checkpoints lack, or None."""
    if not links:
        return None
    return (
        f"the checkpoints of {name} lack {printable(', '.join(links[:3]))}{', ...' if links[3:] else ''}: "
        "a link is saved only if it leads to a file of the same directory"
    )


def _free_path(path: Path) -> Path:
    """Return the path or, if it exists, the path with a number appended."""
    if not path.exists():
        return path
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return next(each for each in numbered if not each.exists())
