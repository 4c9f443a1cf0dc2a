"""``cloudspot reconcile``: drive jobs without an attached command, from cron or as a service."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

import click

from cloudspot.cli import exit_codes
from cloudspot.cli.completers import complete_jobs
from cloudspot.cli.config import configured_options
from cloudspot.cli.invocation import current_driver, current_invocation
from cloudspot.cli.jobs import find_job, open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.screen.lines import Line, echo_line, event_line, in_order_of_time
from cloudspot.cli.sharedoptions import store_option
from cloudspot.controller.outbox import Outbox
from cloudspot.controller.ownership import open_to_drive
from cloudspot.controller.reconcile import NOTE_SECONDS, Reconciled, Reconciler, Unlisted
from cloudspot.errors import (
    CloudspotError,
    CorruptData,
    JobNotFound,
    SpecError,
    TransientError,
    as_cloudspot_error,
)
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.store_clock import clock_of, store_time
from cloudspot.jobstore.jobs.job_lists import list_jobs, list_live, mark_live
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Finished, Moved, Summary
from cloudspot.story.events import Event, EventKind
from cloudspot.story.report import summarise

WATCH_SECONDS = 5.0
LONG_OVER = timedelta(days=1)
"""``--all`` skips jobs that finished longer ago than this: all their machines have been ended by then."""


@click.command("reconcile")
@click.option("--watch", is_flag=True, help=f"Make a pass every {WATCH_SECONDS:g} seconds, until Ctrl-C.")
@click.option(
    "--job",
    "job_id",
    metavar="ID",
    shell_complete=complete_jobs,
    help="Drive only this job; --watch then ends with the job.",
)
@click.option(
    "--all",
    "verify_all",
    is_flag=True,
    help="First check all jobs, and mark as live all except those that ended long ago.",
)
@click.option(
    "--as",
    "driver",
    metavar="NAME",
    help="The name of this driver in `show` and `run`. Default: the command and the host's name.",
)
@click.option(
    "--every",
    "every_seconds",
    type=click.FloatRange(min=1.0),
    metavar="SECONDS",
    help="The time between two passes. Default: measured from the second pass on.",
)
@store_option
@click.pass_context
def reconcile(
    ctx: click.Context,
    watch: bool,
    job_id: str | None,
    verify_all: bool,
    driver: str | None,
    every_seconds: float | None,
    store_url: str | None,
) -> None:
    """Drive a store's unfinished jobs, once or continuously.

    One pass relaunches reclaimed nodes, closes ended jobs, terminates machines that should no longer run,
    and prints what it did. Any number of drivers may run at once, together with attached commands. An error
    in one job does not delay the others; a single pass then exits with 1 or, with --job, with the status of
    that error.

    The number of requests that a pass makes depends on the number of live jobs, not on the number of ended
    jobs.
    """
    store = open_named_store(store_url)
    wanted = None if job_id is None else find_job(store, job_id)
    if verify_all:
        mark_all(store)
    seconds = NOTE_SECONDS if watch else every_seconds
    every = None if seconds is None else timedelta(seconds=seconds)
    own = current_driver(driver)
    open_provider = partial(open_to_drive, store, configured=configured_options)
    reconciler = Reconciler(store, open_provider, driver=own, every=every)
    rounds = _Rounds(store, wanted, reconciler, own.outbox, is_last=not watch)
    if not watch:
        rounds.run_one()
        rounds.warn_of_orphans()
        ctx.exit(rounds.exit_code)
    while True:
        try:
            rounds.run_one()
        except TransientError as error:
            rounds.complain(store.url, error)
        if wanted is not None and rounds.is_settled:
            return
        time.sleep(WATCH_SECONDS)


class _Rounds:
    """Makes passes over the jobs of a store and prints what they did."""

    def __init__(
        self,
        store: ObjectStore,
        wanted: str | None,
        reconciler: Reconciler,
        outbox: Outbox,
        *,
        is_last: bool,
    ) -> None:
        self._store = store
        self._wanted = wanted
        self._outbox = outbox
        self._reconciler = reconciler
        self._is_last = is_last
        """Whether this pass is the last one."""
        self._seen: set[str] = set()
        self._complaints: dict[str, str] = {}
        """The last error of each job, provider or store."""
        self._failing: set[str] = set()
        """The jobs, providers and stores that had errors in the newest pass."""
        self._began = time.monotonic()
        """The start of the newest pass."""
        self.num_errors = 0
        """The number of errors in the newest pass."""
        self._job_error: CloudspotError | None = None
        """The error that kept the newest pass from driving its last job."""
        self.is_settled = False
        """Whether the last job of the newest pass has finished and has no machines left."""

    def run_one(self) -> None:
        """Make one pass and print what it did; raise TransientError if the jobs cannot be listed."""
        self.num_errors = 0
        self._failing = set()
        self._began = time.monotonic()
        job_ids = None if self._wanted is None else [self._wanted]
        for done in self._reconciler.run_pass(job_ids=job_ids, is_last=self._is_last):
            if isinstance(done, Unlisted):
                self._complain_of(done)
                continue
            self._print(done)
            self._job_error = done.error
            self.is_settled = done.tick is not None and done.tick.is_settled
        for about, line in self._outbox.take_failures():
            output.warn(f"{about}: {line}")
        for about in [one for one in self._complaints if one not in self._failing]:
            del self._complaints[about]
            output.echo(f"no longer an error: {about}", error=True)

    @property
    def exit_code(self) -> int:
        """The exit status of a command that ends after the newest pass."""
        if self._wanted is not None and self._job_error is not None:
            return self._job_error.exit_code
        return exit_codes.FAILED if self.num_errors else exit_codes.SUCCEEDED

    def _print(self, done: Reconciled) -> None:
        if isinstance(done.error, JobNotFound) and self._wanted is None:
            return  # The submission was interrupted or is still under way.
        if done.error is not None:
            self.complain(done.job_id, done.error)
            return
        tick = done.tick
        assert tick is not None
        self.num_errors += bool(tick.problems)
        # A resumed job counts as new.
        is_first = done.job_id not in self._seen or any(e.kind is EventKind.RESUMED for e in tick.events)
        events = [
            event for event in in_order_of_time(tick.events) if not is_first or self._is_of_this_pass(event)
        ]
        # A job that ended before this pass is not mentioned.
        history = tick.history if is_first else None
        summary = None
        try:
            if history is not None and (events or history.finished is None):
                summary = summarise(history, clock_of(self._store).now())
        except Exception as error:  # noqa: BLE001 - one job's fault must not hold up the others
            self.complain(done.job_id, as_cloudspot_error(error))
            return
        self._complaints.pop(done.job_id, None)
        self._seen.add(done.job_id)
        for event in events:
            echo_line(event_line(event, clock_of(self._store).now(), source=done.job_id))
        if summary is not None:
            _print_state(summary)

    def _is_of_this_pass(self, event: Event) -> bool:
        """Return whether to print the event at the first look at a job, which sees its whole history."""
        if event.kind in {EventKind.WAITING, EventKind.WARNED}:
            return True
        began = clock_of(self._store).now() - timedelta(seconds=time.monotonic() - self._began)
        return event.at is not None and event.at >= began

    def complain(self, about: str, error: CloudspotError) -> None:
        """Print an error of a job, a provider or the store, but print a repeated error only once."""
        self.num_errors += 1
        self._failing.add(about)
        if self._complaints.get(about) != str(error):
            self._complaints[about] = str(error)
            if current_invocation().debug:
                output.echo_traceback(error)
            output.echo_error(f"{about}: {error}")

    def _complain_of(self, unlisted: Unlisted) -> None:
        options = f" ({unlisted.options})" if unlisted.options else ""
        self.complain(f"the machines of {unlisted.provider}{options}", unlisted.error)

    def warn_of_orphans(self) -> None:
        """Warn about live machines that no job of this store owns."""
        orphans, problems = self._reconciler.orphans()
        for problem in problems:
            self._complain_of(problem)
        for machine in orphans:
            owner = f"{machine.store_url} has" if machine.store_url else "another store may have"
            output.warn(
                f"machine {machine.id} runs for job {machine.job_id}, which is not in {self._store.url}; "
                f"{owner} that job"
            )


def _print_state(job: Summary) -> None:
    head = Line(job.at, job.job_id, "").head
    steps = output.steps_text(job.step, job.steps_total)
    detail = f" ({job.detail})" if job.detail else ""
    state = output.Styled(job.state, output.STATE_STYLES.get(job.state))
    output.echo(output.Styled(head, "dim"), " ", state, f", step {steps}{detail}")


def mark_all(store: ObjectStore) -> None:
    """Mark all jobs as live except those that ended long ago; each pass removes the marks of settled jobs."""
    unmarked = sorted(set(list_jobs(store)) - set(list_live(store)))
    if not unmarked:
        return
    now = store_time(store)

    def mark(job_id: str) -> None:
        if is_long_over(store, job_id, now):
            return
        with suppress(JobNotFound):  # The submission was interrupted or is still under way.
            try:
                writer = HistoryReader(store, job_id).read_job()[0].writer
            except (CorruptData, SpecError):
                writer = "unreadable"  # Each pass reports the job until it is removed.
            mark_live(store, job_id, writer)

    map_parallel(mark, unmarked)


def is_long_over(store: ObjectStore, job_id: str, now: datetime) -> bool:
    """Return whether the job's journal ended more than ``LONG_OVER`` ago; this takes two requests.

    The summary is not enough: it may state ``succeeded`` before the journal has ended.
    """
    try:
        listed = (meta.key for meta in store.list_objects(keys.journal_prefix(job_id)))
        records = [key for key in listed if keys.journal.match(key) is not None]
        if not records:
            return False
        last = codec.decode_journal(store.get(records[-1]), key=records[-1])
        if isinstance(last, Moved) and len(records) > 1:
            last = codec.decode_journal(store.get(records[-2]), key=records[-2])
    except CloudspotError:
        return False  # The pass itself reports errors; `rm` may have deleted the record.
    return isinstance(last, Finished) and now - last.at > LONG_OVER
