"""A controller's memory from look to look, with the notes of earlier passes: absences, silences, endings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

import msgspec

from cloudspot.controller.assess.assessment import Assessment
from cloudspot.controller.assess.observed import ConsoleTail, CreateFailure, Observed, end_of, stop_of
from cloudspot.controller.assess.observed_duration import BEGUN, lengthened, looks_still
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import (
    Ending,
    KnownEnding,
    ObservedDuration,
    Seat,
    Suspect,
    Suspicions,
    new_nonce,
)
from cloudspot.jobstore.nodes.seats import seats_of
from cloudspot.market.knowledge import NOTHING_KNOWN, Knowledge
from cloudspot.model import Instance, InstanceState, Offer

MAX_GAP_SECONDS = 120.0
"""The most time that counts between two looks: a controller that slept for an hour has not watched."""


@dataclass
class _Timer:
    """Measures the time between consecutive successful looks."""

    last: float | None = None

    def step(self, asked: float, answered: float | None) -> float:
        """Return the least time that this look adds, and remember the look.

        The look may have seen any moment between ``asked`` and ``answered`` (None if they are the same). A
        process may be suspended in between, and must not count that time twice.
        """
        gap = 0.0 if self.last is None else min(max(0.0, asked - self.last), MAX_GAP_SECONDS)
        self.last = asked if answered is None else answered
        return gap

    def fail(self) -> None:
        """Forget the last look, so that nothing is counted from it."""
        self.last = None


@dataclass
class Memory:
    """A controller's memory of its own observations. Losing this memory costs patience, never safety."""

    _listing: _Timer = field(default_factory=_Timer)
    _reading: _Timer = field(default_factory=_Timer)
    _instances: tuple[Instance, ...] | None = None
    _machines: dict[str, Instance] = field(default_factory=dict)
    """Each machine as it was last listed or created."""
    _known_since: dict[str, float] = field(default_factory=dict)
    _absent: dict[str, float] = field(default_factory=dict)
    _beats: dict[Seat, tuple[int, float]] = field(default_factory=dict)
    _intents: dict[int, float] = field(default_factory=dict)
    """The time at which this controller first knew of each live launch (monotonic)."""
    _created: dict[int, tuple[Instance, ...]] = field(default_factory=dict)
    _failures: dict[int, CreateFailure] = field(default_factory=dict)
    _left_absent: dict[str, ObservedDuration] = field(default_factory=dict)
    _left_silent: dict[Seat, tuple[int, ObservedDuration]] = field(default_factory=dict)
    _ended: dict[Ending, float] = field(default_factory=dict)
    _left_ended: dict[Ending, ObservedDuration] = field(default_factory=dict)

    @property
    def instances(self) -> tuple[Instance, ...] | None:
        """Return the newest listing, with start times from earlier listings; None if it failed."""
        return self._instances

    def note_suspicions(self, left: Suspicions, moment: datetime, monotonic: float) -> None:
        """Accept the suspicions of earlier passes, up to ``moment`` of the store's clock.

        A suspicion counts only if a later look of this controller confirms it.
        """
        for suspect in left.suspects:
            if suspect.absent is not None:
                self._left_absent[suspect.instance_id] = lengthened(suspect.absent, moment)
                self._known_since.setdefault(suspect.instance_id, monotonic)
            if suspect.silent is not None:
                seen = lengthened(suspect.silent, moment)
                self._left_silent[suspect.seat] = (suspect.counter, seen)

    def note_endings(self, left: Suspicions, written: datetime, moment: datetime) -> None:
        """Accept how long earlier passes have known each ending.

        An ending is final, so the time counts up to ``moment`` of the store's clock, which is past.
        ``written`` is the moment passed to ``note_suspicions``.
        """
        for one in left.endings:
            self._left_ended[one.ending] = lengthened(lengthened(one.known, written), moment)

    def note_listing(
        self, instances: Sequence[Instance] | None, monotonic: float, *, answered: float | None = None
    ) -> None:
        """Accept a listing requested at ``monotonic`` and received at ``answered``; None if it failed."""
        if instances is None:
            self._instances = None
            self._listing.fail()
            return
        self._instances = tuple(self._with_its_start(instance) for instance in instances)
        gap = self._listing.step(monotonic, answered)
        for instance in self._instances:
            self._known_since.setdefault(instance.id, monotonic)
            self._machines[instance.id] = instance
        present = {instance.id for instance in instances}
        for instance_id in self._known_since:
            if instance_id in present:
                self._absent.pop(instance_id, None)
                self._left_absent.pop(instance_id, None)
            elif instance_id in self._absent:
                self._absent[instance_id] += gap
            else:
                # The first look without the machine proves nothing about the time before.
                self._absent[instance_id] = self._left_absent.get(instance_id, BEGUN).seconds

    def _with_its_start(self, instance: Instance) -> Instance:
        """Return the machine with an earlier listing's start time, which some providers drop at the end."""
        known = self._machines.get(instance.id)
        if known is None or instance.launched_at is not None:
            return instance
        return msgspec.structs.replace(instance, launched_at=known.launched_at)

    def note_history(
        self, history: History | None, monotonic: float, *, answered: float | None = None
    ) -> None:
        """Accept records requested at ``monotonic`` and read by ``answered``; None if that failed."""
        if history is None:
            self._reading.fail()
            return
        gap = self._reading.step(monotonic, answered)
        for ending in self._endings(history):
            if ending in self._ended:
                self._ended[ending] += gap
            else:
                self._ended[ending] = self._left_ended.get(ending, BEGUN).seconds
        unsettled = [launch for launch in history.launches if not launch.is_settled]
        for machine in (one for launch in unsettled for slot in launch.slots.values() for one in slot.owed):
            self._known_since.setdefault(machine, monotonic)
        live = {launch.number: launch for launch in history.live_launches}
        self._intents = {number: self._intents.get(number, monotonic) for number in live}
        self._created = {number: found for number, found in self._created.items() if number in live}
        self._failures = {number: found for number, found in self._failures.items() if number in live}
        beats: dict[Seat, tuple[int, float]] = {}
        for launch in live.values():
            for rank in set(launch.live_ranks) & launch.claimed.keys():
                seat = Seat(launch.number, rank)
                beat = launch.heartbeats.get(rank)
                counter = 0 if beat is None else beat.counter
                beats[seat] = (counter, self._silent_seconds(seat, counter, gap))
        self._beats = beats

    def _endings(self, history: History) -> list[Ending]:
        """Return the endings, by the newest listing and these records, that may have machines left."""
        endings = [] if history.stop is None else [stop_of(history)]
        endings += [] if history.finished is None else [end_of(history)]
        excluded = seats_of(history.launches, history.generations).excluded
        listed = {one.id for one in self._instances or () if one.state is not InstanceState.ENDED}
        for launch in history.launches:
            for rank, slot in launch.claimed.items():
                seat = Seat(launch.number, rank)
                if launch.is_settled and slot.instance_id not in listed:
                    continue
                if launch.is_over(rank) or self._has_ended(slot.instance_id):
                    endings.append(Ending("over", seat))
                elif seat in excluded:
                    endings.append(Ending("excluded", seat))
        return endings

    def _silent_seconds(self, seat: Seat, counter: int, gap: float) -> float:
        left_counter, left = self._left_silent.get(seat, (counter, BEGUN))
        if left_counter != counter:
            left = BEGUN
            del self._left_silent[seat]
        if seat not in self._beats:
            return left.seconds
        last, silent = self._beats[seat]
        return silent + gap if last == counter else 0.0

    def note_created(self, launch: int, instances: Sequence[Instance], monotonic: float) -> None:
        """Accept the answer of ``create``."""
        self._created[launch] = tuple(instances)
        for one in instances:
            self._known_since.setdefault(one.id, monotonic)
            self._machines.setdefault(one.id, one)

    def note_failure(self, failure: CreateFailure) -> None:
        """Accept a definite refusal of ``create``."""
        self._failures[failure.launch] = failure

    def observed(
        self,
        assessed: Assessment,
        *,
        monotonic: float,
        token_seconds: float,
        absence_proves_after_seconds: float,
        offers: Sequence[Offer] | None = None,
        offers_seconds: float = math.inf,
        knowledge: Knowledge = NOTHING_KNOWN,
        console_tails: Mapping[str, ConsoleTail] = MappingProxyType({}),
        prices: Mapping[int, float] | None = None,
    ) -> Observed:
        """Return the input of ``decide``."""
        now = assessed.now
        intents = {launch.number: launch.intent.at for launch in assessed.history.live_launches}
        return Observed(
            instances=self._instances,
            created=dict(self._created),
            vanished=tuple(one for key, one in sorted(self._machines.items()) if key in self._absent),
            absent_seconds=dict(self._absent),
            known_seconds={one: monotonic - since for one, since in self._known_since.items()},
            silent_seconds={key: silent for key, (_, silent) in self._beats.items()},
            ending_seconds=dict(self._ended),
            intent_seconds={
                number: max((now - at).total_seconds(), monotonic - self._intents.get(number, monotonic))
                for number, at in intents.items()
            },
            token_seconds=token_seconds,
            absence_proves_after_seconds=absence_proves_after_seconds,
            offers=None if offers is None else tuple(offers),
            offers_seconds=offers_seconds,
            knowledge=knowledge,
            prices=dict(prices or {}),
            create_failures=dict(self._failures),
            console_tails=dict(console_tails),
        )

    def suspicions(self, history: History, now: datetime) -> Suspicions | None:
        """Return the notes for the next pass, or None if there is nothing to note.

        Notes left for this pass are left again as they were read. The notes do not include the time that this
        controller has added, because the next pass counts that from the time of the write.
        """
        suspects = tuple(one for launch in history.live_launches for one in self._suspects(launch, now))
        endings = tuple(
            KnownEnding(ending=one, known=self._left_ended.get(one, BEGUN))
            for one in self._endings(history)
            if self._is_paid_for(one)
        )
        if not suspects and not endings:
            return None
        return Suspicions(
            suspects=suspects,
            endings=endings,
            at=now,
            writer=new_nonce(),
        )

    def _suspects(self, launch: LaunchHistory, now: datetime) -> Iterator[Suspect]:
        for rank, slot in launch.claimed.items():
            owner, seat = slot.instance_id, Seat(launch.number, rank)
            if owner is None or launch.is_over(rank):
                continue
            silent, absent = self._still(launch, rank, now), self._missing(owner)
            if self._has_ended(owner) or (silent is None and absent is None):
                continue
            counter, _ = self._beats[seat]
            yield Suspect(seat=seat, instance_id=owner, counter=counter, silent=silent, absent=absent)

    def _is_paid_for(self, ending: Ending) -> bool:
        """Return whether a machine of the ending may still cost money, as some do after a shutdown."""
        if self._instances is None:
            return ending in self._left_ended
        return any(
            one.state is not InstanceState.ENDED and (ending.seat is None or ending.seat.launch == one.launch)
            for one in self._instances
        )

    def _has_ended(self, instance_id: str | None) -> bool:
        listed = self._instances or ()
        return any(one.id == instance_id and one.state is InstanceState.ENDED for one in listed)

    def _missing(self, instance_id: str) -> ObservedDuration | None:
        left = self._left_absent.get(instance_id)
        if self._instances is None:
            # The listing failed, so the time around this pass does not count.
            return None if left is None else ObservedDuration(seconds=left.seconds, until=None)
        if any(one.id == instance_id for one in self._instances):
            return None
        # The machine may have appeared between the listing and the reading of the records. A late machine
        # does no harm: time counts only from the write on, and by then the machine is known.
        return left or BEGUN

    def _still(self, launch: LaunchHistory, rank: int, now: datetime) -> ObservedDuration | None:
        left = self._left_silent.get(Seat(launch.number, rank))
        if left is not None:
            return left[1]
        beat = launch.heartbeats.get(rank)
        return BEGUN if looks_still(launch.slots[rank].at if beat is None else beat.at, now) else None
