"""How a process was started, as Linux shows it: its session, directory, streams, open files and environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Portrait:
    """A process as others see it."""

    pid: int
    words: tuple[str, ...]
    """Its program and arguments."""
    session: int
    group: int
    directory: Path
    niceness: int
    streams: tuple[str, str, str]
    """What standard input, output and error lead to."""
    files: frozenset[str]
    """What all its descriptors lead to."""
    environment: dict[str, str]
    """That with which it was started."""
    ignored: frozenset[int]
    """The numbers of the signals that it ignores."""

    @property
    def leads_its_session(self) -> bool:
        """Return whether it is the first of a session, so that no terminal's Ctrl-C reaches it."""
        return self.pid == self.group == self.session


@contextmanager
def left_open(path: Path) -> Iterator[None]:
    """Have a new file open meanwhile that a process inherits unless who starts it prevents it.

    It is standard input, too, which pytest has made empty.
    """
    before = os.dup(0)
    try:
        with path.open("w") as file:
            os.set_inheritable(file.fileno(), True)
            os.dup2(file.fileno(), 0)
            yield
    finally:
        os.dup2(before, 0)
        os.close(before)


def portrait_of(pid: int) -> Portrait:
    """Return the portrait of a living process of this user."""
    process = Path("/proc", str(pid))
    leads_to = {one.name: str(one.readlink()) for one in (process / "fd").iterdir() if one.is_symlink()}
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    pairs = (one.partition("=") for one in (process / "environ").read_text().split("\0") if one)
    return Portrait(
        pid=pid,
        words=tuple((process / "cmdline").read_text().split("\0")[:-1]),
        session=os.getsid(pid),
        group=os.getpgid(pid),
        directory=(process / "cwd").readlink(),
        niceness=os.getpriority(os.PRIO_PROCESS, pid),
        streams=(leads_to["0"], leads_to["1"], leads_to["2"]),
        files=frozenset(leads_to.values()),
        environment={name: value for name, _, value in pairs},
        ignored=frozenset(one for one in range(1, 65) if int(status["SigIgn"], 16) >> one - 1 & 1),
    )


def portraits_of_session(session: int) -> list[Portrait]:
    """Return the portraits of all processes of a session that live long enough."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, KeyError):  # it has ended meanwhile
                if os.getsid(int(entry.name)) == session:
                    found.append(portrait_of(int(entry.name)))
    return found
