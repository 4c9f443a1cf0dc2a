"""From pass to pass: the silences and absences that a driver which comes by leaves to the next one."""

from __future__ import annotations

from cloudspot.controller.clock import Clock
from cloudspot.controller.memory import Memory
from cloudspot.errors import TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.history import History
from cloudspot.jobstore.records import Suspicions
from cloudspot.jobstore.suspicions import delete_suspicions, last_written, read_suspicions, write_suspicions


class Handover:
    """One controller's part in it: asks once, before its first look, and leaves what its first pass saw.

    From then on its own memory counts, and what it has left only ages: a reader counts no more for that.
    """

    def __init__(self, store: ObjectStore, job_id: str, *, memory: Memory, clock: Clock) -> None:
        self._store = store
        self._job_id = job_id
        self._memory = memory
        self._clock = clock
        self._has_asked = False
        self._has_left = False
        self._stands: Suspicions | None = None
        self._warned: frozenset[str] = frozenset()

    @property
    def is_wanted(self) -> bool:
        """Say whether nothing has been asked for yet."""
        return not self._has_asked

    def take(self) -> str | None:
        """Take in what earlier passes have left; return what went wrong, and it is asked for again."""
        try:
            found = read_suspicions(self._store, self._job_id)
            now = None
            if found is not None and found[0].endings:
                # Only a write tells what the store's clock shows now.
                write_suspicions(self._store, self._job_id, found[0])
                now = last_written(self._store, self._job_id)
        except TransientError as error:
            return str(error)
        self._has_asked = True
        if found is not None:
            self._stands, written = found
            self._memory.note_suspicions(self._stands, written, self._clock.monotonic())
            self._memory.note_endings(self._stands, written, now or written)
        return None

    def leave(self, history: History) -> str | None:
        """Leave what is under suspicion, or take back what no longer is; return what went wrong.

        A job of which nothing is suspected, and was not, costs no request. Who could not read what stands
        there writes nothing over it.
        """
        if not self._has_asked:
            return None
        suspicions = self._memory.suspicions(history, self._clock.now())
        try:
            if suspicions is None and self._stands is not None:
                delete_suspicions(self._store, self._job_id)
                self._stands = None
            elif suspicions is not None and not self._has_left:
                write_suspicions(self._store, self._job_id, suspicions)
                self._stands = suspicions
        except TransientError as error:
            return str(error)
        self._has_left = True
        return None

    def news_of(self, problems: list[str]) -> list[str]:
        """Return the problems of this pass that the one before did not have."""
        before, self._warned = self._warned, frozenset(problems)
        return [one for one in problems if one not in before]
