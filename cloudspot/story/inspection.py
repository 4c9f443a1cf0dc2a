"""The choice of the machine that is kept for inspection after a job has failed, and of its time; pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Exit, Kept, Seat, new_nonce
from cloudspot.story.ledger import bill, spent_in

END_SECONDS = 120.0
"""The longest usual time from a machine's own end to the end of its bill."""
OTHERS_SECONDS = 300.0
"""The time for which the job's other machines are still paid for, since they end at the same time."""


def keep(
    spec: JobSpec, history: History, seat: Seat, *, detail: str, exit_code: int, now: datetime
) -> Kept | None:
    """Return the record that keeps a node's machine from ``now`` on, or None if it must not be kept.

    A machine must not be kept if the job was asked to stop, if another node was kept, or if ``max_cost`` has
    no room. Otherwise it is kept for ``keep_failed``, or for as long as ``max_cost`` allows.
    """
    launch = history.launch_of(seat)
    slot = None if launch is None else launch.claimed.get(seat.rank)
    is_wanted = history.stop is None and history.kept is None and history.finished is None
    if not is_wanted or slot is None or slot.instance_id is None:
        return None
    seconds = keeping_seconds(spec, history, seat, now)
    if seconds <= 0:
        return None
    return Kept(
        launch=seat.launch,
        rank=seat.rank,
        instance_id=slot.instance_id,
        until=now + timedelta(seconds=seconds),
        detail=detail,
        exit_code=exit_code,
        at=now,
        writer=new_nonce(),
    )


def keeping_seconds(spec: JobSpec, history: History, seat: Seat, now: datetime) -> float:
    """Return how long the node's machine may be kept; 0 if it may not be kept."""
    limits, launch = spec.limits, history.launch_of(seat)
    asked = limits.keep_failed or 0.0
    if limits.max_cost is None or launch is None:
        return asked
    ledger = bill(history, now)
    currency = limits.currency or ledger.currency
    if launch.intent.offer.currency != currency or launch.price_per_hour <= 0:
        return asked
    others = sum(
        len(one.live_ranks) * one.price_per_hour
        for one in history.live_launches
        if one.intent.offer.currency == currency
    )
    left = limits.max_cost - spent_in(ledger, currency) - others * OTHERS_SECONDS / 3600
    return max(0.0, min(asked, left / launch.price_per_hour * 3600 - END_SECONDS))


def first_waiting(history: History, now: datetime) -> Exit | None:
    """Return the exit record of the node that failed first among those waiting to be kept, or None.

    A node stops waiting once a launch has followed its failure.
    """
    newest = max((launch.intent.at for launch in history.current_launches), default=now)
    waiting = (
        last
        for launch in history.current_launches
        for last in launch.own_exits.values()
        if last.waits_until is not None and newest < last.at and now < last.waits_until
    )
    return min(waiting, key=lambda last: (last.at, last.launch, last.rank), default=None)
