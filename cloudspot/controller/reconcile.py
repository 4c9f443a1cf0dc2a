"""Drive the live jobs of a store in one pass, for cron or a cloud function; list machines without a job."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from cloudspot.calls import InstancesRequest
from cloudspot.controller.clock import Clock, clock_by
from cloudspot.controller.loop import Controller, Driver, Tick
from cloudspot.controller.ownership import is_of_another_store, store_label
from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError, JobNotFound, JobResumed, as_cloudspot_error
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_meta
from cloudspot.jobstore.jobs.job_lists import drop_marks_of_missing_job, list_live
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.jobs.standing_drivers import note_driver
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Submission
from cloudspot.model import Instance, InstanceState
from cloudspot.registry import provider_names

NUM_BEFORE_TURNS = 30
TURN_SECONDS = 60.0
"""With more than ``NUM_BEFORE_TURNS`` live jobs, a pass begins with another job after each such interval."""
WAIT_SECONDS = 5.0
"""A provider without a result for this long is left to its thread, while the other jobs continue."""
READ_AHEAD = 30
"""The number of jobs whose providers are read before the first of these jobs is driven."""
NOTE_SECONDS = 60.0
"""The least time between two notes that this driver is running."""


@dataclass(frozen=True)
class Reconciled:
    """The result of a pass for one job."""

    job_id: str
    tick: Tick | None
    error: CloudspotError | None
    """Why the job could not be driven; the other jobs are still driven."""


@dataclass(frozen=True)
class Unlisted:
    """A provider that could not list its machines; the other providers are still asked."""

    provider: str
    error: CloudspotError
    options: str = ""
    """The options of the provider that failed, such as its region; other jobs may use other options."""


@dataclass(frozen=True)
class _Listing:
    """A provider's answer when it was asked for all machines."""

    provider: str
    machines: tuple[Instance, ...]
    """The machines that have not ended."""
    problem: Unlisted | None


class Reconciler:
    """Drives the live jobs of a store. A reconciler kept between passes uses its own clock and memory.

    Jobs of different providers are driven in parallel, so that a provider that hangs delays only its own
    jobs.

    ``open_provider`` opens the provider for a submission and its job file, like ``ownership.open_to_drive``.
    ``sleep`` is called between attempts to make a request.
    """

    def __init__(
        self,
        store: ObjectStore,
        open_provider: Callable[[Submission, JobSpec], Provider],
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        driver: Driver | None = None,
        every: timedelta | None = None,
    ) -> None:
        """``driver`` is shared by the controllers of all jobs.

        ``every`` is the time between two passes, or None if it is not known.
        """
        self._store = with_retries(store, sleep=sleep)
        self._open_provider = open_provider
        self._clock = clock or clock_by(self._store)
        self._sleep = sleep
        self._driver = driver or Driver()
        self._every = every
        self._noted_at = -math.inf
        """The time at which this driver was last noted in the store (monotonic)."""
        self._controllers: dict[str, Controller] = {}
        self._providers: dict[tuple[str, bytes], Provider] = {}
        self._read: dict[str, tuple[HistoryReader, Submission, JobSpec]] = {}
        """Jobs that have just been read and have no controller yet."""
        self._lock = threading.Lock()
        self._busy: dict[str, deque[Callable[[], Reconciled | _Listing]]] = {}
        """The work left for each provider's thread; a thread without work ends."""
        self._under_way: set[str] = set()
        """The jobs that were left to these threads, whose controllers no other thread may use."""
        self._done: queue.SimpleQueue[Reconciled | _Listing | None] = queue.SimpleQueue()
        """The results of these threads; None when a thread has ended."""
        self._listings: list[_Listing] = []
        """The listings that have not been processed yet."""

    def run_pass(
        self, *, job_ids: Sequence[str] | None = None, is_last: bool = True
    ) -> Iterator[Reconciled | Unlisted]:
        """Drive each job as far as possible now, and yield its result; None drives all jobs marked live.

        With None, a job without a mark is also driven if one of its machines is listed. Providers that could
        not list their machines are yielded last. Unless ``is_last``, the pass does not wait for slow
        providers; a later pass yields the results of their jobs.

        Raises:
            TransientError: the jobs could not be listed.
        """
        if job_ids is None:
            self._note_driver()
        driven = list(list_live(self._store) if job_ids is None else job_ids)
        # A pass may be cut off, like a cloud function at its time limit, and must not miss the same jobs each
        # time.
        turn = int(self._clock.now().timestamp() // TURN_SECONDS) % max(1, len(driven))
        if len(driven) > NUM_BEFORE_TURNS:
            driven = driven[turn:] + driven[:turn]
        slow: set[str] = set()
        yield from self._drive_all(driven, slow, is_last=is_last)
        yield from self._ask_for_machines(math.inf if is_last else WAIT_SECONDS, slow)
        live, problems = self._take_listings()
        if job_ids is None:
            seen = {
                one.job_id for one in live if keys.JOB_ID.fullmatch(one.job_id) and not self._is_foreign(one)
            }
            for done in self._drive_all(sorted(seen - set(driven)), slow, is_last=is_last):
                # `orphans` reports machines whose job does not exist.
                if done.job_id in driven or not isinstance(done.error, JobNotFound):
                    yield done
        yield from problems

    def _note_driver(self) -> None:
        now = self._clock.monotonic()
        if not self._driver.name or now - self._noted_at < NOTE_SECONDS:
            return
        self._noted_at = now
        with suppress(CloudspotError):  # The pass itself reports a store that fails.
            note_driver(
                self._store,
                self._driver.name,
                self._clock.now(),
                providers=provider_names(),
                every=self._every,
            )

    def _drive_all(self, job_ids: Sequence[str], slow: set[str], *, is_last: bool) -> Iterator[Reconciled]:
        for at in range(0, len(job_ids), READ_AHEAD):
            yield from self._drive_some(job_ids[at : at + READ_AHEAD], are_all=len(job_ids) <= READ_AHEAD)
            yield from self._results(WAIT_SECONDS, slow)
        if is_last:
            slow.clear()
            yield from self._results(math.inf, slow)

    def _drive_some(self, job_ids: Sequence[str], *, are_all: bool) -> Iterator[Reconciled]:
        """Drive the jobs here if all have one provider; otherwise leave each job to its provider's thread."""
        groups: dict[str, list[str]] = {}
        for job_id in job_ids:
            # An earlier pass may have left the job to a thread that still uses its controller.
            if job_id not in self._under_way:
                groups.setdefault(self._provider_name(job_id), []).append(job_id)
        if are_all and len(groups) <= 1 and not self._busy:
            for some in groups.values():
                yield from map(self._drive, some)
            return
        for name, some in groups.items():
            self._under_way.update(some)
            for job_id in some:
                self._leave_to_thread(name, partial(self._drive, job_id))

    def _leave_to_thread(self, name: str, work: Callable[[], Reconciled | _Listing]) -> None:
        """Add the work to the queue of the provider's thread, and start the thread if none is running."""
        with self._lock:
            if name in self._busy:
                self._busy[name].append(work)
                return
            self._busy[name] = deque([work])
        threading.Thread(target=self._work, args=(name,), daemon=True).start()

    def _work(self, name: str) -> None:
        while True:
            with self._lock:
                if not self._busy[name]:
                    del self._busy[name]
                    break
                work = self._busy[name].popleft()
            done = work()
            if isinstance(done, Reconciled):
                self._under_way.discard(done.job_id)
            self._done.put(done)
        self._done.put(None)

    def _results(self, wait_seconds: float, slow: set[str]) -> Iterator[Reconciled]:
        """Yield the results of the jobs that threads drive; keep the listings.

        After ``wait_seconds`` without a result, busy providers are added to ``slow``, and the wait for them
        ends.
        """
        while self._is_any_busy_but(slow) or not self._done.empty():
            try:
                done = self._done.get(timeout=None if math.isinf(wait_seconds) else wait_seconds)
            except queue.Empty:
                with self._lock:
                    slow |= self._busy.keys()
                return
            if isinstance(done, _Listing):
                self._listings.append(done)
            elif done is not None:
                yield done

    def _is_any_busy_but(self, slow: set[str]) -> bool:
        with self._lock:
            return not self._busy.keys() <= slow

    def _provider_name(self, job_id: str) -> str:
        """Return the name of the job's provider, or an empty string if the job cannot be read."""
        if job_id in self._controllers:
            return self._controllers[job_id].provider_name
        self._read.pop(job_id, None)
        try:
            reader = HistoryReader(self._store, job_id)
            self._read[job_id] = (reader, *reader.read_job())
        except Exception:  # noqa: BLE001 - `_drive` reads the job again and reports the error
            return ""
        return self._read[job_id][1].provider

    def _drive(self, job_id: str) -> Reconciled:
        try:
            try:
                tick = self._controller(job_id).run_pass()
            except JobResumed:
                del self._controllers[job_id]
                self._read.pop(job_id, None)
                tick = self._controller(job_id).run_pass()
        except JobNotFound as error:
            self._controllers.pop(job_id, None)
            with suppress(CloudspotError):  # The next pass repeats this.
                drop_marks_of_missing_job(self._store, job_id)
            return Reconciled(job_id, None, error)
        except Exception as error:  # noqa: BLE001 - one job's fault must not hold up the others
            return Reconciled(job_id, None, as_cloudspot_error(error))
        if tick.is_settled:
            self._controllers.pop(job_id, None)
        return Reconciled(job_id, tick, None)

    def orphans(self) -> tuple[tuple[Instance, ...], tuple[Unlisted, ...]]:
        """Return live tagged machines whose job is not in this store, and the providers that failed.

        The machines are reported to the user and never ended here, because another store may own them. Only
        the providers of jobs that this reconciler has driven are asked. Raises as ``run_pass`` does.
        """
        for _ in self._ask_for_machines(math.inf, set()):
            pass  # The loop discards results of jobs for which an earlier pass did not wait.
        live, problems = self._take_listings()
        job_ids = {one.job_id for one in live if keys.JOB_ID.fullmatch(one.job_id)}
        known = {one for one in sorted(job_ids) if find_meta(self._store, keys.index(one)) is not None}
        lost = (one for one in live if one.job_id not in known or self._is_foreign(one))
        return tuple(lost), problems

    def _is_foreign(self, machine: Instance) -> bool:
        return is_of_another_store(machine, store_label(self._store))

    def _ask_for_machines(self, wait_seconds: float, slow: set[str]) -> Iterator[Reconciled]:
        """Ask all providers in parallel, except those whose jobs are still being driven."""
        asked = {key: one for key, one in list(self._providers.items()) if key[0] not in self._busy}
        if len({name for name, _ in asked}) <= 1 and not self._busy:
            self._listings += [self._list(*key, provider) for key, provider in asked.items()]
            return
        for key, provider in asked.items():
            self._leave_to_thread(key[0], partial(self._list, *key, provider))
        yield from self._results(wait_seconds, slow)

    def _take_listings(self) -> tuple[tuple[Instance, ...], tuple[Unlisted, ...]]:
        """Return the machines of the providers that have answered, each once, and the other providers."""
        listings, self._listings = self._listings, []
        live = {(one.provider, machine.id): machine for one in listings for machine in one.machines}
        return tuple(live.values()), tuple(one.problem for one in listings if one.problem is not None)

    def _list(self, name: str, options: bytes, provider: Provider) -> _Listing:
        try:
            listed = provider.provisioner().instances(InstancesRequest()).instances
        except Exception as error:  # noqa: BLE001 - one provider's fault must not hold up the others
            return _Listing(name, (), Unlisted(name, as_cloudspot_error(error), _options_text(options)))
        return _Listing(name, tuple(one for one in listed if one.state is not InstanceState.ENDED), None)

    def _controller(self, job_id: str) -> Controller:
        if job_id not in self._controllers:
            if job_id not in self._read:
                reader = HistoryReader(self._store, job_id)
                self._read[job_id] = (reader, *reader.read_job())
            reader, submission, spec = self._read.pop(job_id)
            provider = self._open_provider(submission, spec)
            # A provider's listing depends on its options, for example on the region.
            options = msgspec.json.encode(spec.providers.get(submission.provider, {}), order="deterministic")
            self._providers[submission.provider, options] = provider
            self._controllers[job_id] = Controller(
                self._store,
                job_id,
                provider,
                clock=self._clock,
                sleep=self._sleep,
                reader=reader,
                opened_for=reader.submission_sha256,
                driver=self._driver,
            )
        return self._controllers[job_id]


def _options_text(options: bytes) -> str:
    return ", ".join(f"{name} = {value}" for name, value in decode(options, dict[str, Any]).items())
