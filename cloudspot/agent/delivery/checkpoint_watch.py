"""Decide from looks, without any I/O, which states of a script's own checkpoint files are complete."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from cloudspot.agent.delivery.checkpoint_states import (
    Asked,
    Evidence,
    Look,
    Memory,
    Settled,
    Stamp,
    State,
    Version,
    is_log,
)

SETTLED_SECONDS = 10.0
"""Until three saves have been observed, files count as complete after being quiet for this long."""
KNOWN_SECONDS = 2.0
"""How long files must be quiet if their content shows that they are complete, because other ranks may still
write. Also the lower bound of ``quiet_seconds``."""
MAX_MISSING = 20
"""The number of deleted checkpoints that are kept in memory."""
RESTLESS_SECONDS = 300.0
"""The user is warned of a checkpoint that has been incomplete for this long."""
ENOUGH_SAVES = 3
"""After this many saves, the longest pause within a save determines how long files must be quiet."""
INCOMPLETE_FILE = "checkpoint-is-incomplete.txt"
"""The file that Hugging Face's Trainer keeps in the directory while SIGTERM makes it save."""


@dataclass
class _Seen:
    look: Look
    active_at: float
    """When the checkpoint last changed or was open for writing (monotonic)."""
    stable: Version | None = None
    """The version that two looks found unchanged, with no process writing; the next change resets it."""
    rest: Look | None = None
    """The last look that found a stable version; kept during later changes."""


@dataclass
class _Save:
    """The current save, or else the last one."""

    active_at: float
    pause: float = 0.0
    """The longest pause in the save up to its newest change (s)."""
    pause_at_rest: float = 0.0
    """The longest pause in the save up to the change before its last rest (s)."""


class CheckpointWatch:
    """Follows the checkpoints of one script through successive looks.

    Only events while the script is alive prove that a checkpoint is complete: after the script's end, a
    half-written checkpoint is quiet too. Moments are monotonic.
    """

    def __init__(self, complete_file: str | None, incomplete_file: str | None, memory: Memory) -> None:
        self._complete_file = complete_file
        self._incomplete_file = incomplete_file
        self.memory = memory
        self.has_news = False
        """Whether the memory has changed; the owner resets this after storing the memory."""
        self._seen: dict[str, _Seen] = {}
        self._logs: set[str] = set()
        self._born: dict[str, int] = {}
        """The number of the save in which each file was last begun; 0 if before the script's first save."""
        self._follows_another = memory.before is not None
        """Whether an earlier agent has observed the script, but this agent has not yet."""
        self._save: _Save | None = None
        self._number = 0
        self._rewritten: set[str] = set()
        """The checkpoints whose rewriting has begun since the script was asked to save."""
        self._incomplete_since: dict[str, float] = {}
        self.save_seconds: float | None = None
        """How long the script took to write the newest checkpoint that was observed while it was written."""

    # --- events -----------------------------------------------------------------------------------

    def begin(self, looks: Sequence[Look]) -> None:
        """Record that a script is about to start: the script did not write the existing checkpoints."""
        memory = self.memory
        if memory.before is None:
            memory.came_with_code = tuple(root for look in looks for root in look.roots)
        memory.before, memory.asked = {look.name: look.version for look in looks}, None
        memory.repeated, memory.seen, memory.written = set(), {}, set()
        memory.settled = {
            name: each for name, each in memory.settled.items() if memory.before.get(name) == each.version
        }
        self.has_news = True
        self._seen.clear()
        self._logs.clear()
        self._note_logs(looks)
        self._seen = {look.name: _Seen(look, float("-inf")) for look in looks if look.files}
        self._born = dict.fromkeys((path for look in looks for path in look.files), 0)
        self._incomplete_since.clear()
        self._save, self._number = None, 0
        self._follows_another = False

    def look(self, looks: Sequence[Look], now: float) -> tuple[State, ...]:
        """Process a look while the script is alive.

        Return the states that were proved complete only by the beginning of the next save: their files may
        already be overwritten.
        """
        looks = [look for look in looks if look.files]  # an empty directory is not the beginning of a save
        self._note_logs(looks)
        if not self._seen and self.memory.before is None:
            self._seen = {look.name: _Seen(look, now) for look in looks}
        if self._follows_another:
            looks = self._follow(looks, now)
        begun = self._changes(looks)
        proved = self._note_saves(looks, begun, now)
        self._note_look(looks)
        names = {look.name for look in looks}
        self._seen = {name: seen for name, seen in self._seen.items() if name in names}
        expected = self._kinds_before(looks)
        for look in looks:
            evidence = self._evidence(look, now, expected)
            if evidence is not None:
                self._settle(look, evidence)
        self._incomplete_since = {
            look.name: self._incomplete_since.get(look.name, now)
            for look in looks
            if self.is_new(look) and not self.is_complete(look) and not self._is_remains(look)
        }
        self._forget(names)
        return proved

    def _follow(self, looks: Sequence[Look], now: float) -> list[Look]:
        """Continue where an earlier agent stopped; return the looks with the files that have grown since."""
        memory, self._follows_another = self.memory, False
        found = []
        for look in looks:
            known = dict(memory.seen.get(look.name, ()))
            # The contents were not compared, but a rewritten file is rarely larger than the old one.
            grown = {
                path
                for path, old in known.items()
                if (new := look.files.get(path)) is not None
                and new.inode == old.inode
                and new.size > old.size
            }
            found.append(replace(look, appended=look.appended | grown))
            if known:
                self._seen[look.name] = _Seen(replace(look, files=known), now)
        self._born = dict.fromkeys((path for version in memory.seen.values() for path, _ in version), 0)
        if memory.written:
            self._born |= dict.fromkeys(memory.written, 1)
            self._save, self._number = _Save(now), 1
        return found

    def _note_look(self, looks: Iterable[Look]) -> None:
        """Store a look for an agent that may have to continue from here."""
        seen = {look.name: look.version for look in looks}
        if seen != self.memory.seen:
            self.memory.seen = seen
            self.memory.written = {path for path, number in self._born.items() if number == self._number > 0}
            self.has_news = True

    def _forget(self, names: Collection[str]) -> None:
        """Forget all deleted checkpoints but the last few."""
        gone = [name for name in self.memory.settled if name not in names]
        for name in gone[:-MAX_MISSING]:
            del self.memory.settled[name]
        if len(gone) > MAX_MISSING:
            there = {path for seen in self._seen.values() for path in seen.look.files}
            self._born = {path: number for path, number in self._born.items() if path in there}

    def end(self, looks: Sequence[Look], *, exited_0: bool, is_leaving: bool) -> None:
        """Record that the script has ended.

        Status 0 proves that all checkpoints written by the script are complete or, if it was asked to save,
        all checkpoints begun since then. A checkpoint that lacks a file of the previous one is an exception,
        because the process may have ended while a thread was saving. Status 0 proves nothing if the node
        ``is_leaving`` and the script was not asked to save: a handler of SIGTERM may have ended it during a
        save.
        """
        self._note_logs(looks)
        for look in looks:
            if self._complete_file is not None and self._is_marked(look):
                self._settle(look, "marker")
        if self.memory.asked is None:
            if exited_0 and not is_leaving:
                for look in looks:
                    self._settle(look, "exit")
            return
        self._changes([look for look in looks if look.files])
        expected = self._kinds_before([look for look in looks if not self.is_answer(look)])
        for look in looks:
            if not self.is_new(look) or not expected <= self._kinds(look):
                continue
            is_shown_complete = self._is_shown_complete(look, expected)
            # With status 0, a checkpoint was being written when the script was asked, and may have been
            # written again later.
            if is_shown_complete and (exited_0 or self.is_answer(look)):
                self._settle(look, "index")
            elif exited_0 and self.is_answer(look):
                self._settle(look, "exit")

    def ask(self, looks: Sequence[Look]) -> None:
        """Record that the script is asked to save now: a checkpoint begun from now on is its answer."""
        if self.memory.asked is not None:
            return
        expected = self._kinds_before(looks)
        self.memory.asked = {
            look.name: Asked(
                look.version,
                # A checkpoint that the script has not touched was restored or came with the code. A
                # checkpoint whose content shows that it is complete may be too new to be trusted, but is not
                # being written now.
                self.is_complete(look) or self._is_shown_complete(look, expected) or not self.is_new(look),
            )
            for look in looks
            if look.files
        }
        self._rewritten.clear()
        self.has_news = True

    # --- results ------------------------------------------------------------------------------------

    @property
    def was_asked(self) -> bool:
        """Whether the script was asked to save."""
        return self.memory.asked is not None

    def is_new(self, look: Look | State) -> bool:
        """Return whether the script has written to the checkpoint."""
        before = (self.memory.before or {}).get(look.name)
        return before is None or not self._is_same(before, look.version)

    def is_answer(self, look: Look | State) -> bool:
        """Return whether the script began to write the checkpoint after it was asked to save."""
        asked = self.memory.asked
        if asked is None or not self.is_new(look):
            return False
        then = asked.get(look.name)
        if then is None:
            return True
        has_changed = not self._is_same(then.version, look.version)
        return has_changed and (then.was_complete or look.name in self._rewritten)

    def is_complete(self, look: Look) -> bool:
        """Return whether the checkpoint's current state was found to be complete."""
        settled = self.memory.settled.get(look.name)
        if settled is None or not self._is_same(settled.version, look.version):
            return False
        return self._may_be_complete(look)

    def complete(self, looks: Iterable[Look]) -> tuple[State, ...]:
        """Return the complete states that were written here, newest last."""
        # A checkpoint that no script here has written was restored or came with the code.
        found = [
            State(look.name, look.step, self.own_version(look), self.memory.settled[look.name].evidence)
            for look in looks
            if self.is_complete(look)
        ]
        return tuple(sorted(found, key=lambda state: state.order))

    def candidate(self) -> State | None:
        """Return the newest state that may be proved complete when the next save begins."""
        found = [
            State(name, seen.look.step, seen.stable)
            for name, seen in self._seen.items()
            if seen.stable is not None
            and self._may_be_complete(seen.look)
            and not self.is_complete(seen.look)
        ]
        return max(found, key=lambda state: state.order, default=None)

    def was_confirmed(self, name: str, version: Version) -> bool:
        """Return whether a state is proved complete by more than quiet."""
        settled = self.memory.settled.get(name)
        return settled is not None and settled.evidence != "quiet" and self._is_same(settled.version, version)

    def own_version(self, look: Look) -> Version:
        """Return the version of a checkpoint without its logs."""
        return self._strip(look.version)

    def logs_of(self, look: Look) -> Mapping[str, Stamp]:
        """Return a checkpoint's files that grow from save to save; they are uploaded at their length."""
        return {path: stamp for path, stamp in look.files.items() if path in self._logs}

    def torn(self, looks: Sequence[Look], *, only_incomplete: bool = True) -> tuple[Look, ...]:
        """Return the checkpoints that the ended script has written to, by default only incomplete ones."""
        if self.memory.before is None:
            return ()
        self.end(looks, exited_0=False, is_leaving=True)
        new = tuple(filter(self.is_new, looks))
        if not only_incomplete:
            return new
        # The script may have deleted files of an older checkpoint, but it does not resume from that one.
        newest = max((each.step or 0 for each in looks if self.is_complete(each)), default=0)
        return tuple(
            each
            for each in new
            if not self.is_complete(each) and not (self._is_remains(each) and (each.step or 0) < newest)
        )

    def restless(self, now: float) -> tuple[str, ...]:
        """Return the names of the checkpoints that the script has left incomplete for too long."""
        since = self._incomplete_since.items()
        return tuple(name for name, moment in since if now - moment >= RESTLESS_SECONDS)

    @property
    def quiet_seconds(self) -> float:
        """How long a checkpoint must be quiet before it counts as complete."""
        least = KNOWN_SECONDS if self.memory.num_saves >= ENOUGH_SAVES else SETTLED_SECONDS
        return max(least, self.memory.pause)

    # --- internals ----------------------------------------------------------------------------------

    def _note_logs(self, looks: Sequence[Look]) -> None:
        for look in looks:
            seen = self._seen.get(look.name)
            new = look.files.keys() - (self._logs if seen is None else seen.look.files.keys())
            for path in new:
                if is_log(path) and not self._is_marker(look, path):
                    self._logs.add(path)

    def _changes(self, looks: Sequence[Look]) -> frozenset[str]:
        """Record the changes, and return the checkpoints whose changes show that a new save has begun.

        A save writes each file once, so a rewritten or deleted file belongs to the next save.
        """
        there = {path for look in looks for path in look.files}
        inodes = {stamp.inode for look in looks for stamp in look.files.values()}  # renamed files included
        begun = {
            name
            for name, seen in self._seen.items()
            for path, stamp in seen.look.files.items()
            if path not in there and stamp.inode not in inodes and self._born.get(path) == self._number > 0
        }
        for look in looks:
            seen = self._seen.get(look.name)
            old = {} if seen is None else seen.look.files
            for path in look.appended - self._logs:
                if self._born.get(path, self._number) < self._number:
                    self._logs.add(path)  # no save appends to the previous save's files
            for path, stamp in look.files.items():
                if old.get(path) == stamp or (path in look.appended and path in old):
                    continue
                if path in old:
                    if not is_log(path):
                        self._logs.discard(path)
                    if path not in self._logs and old[path].inode == stamp.inode:
                        self.memory.rewrites = True
                    if self._born.get(path) == self._number > 0 and path not in self._logs:
                        begun.add(look.name)
                elif (
                    seen is None and self._number > 0 and path not in self._logs and not self._has_begun(look)
                ):
                    begun.add(look.name)  # a new checkpoint
        if self.was_asked:
            self._rewritten |= begun
        return frozenset(begun)

    def _has_begun(self, look: Look) -> bool:
        """Return whether files of this step were seen before under another first file."""
        seen = (known.look for known in self._seen.values() if not known.look.is_directory)
        return not look.is_directory and any(known.step == look.step for known in seen)

    def _note_saves(self, looks: Sequence[Look], begun: Collection[str], now: float) -> tuple[State, ...]:
        """Follow the saves and their pauses; return the states that a new save's start proves complete."""
        proved: list[State] = []
        changed = [look for look in looks if self._has_changed(look)]
        active = [look for look in looks if look.written_to - self._logs]
        if begun and self._save is not None:
            began_before = False
            for name, seen in self._seen.items():
                rest = seen.look if seen.stable is not None else self._rest_before(seen, looks)
                if rest is None or not self._may_be_complete(rest) or not self.is_new(rest):
                    continue
                began_before |= rest is not seen.look
                version = seen.stable or self.own_version(rest)
                proved.append(State(name, rest.step, version, "next"))
                self._settle(rest, "next", version)
            pause = self._save.pause_at_rest if began_before else self._save.pause
            self.memory.pause = max(self.memory.pause, pause)
            self.memory.num_saves += 1
            self.has_news = True
            self._save = None
        if changed:
            if self._save is None:
                self._save = _Save(now)
                self._number += 1
            if any(look.name in self._seen and self._seen[look.name].stable is not None for look in changed):
                self._save.pause_at_rest = self._save.pause
            self._save.pause = max(self._save.pause, now - self._save.active_at)
        if self._save is not None and (changed or active):
            self._save.active_at = now
        for look in looks:
            known = self._seen.get(look.name)
            if known is None or look in changed:
                self._note_born(look, None if known is None else known.look)
                rest = None if known is None else known.look if known.stable is not None else known.rest
                self._seen[look.name] = _Seen(look, now, rest=rest)
            else:
                known.look = look
                if look in active:
                    known.active_at = now
                elif known.stable is None and look.files:
                    known.stable = self.own_version(look)
        return tuple(proved)

    def _rest_before(self, seen: _Seen, looks: Sequence[Look]) -> Look | None:
        """Return the stable look before the next save, if that save began with a file of a new name.

        Until that save has rewritten an old file, the new file might still belong to the previous save.
        """
        now = next((look for look in looks if look.name == seen.look.name), None)
        if seen.rest is None or now is None or not self._kinds_before(looks) <= self._kinds(seen.rest):
            return None
        is_over = any(now.files.get(path) != stamp for path, stamp in self.own_version(seen.rest))
        return seen.rest if is_over else None

    def _note_born(self, look: Look, old: Look | None) -> None:
        for path, stamp in look.files.items():
            if (
                old is None
                or path not in old.files
                or (old.files[path] != stamp and path not in look.appended)
            ):
                self._born[path] = self._number

    def _has_changed(self, look: Look) -> bool:
        seen = self._seen.get(look.name)
        return seen is None or not self._is_same(seen.look.version, look.version)

    def _evidence(self, look: Look, now: float, expected: frozenset[str]) -> Evidence | None:
        has_expected = expected <= self._kinds(look)
        seen = self._seen[look.name]
        if not self._may_be_complete(look) or look.written_to - self._logs:
            return None
        quiet = now - seen.active_at
        if self._complete_file is not None and self._is_marked(look) and has_expected:
            return "marker"
        if quiet >= KNOWN_SECONDS and self._is_shown_complete(look, expected) and has_expected:
            return "marker" if self._incomplete_file is not None else "index"
        return "quiet" if quiet >= self.quiet_seconds and quiet > self.memory.pause else None

    def _may_be_complete(self, look: Look) -> bool:
        if not self.own_version(look) or self._is_marked_incomplete(look) or self._is_remains(look):
            return False
        return self._complete_file is None or self._has(look, self._complete_file)

    def _is_marked(self, look: Look) -> bool:
        """Return whether a checkpoint's marker is at least as new as every other file of the checkpoint.

        An older marker belongs to an earlier save that is being overwritten, or other ranks have written
        later. A checkpoint that has no other file counts as unmarked.
        """
        own = {path: stamp for path, stamp in look.files.items() if path not in look.pointers | self._logs}
        markers = [path for path in own if self._is_marker(look, path)]
        if (
            not markers
            or len(own) == len(markers)
            or not self._may_be_complete(look)
            or look.written_to & own.keys()
        ):
            return False
        newest = max(stamp.written_at for path, stamp in own.items() if path not in markers)
        return max(own[path].written_at for path in markers) >= newest

    def _is_shown_complete(self, look: Look, expected: frozenset[str]) -> bool:
        """Return whether its content, or the removal of ``incomplete_file``, shows a checkpoint complete.

        ``expected`` contains the kinds of files that another, complete checkpoint has.
        """
        if self._complete_file is not None:
            return False
        if self._incomplete_file is not None:
            return bool(look.files) and not self._has(look, self._incomplete_file)
        if look.finished != "own":
            return look.finished is not None
        # Only an earlier checkpoint shows that no other file follows; if the script rewrites its files, those
        # of the previous save are still there.
        if not look.is_directory:
            return bool(self.memory.settled)
        return bool(expected) and look.name not in {*self.memory.settled, *(self.memory.before or ())}

    def _is_marked_incomplete(self, look: Look) -> bool:
        marker = self._incomplete_file or (INCOMPLETE_FILE if self._complete_file is None else None)
        return marker is not None and self._has(look, marker)

    def _has(self, look: Look, name: str) -> bool:
        return any(place + name in look.files for place in look.places)

    def _is_marker(self, look: Look, path: str) -> bool:
        name = self._complete_file
        return name is not None and any(path == place + name for place in look.places)

    def _is_remains(self, look: Look) -> bool:
        """Return whether a checkpoint is the rest of a complete one that the script has begun to delete."""
        settled, before = self.memory.settled.get(look.name), (self.memory.before or {}).get(look.name)
        own = set(self.own_version(look))
        known = [self._strip(version) for version in (settled and settled.version, before) if version]
        return any(own < set(version) for version in known)

    def _kinds_before(self, looks: Sequence[Look]) -> frozenset[str]:
        """Return the kinds of files in the newest complete checkpoint; the next should have them too."""
        complete = [
            look for look in looks if look.files and (self.is_complete(look) or not self.is_new(look))
        ]
        newest = max(complete, key=lambda look: max(s.written_at for s in look.files.values()), default=None)
        return frozenset() if newest is None else self._kinds(newest)

    def _kinds(self, look: Look) -> frozenset[str]:
        """Return the files' names without numbers, which may be steps."""
        own = look.files.keys() - self._logs
        return frozenset(_without_numbers(path.removeprefix(look.name + "/")) for path in own)

    def _settle(self, look: Look, evidence: Evidence, version: Version | None = None) -> None:
        """Remember a state, without its logs, as complete."""
        version = self.own_version(look) if version is None else version
        known = self.memory.settled.get(look.name)
        if known is not None and self._is_same(known.version, version):
            if known.evidence == "quiet" and evidence != "quiet":
                self.memory.settled[look.name] = Settled(known.version, evidence)
                self.has_news = True
            return
        if not self.is_new(look) or not self._may_be_complete(look):
            return
        if known is not None and not {*known.version} <= {*version}:
            self.memory.repeated.add(look.name)
        self.save_seconds = self._seconds_to_write(look.name, version)
        self.memory.settled[look.name] = Settled(version, evidence)
        self.has_news = True

    def _seconds_to_write(self, name: str, version: Version) -> float:
        """Return the time between the first and the last change of a checkpoint's new files (s)."""
        settled, before = self.memory.settled.get(name), (self.memory.before or {}).get(name)
        known = {*(settled.version if settled else ()), *(before or ())}
        times = [entry[1].written_at for entry in self._strip(version) if entry not in known]
        return (max(times) - min(times)) / 1e9 if times else 0.0

    def _is_same(self, one: Version, other: Version) -> bool:
        return one == other or self._strip(one) == self._strip(other)

    def _strip(self, version: Version) -> Version:
        if not self._logs:
            return version
        return tuple(entry for entry in version if entry[0] not in self._logs)


@cache
def _without_numbers(path: str) -> str:
    return re.sub(r"\d+", "", path)
