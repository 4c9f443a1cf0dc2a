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

import msgspec

from cloudspot.agent.delivery.checkpoint_shelf import CheckpointShelf
from cloudspot.agent.delivery.checkpoint_states import Finished, Look, Memory, Stamp, State
from cloudspot.agent.delivery.checkpoint_watch import CheckpointWatch

LOOK_SECONDS = 0.25
COMMIT_SECONDS = 5.0
RESTART_SECONDS = 1.0
FULL = 1000
"""The size of each whole file."""
Proof = Literal["marker", "index", "table"] | None
"""``table``: one that names the files before it, and a file of its own after it."""


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
    thins_out: bool = False
    """Whether it deletes all but its two newest directories."""
    agent_seconds: float | None = None
    """How long an agent lives on average until it is killed, and another goes on; None: it is not."""

    @property
    def num_saves(self) -> int:
        """Return how many saves are played."""
        return 8


def random_habit(chance: random.Random) -> Habit:
    """Return any habit; a save takes less than the time to the next."""
    kinds: tuple[Literal["file", "directory", "steps"], ...] = ("file", "directory", "steps")
    kind = chance.choice(kinds)
    num_files = 1 if kind == "file" else chance.randint(1, 4)
    proof: Proof = None if kind == "file" else chance.choice(("marker", "index", "table", None, None))
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
        thins_out=kind == "steps" and chance.random() < 0.5,
        agent_seconds=chance.choice((None, None, 10.0, 40.0)),
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
        last = {
            "marker": ["done"],
            "index": ["table.index"],
            "table": ["table.index", "optimizer"],
            None: [],
        }[self.habit.proof]
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
            if habit.thins_out:
                old = f"{self.directory_of(save - 2)}/"
                for path in [path for path in disk.files if path.startswith(old)]:
                    del disk.files[path]
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
    restarted_at: list[float] = field(default_factory=list)
    """When an agent went on where a killed one was."""


def play(habit: Habit, seed: int) -> Outcome:
    """Let a script run to its end under the watch, and upload what that finds, as the agent does."""
    chance = random.Random(seed)
    script = Script(habit, chance)
    outcome = Outcome(habit, script.whole_at)
    watch = CheckpointWatch("done" if habit.proof == "marker" else None, None, Memory())
    watch.begin([])
    disk, seen = script.disk, dict[str, tuple[Stamp, int]]()
    agent = _Agent(outcome, watch, script)
    looked_at = 0.0
    for moment in script.run():
        while looked_at + LOOK_SECONDS <= moment:
            looked_at += LOOK_SECONDS
            if habit.agent_seconds is not None and chance.random() < LOOK_SECONDS / habit.agent_seconds:
                agent = agent.next()
                seen.clear()
                looked_at += RESTART_SECONDS
                outcome.restarted_at.append(looked_at)
                continue
            looks = list(_looks(script, disk, seen))
            agent.look(looks, looked_at)
    return outcome


@dataclass
class _Kept:
    """A copy of what the disk held."""

    state: State
    save: int | None

    def drop(self) -> None:
        """Free nothing."""


class _Agent:
    """Sets aside and uploads, one state at a time, and collects as many commits as are too many."""

    def __init__(self, outcome: Outcome, watch: CheckpointWatch, script: Script) -> None:
        self._outcome, self._watch, self._script = outcome, watch, script
        self._shelf = CheckpointShelf(self._take, lambda _: True, watch.memory)
        self._recognized: set[State] = set()
        self._upload: tuple[_Kept, float] | None = None
        self._committed_at = -COMMIT_SECONDS
        self._store: list[Commit] = []

    def next(self) -> _Agent:
        """Return the agent that goes on where this one is killed: with what it remembered, and the store."""
        memory = msgspec.json.decode(msgspec.json.encode(self._watch.memory), type=Memory)
        watch = CheckpointWatch("done" if self._script.habit.proof == "marker" else None, None, memory)
        agent = _Agent(self._outcome, watch, self._script)
        agent._recognized, agent._store = self._recognized, self._store
        return agent

    def _take(self, state: State) -> _Kept:
        return _Kept(state, held_save(self._script, state))

    def look(self, looks: list[Look], now: float) -> None:
        told = self._watch.look(looks, now)
        self._shelf.look(told, self._watch.complete(looks), self._watch.candidate())
        ready = self._shelf.ready
        if ready is not None and ready.state not in self._recognized:
            self._recognized.add(ready.state)
            self._outcome.recognized.append((now, ready.save or 0, ready.state.evidence or ""))
        if self._upload is not None and now >= self._upload[1]:
            self._commit(self._upload[0], now)
        if self._upload is None and ready is not None and now >= self._committed_at + COMMIT_SECONDS:
            self._shelf.begin_upload()
            self._upload = ready, now + self._outcome.habit.upload_seconds

    def _commit(self, kept: _Kept, now: float) -> None:
        self._upload, self._committed_at = None, now
        self._shelf.note_commit(kept.state)
        self._shelf.end_upload(is_to_repeat=False)
        commit = Commit(kept.save, kept.state.evidence or "", now, kept.state)
        self._outcome.commits.append(commit)
        self._store.append(commit)
        num_kept = self._outcome.habit.keep + self._shelf.num_doubtful(self._watch.was_confirmed)
        self._store = self._store[-num_kept:]
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
        says: Finished = "own" if habit.proof == "table" else "all"
        yield Look(
            root,
            int(root.rpartition("-")[2]) if habit.kind == "steps" else None,
            stamps,
            (root,),
            habit.kind != "file",
            frozenset(),
            frozenset(appended),
            frozenset(busy),
            says if is_finished else None,
        )
