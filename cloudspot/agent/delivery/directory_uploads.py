"""Uploads the checkpoint directories that a script writes by itself."""

from __future__ import annotations

import itertools
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cloudspot.agent.delivery.checkpoint_directories import (
    RESTLESS_SECONDS,
    CheckpointDirectories,
    CheckpointDirectory,
    Fingerprint,
    fingerprint_of,
    other_links,
    stage,
)
from cloudspot.agent.delivery.checkpoint_restore import Restored
from cloudspot.agent.delivery.sent_chunks import SentChunks
from cloudspot.agent.node_context import NodeContext
from cloudspot.errors import CorruptData, TransientError
from cloudspot.jobstore.access.stored_records import find_meta
from cloudspot.jobstore.checkpoints import manifests, parts
from cloudspot.jobstore.checkpoints.compression import Compression
from cloudspot.jobstore.code.extraction import extract_bundle
from cloudspot.jobstore.jobs.submission import code_key
from cloudspot.jobstore.journal.lineage import head
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Commit, SaveId

_log = logging.getLogger(__name__)

SCAN_SECONDS = 1.0

_Version = tuple[str, Fingerprint]
"""A directory's name and what was in it."""


class DirectoryUploads:
    """Uploads the newest complete directory, and uploads it again when the script has rewritten it.

    A checkpoint's step is the number that the directory's name ends with. A version for which that one is
    taken or not beyond the newest commit, or a directory without a number, gets the next free one: such a
    step only tells the order.
    """

    def __init__(self, context: NodeContext, sent: SentChunks, compression: Compression | None) -> None:
        spec = context.job.spec.checkpoint
        assert spec.directory is not None
        self._context = context
        self._sent = sent
        self._compression = compression
        self._store = context.store
        self._node = node = context.node
        self._status = context.status
        self._directories = CheckpointDirectories(
            node.work, spec, memory=node.directory / "checkpoint-directories.json"
        )
        self._spec = spec
        self._known: set[_Version] = set()
        """The versions that are in the bucket or were given up."""
        self._steps: dict[int, _Version | None] = {}
        """The steps taken in this generation, and by which version; None: by one of an earlier agent."""
        self._scanned_at = 0.0
        self._alive = False
        self.answered_at: float | None = None
        """When what the script saved because it was asked to was committed (monotonic)."""

    def begin(self, restored: Restored) -> None:
        """Watch the script of a new generation; what it was restored from is not uploaded again."""
        self.end_of_script()
        self._steps.clear()
        if restored.directory_name is not None:
            path = self._node.work / restored.directory_name
            self._known.add((restored.directory_name, fingerprint_of(path)))
        self._put_back_code()
        self._directories.begin_script()
        self.answered_at = None
        self.adopt()

    def adopt(self) -> None:
        """Watch a script that runs already."""
        self._alive = True

    def ask(self) -> None:
        """Note that the script is asked to save now and to leave."""
        self._directories.ask()

    def has_answer(self) -> bool:
        """Return whether there is a complete checkpoint that the script has made because it was asked to."""
        ready = self._directories.ready(time.monotonic(), alive=self._alive)
        return self.answered_at is not None or any(map(self._directories.is_answer, ready))

    def end_of_script(self, *, exited_0: bool = False, is_leaving: bool = True) -> None:
        """Note that no script writes any more: what is not complete by now never will be.

        Status 0 proves all that it has written complete, or, if it was asked to save, what it has begun since
        then. It proves nothing if the node ``is_leaving`` and the script was not asked: it may be that of a
        handler of SIGTERM, in the middle of a save.
        """
        self._alive = False
        if self._directories.was_asked:
            self._directories.finish_answer(exited_0=exited_0)
        elif exited_0 and not is_leaving:
            self._directories.finish_script()
        self._scanned_at = 0.0

    def set_aside_torn(self) -> None:
        """Move away the directories that the script had not completed when it ended.

        A script that resumes from its newest directory would otherwise resume from a torn one. They are kept
        on the node: a directory that cannot be proven complete may be complete all the same.
        """
        if self._status.has_session:
            return
        # A node without rank 0 has only files of other ranks: nothing makes a checkpoint of them.
        for torn in self._directories.torn(only_incomplete=self._has_rank_0):
            target = _free_path(self._node.torn / torn.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(torn.path, target)
            _log.warning(
                "%s was not complete when the script ended; it is set aside as %s", torn.name, target
            )

    def carry(self, commit: Callable[[SaveId, float], Commit | None]) -> None:
        """Upload what is complete and new; call ``commit`` with its id and when it was taken (Unix seconds).

        Raises:
            TransientError: the store failed, or a directory changed meanwhile; the next call goes on.
        """
        if time.monotonic() - self._scanned_at < SCAN_SECONDS:
            return
        for directory in self.unsent():
            while not self._carry(directory, self._choose_id(directory), commit):
                pass  # another version has taken that id
            self._known.add((directory.name, directory.fingerprint))
            if self.answered_at is None and self._directories.is_answer(directory):
                self.answered_at = time.monotonic()
        self._scanned_at = time.monotonic()

    def unsent(self) -> list[CheckpointDirectory]:
        """Return the newest complete directories that are not in the bucket."""
        if self._status.has_session or not self._has_rank_0:
            return []
        if self._status.generation != self._context.memory.generation:
            return []  # its script has not started here: what there is was restored, or came with the code
        ready = self._directories.ready(time.monotonic(), alive=self._alive)
        self._status.warn("directories", self._restlessness())
        self._status.warn("directory names", self._misnamed(ready))
        if self._directories.save_seconds is not None:
            self._status.stall_seconds = self._directories.save_seconds
        newest = max((d.step or 0 for d in ready), default=0)
        return [d for d in ready if (d.step or 0) == newest and (d.name, d.fingerprint) not in self._known]

    @property
    def _has_rank_0(self) -> bool:
        """Whether this node has what scripts write on global rank 0, which is the checkpoint."""
        return 0 in self._status.ranks

    def _restlessness(self) -> str | None:
        """Return a warning about directories that are never complete, such as one always rewritten."""
        names = self._directories.restless(time.monotonic()) if self._alive else ()
        if not names:
            return None
        if self._spec.complete_file is not None:
            why = f"{self._spec.complete_file} is never the newest file there"
        elif self._spec.incomplete_file is not None:
            why = f"{self._spec.incomplete_file} is always there"
        else:
            why = "it never was quiet for 10 s; name a complete_file, or save to a new directory each time"
        minutes = RESTLESS_SECONDS / 60
        return f"{', '.join(names)} was not complete for {minutes:.0f} minutes, so it is not uploaded: {why}"

    def _misnamed(self, ready: Sequence[CheckpointDirectory]) -> str | None:
        """Return a warning about a directory that was written last and does not count as the newest."""
        written = [one for one in ready if one.step is not None and self._directories.is_new(one)]
        last = max(written, key=lambda one: one.written_at, default=None)
        if last is None or last.step == ready[-1].step:
            return None
        return (
            f"{last.name} was completed after {ready[-1].name} and is not uploaded, as its name ends with a "
            "smaller number: let the names end with the step"
        )

    def _choose_id(self, directory: CheckpointDirectory) -> SaveId:
        newest = head(self._context.journal.known)
        known_step = max(self._status.restored_step, 0 if newest is None else newest.step)
        step = max(directory.step or 0, known_step + 1)
        version = directory.name, directory.fingerprint
        while self._steps.get(step, version) != version:
            step += 1
        return SaveId(self._status.generation, step, 0)

    def _carry(
        self,
        directory: CheckpointDirectory,
        save: SaveId,
        commit: Callable[[SaveId, float], Commit | None],
    ) -> bool:
        """Upload and commit a directory, or give it up; return False if the id is taken."""
        self._steps[save.step] = directory.name, directory.fingerprint
        staged = stage(directory, self._node.staging)
        if staged is None:
            raise TransientError(f"{directory.name} cannot be staged now")
        root, table = staged
        self._status.warn("links", _links_left_out(directory))
        taken_at, began = self._context.now(), time.monotonic()

        def check() -> None:
            if fingerprint_of(root) != directory.fingerprint:
                raise TransientError(f"{directory.name} changed while it was uploaded")

        try:
            with self._status.transferring("uploading", sum(file.size for file in table)) as progress:
                part = parts.upload_directory(
                    self._store,
                    self._node.job_id,
                    save,
                    rank=0,
                    num_parts=1,
                    root=root,
                    files=table,
                    directory=directory.name,
                    sealed_at=taken_at,
                    check=check,
                    sharing=self._sent.sharing(save, 0),
                    compression=self._compression,
                    progress=progress,
                    in_background=self._alive and not self._directories.was_asked,
                )
            self._sent.note(part)
            committed = commit(save, began)
            if committed is not None and committed.id != save.checkpoint:
                return False  # a later one was committed meanwhile
        except CorruptData:
            if self._stands(save):
                self._steps[save.step] = None
                return False
            _log.exception("%s is given up", directory.name)
        except manifests.Superseded as error:
            _log.error("%s is given up: %s", directory.name, error)
        finally:
            shutil.rmtree(root, ignore_errors=True)  # else what the script deletes would stay on the disk
        return True

    def _put_back_code(self) -> None:
        """Put back what was set aside, came with the code and was not restored, as a fresh machine has it."""
        node, submission = self._node, self._context.job.submission
        names = [
            name
            for name in self._directories.came_with_code
            if (node.torn / name).exists() and not (node.work / name).exists()
        ]
        if not names:
            return
        data = self._context.insist(lambda: self._store.get(code_key(submission)))
        code = node.staging / "code"
        extract_bundle(data, code, sha256=submission.code_sha256)
        for name in names:
            if (code / name).is_dir():  # else the job's setup has made it
                (node.work / name).parent.mkdir(parents=True, exist_ok=True)
                (code / name).rename(node.work / name)
                _log.info("%s is put back as it came with the code", name)
        shutil.rmtree(code)

    def _stands(self, save: SaveId) -> bool:
        key = keys.part(self._node.job_id, save, 0)
        return find_meta(self._store, key) is not None


def _links_left_out(directory: CheckpointDirectory) -> str | None:
    """Return a warning about what is in the directory and in no checkpoint of it."""
    names = [link.relative_to(directory.path).as_posix() for link in other_links(directory.path)]
    if not names:
        return None
    return (
        f"the checkpoints of {directory.name} lack {', '.join(names[:3])}{', ...' if names[3:] else ''}: "
        "a link is saved only if it leads to a file of the same directory"
    )


def _free_path(path: Path) -> Path:
    """Return the path or, if it is taken, the path with a number behind it."""
    if not path.exists():
        return path
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return next(each for each in numbered if not each.exists())
