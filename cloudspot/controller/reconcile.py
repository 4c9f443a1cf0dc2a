"""One pass over the live jobs of a store, for cron or a cloud function; and the machines that nobody owns."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
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
"""With more live jobs than ``NUM_BEFORE_TURNS``, each pass begins with another one, by the minute."""
WAIT_SECONDS = 5.0
"""A pass that others follow waits no longer than this for what comes of the next job."""
READ_AHEAD = 30
"""So many jobs are read before the first of them is driven, to know their providers."""
NOTE_SECONDS = 60.0
"""A driver that keeps running is noted no more often than this."""


@dataclass(frozen=True)
class Reconciled:
    """What a pass did for one job."""

    job_id: str
    tick: Tick | None
    error: CloudspotError | None
    """Why nothing could be done; the other jobs are driven all the same."""


@dataclass(frozen=True)
class Unlisted:
    """A provider that could not list its machines; the others are asked all the same."""

    provider: str
    error: CloudspotError
    options: str = ""
    """The provider's options that its jobs have, such as its region; others of its jobs may have others."""


class Reconciler:
    """Drives the jobs of a store that are live. One that is kept between passes goes by its own clock.

    The jobs of several providers are driven at the same time, so that a provider that hangs delays no job of
    another.

    ``open_provider`` opens the provider of a submission and its job file, as ``ownership.open_to_drive``
    does. ``sleep`` is called between tries of a request.
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

        ``every`` is how long it is between two passes; None: not known.
        """
        self._store = with_retries(store, sleep=sleep)
        self._open_provider = open_provider
        self._clock = clock or clock_by(self._store)
        self._sleep = sleep
        self._driver = driver or Driver()
        self._every = every
        self._noted_at = -math.inf
        """When the store was last told of this driver (monotonic)."""
        self._controllers: dict[str, Controller] = {}
        self._providers: dict[tuple[str, bytes], Provider] = {}
        self._read: dict[str, tuple[HistoryReader, Submission, JobSpec]] = {}
        """Jobs that were just read and have no controller yet."""
        self._busy: set[str] = set()
        """The providers whose jobs are being driven, each in a thread."""
        self._done: queue.SimpleQueue[Reconciled | None] = queue.SimpleQueue()
        """What these threads did; None: one has ended."""

    def run_pass(
        self, *, job_ids: Sequence[str] | None = None, is_last: bool = True
    ) -> Iterator[Reconciled | Unlisted]:
        """Drive each job (None: all that are marked live) as far as it goes now; yield what came of it.

        With None, jobs of which a machine turns up are driven as well, whatever their mark says. Providers
        that could not be asked for such machines come last. Unless this pass is the last, it does not wait
        for a provider that takes long: a later pass has what came of its jobs.

        Raises:
            TransientError: the jobs could not be listed.
        """
        if job_ids is None:
            self._note_driver()
        driven = list(list_live(self._store) if job_ids is None else job_ids)
        # A pass that is cut off, as a function's is after its time, must not leave out the same jobs again.
        turn = int(self._clock.now().timestamp() // TURN_SECONDS) % max(1, len(driven))
        if len(driven) > NUM_BEFORE_TURNS:
            driven = driven[turn:] + driven[:turn]
        passed_over: list[str] = []
        for at in range(0, len(driven), READ_AHEAD):
            passed_over += yield from self._drive_some(driven[at : at + READ_AHEAD], WAIT_SECONDS)
        while is_last and (passed_over or self._busy):
            yield from self._results(math.inf)
            passed_over = yield from self._drive_some(passed_over, math.inf)
        live, problems = self._live_machines()
        if job_ids is None:
            seen = {
                one.job_id for one in live if keys.JOB_ID.fullmatch(one.job_id) and not self._is_foreign(one)
            }
            for job_id in sorted(seen - set(driven)):
                done = self._drive(job_id)
                if not isinstance(done.error, JobNotFound):  # `orphans` tells of the others.
                    yield done
        yield from problems

    def _note_driver(self) -> None:
        now = self._clock.monotonic()
        if not self._driver.name or now - self._noted_at < NOTE_SECONDS:
            return
        self._noted_at = now
        with suppress(CloudspotError):  # Whatever is wrong with the store, the pass itself will say.
            note_driver(
                self._store,
                self._driver.name,
                self._clock.now(),
                providers=provider_names(),
                every=self._every,
            )

    def _drive_some(
        self, job_ids: Sequence[str], wait_seconds: float
    ) -> Generator[Reconciled, None, list[str]]:
        """Drive those jobs, each provider's in a thread; return those whose provider still has to do."""
        groups: dict[str, list[str]] = {}
        for job_id in job_ids:
            groups.setdefault(self._provider_name(job_id), []).append(job_id)
        if len(groups) <= 1 and not self._busy:
            for job_id in job_ids:
                yield self._drive(job_id)
            return []
        passed_over: list[str] = []
        for name, some in groups.items():
            if name in self._busy:
                passed_over += some
                continue
            self._busy.add(name)
            threading.Thread(target=self._drive_group, args=(name, some), daemon=True).start()
        yield from self._results(wait_seconds)
        return passed_over

    def _results(self, wait_seconds: float) -> Iterator[Reconciled]:
        """Yield what comes of the jobs that are being driven, until it takes longer than that."""
        while self._busy or not self._done.empty():
            try:
                done = self._done.get(timeout=None if math.isinf(wait_seconds) else wait_seconds)
            except queue.Empty:
                return
            if done is not None:
                yield done

    def _drive_group(self, name: str, job_ids: Sequence[str]) -> None:
        try:
            for job_id in job_ids:
                self._done.put(self._drive(job_id))
        finally:
            self._busy.discard(name)
            self._done.put(None)

    def _provider_name(self, job_id: str) -> str:
        """Return the name of the job's provider; empty if that cannot be told, as ``_drive`` will say."""
        if job_id in self._controllers:
            return self._controllers[job_id].provider_name
        try:
            reader = HistoryReader(self._store, job_id)
            self._read[job_id] = (reader, *reader.read_job())
        except Exception:  # noqa: BLE001 - whatever it is, it is met again where it is reported
            return ""
        return self._read[job_id][1].provider

    def _drive(self, job_id: str) -> Reconciled:
        try:
            try:
                tick = self._controller(job_id).run_pass()
            except JobResumed:
                del self._controllers[job_id]
                tick = self._controller(job_id).run_pass()
        except JobNotFound as error:
            self._controllers.pop(job_id, None)
            with suppress(CloudspotError):  # The next pass tries again.
                drop_marks_of_missing_job(self._store, job_id)
            return Reconciled(job_id, None, error)
        except Exception as error:  # noqa: BLE001 - one job's fault must not hold up the others
            return Reconciled(job_id, None, as_cloudspot_error(error))
        if tick.is_settled:
            self._controllers.pop(job_id, None)
        return Reconciled(job_id, tick, None)

    def orphans(self) -> tuple[tuple[Instance, ...], tuple[Unlisted, ...]]:
        """Return live machines with cloudspot's tags whose job is not in this store, and who could not say.

        They are for the user to look at, and never ended from here: another store may own them.
        Only the providers of the jobs that this reconciler has driven are asked. Raises as ``run_pass`` does.
        """
        live, problems = self._live_machines()
        job_ids = {one.job_id for one in live if keys.JOB_ID.fullmatch(one.job_id)}
        known = {one for one in sorted(job_ids) if find_meta(self._store, keys.index(one)) is not None}
        lost = (one for one in live if one.job_id not in known or self._is_foreign(one))
        return tuple(lost), problems

    def _is_foreign(self, machine: Instance) -> bool:
        return is_of_another_store(machine, store_label(self._store))

    def _live_machines(self) -> tuple[tuple[Instance, ...], tuple[Unlisted, ...]]:
        """Return the machines of all providers that answer, each once, and why the others do not."""
        live: dict[tuple[str, str], Instance] = {}
        problems = []
        for (name, options), provider in list(self._providers.items()):
            if name in self._busy:
                continue  # What it is asked for now will be told with its jobs.
            try:
                listed = provider.provisioner().instances(InstancesRequest()).instances
            except Exception as error:  # noqa: BLE001 - nor one provider's the others
                problems.append(Unlisted(name, as_cloudspot_error(error), _options_text(options)))
                continue
            live.update({(name, one.id): one for one in listed if one.state is not InstanceState.ENDED})
        return tuple(live.values()), tuple(problems)

    def _controller(self, job_id: str) -> Controller:
        if job_id not in self._controllers:
            if job_id not in self._read:
                reader = HistoryReader(self._store, job_id)
                self._read[job_id] = (reader, *reader.read_job())
            reader, submission, spec = self._read.pop(job_id)
            provider = self._open_provider(submission, spec)
            # Options are part of what it lists: a region, say.
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
