"""Scripts that write checkpoints by their own habits, played on a disk that is only a table.

Habits are those of public training scripts: a file or a directory, written at once or slowly, in place or renamed
into place, with pauses between its files, the old one deleted first, a log that grows beside it, and a marker or a
table of files at its end, or nothing of the kind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cloudspot.agent.delivery.checkpoint_watch import CheckpointWatch, Look, Memory, Stamp, State

LOOK_SECONDS = 0.25
COMMIT_SECONDS = 5.0
FULL = 1000
"""The size of each whole file."""
Proof = Literal["marker", "index"] | None


@dataclass(frozen=True)
class Habit:
    """How a script saves."""

    kind: Literal["file", "directory", "steps"]
    num_files: int
    write_seconds: float
    """How long it writes to each file, in ten pieces."""
    pause_seconds: float
    """How long it waits between two files, at most; a fifth less at least."""
    interval_seconds: float
    """From the end of a save to the beginning of the next."""
    renames: bool
    deletes_first: bool
    log: str | None
    """The name of a log that grows every second in the directory."""
    proof: Proof
    shows_writers: bool
    upload_seconds: float
    keep: int

    @property
    def num_saves(self) -> int:
        """Return how many saves are played."""
        return 8


def random_habit(chance: random.Random) -> Habit:
    """Return any habit; a save takes less than the time to the next."""
    kind = chance.choice(("file", "directory", "steps"))
    num_files = 1 if kind == "file" else chance.randint(1, 4)
    proof: Proof = None if kind == "file" else chance.choice(("marker", "index", None, None))
    return Habit(
        kind=kind,
        num_files=num_files,
        write_seconds=chance.choice((0.0, 0.01, 0.5, 3.0, 15.0)),
        pause_seconds=chance.choice((0.0, 0.0, 0.1, 1.0, 6.0, 12.0)),
        interval_seconds=chance.choice((1.5, 4.0, 8.0, 30.0)),
        renames=chance.random() < 0.3,
        deletes_first=chance.random() < 0.2,
        log=None if kind == "file" else chance.choice((None, None, "log.csv", "train.txt")),
        proof=proof,
        shows_writers=chance.random() < 0.8,
        upload_seconds=chance.choice((0.1, 2.0, 20.0)),
        keep=chance.choice((1, 1, 3)),
    )


@dataclass
class _File:
    inode: int
    size: int = 0
    written_at: float = 0.0
    save: int = 0
    """By which save it was begun: what it holds, together with its size."""
    is_open: bool = False


@dataclass
class Disk:
    """What there is, and which save is the newest whole one."""

    files: dict[str, _File] = field(default_factory=dict)
    num_inodes: int = 0

    def create(self, path: str, save: int, now: float) -> None:
        """Open a new file, or truncate the one that is there."""
        old = self.files.get(path)
        if old is None:
            self.num_inodes += 1
            old = self.files[path] = _File(self.num_inodes)
        old.size, old.written_at, old.save, old.is_open = 0, now, save, True

    def add(self, path: str, size: int, now: float) -> None:
        """Write to the end of an open file."""
        self.files[path].size += size
        self.files[path].written_at = now


class Script:
    """One that saves by its habit: a generator of moments, at each of which the disk has changed."""

    def __init__(self, habit: Habit, chance: random.Random) -> None:
        self.habit, self._chance = habit, chance
        self.disk = Disk()
        self.whole_at: dict[int, float] = {}
        """When each save was complete."""

    def directory_of(self, save: int) -> str:
        """Return where a save goes."""
        return f"out/step-{save}" if self.habit.kind == "steps" else "out"

    def names(self) -> list[str]:
        """Return the names of the files of a save, in the order in which they are written."""
        last = {"marker": ["done"], "index": ["table.index"], None: []}[self.habit.proof]
        return [*(f"model-{number}" for number in range(self.habit.num_files)), *last]

    def run(self) -> Iterator[float]:
        """Yield the moments."""
        now, logged_at = 0.0, 0.0
        for moment in self._saves():
            log = self.habit.log
            while log is not None and logged_at + 1.0 < moment:
                logged_at += 1.0
                path = f"{self.directory_of(max(self.whole_at, default=0) + 1)}/{log}"
                if self.habit.kind == "steps":
                    path = f"{self.directory_of(max(self.whole_at, default=1))}/{log}"
                if path not in self.disk.files:
                    if self.habit.kind == "steps":
                        continue
                    self.disk.create(path, 0, logged_at)
                self.disk.add(path, 10, logged_at)
                yield max(now, logged_at)
            now = moment
            yield now

    def _saves(self) -> Iterator[float]:
        habit, disk = self.habit, self.disk
        now = habit.interval_seconds
        for save in range(1, habit.num_saves + 1):
            directory = self.directory_of(save)
            yield now
            if habit.deletes_first:
                for name in self.names():
                    disk.files.pop(f"{directory}/{name}", None)
                    now += 0.01
                    yield now
            for number, name in enumerate(self.names()):
                if number:
                    now += habit.pause_seconds * self._chance.uniform(0.8, 1.0)
                path = f"{directory}/{name}"
                target = f"{path}.tmp" if habit.renames else path
                yield now
                disk.create(target, save, now)
                is_small = name in {"done", "table.index"}
                for _ in range(10):
                    now += 0.001 if is_small else habit.write_seconds / 10
                    yield now
                    disk.add(target, FULL // 10, now)
                disk.files[target].is_open = False
                if target != path:
                    disk.files[path] = disk.files.pop(target)
                yield now
            self.whole_at[save] = now
            now += habit.interval_seconds
        yield now + 2 * habit.upload_seconds + 60.0


@dataclass(frozen=True)
class Commit:
    """A state that is in the store."""

    save: int | None
    """None: it is torn."""
    evidence: str
    at: float
    state: State


@dataclass
class Outcome:
    """What came of a script's checkpoints."""

    habit: Habit
    whole_at: Mapping[int, float]
    recognized: list[tuple[float, int, str]] = field(default_factory=list)
    """When each state was first known to be complete, of which save it is, and why."""
    commits: list[Commit] = field(default_factory=list)
    kept: list[tuple[float, tuple[Commit, ...]]] = field(default_factory=list)
    """What the store had after each commit."""


def play(habit: Habit, seed: int) -> Outcome:
    """Let a script run to its end under the watch, and upload what that finds, as the agent does."""
    chance = random.Random(seed)
    script = Script(habit, chance)
    outcome = Outcome(habit, script.whole_at)
    watch = CheckpointWatch("done" if habit.proof == "marker" else None, None, Memory())
    watch.begin([])
    disk, seen = script.disk, dict[str, tuple[Stamp, int]]()
    shelf = _Shelf(outcome, watch)
    looked_at = 0.0
    for moment in script.run():
        while looked_at + LOOK_SECONDS <= moment:
            looked_at += LOOK_SECONDS
            looks = list(_looks(script, disk, seen))
            shelf.look(looks, watch.look(looks, looked_at), script, looked_at)
    return outcome


class _Shelf:
    """What is set aside, what is being uploaded, and what the store has."""

    def __init__(self, outcome: Outcome, watch: CheckpointWatch) -> None:
        self._outcome, self._watch = outcome, watch
        self._known: set[object] = set()
        self._ready: tuple[State, int | None] | None = None
        self._maybe: tuple[State, int | None] | None = None
        self._upload: tuple[State, int | None, float] | None = None
        self._committed_at = -COMMIT_SECONDS
        self._store: list[Commit] = []
        self._doubtful: list[State] = []

    def look(self, looks: list[Look], told: tuple[State, ...], script: Script, now: float) -> None:
        for state in told:
            if self._maybe is not None and self._maybe[0].version == state.version:
                self._offer(state, self._maybe[1], now)
        for state in self._watch.complete(looks)[-1:]:
            self._offer(state, held_save(script, state), now)
        candidate = self._watch.candidate()
        held = None if self._maybe is None else self._maybe[0].version
        if candidate is not None and candidate.version != held:
            self._maybe = candidate, held_save(script, candidate)
        if self._upload is not None and now >= self._upload[2]:
            self._commit(now)
        if self._upload is None and self._ready is not None and now >= self._committed_at + COMMIT_SECONDS:
            self._upload, self._ready = (*self._ready, now + self._outcome.habit.upload_seconds), None

    def _offer(self, state: State, save: int | None, now: float) -> None:
        key = state.name, state.version
        if key in self._known:
            return
        self._known.add(key)
        self._outcome.recognized.append((now, save or 0, state.evidence or ""))
        if self._ready is None or self._ready[0].order <= state.order:
            self._ready = state, save

    def _commit(self, now: float) -> None:
        assert self._upload is not None
        state, save, _ = self._upload
        self._upload, self._committed_at = None, now
        commit = Commit(save, state.evidence or "", now, state)
        self._outcome.commits.append(commit)
        self._store.append(commit)
        if state.evidence != "quiet":
            self._doubtful.clear()
        else:
            self._doubtful.append(state)
        confirmed = [n for n, one in enumerate(self._doubtful, 1) if self._watch.was_confirmed(one)]
        del self._doubtful[: max(confirmed, default=0)]
        self._store = self._store[-(self._outcome.habit.keep + len(self._doubtful)) :]
        self._outcome.kept.append((now, tuple(self._store)))


def held_save(script: Script, state: State) -> int | None:
    """Return of which save the disk holds a whole state now; None: it is torn, or not what was seen."""
    names = {name for name in script.names() if name != "done"}
    found = {path: script.disk.files.get(path) for path, _ in state.version}
    by_name = {path.rpartition("/")[2]: file for path, file in found.items() if file is not None}
    own = [file for name, file in by_name.items() if name in names]
    saves = {file.save for file in own}
    is_whole = names <= by_name.keys() and all(file.size == FULL for file in own) and len(saves) == 1
    return saves.pop() if is_whole else None


def _looks(script: Script, disk: Disk, seen: dict[str, tuple[Stamp, int]]) -> Iterator[Look]:
    """Yield what the agent sees, and note that in ``seen``."""
    habit = script.habit
    units: dict[str, dict[str, _File]] = {}
    for path, file in disk.files.items():
        root = path if habit.kind == "file" else path.rpartition("/")[0]
        if habit.kind == "file" and path.endswith(".tmp"):
            continue  # the pattern does not find it
        units.setdefault(root, {})[path] = file
    for root, files in units.items():
        stamps = {
            path: Stamp(file.size, int(file.written_at * 1e9), file.inode) for path, file in files.items()
        }
        appended = {
            path
            for path, stamp in stamps.items()
            if path in seen
            and seen[path][0].inode == stamp.inode
            and seen[path][0].size < stamp.size
            and seen[path][1] == files[path].save
        }
        seen.update({path: (stamp, files[path].save) for path, stamp in stamps.items()})
        busy = {path for path, file in files.items() if file.is_open and habit.shows_writers}
        busy -= {path for path in busy if path.endswith((".csv", ".txt"))}
        index = files.get(f"{root}/table.index")
        own = [file for path, file in files.items() if not path.endswith(".csv")]
        is_finished = index is not None and all(file.written_at <= index.written_at for file in own)
        is_finished = is_finished and index is not None and index.size == FULL
        yield Look(
            root,
            int(root.rpartition("-")[2]) if habit.kind == "steps" else None,
            stamps,
            (root,),
            habit.kind != "file",
            frozenset(),
            frozenset(appended),
            frozenset(busy),
            is_finished,
        )
