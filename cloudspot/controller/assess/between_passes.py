"""What a driver that only passes by leaves to the next one: silences, absences, and what has ended."""

from __future__ import annotations

from cloudspot.controller.assess.memory import Memory
from cloudspot.controller.clock import Clock
from cloudspot.errors import TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.jobs.job_lists import mark_live
from cloudspot.jobstore.jobs.suspicions import (
    delete_suspicions,
    last_written,
    read_suspicions,
    write_suspicions,
)
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Suspicions


class BetweenPasses:
    """One controller's part: it reads once, before its first look, and leaves what its first pass saw.

    After that its own memory is better. What it has left only grows old, and no reader counts more for that.
    """

    def __init__(self, store: ObjectStore, job_id: str, *, memory: Memory, clock: Clock) -> None:
        self._store = store
        self._job_id = job_id
        self._memory = memory
        self._clock = clock
        self.is_wanted = True
        """What earlier passes left has yet to be read."""
        self._has_left = False
        self._stands: Suspicions | None = None
        self._warned: frozenset[str] = frozenset()

    def take(self) -> str | None:
        """Read what earlier passes have left; return what went wrong, if anything, to be tried again."""
        try:
            stored = read_suspicions(self._store, self._job_id)
            now = None
            if stored is not None and stored[0].endings:
                # Only a write tells what the store's clock shows now.
                write_suspicions(self._store, self._job_id, stored[0])
                now = last_written(self._store, self._job_id)
        except TransientError as error:
            return str(error)
        self.is_wanted = False
        if stored is not None:
            self._stands, written = stored
            self._memory.note_suspicions(self._stands, written, self._clock.monotonic())
            self._memory.note_endings(self._stands, written, now or written)
        return None

    def leave(self, history: History) -> str | None:
        """Leave what this pass has seen, or take back what is no longer true; return what went wrong.

        A job in which all is well costs no request. What could not be read is not overwritten.
        """
        if self.is_wanted:
            return None
        suspicions = self._memory.suspicions(history, self._clock.now())
        try:
            if suspicions is None and self._stands is not None:
                delete_suspicions(self._store, self._job_id)
                self._stands = None
            elif suspicions is not None and not self._has_left:
                write_suspicions(self._store, self._job_id, suspicions)
                self._stands = suspicions
                # In this order: a driver that settles the job meanwhile takes back its mark and then what was
                # left. If this came later, another pass has to look.
                mark_live(self._store, self._job_id, history.submission.writer)
        except TransientError as error:
            return str(error)
        self._has_left = True
        return None

    def new_problems(self, problems: list[str]) -> list[str]:
        """Return the problems of this pass that the one before did not have."""
        before, self._warned = self._warned, frozenset(problems)
        return [one for one in problems if one not in before]
