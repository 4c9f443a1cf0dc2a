"""What is seen of a script's own checkpoint files, and remembered of them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

LOGS = ("*.log", "*.csv", "*.tsv", "*.jsonl", "events.out.tfevents.*", "*.wandb")
"""Names of files that go on growing from save to save: they go along and prove nothing."""
_LOG = re.compile("|".join(map(fnmatch.translate, LOGS)))

Evidence = Literal["marker", "index", "next", "quiet", "exit"]
"""``marker``: the declared file; ``index``: what a framework writes last, or its table of files; ``next``:
the next save has begun; ``quiet``: nobody has written for longer than in any pause; ``exit``: status 0."""


Finished = Literal["all", "own"]
"""``all``: the checkpoint is whole; ``own``: these files are, and others of it may follow."""


class Stamp(NamedTuple):
    """What tells one content of a file from another, as long as nobody sets its times back."""

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
    """The number that its name ends with, or None."""
    files: Mapping[str, Stamp]
    """By their paths, relative to the working directory."""
    roots: tuple[str, ...]
    """The directory, or the files."""
    is_directory: bool = True
    pointers: frozenset[str] = frozenset()
    """Those of ``files`` that lie beside it and name it."""
    appended: frozenset[str] = frozenset()
    """Those that have grown since the look before and still begin with what they held then."""
    written_to: frozenset[str] = frozenset()
    """Those that a process has open for writing."""
    finished: Finished | None = None
    """What its content says."""

    @cached_property
    def version(self) -> Version:
        """Return its files with their stamps, sorted."""
        return tuple(sorted(self.files.items()))

    @cached_property
    def places(self) -> frozenset[str]:
        """Return where its marker would lie: what the path begins with, up to the last slash."""
        bases = {self.name} if self.is_directory else {root.rpartition("/")[0] for root in self.roots}
        return frozenset("" if base in {"", "."} else f"{base}/" for base in bases)


@dataclass(frozen=True)
class State:
    """What a checkpoint held when it was complete, or may have been."""

    name: str
    step: int | None
    version: Version
    evidence: Evidence | None = field(default=None, compare=False)

    @property
    def written_at(self) -> int:
        """When one of its files was last written (ns)."""
        return max((stamp.written_at for _, stamp in self.version), default=0)

    @property
    def order(self) -> tuple[int, int]:
        """Order states by age."""
        return self.step or 0, self.written_at


class Settled(msgspec.Struct, frozen=True):
    """A state that was complete."""

    version: Version
    evidence: Evidence


class Asked(msgspec.Struct, frozen=True):
    """A checkpoint when the script was asked to save."""

    version: Version
    was_complete: bool


class Sent(msgspec.Struct, frozen=True):
    """A state that was committed, or is to be."""

    name: str
    step: int | None
    version: Version


class Memory(msgspec.Struct, kw_only=True):
    """What a later agent of the machine has to know."""

    came_with_code: tuple[str, ...] = ()
    """The roots that were there before the machine's first script."""
    code: dict[str, Stamp] = {}
    """All other files that were there then, where the whole working directory is watched."""
    before: dict[str, Version] | None = None
    """What there was before the newest script started; None: none was started here."""
    settled: dict[str, Settled] = {}
    repeated: set[str] = set()
    """The checkpoints that the newest script has completed and then written anew."""
    asked: dict[str, Asked] | None = None
    pause: float = 0.0
    """The longest pause seen within a save."""
    num_saves: int = 0
    """How many saves were seen from the beginning of one to that of the next."""
    rewrites: bool = False
    """Whether the script writes to files that a checkpoint had, in place."""
    seen: dict[str, Version] = {}
    """What the newest look at the newest script has found."""
    written: set[str] = set()
    """The paths of those files that were begun in the save under way, or the last one."""
    last_sent: Sent | None = None
    """What the newest script has had committed last."""
    doubtful: list[Sent] = []
    """What quiet alone has shown complete since the last state that has more evidence."""


def is_log(path: str) -> bool:
    """Return whether a file is a log by its name."""
    return _LOG.match(path.rpartition("/")[2]) is not None
