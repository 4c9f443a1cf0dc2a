"""Find the training's outputs below the working directory, and choose which are kept."""

from __future__ import annotations

import logging
import math
import os
import posixpath
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cloudspot.agent.delivery.checkpoint_files import (
    MAX_POINTER_BYTES,
    CheckpointFiles,
    any_of,
    expand,
    is_pointer,
    root_of,
    writers,
)
from cloudspot.agent.delivery.checkpoint_states import is_log
from cloudspot.agent.delivery.checkpoint_watch import KNOWN_SECONDS, SETTLED_SECONDS
from cloudspot.agent.node import Node
from cloudspot.host.names import find_symlink, is_safe_name, printable
from cloudspot.host.size_text import size_text
from cloudspot.jobfile.spec import SIGNALS, JobSpec

_log = logging.getLogger(__name__)

MAX_BYTES = 1 << 30
"""The maximum size of a job's kept outputs if ``run.outputs`` does not name any."""
OTHERS_SHARE = 0.25
"""The share of ``MAX_BYTES`` for all nodes but the training's first, if there may be several nodes."""
MAX_NAMED = 20
"""The maximum number of files named in one line of the log."""
SECRETS = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.kdbx",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".pypirc", ".npmrc",
    ".git-credentials", ".htpasswd", "credentials", "credentials.*", "*credentials.json",
    "client_secret*", "secret", "secrets", "secret.*", "secrets.*", "*.secret", "token", "token.txt",
    "token.json", "*.token", "*_token", "*-token", "*api_key*", "*api-key*", "*apikey*",
    "*service_account*.json", "*service-account*.json", "kaggle.json", "kubeconfig*",
)  # fmt: skip
"""Names of files that are never kept, in lower case."""
SECRET_DIRECTORIES = (".git", ".hg", ".svn", ".ssh", ".gnupg", "gcloud", ".gcloud", ".kube", ".docker")
"""Names of directories whose files are never kept, in lower case."""
LEFTOVERS = (
    "core", "core.[0-9]*", "*.core", "vgcore.*", "*.stackdump", "*.pyc", "*.tmp", "*.temp", "*.part",
    "*.partial", "*.incomplete", "*.lock", "*.pid", "*.swp", "*~", "*.cache", ".nfs*", ".fuse_hidden*",
    ".ds_store",
)  # fmt: skip
"""Names of files that are kept only if ``run.outputs`` names them without a wildcard."""
CACHES = (
    ".*", "venv", "node_modules", "site-packages", "dist-packages", "__pycache__", "cache", "*_cache",
    "*-cache", "torchinductor_*", "*.egg-info", "lost+found",
)  # fmt: skip
"""Names of directories whose files are kept only if ``run.outputs`` names them without a wildcard."""
HIDDEN_RESULTS = frozenset({".hydra"})
"""Hidden directories that are not caches: ``.hydra`` contains the configuration of a run."""
CACHE_MARKS = frozenset({"pyvenv.cfg", "conda-meta", "CACHEDIR.TAG"})
"""A directory with one of these entries is a virtual environment or a cache."""
PROGRAMS = ("*.py", "*.pyc", "*.pyw", "*.so", "*.so.*", "*.dylib", "*.dll", "*.pyd")
"""Names of files that are kept but not restored: a script could import such a file instead of a package."""
_IS_SECRET, _IS_SECRET_DIRECTORY = any_of(SECRETS), any_of(SECRET_DIRECTORIES)
_IS_LEFTOVER, _IS_CACHE, _IS_PROGRAM = any_of(LEFTOVERS), any_of(CACHES), any_of(PROGRAMS)


class Stamp(NamedTuple):
    """The part of a file's status that changes with its content; no program can set ``changed_at``."""

    size: int
    written_at: int
    """Nanoseconds."""
    changed_at: int
    inode: int


def stamp_of(status: os.stat_result) -> Stamp:
    """Return a file's stamp."""
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class Found(NamedTuple):
    """A file that should be in the bucket."""

    name: str
    """The path relative to the outputs or artifacts directory, separated by ``/``."""
    path: Path
    stamp: Stamp
    is_exact: bool = False
    """Whether an upload counts only if the file did not change during it."""

    def check(self, file: BinaryIO) -> None:
        """Check the file again after reading it.

        Raises:
            FileNotFoundError: another file was read, or the content that was read may be torn.
        """
        stamp = stamp_of(os.fstat(file.fileno()))
        if stamp.inode != self.stamp.inode or (self.is_exact and stamp != self.stamp):
            raise FileNotFoundError(self.path)


class Plan(NamedTuple):
    """The changes that bring the bucket's outputs up to date."""

    files: list[Found]
    """The files to upload."""
    conflicting: list[str]
    """The names to delete first, because a store cannot hold both a name and another name below it."""
    older: list[str]
    """The names to delete afterwards, to make room."""


class Outputs:
    """Finds the files that the training has written below the working directory, and chooses which to keep.

    While the training runs, a file counts as finished once no process has it open for writing and it has not
    changed for ten seconds, or two if the machine must leave; logs count at their current length. If there is
    no room for all files, the newest are kept, and older ones are deleted from the bucket.
    """

    def __init__(
        self,
        node: Node,
        job: JobSpec,
        warn: Callable[[str, str | None], None],
        *,
        is_leaving: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create it; ``warn`` sets or clears the node's warning about a subject.

        ``is_leaving`` returns whether the machine must leave. ``now`` is the clock that files' times are
        compared with.
        """
        spec = job.checkpoint
        self.directory = node.work
        self.patterns = job.run.outputs
        self.has_other_nodes = job.nodes.max > 1
        self._warn = warn
        self._is_leaving = is_leaving
        self._now = now
        self._checkpoint = spec.patterns
        self._checkpoint_files = CheckpointFiles(node.work, spec.patterns, spec.exclude, ())
        notice_files = [spec.on_notice] if spec.on_notice not in SIGNALS else []
        inputs = [data.path_or_default(name) for name, data in job.data.items()]
        self._apart = frozenset(
            posixpath.normpath(path) for path in (*notice_files, *inputs) if path is not None
        )
        self._markers = frozenset({spec.complete_file, spec.incomplete_file})
        self._literal = frozenset(posixpath.normpath(pattern) for pattern in self.patterns or ())
        self._mark = node.directory / "training-began"
        """Files unchanged since this file was made came with the code, the setup or a checkpoint."""
        self._is_training = False
        self.stored: dict[str, int] = {}
        """The sizes of this node's outputs in the bucket, by name."""
        self._busy: dict[str, Stamp] = {}
        """The files that processes had open for writing at the last look."""
        self._doubtful: dict[str, Stamp] = {}
        """The files that the training may not have finished writing."""
        self._messages: dict[str, str] = {}
        self._reported: dict[str, frozenset[str]] = {}
        """By reason, the file names in the last log message about files that are not kept."""

    def begin_training(self) -> None:
        """Record that the training starts or is already running: files written from now on are outputs."""
        if not self._mark.exists():
            self._mark.touch()
        self._is_training = True

    def end_training(self, *, exited_0: bool) -> None:
        """Record that no process of the training writes any more."""
        if not self._is_training:
            return
        self._is_training = False
        if exited_0:
            return
        found: list[Found] = []
        with suppress(OSError):
            found = [one for one in self._find() if one.is_exact]
        torn = {
            one.name: one.stamp
            for one in found
            if self._age(one) < SETTLED_SECONDS or self._busy.get(one.name) == one.stamp
        }
        self._doubtful |= torn
        if torn:
            _log.warning(
                "the training was ended, or failed, while it may have been writing these outputs; the bucket "
                "keeps their previous versions, or gets them as they are if it has none: %s",
                listed({name: stamp.size for name, stamp in torn.items()}),
            )

    def plan(self, get_room: Callable[[], float], is_sent: Callable[[Found], bool]) -> Plan:
        """Return the finished files to upload, and the names to delete from the bucket to make room for them.

        ``get_room`` returns how many bytes this node may store there; it is called only if needed.

        Raises:
            OSError: a directory disappeared meanwhile; call again.
        """
        found = sorted(self._find(), key=lambda one: (-one.stamp.written_at, one.name))
        room = math.inf
        if self.patterns is None and not all(map(is_sent, found)):
            room = get_room()
        kept, exceeding, left = list[Found](), dict[str, int](), room
        for one in found:
            if one.stamp.size <= left:
                kept.append(one)
                left -= one.stamp.size
            else:
                exceeding[one.name] = one.stamp.size
        limit = size_text(MAX_BYTES)
        why = f"a job keeps the newest {limit}; name outputs in run.outputs to keep them without a limit"
        self._report(why, exceeding)
        wanted = self._final(kept, is_sent)
        sizes = {one.name: one.stamp.size for one in wanted}
        conflicting = _conflicting(self.stored, sizes)
        excess = sum({**self.stored, **sizes}.values()) - room
        gone = sorted(self.stored.keys() - {one.name for one in found})
        older = []
        for name in [*gone, *reversed(exceeding)]:
            if excess > 0 and name in self.stored and name not in conflicting:
                older.append(name)
                excess -= self.stored[name]
        return Plan(wanted, conflicting, older)

    def may_return(self, name: str) -> bool:
        """Return whether a file in the bucket may be restored to the working directory."""
        if not is_safe_name(name):
            return False
        paths = _prefixes(name)
        above, _, last = name.rpartition("/")
        ends = [posixpath.basename(posixpath.normpath(pattern)) for pattern in self._checkpoint]
        may_match = any(end in {"**", "."} or fnmatchcase(last, end) for end in ends)
        # Matching a path with the patterns is slow, and a directory may have many files.
        root = root_of(name if may_match else above or ".", self._checkpoint) if ends else None
        if root is not None and (root != "." or not self._checkpoint_files.is_excluded(name)):
            return False
        in_cache = any((self.directory / path / mark).exists() for path in paths[:-1] for mark in CACHE_MARKS)
        if in_cache or not self._apart.isdisjoint(paths):
            return False
        return not (_is_secret(name) or _is_leftover(name) or _IS_PROGRAM.match(last.lower()))

    # --- internals ----------------------------------------------------------------------------------

    def _find(self) -> list[Found]:
        """Return all outputs, even if there is no room for them; none exist before the training begins."""
        if not self._mark.exists():
            return []
        began = self._mark.stat().st_ctime_ns
        found, secrets, unlistable = list[Found](), dict[str, int](), dict[str, int]()
        own = {name for pattern in self._checkpoint for name in self._expand(pattern)}
        roots = {"."}
        if self.patterns is not None:
            roots = {name for pattern in self.patterns for name in self._expand(pattern)}
        files = {name: status for root in roots for name, status in self._below(root, own, unlistable)}
        for name, status in files.items():
            if status.st_ctime_ns < began:
                continue
            if _is_secret(name):
                secrets[name] = status.st_size
            else:
                stamp = stamp_of(status)
                found.append(Found(name, self.directory / name, stamp, is_exact=not is_log(name)))
        self._report("their names are those of secrets", secrets)
        self._report("their directories cannot be read", unlistable)
        return found

    def _expand(self, pattern: str) -> list[str]:
        return [path.relative_to(self.directory).as_posix() for path in expand(self.directory, pattern)]

    def _below(
        self, root: str, own: Collection[str], unlistable: dict[str, int]
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the regular files below a directory, or the path itself if it is a file, without leftovers.

        ``own`` contains the roots of the checkpoints.
        """
        apart = {*own, *self._apart} - {"."}
        is_out = root != "." and (not is_safe_name(root) or find_symlink(self.directory, root) is not None)
        is_leftover = root not in self._literal and _is_leftover(root)
        if is_out or is_leftover or not apart.isdisjoint(_prefixes(root)):
            return
        path, base = str(self.directory / root), len(str(self.directory)) + 1
        beside = {posixpath.dirname(one) for one in own if one != "."}
        walk = os.walk(path, onerror=lambda error: unlistable.update({str(error.filename)[base:]: 0}))
        names = []
        if not (self.directory / root).is_dir():
            names = [root]
        for parent, directories, files in walk:
            if parent != path and not CACHE_MARKS.isdisjoint((*directories, *files)):
                directories.clear()
                continue
            above = f"{parent}/"[base:]
            directories[:] = [one for one in directories if not (above + one in apart or _is_closed(one))]
            names += [above + one for one in files if not (above + one in apart or _is_leftover(one))]
        for name in names:
            if "." in own and not self._checkpoint_files.is_excluded(name):
                continue
            status = _status(f"{self.directory}/{name}")
            is_beside = posixpath.dirname(name) in beside
            if status is not None and not (is_beside and self._names_checkpoint(name, status, own)):
                yield name, status

    def _names_checkpoint(self, name: str, status: os.stat_result, own: Collection[str]) -> bool:
        """Return whether a file beside a checkpoint marks that checkpoint as complete or names it."""
        if posixpath.basename(name) in self._markers:
            return True
        return status.st_size <= MAX_POINTER_BYTES and is_pointer(self.directory, name, own)

    def _final(self, kept: Sequence[Found], is_sent: Callable[[Found], bool]) -> list[Found]:
        changed = [one for one in kept if not is_sent(one) and not self._is_torn(one)]
        if not self._is_training:
            return changed
        least = KNOWN_SECONDS if self._is_leaving() else SETTLED_SECONDS
        quiet = [one for one in changed if one.is_exact and self._age(one) >= least]
        written_to = writers(frozenset(one.stamp.inode for one in quiet), self.directory.stat().st_dev)
        self._busy = {one.name: one.stamp for one in quiet if one.stamp.inode in written_to}
        logs = [one for one in changed if not one.is_exact]
        return logs + [one for one in quiet if one.name not in self._busy]

    def _age(self, one: Found) -> float:
        return self._now() - one.stamp.changed_at / 1e9

    def _is_torn(self, one: Found) -> bool:
        return one.name in self.stored and self._doubtful.get(one.name) == one.stamp

    def _report(self, why: str, files: Mapping[str, int]) -> None:
        """Log which files are not kept, and set or clear the node's warning about them."""
        text = f"{len(files)} outputs are not kept because {why}: {listed(files)}" if files else None
        self._warn(why, text)
        known = self._reported.get(why, frozenset())
        # Sizes change constantly, so log again only for new names, or at the end for the complete list.
        if (
            text is not None
            and text != self._messages.get(why)
            and (not files.keys() <= known or not self._is_training)
        ):
            _log.warning("%s", text)
            self._messages[why], self._reported[why] = text, frozenset(files)


def _conflicting(stored: Collection[str], names: Collection[str]) -> list[str]:
    """Return the stored names that are now directories, or are below a name that is now a file."""
    above = {path for name in names for path in _prefixes(name)[:-1]}
    return [name for name in stored if name in above or any(path in names for path in _prefixes(name)[:-1])]


def listed(files: Mapping[str, int]) -> str:
    """Return the names of the largest files with their sizes, and a summary of the other files."""
    by_size = sorted(files, key=lambda name: (-files[name], name))
    texts = [f"{printable(name)} ({size_text(files[name])})" for name in by_size[:MAX_NAMED]]
    rest = by_size[MAX_NAMED:]
    if rest:
        texts.append(f"and {len(rest)} more ({size_text(sum(files[name] for name in rest))})")
    return ", ".join(texts)


def _status(path: str) -> os.stat_result | None:
    """Return the status of a regular file; None if the path does not exist or is no regular file."""
    try:
        status = os.lstat(path)  # a Path is far slower, and there may be many files
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _prefixes(name: str) -> list[str]:
    """Return the directories above a file, from the top down, and then the file."""
    segments = name.split("/")
    return ["/".join(segments[:end]) for end in range(1, len(segments) + 1)]


def _is_closed(name: str) -> bool:
    return _is_cache(name.lower()) or bool(_IS_SECRET_DIRECTORY.match(name.lower()))


def _is_cache(name: str) -> bool:
    return name not in HIDDEN_RESULTS and bool(_IS_CACHE.match(name))


def _is_secret(name: str) -> bool:
    *directories, last = name.lower().split("/")
    return bool(_IS_SECRET.match(last) or any(map(_IS_SECRET_DIRECTORY.match, directories)))


def _is_leftover(name: str) -> bool:
    *directories, last = name.lower().split("/")
    return bool(_IS_LEFTOVER.match(last) or any(map(_is_cache, directories)))
