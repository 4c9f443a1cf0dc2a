"""What one controller remembers from look to look: absences, silences, ages, its own answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cloudspot.controller.observed import CreateFailure, Observed
from cloudspot.jobstore.history import History
from cloudspot.model import Instance, Offer

MAX_GAP_SECONDS = 120.0
"""What may count between two looks: a controller that slept for an hour has not watched for an hour."""


@dataclass
class _Timer:
    """Adds up the time between looks that followed each other without a failure."""

    last: float | None = None

    def step(self, monotonic: float) -> float:
        """Return how much time this look adds, and remember it."""
        gap = 0.0 if self.last is None else min(max(0.0, monotonic - self.last), MAX_GAP_SECONDS)
        self.last = monotonic
        return gap

    def fail(self) -> None:
        """Forget the last look: what follows is not counted from it."""
        self.last = None


@dataclass
class Memory:
    """A controller's own past. Losing it costs patience, never safety."""

    _listing: _Timer = field(default_factory=_Timer)
    _reading: _Timer = field(default_factory=_Timer)
    _instances: tuple[Instance, ...] | None = None
    _known_since: dict[str, float] = field(default_factory=dict)
    _absent: dict[str, float] = field(default_factory=dict)
    _beats: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    _open_launch: int = 0
    _open_since: float = 0.0
    _created: tuple[Instance, ...] = ()
    _failure: CreateFailure | None = None

    def note_listing(self, instances: Sequence[Instance] | None, monotonic: float) -> None:
        """Take in a listing that was asked for at ``monotonic``; None: it failed."""
        if instances is None:
            self._instances = None
            self._listing.fail()
            return
        self._instances = tuple(instances)
        gap = self._listing.step(monotonic)
        for one in instances:
            self._known_since.setdefault(one.id, monotonic)
        present = {one.id for one in instances}
        for instance_id in self._known_since:
            if instance_id in present:
                self._absent.pop(instance_id, None)
            else:
                # The first look without it proves nothing of the time before.
                before = self._absent.get(instance_id)
                self._absent[instance_id] = 0.0 if before is None else before + gap

    def note_history(self, history: History | None, monotonic: float) -> None:
        """Take in the records that were asked for at ``monotonic``; None: reading failed."""
        if history is None:
            self._reading.fail()
            return
        gap = self._reading.step(monotonic)
        launch = history.open_launch
        number = 0 if launch is None else launch.number
        if number != self._open_launch:
            self._open_launch, self._open_since = number, monotonic
            self._created, self._failure = (), None
            self._beats.clear()
        if launch is None:
            return
        for rank, slot in launch.slots.items():
            if slot.instance_id is not None:
                self._known_since.setdefault(slot.instance_id, monotonic)
            beat = launch.heartbeats.get(rank)
            counter = 0 if beat is None else beat.counter
            last, silent = self._beats.get((number, rank), (None, 0.0))
            self._beats[number, rank] = (counter, silent + gap if last == counter else 0.0)

    def note_created(self, launch: int, instances: Sequence[Instance], monotonic: float) -> None:
        """Take in the answer of ``create``."""
        if launch == self._open_launch:
            self._created = tuple(instances)
            for one in instances:
                self._known_since.setdefault(one.id, monotonic)

    def note_failure(self, failure: CreateFailure) -> None:
        """Take in a definite refusal of ``create``."""
        if failure.launch == self._open_launch:
            self._failure = failure

    def observed(
        self,
        history: History,
        *,
        now: datetime,
        monotonic: float,
        token_seconds: float,
        absence_proves_after_seconds: float,
        offers: Sequence[Offer] | None = None,
    ) -> Observed:
        """Return what ``decide`` may know."""
        launch = history.open_launch
        age = 0.0
        if launch is not None:
            age = max((now - launch.intent.at).total_seconds(), monotonic - self._open_since)
        return Observed(
            instances=self._instances,
            created=self._created,
            absent_seconds=dict(self._absent),
            known_seconds={one: monotonic - since for one, since in self._known_since.items()},
            silent_seconds={key: silent for key, (_, silent) in self._beats.items()},
            token_age_seconds=age,
            token_seconds=token_seconds,
            absence_proves_after_seconds=absence_proves_after_seconds,
            offers=None if offers is None else tuple(offers),
            create_failure=self._failure,
        )
