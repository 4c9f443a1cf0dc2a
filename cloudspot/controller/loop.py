"""The loop around ``decide``: observe, decide, act. The loop may be killed between any two calls."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from cloudspot.calls import InstancesRequest, OffersRequest
from cloudspot.calls.retrying import doubled
from cloudspot.controller.act import Actor
from cloudspot.controller.actions import (
    Action,
    Announce,
    Append,
    Certify,
    Create,
    FetchOffers,
    OpenLaunch,
    Postpone,
    Terminate,
)
from cloudspot.controller.assess.assessment import Assessment
from cloudspot.controller.assess.between_passes import BetweenPasses
from cloudspot.controller.assess.consoles import Consoles
from cloudspot.controller.assess.memory import Memory
from cloudspot.controller.clock import Clock, clock_by
from cloudspot.controller.decide import decide
from cloudspot.controller.driver_tasks import DriverTasks
from cloudspot.controller.notifications import Notifications
from cloudspot.controller.outbox import Outbox
from cloudspot.controller.ownership import check_adopted, is_ours, store_label
from cloudspot.controller.supply.experience import Experience, leave_experience, read_experience
from cloudspot.decoding import Price, convert
from cloudspot.errors import CloudspotError, JobResumed, PluginFault, TransientError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.jobs.job_lists import resumed_writer, unmark_live
from cloudspot.jobstore.jobs.reader import HistoryReader, write_summary
from cloudspot.jobstore.jobs.suspicions import delete_suspicions
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Kept, Summary
from cloudspot.jobstore.nodes.settled_launches import settled_launches, write_settled
from cloudspot.market.knowledge import NOTHING_KNOWN, Knowledge
from cloudspot.model import Capability, Instance, InstanceState, Market, Offer
from cloudspot.story.events import Event, EventKind, diff
from cloudspot.story.market_seen import market_seen
from cloudspot.story.report import summarise

POLL_SECONDS = 3.0
MAX_GLANCES = 5
"""After this many looks at the nodes alone, the journal and the certificates are read as well. The same
records are also read before every action.
"""
NODES_PER_POLL_SECOND = 12.5
"""The number of nodes for each second between two looks, because a look at many nodes takes many requests."""
MAX_BACKOFF_SECONDS = 30.0
"""The longest wait between two looks while the store or the provider does not answer."""
PRICE_SECONDS = 600.0
"""The time after which the provider is asked again for the prices of running launches."""
SUMMARY_SECONDS = 15.0
"""The minimum time between two writes of the summary; its last version is always written."""
SUMMARY_REFRESH_SECONDS = 20.0
"""An unchanged summary is written again after this long, so that its time shows ``ps`` that the job is
driven.
"""
OLD_SECONDS = 5.0
"""An assessment older than this is brought up to date before a decision."""
COPY_SECONDS = 60.0
"""The least time between two copies of settled launches, except for the last copy."""
END_LIMIT_SECONDS = 300.0
"""The time for which the loop of a finished job waits for the end of its machines."""
MAX_TICKS_A_PASS = 50


@dataclass(frozen=True, kw_only=True)
class Tick:
    """The result of one look."""

    history: History | None
    """The records at the start of the tick; None if the store did not answer."""
    instances: tuple[Instance, ...] | None
    """The job's machines; None if the provider did not answer."""
    actions: tuple[Action, ...] = ()
    """The decided actions, which are carried out up to the first that fails or comes too late."""
    events: tuple[Event, ...] = ()
    """The events since this controller's previous tick."""
    kept: Kept | None = None
    """The node whose machine is kept for inspection."""
    problems: tuple[str, ...] = ()
    """The requests that failed; the next tick repeats them."""
    acted: bool = False
    """Whether a record or machine was changed, so that the next tick should follow without a wait."""

    @property
    def is_settled(self) -> bool:
        """Whether the job is finished and cleaned up, and all its machines have ended, kept ones included."""
        return (
            self.history is not None
            and self.history.finished is not None
            and not self.history.live_launches
            and self.kept is None
            and self.instances is not None
            and not self.problems
            and all(one.state is InstanceState.ENDED for one in self.instances)
            # Another tick must read, count and copy the certificates that were just written.
            and not any(isinstance(action, Certify) for action in self.actions)
        )

    @property
    def unproven(self) -> tuple[str, ...]:
        """The machines that have not provably ended, in the order of their ids."""
        launches = () if self.history is None else self.history.launches
        return tuple(sorted(one for launch in launches for one in launch.unproven))


@dataclass
class Driver:
    """The state that the controllers of one process share."""

    name: str = ""
    """The driver's name as shown to people; empty if none is shown."""
    outbox: Outbox = field(default_factory=Outbox)
    experiences: dict[str, Experience] = field(default_factory=dict)
    """Earlier jobs' experience of the spot market, by provider; read when first needed."""


@dataclass(frozen=True)
class _Listing:
    """A provider's listing, with the times of its request and its receipt (monotonic)."""

    asked: float
    answered: float
    instances: tuple[Instance, ...] | None


@dataclass(frozen=True)
class _Price:
    per_hour: float | None
    """The price, or None if the provider does not report it."""
    asked_at: float
    """Monotonic."""
    num_written: int
    """The number of the launch's prices that were in the journal at that time."""


class Controller:
    """One controller of one job; any number of them may run at once, anywhere.

    A controller's memory only shortens waits: it may be killed between any two calls, and another controller
    continues. A controller that makes a single pass leaves its observations to the next pass. For one thread
    at a time.
    """

    def __init__(
        self,
        store: ObjectStore,
        job_id: str,
        provider: Provider,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        reader: HistoryReader | None = None,
        opened_for: str | None = None,
        known: History | None = None,
        driver: Driver | None = None,
    ) -> None:
        """Report only events newer than ``known``; if that is None, report all.

        ``driver`` is shared by the controllers of one process; None makes one for this controller alone.
        """
        self._store = with_retries(store, sleep=sleep)
        self._job_id = job_id
        self._driver = driver = driver or Driver()
        self._label = store_label(store)
        self._provider = provider
        self._provisioner = provider.provisioner()
        self._clock = clock = clock or clock_by(self._store)
        self._sleep = sleep
        self._reader = reader or HistoryReader(self._store, job_id)
        self._submission_sha256 = opened_for
        """The hash of the submission for which the provider was opened; None until one is read."""
        self._memory = Memory()
        has_consoles = Capability.CONSOLE in provider.capabilities
        self._consoles = Consoles(self._provisioner, has_consoles=has_consoles)
        self._actor = Actor(
            self._store, self._reader.journal, job_id, provider, memory=self._memory, clock=clock
        )
        self._notifications = Notifications(self._store, job_id, driver.outbox, clock=clock)
        self._tasks = DriverTasks(self._store, job_id, driver.outbox, clock=clock)
        self._between_passes = BetweenPasses(self._store, job_id, memory=self._memory, clock=clock)
        self._spec: JobSpec | None = None
        self._num_glances = 0
        """The number of glances since all records were read."""
        self._is_quiet = False
        """Whether the last look found nothing to do and the same machines as before."""
        self._seen: tuple[Instance, ...] | None = None
        self._prices: dict[int, _Price] = {}
        """By launch, the last answer of the provider."""
        self._offers_at = -math.inf
        """The time at which the provider was last asked for offers (monotonic)."""
        self._settled_with: tuple[str, ...] | None = None
        """The machines that had not provably ended when the job was last settled; a change settles it again.
        """
        self._experience_problem: str | None = None
        self._last = known
        self._summary: tuple[Summary, float] | None = None
        self._copied: tuple[int, float] | None = None
        """The number of settled launches in the last copy, and its time (monotonic)."""
        self._warned: frozenset[str] = frozenset()
        self._clock_warning = ""

    @property
    def provider_name(self) -> str:
        """The provider's name."""
        return self._provider.name

    @property
    def poll_seconds(self) -> float:
        """The time to wait between two looks."""
        num_nodes = 1 if self._spec is None else self._spec.nodes.max
        return max(POLL_SECONDS, num_nodes / NODES_PER_POLL_SECOND)

    def tick(self) -> Tick:
        """Look once, and carry out the actions that are due now.

        Raises:
            JobNotFound: the store holds no such job.
            AuthError: a permission is missing, so all other requests would fail, too.
            CorruptData: a record is malformed.
            JobResumed: the job was resumed with another submission, so its provider may be another one.
            NotAdopted: the job would run on this computer, where nobody submitted or adopted it.
        """
        problems: list[str] = []
        events: list[Event] = []
        actions: tuple[Action, ...] = ()
        acted = False
        assessed = self._look(problems)
        if assessed is not None:
            history, is_finished = assessed.history, assessed.history.finished is not None
            events += self._clock_warnings()
            events += diff(self._last, history)
            self._last = history
            self._read_consoles(assessed, events)
            for launch in self._old_prices(history):
                self._fetch_price(launch, problems)
            assessed = self._up_to_date(assessed)
            actions = self._decide(assessed, None)
            if any(isinstance(action, FetchOffers) for action in actions):
                offers = self._fetch_offers(assessed.spec, problems)
                self._read_experience(events)
                if offers is not None:
                    assessed = self._up_to_date(assessed)
                    actions = self._decide(assessed, offers)
            if is_finished:
                # The actions delete the secrets, which the notify URLs may contain.
                self._notifications.notify(assessed, events)
            acted = self._act(actions, assessed, events, problems)
            if not is_finished:
                self._notifications.notify(assessed, events)
            self._tasks.look(self._reader.task_times, is_over=is_finished)
            self._write_summary(assessed, problems)
            self._copy_settled(history, problems)
        instances = self._memory.instances
        self._is_quiet = not (acted or problems or events) and instances == self._seen
        self._seen = instances
        tick = Tick(
            history=None if assessed is None else assessed.history,
            instances=instances,
            actions=actions,
            kept=None if assessed is None else assessed.kept,
            events=tuple(events),
            problems=tuple(problems),
            acted=acted,
        )
        if not tick.is_settled:
            self._settled_with = None
        elif tick.unproven != self._settled_with:
            unproven = tick.unproven
            tick = self._unmark(self._leave_experience(tick))
            if not tick.problems:
                self._settled_with = unproven
        new_problems = [one for one in tick.problems if one not in self._warned]
        self._warned = frozenset(tick.problems)
        warned = tuple(Event(EventKind.WARNED, one) for one in new_problems)
        return dataclasses.replace(tick, events=(*tick.events, *warned))

    def run_until_finished(self, on_tick: Callable[[Tick], None] | None = None) -> History:
        """Tick until the job is finished and its machines have provably ended, or it is suspended.

        The wait includes a machine that is kept for inspection.

        Returns the job's records. A job that is suspended at the start is driven until it runs again, and
        beyond. ``on_tick`` is called after each tick. Raises as ``tick`` does; transient failures are retried
        with growing waits. A machine that has not ended within ``END_LIMIT_SECONDS`` is left to other
        drivers; for an unlisted machine, the time after which absence proves an end is added.
        """
        failures = 0
        finished_at: float | None = None
        was_suspended: bool | None = None
        while True:
            tick = self.tick()
            if on_tick is not None:
                on_tick(tick)
            if tick.history is not None:
                is_suspended = tick.history.suspended is not None
                if is_suspended and was_suspended is False:
                    return tick.history
                was_suspended = is_suspended
            if tick.history is not None and tick.history.finished is not None and tick.kept is None:
                monotonic = self._clock.monotonic()
                finished_at = monotonic if finished_at is None else finished_at
                is_over = tick.is_settled and not tick.unproven
                if is_over or monotonic - finished_at > self._end_limit_seconds(tick):
                    return tick.history
            failures = failures + 1 if tick.problems else 0
            if failures:
                self._sleep(doubled(self.poll_seconds, failures - 1, most=MAX_BACKOFF_SECONDS))
            elif not tick.acted:
                self._sleep(self.poll_seconds)

    def _end_limit_seconds(self, tick: Tick) -> float:
        listed = tick.instances
        if listed is None or any(one.state is not InstanceState.ENDED for one in listed):
            return END_LIMIT_SECONDS
        return END_LIMIT_SECONDS + self._provisioner.absence_proves_after_seconds

    def run_pass(self) -> Tick:
        """Tick until nothing is left to do for now; return the last tick, with the events of all ticks.

        A pass serves controllers that run only now and then, so it never sleeps. The first pass continues
        from the notes that earlier passes of any process left in the store, and leaves its own; later passes
        use this controller's memory. Raises as ``tick`` does.
        """
        problem: str | None = None
        events: list[Event] = []
        if self._between_passes.is_wanted:
            # The notes are read before the first look, because they count up to a moment before that look.
            problem = self._between_passes.take()
        for _ in range(MAX_TICKS_A_PASS):
            tick = self.tick()
            events += tick.events
            if tick.problems or not tick.acted:
                break
        if tick.history is not None:
            problem = self._between_passes.leave(tick.history) or problem
        problems = [] if problem is None else [problem]
        events += [Event(EventKind.WARNED, one) for one in self._between_passes.new_problems(problems)]
        return dataclasses.replace(tick, events=tuple(events), problems=(*tick.problems, *problems))

    def open_launch(self, action: OpenLaunch, history: History) -> bool:
        """Record a launch that a person requested; return False if another record came after ``history``.

        The next tick creates the launch's machines. Raises as ``tick`` does.
        """
        self._actor.act(action, self._assess(history), [])
        found = self._reader.read().launches[action.launch - 1 : action.launch]
        return any(
            launch.intent.offer == action.offer and launch.intent.why == action.why for launch in found
        )

    def _look(self, problems: list[str]) -> Assessment | None:
        """Return the present assessment of the job; None if the store did not answer."""
        listing = self._list_instances(problems)
        # The records are read after the listing, so that they include the intent of every listed machine.
        history = self._read_history(listing, problems)
        assessed = None if history is None else self._assess(history)
        if assessed is not None and self._num_glances and self._has_to_act(assessed):
            self._num_glances = MAX_GLANCES
            history = self._read_history(listing, problems)
            assessed = None if history is None else self._assess(history)
        return assessed

    def _read_experience(self, events: list[Event]) -> None:
        if self._provider.name not in self._driver.experiences:
            found = read_experience(self._store, self._provider.name)
            self._driver.experiences[self._provider.name] = found
            if found.problem:
                events.append(Event(EventKind.WARNED, found.problem))

    def _leave_experience(self, tick: Tick) -> Tick:
        """Keep the settled job's experience of the spot market for later jobs."""
        assert tick.history is not None, "a job is settled by its records"
        if all(launch.intent.offer.market is not Market.SPOT for launch in tick.history.launches):
            return tick
        problem = leave_experience(self._store, tick.history, self._provider.name, self._clock.now())
        warnings: tuple[Event, ...] = ()
        if problem is not None and problem != self._experience_problem:
            warnings = (Event(EventKind.WARNED, problem),)
        self._experience_problem = problem
        return dataclasses.replace(tick, events=(*tick.events, *warnings))

    def _unmark(self, tick: Tick) -> Tick:
        """Remove the settled job's mark; the job counts as settled only once the mark is removed.

        After that, no driver looks at the job, so the notes that passes have left are deleted too.
        """
        assert tick.history is not None, "a job is settled by its records"
        try:
            delete_suspicions(self._store, self._job_id)
            first = tick.history.first_submission.writer
            unmark_live(self._store, self._job_id, first)
            for number in range(1, tick.history.submission.resumption + 1):
                unmark_live(self._store, self._job_id, resumed_writer(first, number))
            # A pass that saw the last machine may have left notes in the meantime. A pass that leaves notes
            # later writes the mark again.
            delete_suspicions(self._store, self._job_id)
        except TransientError as error:
            return dataclasses.replace(tick, problems=(str(error),))
        return tick

    def _list_instances(self, problems: list[str]) -> _Listing:
        asked = self._clock.monotonic()
        try:
            # All stores are included, because a machine that has claimed a rank in our records is ours in any
            # case.
            found = self._provisioner.instances(InstancesRequest(job_id=self._job_id))
            return _Listing(asked, self._clock.monotonic(), found.instances)
        except (TransientError, PluginFault) as error:
            problems.append(str(error))
            return _Listing(asked, asked, None)

    def _read_history(self, listing: _Listing, problems: list[str]) -> History | None:
        """Return the job's records; add these, and the job's listed machines, to the memory."""
        asked = self._clock.monotonic()
        history: History | None = None
        try:
            self._clock.compare()  # so that no decision uses a wrong clock
            if self._is_quiet and self._num_glances < MAX_GLANCES:
                history = self._reader.glance(rereads=self._num_glances % 2 == 1)
            self._num_glances = 0 if history is None else self._num_glances + 1
            if history is None:
                history = self._reader.read()
        except TransientError as error:
            problems.append(str(error))
        answered = self._clock.monotonic()
        known = history or self._last
        instances = listing.instances
        if instances is not None:
            instances = tuple(
                one for one in instances if one.job_id == self._job_id and is_ours(one, self._label, known)
            )
        self._memory.note_listing(instances, listing.asked, answered=listing.answered)
        self._memory.note_history(history, asked, answered=answered)
        return history

    def _read_consoles(self, assessed: Assessment, events: list[Event]) -> None:
        """Read the consoles that are due, before a decision that may give up their machines."""
        while True:
            instance = self._consoles.next_due(
                assessed.history,
                assessed.instances or (),
                now=self._clock.now(),
                monotonic=self._clock.monotonic(),
            )
            if instance is None:
                return
            news = self._consoles.read(instance, monotonic=self._clock.monotonic())
            if news is not None:
                events.append(Event(EventKind.WARNED, news))

    def _has_to_act(self, assessed: Assessment) -> bool:
        """Return whether a glance shows a need to act or to ask for prices."""
        if any(True for _ in self._old_prices(assessed.history)):
            return True
        actions = self._decide(assessed, None)
        return any(not isinstance(action, Announce | Postpone) for action in actions)

    def _assess(self, history: History) -> Assessment:
        """Return the present assessment, if this controller may drive the job."""
        self._submission_sha256 = self._submission_sha256 or history.submission_sha256
        if history.submission_sha256 != self._submission_sha256:
            raise JobResumed(f"job {self._job_id!r} was resumed with another submission")
        check_adopted(self._store, self._provider, history)
        self._spec = self._spec or history.job_file
        return Assessment(self._spec, history, self._clock.now(), self._memory.instances)

    def _up_to_date(self, assessed: Assessment) -> Assessment:
        """Return the assessment, with the present time if it is old, because requests may take minutes."""
        now = self._clock.now()
        is_old = (now - assessed.now).total_seconds() >= OLD_SECONDS
        return dataclasses.replace(assessed, now=now) if is_old else assessed

    def _clock_warnings(self) -> tuple[Event, ...]:
        """Return a warning, only once, that this computer's clock is wrong; decisions do not use it."""
        before, self._clock_warning = self._clock_warning, self._clock_warning or self._clock.warning()
        return () if before == self._clock_warning else (Event(EventKind.WARNED, self._clock_warning),)

    def _old_prices(self, history: History) -> Iterator[LaunchHistory]:
        """Yield the launches whose price was recorded or requested too long ago."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        for launch in history.live_launches:
            known_at = launch.prices[-1].at if launch.prices else launch.intent.at
            age = (now - known_at).total_seconds()
            if launch.number in self._prices:
                age = min(age, monotonic - self._prices[launch.number].asked_at)
            if launch.intent.offer.market is Market.SPOT and launch.claimed and age >= PRICE_SECONDS:
                yield launch

    def _fetch_price(self, launch: LaunchHistory, problems: list[str]) -> None:
        """Ask for the launch's price; if that fails, the known price stays in use."""
        price: float | None = None
        try:
            # The price is checked here, because an unreadable record would stop every reader.
            warnings = self._provisioner.current_price(launch.intent.offer)
            price = None if warnings is None else convert(warnings, Price)
        except (CloudspotError, msgspec.ValidationError) as error:
            problems.append(f"the price of launch {launch.number} is not known: {error}")
        self._prices[launch.number] = _Price(price, self._clock.monotonic(), len(launch.prices))

    def _new_prices(self, history: History) -> dict[int, float]:
        """Return the prices that were received after the launch's last recorded price.

        Otherwise, two drivers with older prices would overwrite each other's records again and again.
        """
        return {
            launch.number: known.per_hour
            for launch in history.live_launches
            if (known := self._prices.get(launch.number)) is not None
            and known.per_hour is not None
            and known.num_written == len(launch.prices)
        }

    def _fetch_offers(self, spec: JobSpec, problems: list[str]) -> tuple[Offer, ...] | None:
        self._offers_at = self._clock.monotonic()
        try:
            return self._provisioner.offers(OffersRequest(resources=spec.resources.to_model())).offers
        except (TransientError, PluginFault) as error:  # machines are still ended without offers
            problems.append(str(error))
            return None

    def _decide(self, assessed: Assessment, offers: tuple[Offer, ...] | None) -> tuple[Action, ...]:
        history, now = assessed.history, assessed.now
        observed = self._memory.observed(
            assessed,
            monotonic=self._clock.monotonic(),
            token_seconds=self._provisioner.token_seconds,
            absence_proves_after_seconds=self._provisioner.absence_proves_after_seconds,
            offers=offers,
            offers_seconds=self._clock.monotonic() - self._offers_at,
            knowledge=self._knowledge(history, now) if offers is not None else NOTHING_KNOWN,
            console_tails=self._consoles.tails,
            prices=self._new_prices(history),
        )
        return decide(assessed, observed)

    def _knowledge(self, history: History, now: datetime) -> Knowledge:
        earlier = self._driver.experiences.get(self._provider.name)
        return (NOTHING_KNOWN if earlier is None else earlier.knowledge) + market_seen(
            history, now, provider=self._provider.name
        )

    def _act(
        self,
        actions: tuple[Action, ...],
        assessed: Assessment,
        events: list[Event],
        problems: list[str],
    ) -> bool:
        acted = False
        for action in actions:
            if isinstance(action, FetchOffers):
                break  # The provider did not answer.
            try:
                acted = self._actor.act(action, assessed, events) or acted
            except TransientError as error:
                problems.append(str(error))
                if not isinstance(action, Terminate | Create):
                    break
            if isinstance(action, OpenLaunch | Append):
                break  # Won or lost, the journal has a new record, on which the rest must be decided.
        return acted

    def _write_summary(self, assessed: Assessment, problems: list[str]) -> None:
        """Write the summary for ``ps``, which the protocol does not need."""
        summary = msgspec.structs.replace(
            summarise(assessed.history, assessed.now, ledger=assessed.ledger),
            driven_by=self._driver.name,
            driven_at=assessed.now,
            undone=self._tasks.problem(),
        )
        if self._is_due(summary, is_last=assessed.history.finished is not None):
            try:
                write_summary(self._store, summary)
                self._summary = (summary, self._clock.monotonic())
            except TransientError as error:
                problems.append(str(error))

    def _copy_settled(self, history: History, problems: list[str]) -> None:
        """Copy the settled launches into one object, for readers that start from the beginning.

        Nodes copy the journal after their commits; this copy also covers launches that never train.
        """
        settled = settled_launches(history)
        known, written_at = self._copied or (self._reader.num_copied, -math.inf)
        is_due = history.finished is not None or self._clock.monotonic() - written_at >= COPY_SECONDS
        if len(settled) > known and is_due:
            try:
                self._reader.journal.copy()
                write_settled(self._store, history, settled)
                self._copied = len(settled), self._clock.monotonic()
            except TransientError as error:
                problems.append(str(error))

    def _is_due(self, summary: Summary, *, is_last: bool) -> bool:
        if self._summary is None:
            return True
        last, written_at = self._summary
        age = self._clock.monotonic() - written_at
        if msgspec.structs.replace(summary, at=last.at, driven_at=last.driven_at) == last:
            return not is_last and age >= SUMMARY_REFRESH_SECONDS
        return is_last or summary.state != last.state or age >= SUMMARY_SECONDS
