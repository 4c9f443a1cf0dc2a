"""Keep the states that are set aside: the newest complete one, and one that may turn out to be complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from cloudspot.agent.delivery.checkpoint_states import Memory, Sent, State, Version


class Kept(Protocol):
    """A state whose files are set aside."""

    state: State

    def drop(self) -> None:
        """Delete the files."""


K = TypeVar("K", bound=Kept)


class CheckpointShelf(Generic[K]):
    """Chooses which states are set aside and which is uploaded next; the caller holds a lock."""

    def __init__(self, take: Callable[[State], K | None], holds: Callable[[K], bool], memory: Memory) -> None:
        """Create an empty shelf.

        ``take`` sets a state aside if it can; ``holds`` returns whether the files set aside are still
        unchanged.
        """
        self._take = take
        self._memory = memory
        self._holds = holds
        self.ready: K | None = None
        """The newest complete state that is not in the store."""
        self._maybe: K | None = None
        """The newest state that may be proved complete when the next save begins."""
        self._uploading: K | None = None
        self._known: set[State] = set()
        """The states that are in the store or were abandoned."""
        self._doubted: State | None = None
        """The state that was last recorded as doubtful."""

    def begin(self, known: Iterable[State]) -> None:
        """Record that a script is about to start, and which of its states the store has."""
        self._known.update(known)
        self._memory.last_sent = None

    def look(self, proved: Iterable[State], complete: Sequence[State], candidate: State | None) -> None:
        """Set aside the new states found by a look; the arguments are results of ``CheckpointWatch``."""
        for state in proved:
            self._confirm(state)
            self._promote(state)
        if complete and self._is_wanted(complete[-1]):
            self._promote(complete[-1])
            if self._is_wanted(complete[-1]) and (kept := self._take(complete[-1])) is not None:
                self._make_ready(kept)
        is_held = candidate is not None and self._maybe is not None and self._maybe.state == candidate
        if candidate is not None and not is_held and self._is_wanted(candidate):
            if self._maybe is not None:
                self._maybe.drop()
            self._maybe = self._take(candidate)

    def begin_upload(self, state: State | None = None) -> K | None:
        """Return the files to upload next, by default the waiting state's; call ``end_upload`` afterwards.

        ``state`` must be complete. Return None if no state waits or the state's files have changed.
        """
        if state is None or (self.ready is not None and self.ready.state == state):
            self._uploading, self.ready = self.ready, None
        else:
            self._uploading = self._take(state)
        kept = self._uploading
        if kept is not None and kept.state.evidence == "quiet" and kept.state != self._doubted:
            self._doubted = kept.state
            # Record it before the commit, because a later agent may have to know of that commit.
            self._memory.doubtful.append(_sent(kept.state))
        return kept

    def end_upload(self, *, is_to_repeat: bool) -> None:
        """Drop the uploaded state, or let it wait again if it must be repeated and no newer state waits."""
        kept, self._uploading = self._uploading, None
        if kept is not None and is_to_repeat and self.ready is None:
            self.ready = kept
        elif kept is not None:
            kept.drop()

    def note_commit(self, state: State) -> None:
        """Record that a state is in the store or was abandoned."""
        self._known.add(state)
        self._memory.last_sent = _sent(state)
        if state.evidence != "quiet":
            self._memory.doubtful = []

    def num_doubtful(self, was_confirmed: Callable[[str, Version], bool]) -> int:
        """Return how many of the newest commits may be torn; one more older commit is kept for each."""
        doubtful = self._memory.doubtful
        confirmed = [number for number, one in enumerate(doubtful, 1) if was_confirmed(one.name, one.version)]
        del doubtful[: max(confirmed, default=0)]
        return len(doubtful)

    def _is_wanted(self, state: State) -> bool:
        """Return whether a state is new and no older than the waiting states and the last commit."""
        waiting = [one.state for one in (self.ready, self._uploading) if one is not None]
        if (sent := self._memory.last_sent) is not None:  # no older state is committed after it
            waiting.append(State(sent.name, sent.step, sent.version))
        return state not in (*waiting, *self._known) and all(one.order <= state.order for one in waiting)

    def _confirm(self, state: State) -> None:
        """Record now that a state is proved by more than quiet; soon the watch knows only its successor."""
        self.num_doubtful(lambda name, version: (name, version) == (state.name, state.version))
        for kept in (self.ready, self._uploading):
            if kept is not None and kept.state == state:
                kept.state = state

    def _promote(self, state: State) -> None:
        """Let a state that was set aside as perhaps complete wait to be uploaded."""
        kept = self._maybe
        if kept is None or kept.state != state:
            return
        self._maybe = None
        if self._is_wanted(state) and self._holds(kept):
            kept.state = state
            self._make_ready(kept)
        else:
            kept.drop()

    def _make_ready(self, kept: K) -> None:
        if self.ready is not None:
            self.ready.drop()
        self.ready = kept


def _sent(state: State) -> Sent:
    return Sent(state.name, state.step, state.version)
