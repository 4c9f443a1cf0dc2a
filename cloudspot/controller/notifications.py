"""Notify people of a job's events, each at most once, even with several drivers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta, tzinfo

from cloudspot.controller.assess.assessment import Assessment
from cloudspot.controller.clock import Clock
from cloudspot.controller.outbox import Outbox
from cloudspot.controller.ownership import own_notify_urls
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobfile.amounts import cost_text
from cloudspot.jobfile.notify import URGENT, NewsKind, NotifySpec
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.access.stored_records import find_meta
from cloudspot.jobstore.jobs.submission import read_secrets
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import new_nonce
from cloudspot.model import Message, MessageEvent, Severity
from cloudspot.registry import open_notifier
from cloudspot.story.events import Event, EventKind
from cloudspot.story.ledger import Ledger
from cloudspot.story.news import News, news
from cloudspot.story.progress import newest_step, steps_total
from cloudspot.story.states import job_state

LEAVE_SECONDS = 30.0
"""The time for which new events are left to another driver that has begun to send them."""
MAX_LINES = 40
MAX_LINE_LENGTH = 300

_SEVERITIES = {
    NewsKind.FINISHED: Severity.SUCCESS,
    NewsKind.RECLAIMED: Severity.WARNING,
    NewsKind.STALLED: Severity.WARNING,
    NewsKind.CAPPED: Severity.WARNING,
    NewsKind.FAILED: Severity.FAILURE,
}


class Notifications:
    """Finds the unsent news of one job and hands it to the outbox. For one thread at a time.

    The driver that creates an event's mark then sends the event. So an event is sent at most once, and is not
    sent if that driver ends in between. A driver that finds another driver's fresh mark leaves all events to
    that driver for a while, unless the job has ended, so that simultaneous events go into one message.
    """

    def __init__(self, store: ObjectStore, job_id: str, outbox: Outbox, *, clock: Clock) -> None:
        self._store = store
        self._job_id = job_id
        self._outbox = outbox
        self._clock = clock
        self._writer = new_nonce().encode()
        self._sent: set[str] = set()
        self._is_listed = False
        """Whether other drivers' marks have been listed, and are in ``_sent``."""
        self._left_until = -math.inf
        """Monotonic."""
        self._secrets: Mapping[str, str] | None = None
        self._warned: set[str] = set()

    def notify(self, assessed: Assessment, events: list[Event]) -> None:
        """Send the news; a failure is added to ``events`` as a warning and is not raised."""
        for _, line in self._outbox.take_failures(self._job_id):
            events.append(Event(EventKind.WARNED, line))
        if not assessed.spec.notify.is_wanted:
            return
        try:
            self._send_news(assessed)
        except Exception as error:  # noqa: BLE001 - no fault here may stop the driver
            why = str(error) if isinstance(error, CloudspotError) else f"a bug: {type(error).__name__}"
            line = f"notify: {why}"
            if line not in self._warned:
                self._warned.add(line)
                events.append(Event(EventKind.WARNED, line))

    def _send_news(self, assessed: Assessment) -> None:
        notify, history = assessed.spec.notify, assessed.history
        if self._secrets is None:
            # The secrets are read now, because the driver that finishes the job deletes them.
            self._secrets = self._read_secrets(notify, history)
        due = self._due(notify, history)
        if not due or (self._clock.monotonic() < self._left_until and history.finished is None):
            return
        if not self._is_listed:
            marks = {
                match[1]: one.modified_at
                for one in self._store.list_objects(keys.notified_prefix(self._job_id))
                if (match := keys.notified.match(one.key)) is not None
            }
            newest = max((marks[key] for key in marks.keys() - self._sent), default=None)
            self._sent.update(marks)
            self._is_listed = True
            due = self._due(notify, history)
            # If the store's clock differs widely from ours, the news is sent at once.
            if newest is not None and abs(self._clock.now() - newest) < timedelta(seconds=LEAVE_SECONDS):
                self._leave_to_other()
                if history.finished is None:
                    return
        if not due:
            return
        # The URLs are checked before the marks are put, so that a driver that cannot send leaves the news to
        # others.
        urls = notify.resolved(self._secrets)
        open_notifier(notify.through)
        if find_meta(self._store, keys.spec(self._job_id)) is None:
            return
        won: list[News] = []
        problem: CloudspotError | None = None
        for due_news in due:
            try:
                is_ours = create(self._store, keys.notified(self._job_id, due_news.key), self._writer) is None
            except CloudspotError as error:
                problem = error
                break
            self._sent.add(due_news.key)
            if not is_ours:
                self._leave_to_other()
                break
            won.append(due_news)
        if won:
            message = message_of(won, history, assessed.ledger, notify.zone)
            own = own_notify_urls(self._store, self._job_id, notify, self._secrets)
            self._outbox.put(notify.through, message, urls, own=own)
        if problem is not None:
            raise problem

    def _leave_to_other(self) -> None:
        """Leave the news to the driver that has begun to send it."""
        self._is_listed = False
        self._left_until = self._clock.monotonic() + LEAVE_SECONDS

    def _read_secrets(self, notify: NotifySpec, history: History) -> Mapping[str, str]:
        names, resumption = notify.secret_names, history.submission.resumption
        return read_secrets(self._store, self._job_id, names, resumption=resumption) if names else {}

    def _due(self, notify: NotifySpec, history: History) -> list[News]:
        """Return the news that is due now and has not been sent, as far as this driver knows."""
        now = self._clock.now()
        kinds = set(notify.events)
        if history.finished is None and notify.is_quiet(now):
            kinds &= URGENT
        found = news(history, now, notify.zone)
        return [one for one in found if one.kind in kinds and one.key not in self._sent]


def message_of(due: Sequence[News], history: History, ledger: Ledger, zone: tzinfo) -> Message:
    """Return one message about all of these events, with the job's state and its cost so far."""
    gravity = list(NewsKind)
    kinds = sorted({one.kind for one in due}, key=gravity.index, reverse=True)
    job_id = history.submission.job_id
    events = tuple(
        MessageEvent(kind=one.kind.value, text=_in_a_line(one.text), at=one.at)
        for one in sorted(due, key=lambda one: one.at)
    )
    lines = [f"{one.at.astimezone(zone):%Y-%m-%d %H:%M %Z}: {one.text}" for one in events if one.text]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"... and {len(lines) - MAX_LINES} more"]
    total = steps_total(history)
    step = f"step {newest_step(history):,}" + ("" if total is None else f" of {total:,}")
    cost = cost_text(ledger.spent, ledger.on_demand_equivalent, ledger.currency, ledger.others)
    lines.append(f"Now: {job_state(history)}, {step}, {cost} so far")
    title = f"{job_id}: {', '.join(kind.value for kind in kinds)}"
    severity = _SEVERITIES.get(kinds[0], Severity.INFO)
    return Message(job_id=job_id, title=title, body="\n".join(lines), severity=severity, events=events)


def _in_a_line(text: str) -> str:
    """Return foreign text, such as a script's last line, shortened and without unprintable characters."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    return shown if len(shown) <= MAX_LINE_LENGTH else f"{shown[: MAX_LINE_LENGTH - 3]}..."
