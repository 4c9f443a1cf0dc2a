"""Uploads the checkpoints that a script writes by itself."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import threading
import time
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
from cloudspot.errors import CorruptData, TransientError
from cloudspot.host.names import printable
from cloudspot.host.partial_files import write_whole
from cloudspot.jobfile.spec import SIGNALS
from cloudspot.jobstore.access.stored_records import find_meta
from cloudspot.jobstore.checkpoints import manifests, parts
from cloudspot.jobstore.checkpoints.compression import Compression
from cloudspot.jobstore.code.extraction import extract_bundle
from cloudspot.jobstore.jobs.submission import code_key
from cloudspot.jobstore.journal.lineage import head
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Commit, SaveId

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""The time between two looks, at least."""
LOOK_SHARE = 0.05
"""The share of a core that looking may take."""
NUM_TRIES = 100
"""How often to look for what has just changed under a look."""
COMMIT_SECONDS = 5.0
"""The time between two commits, at least, while the script trains."""
_HOW = {
    "marker": "proven complete by {marker}",
    "index": "proven complete by what its framework writes last",
    "next": "taken for complete since the next save had begun (not proven)",
    "quiet": "taken for complete since nothing wrote to it for {quiet:.0f} s (not proven)",
    "exit": "taken for complete since the script ended with status 0 (not proven)",
}


class _ChangedError(TransientError):
    """The files changed while they were uploaded."""


class DirectoryUploads(Worker):
    """Sets aside each newest state of the checkpoints that is complete, and uploads it.

    Its thread looks at the checkpoints all the time, also while one is uploaded.

    A checkpoint's step is the number that its name ends with. A version for which that one is taken or not
    beyond the newest commit, or a checkpoint without a number, gets the next free one: such a step only tells
    the order.
    """

    def __init__(self, context: NodeContext, sent: SentChunks, compression: Compression | None) -> None:
        super().__init__("checkpoint watch")
        job = context.job.spec
        self._context = context
        self._sent = sent
        self._compression = compression
        self._store = context.store
        self._node = node = context.node
        self._status = context.status
        self._spec = spec = job.checkpoint
        markers = [name for name in (spec.complete_file, spec.incomplete_file) if name is not None]
        told = [spec.on_notice] if spec.on_notice is not None and spec.on_notice not in SIGNALS else []
        inputs = [data.path for data in job.data.values() if data.path is not None]
        self._files = CheckpointFiles(node.work, spec.patterns, (*spec.exclude, *told, *inputs), markers)
        self._memory_path = node.directory / "checkpoint-watch.json"
        memory = Memory()
        with suppress(FileNotFoundError):
            # Names that are not UTF-8 are in it: Python's json escapes what they have, and reads it back.
            memory = convert(json.loads(self._memory_path.read_bytes()), Memory)
        self._watch = CheckpointWatch(spec.complete_file, spec.incomplete_file, memory)
        self._files.ignored = memory.code
        self._steps: dict[int, State | None] = {}
        """The steps taken in this generation, and by which state; None: by one of an earlier agent."""
        self._looking = threading.RLock()
        """Held while the watch, or what is set aside, changes."""
        self._hurries = threading.Event()
        """A copy that holds the lock is given up for now: somebody waits for it who has no time."""
        self._looked_at, self._look_seconds = float("-inf"), 0.0
        self._looks: tuple[Look, ...] = ()
        self._shelf = CheckpointShelf(self._take, lambda kept: kept.holds(self._files.writers))
        self._number = itertools.count()
        self._committed_at = float("-inf")
        self._alive = False
        self.answered_at: float | None = None
        """When what the script saved because it was asked to was committed (monotonic)."""
        for left in node.staging.glob("checkpoint-*"):
            shutil.rmtree(left, ignore_errors=True)

    # --- what happens -------------------------------------------------------------------------------

    def begin(self, restored: Restored) -> None:
        """Watch the script of a new generation; what it was restored from is not uploaded again."""
        if self._watch.memory.before is not None:
            self.end_of_script()
        self._put_back_code()
        with self._looking:
            self._steps.clear()
            memory = self._watch.memory
            is_first = memory.before is None
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
        """Watch a script that runs already."""
        self._alive = True

    def ask(self) -> None:
        """Note that the script is asked to save now and to leave."""
        self._hurries.set()
        with self._looking:
            try:
                if self._look(now=True):
                    self._watch.ask(self._looks)
                    self._remember()
            finally:
                self._hurries.clear()

    def has_answer(self) -> bool:
        """Return whether there is a complete checkpoint that the script has made because it was asked to."""
        with self._looking:
            found = [*self.unsent(), *self._watch.complete(self._looks)]
            return self.answered_at is not None or any(map(self._watch.is_answer, found))

    def end_of_script(self, *, exited_0: bool = False, is_leaving: bool = True) -> None:
        """Note that no script writes any more: what is not complete by now never will be."""
        with self._looking:
            self._alive = False
            self._watch.end(self._look_again(), exited_0=exited_0, is_leaving=is_leaving)
            self._remember()
            self._looked_at = float("-inf")

    def set_aside_torn(self) -> None:
        """Move away what the script had not completed when it ended.

        A script that resumes from its newest checkpoint would otherwise resume from a torn one. It is kept on
        the node: what cannot be proven complete may be complete all the same.
        """
        if self._status.has_session:
            return
        with self._looking:
            # A node without rank 0 has only files of other ranks: nothing makes a checkpoint of them.
            looks = self._look_again()
            torn = self._watch.torn(looks, only_incomplete=self._has_rank_0)
            # A file without a step belongs to the others, too.
            kept = {path for look in looks if look not in torn for path in look.files}
            for path in sorted(
                {path for look in torn for path in (*look.roots, *_written_with(look))} - kept
            ):
                if not os.path.lexists(self._node.work / path):
                    continue  # it went with the directory above it
                target = self._move_away(path)
                _log.warning(
                    "%s was not complete when the script ended; it is set aside as %s",
                    printable(path),
                    printable(str(target)),
                )

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
                except OSError as error:
                    _log.warning("the checkpoints cannot be looked at now: %s", error)

    def _look_again(self) -> tuple[Look, ...]:
        """Return what is there, once no directory disappears during the look."""
        for _ in range(NUM_TRIES):
            if (looks := self._files.looks(lambda _: True)) is not None:
                self._looks = tuple(looks)
                break
            time.sleep(0.01)
        return self._looks

    def _look(self, *, now: bool = False) -> bool:
        """Look at the checkpoints, if it is time, and set aside what is complete; return whether that may be.

        Nothing is looked at while the script has a session, or where what it writes is no checkpoint.
        """
        if self._status.has_session or not self._has_rank_0:
            return False
        if self._status.generation != self._context.memory.generation:
            return False  # its script has not started here: what there is was restored, or came with the code
        began, used = time.monotonic(), time.thread_time()
        if (
            not now
            and self._alive
            and began < self._looked_at + max(LOOK_SECONDS, self._look_seconds / LOOK_SHARE)
        ):
            return True
        # Where no script runs, processes that write are not searched for: the search takes long.
        looks = self._files.looks(self._watch.is_complete if self._alive else lambda _: True)
        if looks is None:
            return True
        self._looks = tuple(looks)
        told = self._watch.look(looks, began) if self._alive else ()
        if not self._alive:
            self._watch.end(looks, exited_0=False, is_leaving=True)
        self._remember()
        complete = self._watch.complete(looks)
        self._shelf.look(told, complete, self._watch.candidate() if self._alive else None)
        if self._watch.save_seconds is not None:
            self._status.stall_seconds = self._watch.save_seconds
        self._status.warn("directories", self._restlessness())
        self._status.warn("directory names", self._misnamed(complete))
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
            must_copy=must_copy,
            gives_up=self._hurries.is_set,
            writers=self._files.writers if self._alive else lambda _: frozenset(),
        )
        is_direct = found is not None and "direct" in found.ways
        name = printable(state.name)
        text = (
            f"there is no room to set {name} aside: it counts only if it is not changed until it is uploaded"
        )
        self._status.warn("room", text if is_direct else None)
        self._status.warn("links", _links_warning(name, links_left_out(self._node.work, look)))
        return found

    # --- uploading ----------------------------------------------------------------------------------

    def carry(self, commit: Callable[[SaveId, float], Commit | None]) -> None:
        """Upload what is complete and new; call ``commit`` with its id and when it was taken (monotonic).

        Raises:
            TransientError: the store failed; the next call goes on.
        """
        hurries = not self._alive or self._watch.was_asked or self._context.orders.pending
        while self.unsent():
            if not hurries and time.monotonic() < self._committed_at + COMMIT_SECONDS:
                return
            with self._looking:
                if self._expects_answer():
                    return
                taken = self._shelf.begin_upload()
            if taken is None:
                return
            has_failed = True
            try:
                self._carry_whole(taken, commit)
                has_failed = False
            finally:
                with self._looking:
                    self._shelf.end_upload(is_to_repeat=has_failed)

    def _expects_answer(self) -> bool:
        """Return whether the script has begun to save because it was asked to, and this is not that yet.

        What was complete before could take the time that its upload needs. It is uploaded if the script ends
        without.
        """
        ready = self._shelf.ready
        if not self._alive or not self._watch.was_asked or ready is None:
            return False
        return not self._watch.is_answer(ready.state) and any(map(self._watch.is_answer, self._looks))

    def unsent(self) -> list[State]:
        """Return the newest complete state that is not in the bucket, if there is one."""
        with self._looking:
            may_have = self._look()
            ready = self._shelf.ready
            return [ready.state] if may_have and ready is not None else []

    def num_doubtful(self) -> int:
        """Return how many of the newest commits may be torn: so many older ones are kept besides."""
        with self._looking:
            return self._shelf.num_doubtful(self._watch.was_confirmed)

    def _carry_whole(self, taken: SetAside, commit: Callable[[SaveId, float], Commit | None]) -> None:
        state = taken.state
        try:
            while not self._carry(taken, self._choose_id(state), commit):
                pass  # another state has taken that id
        except _ChangedError as error:
            with self._looking:
                self._watch.memory.rewrites = True  # a link did not protect it
            _log.info("%s; what is complete next is tried", error)
            return
        with self._looking:
            self._shelf.note_commit(taken.state)  # the next save may have confirmed it meanwhile
            self._committed_at = time.monotonic()
            if self.answered_at is None and self._watch.is_answer(state):
                self.answered_at = time.monotonic()

    def _carry(self, taken: SetAside, save: SaveId, commit: Callable[[SaveId, float], Commit | None]) -> bool:
        """Upload and commit a state, or give it up; return False if the id is taken."""
        state = taken.state
        self._steps[save.step] = state
        began = time.monotonic()
        described = parts.directory_part(
            save, taken.files, directory=".", sealed_at=self._context.now(), evidence=self._how(state)
        )
        upload = parts.Upload(self._store, self._node.job_id, described, compression=self._compression)

        def check() -> None:
            if not taken.holds(self._files.writers if self._alive else lambda _: frozenset()):
                raise _ChangedError(f"{printable(state.name)} changed while it was uploaded")

        try:
            with self._status.transferring("uploading", described.size) as progress:
                part = upload.run(
                    partial(parts.lend_files, taken.root, taken.files),
                    sharing=self._sent.sharing(save, 0),
                    progress=progress,
                    check=check,
                    in_background=self._alive and not self._watch.was_asked,
                )
            self._sent.note(part)
            committed = commit(save, began)
            if committed is None:
                raise TransientError(f"{printable(state.name)} was uploaded, and the store does not list it")
            if committed.id != save.checkpoint:
                return False  # a later one was committed meanwhile
        except CorruptData:
            if self._stands(save):
                self._steps[save.step] = None
                return False
            _log.exception("%s is given up", printable(state.name))
        except manifests.Superseded as error:
            _log.error("%s is given up: %s", printable(state.name), error)
        return True

    def _how(self, state: State) -> str | None:
        marker = self._spec.complete_file or self._spec.incomplete_file
        text = _HOW.get(state.evidence or "")
        return None if text is None else text.format(marker=marker, quiet=self._watch.quiet_seconds)

    def _choose_id(self, state: State) -> SaveId:
        newest = head(self._context.journal.known)
        known_step = max(self._status.restored_step, 0 if newest is None else newest.step)
        step = max(state.step or 0, known_step + 1)
        while self._steps.get(step, state) != state:
            step += 1
        return SaveId(self._status.generation, step, 0)

    def _stands(self, save: SaveId) -> bool:
        key = keys.part(self._node.job_id, save, 0)
        return find_meta(self._store, key) is not None

    # --- what the user is told, and what is remembered ---------------------------------------------------

    @property
    def _has_rank_0(self) -> bool:
        """Whether this node has what scripts write on global rank 0, which is the checkpoint."""
        return 0 in self._status.ranks

    def _remember(self) -> None:
        """Write down, for a later agent of the machine, what the watch has learned."""
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
        """Return a warning about checkpoints that are never complete, such as one always written to."""
        names = self._watch.restless(time.monotonic()) if self._alive else ()
        if not names:
            return None
        if self._spec.complete_file is not None:
            why = f"{self._spec.complete_file} is never the newest file there"
        elif self._spec.incomplete_file is not None:
            why = f"{self._spec.incomplete_file} is always there"
        else:
            seconds = self._watch.quiet_seconds
            why = f"it never was quiet for {seconds:.0f} s; name a complete_file, or exclude what changes"
        minutes = RESTLESS_SECONDS / 60
        shown = printable(", ".join(names))
        return f"{shown} was not complete for {minutes:.0f} minutes, so it is not uploaded: {why}"

    def _misnamed(self, ready: Sequence[State]) -> str | None:
        """Return a warning about a checkpoint that was written last and does not count as the newest."""
        written = [one for one in ready if one.step is not None and self._watch.is_new(one)]
        last = max(written, key=lambda one: one.written_at, default=None)
        if last is None or last.step == ready[-1].step:
            return None
        return (
            f"{printable(last.name)} was completed after {printable(ready[-1].name)} and is not uploaded, as "
            "its name ends with a smaller number: let the names end with the step"
        )

    def _put_back_code(self) -> None:
        """Put back what was set aside, came with the code and was not restored, as a fresh machine has it."""
        node, submission = self._node, self._context.job.submission
        names = [
            name
            for name in self._watch.memory.came_with_code
            if (node.torn / name).exists() and not (node.work / name).exists()
        ]
        if not names:
            return
        data = self._context.insist(lambda: self._store.get(code_key(submission)))
        code = node.staging / "code"
        extract_bundle(data, code, sha256=submission.code_sha256)
        for name in names:
            if (code / name).exists():  # else the job's setup has made it
                (node.work / name).parent.mkdir(parents=True, exist_ok=True)
                (code / name).rename(node.work / name)
                _log.info("%s is put back as it came with the code", printable(name))
        shutil.rmtree(code)


def _written_with(look: Look) -> list[str]:
    """Return the pointers that were not there before the checkpoint was begun."""
    begun = min(
        (stamp.written_at for path, stamp in look.files.items() if path not in look.pointers), default=0
    )
    return [path for path in look.pointers if look.files[path].written_at >= begun > 0]


def _links_warning(name: str, links: Sequence[str]) -> str | None:
    """Return a warning about what is in a directory and in no checkpoint of it."""
    if not links:
        return None
    return (
        f"the checkpoints of {name} lack {printable(', '.join(links[:3]))}{', ...' if links[3:] else ''}: "
        "a link is saved only if it leads to a file of the same directory"
    )


def _free_path(path: Path) -> Path:
    """Return the path or, if it is taken, the path with a number behind it."""
    if not path.exists():
        return path
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return next(each for each in numbered if not each.exists())
