"""Keep this machine for inspection after the job has failed for good: ``limits.keep_failed``.

The journal decides which machine is kept, and for how long. This agent ends its machine by then, even without
drivers or the store; if the agent hangs, a process beside it does.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from cloudspot.agent.leaving import Leaving
from cloudspot.agent.node_context import NodeContext
from cloudspot.errors import CloudspotError
from cloudspot.host.boot_clock import boot_seconds
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.journal.lineage import why_over
from cloudspot.jobstore.layout.records import Exit, Intent, JournalRecord, Kept, Resumed
from cloudspot.jobstore.nodes.keeping import VERDICT_SECONDS
from cloudspot.story import inspection

_log = logging.getLogger(__name__)

CLAIM_SECONDS = 20.0
"""How long a node whose failure was caused by another node waits for that node to be kept."""
LOOK_SECONDS = 2.0
"""The interval at which a node reads the journal while it waits for others to decide."""
TRY_SECONDS = 60.0
"""How long a node that should be kept tries to record this while the store does not answer."""
GUARD_SECONDS = 120.0
"""If the agent has not ended the machine this long after its deadline, a process beside the agent does."""
_GUARD = 'trap "" HUP; sleep "$0"; while :; do bash -c "$CLOUDSPOT_SHUTDOWN"; sleep 30; done'


class Keeping:
    """The time of a node after the job has failed."""

    def __init__(self, context: NodeContext, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._context = context
        self._sleep = sleep
        self._guard: subprocess.Popen[bytes] | None = None
        self._num_known = 0
        """The number of records in the journal when this node wrote its exit record."""
        self.is_kept = False
        """Whether the journal says that this machine is kept."""

    def may_follow(self, leaving: Leaving) -> bool:
        """Return whether the machine may be kept after the node leaves in this way."""
        is_asked = self._context.job.spec.limits.keep_failed is not None
        return is_asked and leaving.outcome == "failed" and not self._context.orders.pending

    def settle(self, leaving: Leaving) -> Leaving:
        """Record in the journal that the job has failed and that this machine is kept, if it is to be kept.

        Returns how the node leaves. If only a driver can judge whether the failure is final, the node waits
        for the driver's verdict. Call this after the delivery.
        """
        context = self._context
        if context.orders.pending:
            return leaving
        context.orders.keep()
        if not leaving.permanent:
            self._num_known = len(context.journal.known)
            return replace(leaving, waits_until=context.now() + timedelta(seconds=VERDICT_SECONDS))
        until = time.monotonic() + TRY_SECONDS
        try:
            context.retry_until(lambda: self._claim(leaving), deadline=until, sleep=self._sleep)
        except CloudspotError as error:
            _log.error("this machine is not kept for inspection: %s", error)
        return leaving

    def recall(self, record: Exit) -> bool:
        """Continue after an agent that wrote this exit record; return whether the machine may be kept."""
        context = self._context
        records = context.retry_until(context.journal.read)
        is_waiting = record.waits_until is not None and context.now() < record.waits_until
        if not is_waiting and not (self._is_ours(records) and self._is_in_time(records)):
            return False
        self._num_known = sum(one.at < record.at for one in records)
        context.orders.keep()
        return True

    def wait(self, waits_until_seconds: float) -> None:
        """Wait until the machine may be ended; its exit record has already been written.

        ``waits_until_seconds`` is how long a driver may still take to record that this machine is kept.
        """
        if not self.is_kept and not self._await_verdict(time.monotonic() + waits_until_seconds):
            return
        context, memory = self._context, self._context.memory
        context.status.hears_others = context.status.hears_calls = False
        context.status.state = "kept"
        left = memory.kept_until - boot_seconds()
        _log.warning("the job has failed, and this machine is kept for inspection for %.0f s", left)
        if self._guard is None:  # an earlier agent has stored the time; its guard may have ended with it
            self._start_guard(left)
        while (left := memory.kept_until - boot_seconds()) > 0 and not context.orders.pending:
            context.orders.wait(min(left, LOOK_SECONDS))
        _log.warning("this machine is not kept any longer: %s", self._why_over())

    def end(self) -> None:
        """End the process beside the agent, because the machine ends now."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            self._guard = None

    def _why_over(self) -> str:
        leaving = self._context.ordered_leaving()
        return "its time is over" if leaving is None else leaving.detail

    # --- the journal --------------------------------------------------------------------------------

    def _claim(self, leaving: Leaving) -> None:
        """Record that this machine is kept, unless another one is, or the job continues or is over."""
        context = self._context
        waits = CLAIM_SECONDS if leaving.is_consequence else 0.0
        until = time.monotonic() + waits
        while True:
            records = context.journal.read()
            if self._is_ours(records):  # an earlier agent's, or a put whose response was lost
                self._is_in_time(records)
                return
            if _kept(records) is not None or why_over(records, context.node.launch) is not None:
                return
            if time.monotonic() >= until:
                break
            self._sleep(LOOK_SECONDS)
        while not context.orders.pending:
            history = HistoryReader(context.store, context.job_id).read()
            record = inspection.keep(
                context.job.spec,
                history,
                context.seat,
                detail=leaving.detail,
                exit_code=leaving.exit_code or 1,
                now=context.now(),
            )
            if record is None:
                if history.kept is None and history.stop is None:
                    _log.warning("limits.max_cost leaves no room to keep this machine for inspection")
                return
            # First write the time to disk and start the guard: once others can read the record, each agent of
            # this machine must know it, and the machine must end in time even if this agent hangs.
            self._remember((record.until - record.at).total_seconds())
            if context.journal.append(record, history.num_records + 1):
                self.is_kept = True
                return
            self._remember(None)

    def _await_verdict(self, until: float) -> bool:
        """Return whether a driver has recorded in time that the job has failed and this machine is kept."""
        context, launch = self._context, self._context.node.launch
        while time.monotonic() < until and not context.orders.pending:
            with suppress(CloudspotError):
                records = context.journal.read()
                if self._is_ours(records):
                    return self._is_in_time(records)
                has_next_launch = any(isinstance(one, Intent) for one in records[self._num_known :])
                if has_next_launch or _kept(records) is not None or why_over(records, launch) is not None:
                    return False
            context.orders.wait(LOOK_SECONDS)
        return False

    def _is_ours(self, records: tuple[JournalRecord, ...]) -> bool:
        kept, context = _kept(records), self._context
        return (
            kept is not None
            and (kept.seat, kept.instance_id) == (context.seat, context.job.identity.instance_id)
            and why_over(records, context.node.launch, is_kept=True) is None
        )

    def _is_in_time(self, records: tuple[JournalRecord, ...]) -> bool:
        """Return whether time is left; store when it ends, if this machine does not know that yet."""
        kept, memory = _kept(records), self._context.memory
        assert kept is not None, "this machine is kept"
        if memory.kept_until == 0.0:
            self._remember((kept.until - self._context.now()).total_seconds())
        self.is_kept = boot_seconds() < memory.kept_until
        return self.is_kept

    def _remember(self, seconds: float | None) -> None:
        """Store when the time ends, and start the guard, since this agent may hang at any moment after it."""
        self.end()
        self._context.memory.kept_until = 0.0 if seconds is None else boot_seconds() + seconds
        self._context.memory.save(self._context.node)
        if seconds is not None:
            self._start_guard(seconds)

    def _start_guard(self, seconds: float) -> None:
        if "CLOUDSPOT_SHUTDOWN" in os.environ:
            command = ["/bin/bash", "-c", _GUARD, f"{seconds + GUARD_SECONDS:.0f}"]
            quiet = subprocess.DEVNULL
            self._guard = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)


def _kept(records: tuple[JournalRecord, ...]) -> Kept | None:
    """Return the record of the machine that has been kept since the job was last resumed, or None."""
    for record in reversed(records):
        if isinstance(record, Kept | Resumed):
            return record if isinstance(record, Kept) else None
    return None
