"""The loop of ``run`` and ``attach``: drives a job to its end and prints what happens on the way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timezone

from cloudspot.cli import exit_codes, output
from cloudspot.cli.interrupts import Detached, Interrupts
from cloudspot.cli.jobs import Job
from cloudspot.cli.logtail import LogTail, line_head, print_records
from cloudspot.cli.story import echo_summary
from cloudspot.controller.events import (
    Claimed,
    Committed,
    Event,
    JobFinished,
    LaunchClosed,
    Launched,
    NodeEnded,
    NodeState,
    Noticed,
    Started,
    StopRequested,
    Warned,
)
from cloudspot.controller.loop import Controller, Tick
from cloudspot.controller.report import summarise
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.jobstore.history import History
from cloudspot.jobstore.streams import METRICS

WHO = "cloudspot"
LOG_SECONDS = 0.5
"""How often the log is looked at."""
PROGRESS_SECONDS = 10.0
PAST_LINES = 20
"""How many lines of the log that were there before are shown."""


def follow(job: Job, *, is_new: bool = False) -> int:
    """Drive the job until it has ended or Ctrl-C is pressed; return the exit status.

    ``is_new``: it was just submitted, so that nothing of it is old news.

    Raises:
        CloudspotError: it cannot be driven from here any more; the job itself goes on.
    """
    if not is_new:
        output.echo(f"attached to job {output.styled(job.id, 'bold')} in {job.store.url}")
    with Interrupts() as interrupts:
        follower = _Follower(job, interrupts, is_new=is_new)
        controller = Controller(job.store, job.id, job.provider, sleep=follower.sleep)
        try:
            history = controller.run_until_finished(follower.on_tick)
        except Detached:
            output.echo(f"detached; job {job.id} goes on. Come back with: {job.command('attach')}")
            output.echo(relaunch_warning(job))
            return exit_codes.INTERRUPTED
        except CloudspotError:
            output.warn(f"job {job.id} is no longer followed; come back with: {job.command('attach')}")
            raise
        follower.print_new_lines()
    echo_summary(job, history)
    assert history.finished is not None
    return exit_codes.of_outcome(history.finished.outcome)


def relaunch_warning(job: Job) -> str:
    """Say what a job that nobody drives lacks."""
    return (
        "Nobody relaunches it after a reclaim until you do, or something runs: "
        f"{job.command('reconcile --watch --job')}"
    )


class _Follower:
    """Prints events as ticks bring them, and log lines as they arrive."""

    def __init__(self, job: Job, interrupts: Interrupts, *, is_new: bool) -> None:
        self._interrupts = interrupts
        self._tail = LogTail(job.log_sink)
        self._name_nodes = job.spec.nodes.max > 1
        self._past = not is_new
        self._log_complaint = ""
        self._told_step = 0
        self._told_at = 0.0

    def on_tick(self, tick: Tick) -> None:
        """Print what a tick has seen."""
        events = tick.events
        if self._past and tick.history is not None:
            # Of what was before, the story is of use, and the end of the log.
            events = tuple(event for event in events if not isinstance(event, Committed | NodeState))
        for event in in_order_of_time(events, tick.history):
            print_event(event, tick.history)
        if self._past and tick.history is not None:
            self._past = False
            self._print_past_lines()
        self.print_new_lines()
        if tick.history is not None:
            self._print_progress(tick.history)
        self._interrupts.check()

    def sleep(self, seconds: float) -> None:
        """Sleep as the controller asks, and print log lines meanwhile.

        Raises:
            Detached: Ctrl-C was pressed.
        """
        end = time.monotonic() + seconds
        while True:
            self._interrupts.check()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, LOG_SECONDS))
            self.print_new_lines()

    def _print_progress(self, history: History) -> None:
        """Say now and then how far the training is, also where its script prints nothing."""
        job = summarise(history, datetime.now(timezone.utc))
        step, now = job.step, time.monotonic()
        if job.state != "running" or step == self._told_step or now - self._told_at < PROGRESS_SECONDS:
            return
        self._told_step, self._told_at = step, now
        metrics = f": {output.metrics_text(job.metrics)}" if job.metrics else ""
        output.echo(f"{line_head(job.at, WHO)} step {output.steps_text(step, job.steps_total)}{metrics}")

    def _print_past_lines(self) -> None:
        try:
            shown = (record for record in self._tail.new_records() if record.source != METRICS)
            newest = deque(shown, maxlen=PAST_LINES)
        except TransientError as error:
            self._complain(error)
            return
        print_records(newest, name_nodes=self._name_nodes)

    def print_new_lines(self) -> None:
        """Print the log lines that have come; a sink that does not answer is asked again later."""
        try:
            print_records(self._tail.new_records(), name_nodes=self._name_nodes)
        except TransientError as error:
            self._complain(error)
        else:
            self._log_complaint = ""

    def _complain(self, error: TransientError) -> None:
        if str(error) != self._log_complaint:
            self._log_complaint = str(error)
            output.warn(f"the log: {error}; trying again")


def in_order_of_time(events: Sequence[Event], history: History | None) -> list[Event]:
    """Return the events by their own times; one without a time stays behind the one before it."""
    latest = datetime.min.replace(tzinfo=timezone.utc)
    timed = []
    for event in events:
        moment = event_time(event, history)
        latest = latest if moment is None else moment
        timed.append((latest, event))
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


def print_event(event: Event, history: History | None, *, who: str = WHO) -> None:
    """Print an event as one line with its time."""
    moment = event_time(event, history) or datetime.now(timezone.utc)
    output.echo(f"{line_head(moment, who)} {output.styled(event.text, _style(event))}")


def event_time(event: Event, history: History | None) -> datetime | None:
    """Return when the event happened by its own record; None where it has none."""
    if isinstance(event, Launched):
        return event.intent.at
    if isinstance(event, Claimed):
        return event.slot.at
    if isinstance(event, Started):
        return event.generation.at
    if isinstance(event, Noticed):
        return event.notice.at
    if isinstance(event, NodeEnded):
        return event.exit.at
    if isinstance(event, LaunchClosed):
        return event.closed.at
    if isinstance(event, JobFinished):
        return event.finished.at
    if isinstance(event, NodeState) and history is not None:
        return history.launches[event.launch - 1].heartbeats[event.rank].at
    if isinstance(event, StopRequested) and history is not None and history.stop is not None:
        return history.stop.at
    return None


def _style(event: Event) -> str | None:
    if isinstance(event, Noticed | Warned | StopRequested):
        return "yellow"
    if isinstance(event, NodeEnded):
        return "red" if event.exit.outcome == "failed" else None
    if isinstance(event, JobFinished):
        return output.STATE_STYLES.get(event.finished.outcome)
    return "cyan" if isinstance(event, Launched | Started) else None
