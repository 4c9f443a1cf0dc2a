"""The loop of ``run`` and ``attach``: drive a job to its end and show its progress."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from cloudspot.calls.retrying import doubling, retry
from cloudspot.cli import exit_codes
from cloudspot.cli.following.detached import echo_drivers
from cloudspot.cli.following.interrupts import Detached, Interrupts
from cloudspot.cli.following.livefeed import LiveFeed
from cloudspot.cli.following.terminal import can_hold_a_panel
from cloudspot.cli.joblog.logtail import Life, LogTail, lives_of
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.jobsummary import echo_summary
from cloudspot.cli.screen.lines import (
    CLOUDSPOT,
    Line,
    are_nodes_named,
    echo_line,
    event_line,
    in_order_of_time,
    record_line,
)
from cloudspot.controller.loop import MAX_BACKOFF_SECONDS, Tick
from cloudspot.errors import CloudspotError, JobResumed, NotAdopted, TransientError
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.logs.log_streams import FOR_PROGRAMS, METRICS
from cloudspot.jobstore.nodes.keeping import kept_now
from cloudspot.model import LogRecord
from cloudspot.story.events import Event, EventKind
from cloudspot.story.report import summarise

if TYPE_CHECKING:
    from cloudspot.cli.following.livescreen import LiveScreen

LOG_SECONDS = 1.0
"""The interval between reads of the log."""
STREAMS_A_LOOK = 4
"""The number of nodes whose new lines are read at a time: the first node, and the others in turn."""
CHECK_SECONDS = 0.25
"""The interval between checks for Ctrl-C, Ctrl-Z and the terminal's size."""
PROGRESS_SECONDS = 10.0
PAST_LINES = 20
"""The number of earlier log lines that are shown."""
PAST_RECORDS = 200
"""The maximum number of earlier records that are read for the curve."""
_MINOR = {EventKind.COMMITTED, EventKind.NODE_STATE}
FOLDED = "  ... a C++ stack, which `cloudspot logs` shows"
_FRAME = re.compile(r"(\[rank\d+\]:)?\s*frame #\d+: ")
"""A line of a C++ stack. torch prints about 15 of these for each connection to a lost node."""
HINT = "Ctrl-C detaches; the job continues"
DETACHING_HINT = "detaching; press Ctrl-C again to leave immediately"
ENDING_HINT = "the job has ended; waiting for its machines to end"
KEPT_HINT = "Ctrl-C leaves the kept machine, which ends by itself; cloudspot stop ends it"


def follow(
    job: Job,
    *,
    is_new: bool = False,
    since: History | None = None,
    is_plain: bool = False,
    interrupted: Callable[[], None] | None = None,
) -> int:
    """Drive the job until it has ended, is suspended or Ctrl-C is pressed; return the exit status.

    ``is_new`` means that the job was just submitted, so there is no history to skip. ``since`` holds the
    records of a job just before its resumption; only later events are shown, and a command that shows the
    earlier ones. ``is_plain`` prints plain lines even if the terminal supports the live view. If
    ``interrupted`` is given with it, Ctrl-C calls this function instead of detaching, and the job is followed
    to its end.

    Raises:
        CloudspotError: the job can no longer be driven from here; the job itself continues.
    """
    if since is not None:
        output.echo(f"see the earlier history with: {job.command('show')}, or {job.command('logs')}")
    elif not is_new:
        output.echo("attached to job ", output.Styled(job.id, "bold"), f" in {job.store.url}")
    feed = LiveFeed()
    try:
        # Wait for a store that does not answer, as the later loop does, because nobody else launches a new
        # job.
        waits = doubling(1.0, most=MAX_BACKOFF_SECONDS)
        retry(lambda: job.submitted, sleep=time.sleep, waits=waits, on_wait=output.warner())
        if is_plain or not can_hold_a_panel():
            with Interrupts(instead=interrupted) as interrupts:
                follower = _Follower(job, interrupts, _PlainScreen(), feed, is_new=is_new, since=since)
                history = _drive(job, follower, since)
        else:
            history = _follow_live(job, feed, is_new=is_new, since=since)
    except Detached:
        kept = None if feed.history is None else kept_now(feed.history, clock_of(job.store).now())
        if feed.history is not None and kept is not None and feed.history.finished is not None:
            echo_summary(job, feed.history)
            return exit_codes.OF_OUTCOME[feed.history.finished.outcome]
        output.echo(f"detached; job {job.id} continues. Follow it again with: {job.command('attach')}")
        echo_drivers(job)
        return exit_codes.INTERRUPTED
    except JobResumed:
        output.echo(f"job {job.id} was resumed with another submission")
        return follow(Job(job.store, job.id), since=feed.history, is_plain=is_plain)
    except NotAdopted:
        raise
    except CloudspotError:
        output.warn(f"job {job.id} is no longer followed; follow it again with: {job.command('attach')}")
        raise
    if history.finished is None:
        output.echo(f"job {job.id} is suspended: it has no machines, and nothing is billed")
        output.echo(
            f"it continues once there is capacity, if this runs: {job.command('reconcile --watch --job')}"
        )
        output.echo(f"to continue on demand now: {job.command('resume')} --set spot.policy=on-demand")
        return exit_codes.SUSPENDED
    try:
        echo_summary(job, history)
    except TransientError as error:
        # The job has ended anyway, and the exit status reports its outcome.
        output.warn(f"job {job.id} {history.finished.outcome}, but its summary cannot be read now: {error}")
        output.warn(f"see it with: {job.command('show')}")
    if unproven := sorted(one for launch in history.launches for one in launch.unproven):
        has, it = ("has", "it") if len(unproven) == 1 else ("have", "them")
        machines = ", ".join(unproven)
        output.warn(f"it is not proven yet that {machines} {has} ended, so the bill still counts {it}")
        output.warn(f"check again with: {job.command('attach')}")
    return exit_codes.OF_OUTCOME[history.finished.outcome]


def _follow_live(job: Job, feed: LiveFeed, *, is_new: bool, since: History | None) -> History:
    from rich.text import Text

    from cloudspot.cli.following.livescreen import LiveScreen
    from cloudspot.cli.following.panel import render

    def draw(width: int, height: int, ascii_only: bool) -> Sequence[Text]:
        view = feed.view(clock_of(job.store).now())
        hint = DETACHING_HINT if interrupts.is_asked else HINT
        if view is None:
            return [Text(hint, style="dim")]
        if feed.history is not None and feed.history.finished is not None and not interrupts.is_asked:
            hint = ENDING_HINT if kept_now(feed.history, clock_of(job.store).now()) is None else KEPT_HINT
        return render(view, width=width, height=height, ascii_only=ascii_only, hint=hint)

    screen = LiveScreen(draw)
    # The panel itself confirms Ctrl-C; other output would garble the panel.
    interrupts = Interrupts(screen.leave_at_once)
    with interrupts, screen:
        follower = _Follower(job, interrupts, screen, feed, is_new=is_new, since=since, is_live=True)
        return _drive(job, follower, since)


def _drive(job: Job, follower: _Follower, since: History | None) -> History:
    controller = job.controller(sleep=follower.sleep, known=since)
    history = controller.run_until_finished(follower.on_tick)
    follower.print_last_lines()
    return history


class _PlainScreen:
    """Prints lines immediately; takes the place of a LiveScreen."""

    warn = staticmethod(output.warn)

    def print(self, lines: Sequence[Line]) -> None:
        for line in lines:
            echo_line(line)

    def check(self) -> None:
        pass


class _Follower:
    """Shows the events of ticks, and log lines as they arrive."""

    def __init__(
        self,
        job: Job,
        interrupts: Interrupts,
        screen: _PlainScreen | LiveScreen,
        feed: LiveFeed,
        *,
        is_new: bool,
        since: History | None = None,
        is_live: bool = False,
    ) -> None:
        self._now = clock_of(job.store).now
        self._interrupts = interrupts
        self._screen = screen
        self._feed = feed
        self._is_live = is_live
        # The number of launches defines what is past; times cannot, because nodes have their own clocks.
        num_past = 0 if since is None else len(since.launches)
        self._tail = LogTail(
            job.log_sink,
            streams=self._streams_to_read,
            wanted=lambda launch, _rank: launch > num_past,
            lives=self._lives,
        )
        self._past_tail = LogTail(
            job.log_sink,
            streams=lambda: feed.streams(live=False),
            wanted=lambda launch, _rank: launch <= num_past,
            lives=self._lives,
        )
        self._turn = 0
        self._read_all = False
        self._max_nodes = job.spec.nodes.max
        self._past = not is_new
        self._is_resumed = since is not None
        self._read_at = 0.0
        self._in_stack = set[tuple[str, str]]()
        """The writers, by stream and source, whose last line was a frame of a C++ stack."""
        self._log_complaint = ""
        self._has_announced_absence = False
        self._has_announced_kept = False
        self._kept_commands = (job.command("shell"), job.command("stop"))
        self._printed_step = 0
        self._printed_at = 0.0

    def on_tick(self, tick: Tick) -> None:
        """Show the events of a tick."""
        self._feed.take(tick, self._now())
        events = tick.events
        if self._past and not self._is_resumed and tick.history is not None:
            # For past events, show only the main ones and the end of the log.
            events = tuple(event for event in events if event.kind not in _MINOR)
        lines = [event_line(event, self._now()) for event in in_order_of_time(events)]
        if self._past and tick.history is not None:
            if not self._is_resumed:
                self._screen.print(lines)
                lines = []
                self._print_past_lines()
            elif self._is_live:
                self._take_in_past_curve()
            self.print_new_lines(lines)  # includes launches that are already over
            lines = []
            self._past = False
        self.print_new_lines(lines)
        if tick.history is not None and not self._is_live:
            self._print_progress(tick.history)
        if tick.kept is not None and tick.history is not None and tick.history.finished is not None:
            self._announce_kept()
        if tick.is_settled and tick.unproven and not self._has_announced_absence:
            self._has_announced_absence = True
            machines, has = ", ".join(tick.unproven), "has" if len(tick.unproven) == 1 else "have"
            text = f"checking that {machines} {has} ended, which usually takes half a minute"
            self._screen.print([event_line(Event(EventKind.WAITING, text), self._now())])
        self._check()

    def _announce_kept(self) -> None:
        if self._has_announced_kept:
            return
        self._has_announced_kept = True
        shell, stop = self._kept_commands
        text = f"the job has failed; look at the machine that is kept with: {shell}; end it with: {stop}"
        self._screen.print([event_line(Event(EventKind.KEPT, text), self._now())])

    def sleep(self, seconds: float) -> None:
        """Sleep for the controller, but print log lines in the meantime; Ctrl-C raises Detached."""
        end = time.monotonic() + seconds
        while True:
            self._check()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, CHECK_SECONDS))
            if time.monotonic() - self._read_at >= LOG_SECONDS:
                self.print_new_lines()

    def print_last_lines(self) -> None:
        """Print the lines of all nodes that have not been printed yet."""
        self._read_all = True
        self.print_new_lines()

    def print_new_lines(self, events: Sequence[Line] = ()) -> None:
        """Print new log lines, merged with the events by time.

        If a sink does not answer, it is tried again later.
        """
        records: list[LogRecord] = []
        try:
            records.extend(self._tail.new_records())
        except TransientError as error:
            self._complain(error)
        else:
            self._log_complaint = ""
        self._show(records, events)
        self._read_at = time.monotonic()

    def _streams_to_read(self) -> Sequence[str]:
        streams = self._feed.streams(live=not self._past)
        if self._past or self._read_all or len(streams) <= STREAMS_A_LOOK:
            return streams
        first, *others = streams
        self._turn = (self._turn + STREAMS_A_LOOK - 1) % len(others)
        return [first, *[*others, *others][self._turn :][: STREAMS_A_LOOK - 1]]

    def _lives(self) -> Mapping[str, Life]:
        return {} if self._feed.history is None else lives_of(self._feed.history)

    def _check(self) -> None:
        self._interrupts.check()
        self._screen.check()

    def _show(self, records: Sequence[LogRecord], events: Sequence[Line] = ()) -> None:
        """Show the records that were read, even if reading failed afterwards."""
        self._feed.add(records)
        shown = self._folded(record for record in records if record.source not in FOR_PROGRAMS)
        name_nodes = are_nodes_named(self._max_nodes, self._feed.history)
        lines = [record_line(record, name_nodes=name_nodes) for record in shown]
        self._screen.print(list(heapq.merge(events, lines, key=lambda line: line.at)))

    def _folded(self, records: Iterable[LogRecord]) -> Iterator[LogRecord]:
        """Yield the records, with each C++ stack from torch replaced by one line."""
        for record in records:
            writer, is_frame = (record.stream, record.source), _FRAME.match(record.text) is not None
            if is_frame and writer not in self._in_stack:
                self._in_stack.add(writer)
                yield msgspec.structs.replace(record, text=FOLDED)
            elif not is_frame:
                self._in_stack.discard(writer)
                yield record

    def _print_past_lines(self) -> None:
        try:
            records = self._tail.last_records(
                PAST_RECORDS if self._is_live else PAST_LINES,
                shown=lambda record: self._is_live or record.source not in FOR_PROGRAMS,
            )
        except TransientError as error:
            self._complain(error)
            return
        self._feed.add([record for record in records if record.source == METRICS])
        self._show([record for record in records if record.source not in FOR_PROGRAMS][-PAST_LINES:])

    def _take_in_past_curve(self) -> None:
        """Let the curve of the live view start before the resumption."""
        try:
            records = self._past_tail.last_records(PAST_RECORDS)
        except TransientError as error:
            self._complain(error)
            return
        self._feed.add([record for record in records if record.source == METRICS])

    def _print_progress(self, history: History) -> None:
        """Report progress occasionally, even if the script prints nothing."""
        job = summarise(history, self._now())
        step, now = job.step, time.monotonic()
        if job.state != "running" or step == self._printed_step or now - self._printed_at < PROGRESS_SECONDS:
            return
        self._printed_step, self._printed_at = step, now
        metrics = f": {output.metrics_text(job.metrics)}" if job.metrics else ""
        label = "last save" if history.has_no_session else "step"
        text = f"{label} {output.steps_text(step, job.steps_total)}{metrics}"
        self._screen.print([Line(job.at, CLOUDSPOT, text)])

    def _complain(self, error: TransientError) -> None:
        if str(error) != self._log_complaint:
            self._log_complaint = str(error)
            self._screen.warn(f"the log: {error}; trying again")
