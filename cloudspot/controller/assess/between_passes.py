"""The silences, absences and endings that a single pass of a driver hands on to the next pass."""

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
    """Reads earlier passes' notes before a controller's first look, and leaves notes after its first pass.

    Later, the controller's own memory is better than its notes. The notes may become outdated without harm,
    because no reader counts more time for that.
    """

    def __init__(self, store: ObjectStore, job_id: str, *, memory: Memory, clock: Clock) -> None:
        self._store = store
        self._job_id = job_id
        self._memory = memory
        self._clock = clock
        self.is_wanted = True
        """Whether the notes of earlier passes have yet to be read."""
        self._has_left = False
        self._stored: Suspicions | None = None
        self._warned: frozenset[str] = frozenset()

    def take(self) -> str | None:
        """Read the notes of earlier passes; return the problem (the caller may try again) or None."""
        try:
            stored = read_suspicions(self._store, self._job_id)
            now = None
            if stored is not None and stored[0].endings:
                # Only a write reveals the store's present time.
                write_suspicions(self._store, self._job_id, stored[0])
                now = last_written(self._store, self._job_id)
        except TransientError as error:
            return str(error)
        self.is_wanted = False
        if stored is not None:
            self._stored, written = stored
            self._memory.note_suspicions(self._stored, written, self._clock.monotonic())
            self._memory.note_endings(self._stored, written, now or written)
        return None

    def leave(self, history: History) -> str | None:
        """Write the notes of this pass, or delete notes that no longer hold; return the problem or None.

        A job without suspicions costs no request. Notes that could not be read are not overwritten.
        """
        if self.is_wanted:
            return None
        suspicions = self._memory.suspicions(history, self._clock.now())
        try:
            if suspicions is None and self._stored is not None:
                delete_suspicions(self._store, self._job_id)
                self._stored = None
            elif suspicions is not None and not self._has_left:
                write_suspicions(self._store, self._job_id, suspicions)
                self._stored = suspicions
                # The mark is written second, because a driver that settles the job meanwhile removes the mark
                # first and then the notes. If the notes are written after that, the mark makes another pass
                # look at the job.
                mark_live(self._store, self._job_id, history.submission.writer)
        except TransientError as error:
            return str(error)
        self._has_left = True
        return None

    def new_problems(self, problems: list[str]) -> list[str]:
        """Return the problems of this pass that the previous pass did not have."""
        before, self._warned = self._warned, frozenset(problems)
        return [one for one in problems if one not in before]
