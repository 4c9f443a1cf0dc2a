"""The observed and the stored states of a script's own checkpoint files."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

LOGS = ("*.log", "*.csv", "*.tsv", "*.jsonl", "events.out.tfevents.*", "*.wandb")
"""Names of files that grow from save to save: they are part of a checkpoint, but never evidence."""
_LOG = re.compile("|".join(map(fnmatch.translate, LOGS)))

Evidence = Literal["marker", "index", "next", "quiet", "exit"]
"""Why a state counts as complete. ``marker``: the declared file is there; ``index``: a framework's last file
or table of files is there; ``next``: the next save has begun; ``quiet``: no process has written for longer
than in any pause; ``exit``: the script ended with status 0."""


Finished = Literal["all", "own"]
"""``all``: the checkpoint is complete; ``own``: these files are complete, but others may follow."""


class Stamp(NamedTuple):
    """The part of a file's status that changes with its content, unless the file's times are set back."""

    size: int
    written_at: int
    """Nanoseconds."""
    inode: int


Version = tuple[tuple[str, Stamp], ...]
"""The files of a checkpoint, by their paths below the working directory, sorted."""


@dataclass(frozen=True)
class Look:
    """A checkpoint as it was found: a directory, or files that belong together."""

    name: str
    """The directory, or the first of the files, relative to the working directory."""
    step: int | None
    """The number at the end of the checkpoint's name, if any."""
    files: Mapping[str, Stamp]
    """The checkpoint's files, by their paths relative to the working directory."""
    roots: tuple[str, ...]
    """The checkpoint's directory, or its files."""
    is_directory: bool = True
    pointers: frozenset[str] = frozenset()
    """The files beside the checkpoint that name it; ``files`` contains them too."""
    appended: frozenset[str] = frozenset()
    """The files to which data was only appended since the previous look."""
    written_to: frozenset[str] = frozenset()
    """The files that a process has open for writing."""
    finished: Finished | None = None
    """How much of the checkpoint is complete, judged by its content; None if the content does not show it."""

    @cached_property
    def version(self) -> Version:
        """The checkpoint's files with their stamps, sorted."""
        return tuple(sorted(self.files.items()))

    @cached_property
    def places(self) -> frozenset[str]:
        """The directories in which the checkpoint's marker may be, as prefixes of paths."""
        bases = {self.name} if self.is_directory else {root.rpartition("/")[0] for root in self.roots}
        return frozenset("" if base in {"", "."} else f"{base}/" for base in bases)


@dataclass(frozen=True)
class State:
    """The files of a checkpoint at a moment when it was, or may have been, complete."""

    name: str
    step: int | None
    version: Version
    evidence: Evidence | None = field(default=None, compare=False)

    @property
    def written_at(self) -> int:
        """The time of the last write to any of the files (ns)."""
        return max((stamp.written_at for _, stamp in self.version), default=0)

    @property
    def order(self) -> tuple[int, int]:
        """The key that sorts states by age."""
        return self.step or 0, self.written_at


class Settled(msgspec.Struct, frozen=True):
    """A state that was complete."""

    version: Version
    evidence: Evidence


class Asked(msgspec.Struct, frozen=True):
    """A checkpoint at the moment when the script was asked to save."""

    version: Version
    was_complete: bool


class Sent(msgspec.Struct, frozen=True):
    """A state that was or will be committed."""

    name: str
    step: int | None
    version: Version


class Memory(msgspec.Struct, kw_only=True):
    """The observations that a later agent on the machine needs."""

    came_with_code: tuple[str, ...] = ()
    """The roots that existed before the machine's first script."""
    code: dict[str, Stamp] = {}
    """If the whole working directory is watched: all other files that existed then."""
    before: dict[str, Version] | None = None
    """The checkpoints from before the newest script's start; None if no script was started here."""
    settled: dict[str, Settled] = {}
    repeated: set[str] = set()
    """The checkpoints that the newest script completed and then rewrote."""
    asked: dict[str, Asked] | None = None
    pause: float = 0.0
    """The longest observed pause within a save (s)."""
    num_saves: int = 0
    """The number of saves observed from their own beginning to the beginning of the next save."""
    rewrites: bool = False
    """Whether the script rewrites files of a checkpoint in place."""
    seen: dict[str, Version] = {}
    """The checkpoints found in the newest look."""
    written: set[str] = set()
    """The paths of the files that were begun in the current save, or else in the last one."""
    last_sent: Sent | None = None
    """The newest script's last committed state."""
    doubtful: list[Sent] = []
    """The states whose only evidence is quiet, since the last state with stronger evidence."""


def is_log(path: str) -> bool:
    """Return whether a file's name is that of a log."""
    return _LOG.match(path.rpartition("/")[2]) is not None
