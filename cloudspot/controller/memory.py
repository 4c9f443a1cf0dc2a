"""What one controller remembers from look to look, or was left by others: absences, silences, endings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cloudspot.controller.lasting import BEGUN, lengthened, looks_still
from cloudspot.controller.observed import CreateFailure, Observed, stop_of
from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import Ending, KnownEnding, Lasting, Suspect, Suspicions, new_nonce
from cloudspot.model import Instance, InstanceState, Offer
from cloudspot.story.outcomes import own_exit

MAX_GAP_SECONDS = 120.0
"""The most that counts between two looks: a controller that slept for an hour has not watched for one."""


@dataclass
class _Timer:
    """Adds up the time between looks that succeeded one after the other."""

    last: float | None = None

    def step(self, monotonic: float) -> float:
        """Return how much time this look adds, and remember it."""
        gap = 0.0 if self.last is None else min(max(0.0, monotonic - self.last), MAX_GAP_SECONDS)
        self.last = monotonic
        return gap

    def fail(self) -> None:
        """Forget the last look, so that nothing is counted from it."""
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
    _left_absent: dict[str, Lasting] = field(default_factory=dict)
    _left_silent: dict[tuple[int, int], tuple[int, Lasting]] = field(default_factory=dict)
    _ended: dict[Ending, float] = field(default_factory=dict)
    _left_ended: dict[Ending, Lasting] = field(default_factory=dict)

    def note_suspicions(self, left: Suspicions, moment: datetime, monotonic: float) -> None:
        """Take in what earlier passes have seen, up to ``moment`` of the store's clock.

        It counts only for what a look from now on sees as well.
        """
        for one in left.suspects:
            if one.absent is not None:
                self._left_absent[one.instance_id] = lengthened(one.absent, moment)
                self._known_since.setdefault(one.instance_id, monotonic)
            if one.silent is not None:
                seen = lengthened(one.silent, moment)
                self._left_silent[left.launch, one.rank] = (one.counter, seen)

    def note_endings(self, left: Suspicions, written: datetime, moment: datetime) -> None:
        """Take in for how long earlier passes have known what has ended.

        No ending is ever taken back, so it counts up to this pass: to ``moment`` of the store's clock, which
        is past. ``written`` is the moment that ``note_suspicions`` takes.
        """
        for one in left.endings:
            self._left_ended[one.ending] = lengthened(lengthened(one.known, written), moment)

    def note_listing(self, instances: Sequence[Instance] | None, monotonic: float) -> None:
        """Take in a listing that was requested at ``monotonic``; None: it failed."""
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
                self._left_absent.pop(instance_id, None)
            elif instance_id in self._absent:
                self._absent[instance_id] += gap
            else:
                # The first look without it proves nothing about the time before.
                self._absent[instance_id] = self._left_absent.get(instance_id, BEGUN).seconds

    def note_history(self, history: History | None, monotonic: float) -> None:
        """Take in the records that were requested at ``monotonic``; None: reading failed."""
        if history is None:
            self._reading.fail()
            return
        gap = self._reading.step(monotonic)
        for ending in self._endings(history):
            if ending in self._ended:
                self._ended[ending] += gap
            else:
                self._ended[ending] = self._left_ended.get(ending, BEGUN).seconds
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
            self._beats[number, rank] = (counter, self._silent_seconds((number, rank), counter, gap))

    def _endings(self, history: History) -> list[Ending]:
        """Return what has ended, by the newest listing and these records."""
        endings = [Ending(one.number) for one in history.launches if one.closed is not None]
        launch = history.open_launch
        if launch is not None and launch.is_attempt:
            endings += [] if history.stop is None else [stop_of(history)]
            endings += [
                Ending(launch.number, rank)
                for rank, slot in launch.slots.items()
                if own_exit(launch, rank) is not None or self._has_ended(slot.instance_id)
            ]
        return endings

    def _silent_seconds(self, node: tuple[int, int], counter: int, gap: float) -> float:
        left_counter, left = self._left_silent.get(node, (counter, BEGUN))
        if left_counter != counter:
            left = BEGUN
            del self._left_silent[node]
        if node not in self._beats:
            return left.seconds
        last, silent = self._beats[node]
        return silent + gap if last == counter else 0.0

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
            ending_seconds=dict(self._ended),
            token_age_seconds=age,
            token_seconds=token_seconds,
            absence_proves_after_seconds=absence_proves_after_seconds,
            offers=None if offers is None else tuple(offers),
            create_failure=self._failure,
        )

    def suspicions(self, history: History, now: datetime) -> Suspicions | None:
        """Return what to leave for the next pass; None: nothing.

        What was left for this pass is left again as it was read. What this controller has added since is not
        in it: the next pass counts it from the time of the write.
        """
        launch = history.open_launch
        suspects = () if launch is None else self._suspects(launch, now)
        endings = tuple(
            KnownEnding(ending=one, known=self._left_ended.get(one, BEGUN))
            for one in self._endings(history)
            if self._may_run(one)
        )
        if not suspects and not endings:
            return None
        return Suspicions(
            launch=0 if launch is None else launch.number,
            suspects=suspects,
            endings=endings,
            at=now,
            writer=new_nonce(),
        )

    def _suspects(self, launch: LaunchHistory, now: datetime) -> tuple[Suspect, ...]:
        suspects = []
        for rank, slot in sorted(launch.slots.items()):
            owner = slot.instance_id
            if owner is None or own_exit(launch, rank) is not None:
                continue
            silent, absent = self._still(launch, rank, now), self._missing(owner)
            if self._has_ended(owner) or (silent is None and absent is None):
                continue
            counter, _ = self._beats[launch.number, rank]
            suspects.append(
                Suspect(rank=rank, instance_id=owner, counter=counter, silent=silent, absent=absent)
            )
        return tuple(suspects)

    def _may_run(self, ending: Ending) -> bool:
        """Return whether a machine of the ending may run on; one that shuts down is as good as gone."""
        if self._instances is None:
            return ending in self._left_ended
        return any(
            one.state in {InstanceState.PENDING, InstanceState.RUNNING}
            and ending.launch in {None, one.launch}
            for one in self._instances
        )

    def _has_ended(self, instance_id: str | None) -> bool:
        listed = self._instances or ()
        return any(one.id == instance_id and one.state is InstanceState.ENDED for one in listed)

    def _missing(self, instance_id: str) -> Lasting | None:
        left = self._left_absent.get(instance_id)
        if self._instances is None:
            # Nothing was listed, so nothing was seen: the time around this pass does not count.
            return None if left is None else Lasting(seconds=left.seconds, until=None)
        if any(one.id == instance_id for one in self._instances):
            return None
        # The machine may have come between the listing and the reading of the records. No harm: nothing
        # counts that was before the write, and by then it is known.
        return left or BEGUN

    def _still(self, launch: LaunchHistory, rank: int, now: datetime) -> Lasting | None:
        left = self._left_silent.get((launch.number, rank))
        if left is not None:
            return left[1]
        beat = launch.heartbeats.get(rank)
        return BEGUN if looks_still(launch.slots[rank].at if beat is None else beat.at, now) else None
