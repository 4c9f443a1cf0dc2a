"""Find and kill a program and all its descendants, from any process; see ``process_keeper``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cloudspot.host import process_keeper
from cloudspot.host.process_keeper import GROUP, KEEPER, OVER, WATCHER, start_of
from cloudspot.host.process_marks import kill_all
from cloudspot.host.process_trees import descendants

_RECORD = re.compile(rf"({KEEPER}|{WATCHER}|p)(\d+)-(\w+)({re.escape(OVER)})?")
# A container image may have no Python, or none before its setup runs. In that case only the program's
# descendants are found.
_BEGIN = (
    'if command -v "$0" >/dev/null; then exec "$0" -IS "$@"; fi; [ ! -e "$3" ] || exit 137; '
    'read -r stat < /proc/$$/stat; start=$(set -- ${stat##*) }; shift 19; echo "$1"); '
    ': > "$2/p$$-$start"; shift 3; exec "$@"'
)


class _Record(NamedTuple):
    kind: str
    pid: int
    is_over: bool
    lives: bool
    group: str
    """The directory of its control group, or an empty string if it has no control group."""


class KeptProcesses:
    """All processes started by one ``command``; the records in a directory identify them."""

    def __init__(self, records: Path) -> None:
        self._records = records

    def command(self, python: str, argv: Sequence[str], *, ended: Path) -> list[str]:
        """Return the command that starts the program, or exits with status 137 if ``ended`` exists by then.

        ``python`` runs the keeper, which needs only the standard library.
        """
        self._records.mkdir(parents=True, exist_ok=True)
        script = str(Path(process_keeper.__file__).resolve())
        return ["/bin/sh", "-c", _BEGIN, python, script, str(self._records), str(ended), *argv]

    def pids(self) -> set[int]:
        """Return the ids of the living processes."""
        records = list(self._read())
        keepers = {one.pid for one in records if one.lives and one.kind in {KEEPER, WATCHER}}
        programs = {one.pid for one in records if one.lives} - keepers
        found = descendants(keepers | programs) if keepers or programs else set()
        return found.union(programs, *(_members(one.group) for one in records if one.group)) - keepers

    def is_running(self) -> bool:
        """Return whether the program itself is alive; its descendants do not count."""
        return any(one.lives and one.kind != WATCHER and not one.is_over for one in self._read())

    def kill(self, *, timeout_seconds: float = 30.0) -> bool:
        """Send SIGKILL to the processes until none is left; return whether this succeeded in time."""
        return kill_all(self.pids, timeout_seconds=timeout_seconds)

    def _read(self) -> Iterator[_Record]:
        """Yield the records; a later process with the same id does not count as alive."""
        try:
            paths = list(self._records.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            match = _RECORD.fullmatch(path.name)
            with suppress(FileNotFoundError):  # renamed just now; the next call will find it
                group = path.read_text()
                if match is not None:
                    lives = start_of(int(match[2])) == match[3]
                    yield _Record(match[1], int(match[2]), match[4] is not None, lives, group)


def _members(group: str) -> set[int]:
    """Return the processes of a control group and of the groups below it."""
    members: set[int] = set()
    # A group may be removed at any moment: rglob would then raise an error, whereas walk skips the group.
    for directory, _, _ in os.walk(group) if Path(group).name.startswith(GROUP) else ():
        with suppress(OSError):
            members.update(map(int, Path(directory, "cgroup.procs").read_text().split()))
    return members
