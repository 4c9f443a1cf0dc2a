"""What the live view shows of a job, computed from its records; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cloudspot.cli.following.pace import Point, seconds_left, steps_per_second
from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import CheckpointId, Transfer
from cloudspot.model import Instance, Offer
from cloudspot.story import report
from cloudspot.story.advice import warnings
from cloudspot.story.ledger import bill
from cloudspot.story.outcomes import own_exit
from cloudspot.story.progress import newest_step, steps_total
from cloudspot.story.series import Curve
from cloudspot.story.states import ended_at, job_state

SILENT_SECONDS = 20.0
"""Nodes send a heartbeat every five seconds; four missing ones are worth a mention."""


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node of the newest launch."""

    rank: int
    state: str
    """``requested``, ``starting``, the state in its heartbeat, or how it ended."""
    address: str | None = None
    silent_seconds: float | None = None
    """How long since its last new heartbeat; None if that is recent or it has ended."""
    transfer: Transfer | None = None


@dataclass(frozen=True, kw_only=True)
class View:
    """What is known about a job at one moment."""

    job_id: str
    state: str
    detail: str
    provider: str
    num_attempts: int
    elapsed_seconds: float
    """Since it was submitted."""
    step: int
    steps_total: int | None
    counts_steps: bool
    """Whether the script has a session; without one, ``step`` is the newest checkpoint's."""
    steps_per_second: float | None
    seconds_left: float | None
    metrics: Mapping[str, float]
    curve: Curve | None
    offer: Offer | None
    """Of the newest launch."""
    is_launched: bool
    """Whether that launch is open."""
    nodes: tuple[NodeView, ...]
    spent: float
    on_demand: float
    currency: str
    others: Mapping[str, float]
    """What was spent in other currencies."""
    commit: CheckpointId | None
    commit_age_seconds: float | None
    upload_seconds: float | None
    """How long the newest upload took, on the slowest node."""
    notice_seconds: float | None
    """How much notice the provider gives before it reclaims a machine."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A node's newest heartbeat and when it was first seen here: other machines' clocks cannot give ages."""

    counter: int
    at: datetime
    listed: object = field(default=None, compare=False)
    """What the listing said of the newest one, which may not have been read."""


@dataclass(frozen=True, kw_only=True)
class Sights:
    """What is remembered from earlier looks at a job's records."""

    points: tuple[Point, ...] = ()
    heard: Mapping[tuple[int, int], Heard] = field(default_factory=dict)
    """By launch and rank."""


def hear(
    heard: Mapping[tuple[int, int], Heard], history: History, now: datetime
) -> dict[tuple[int, int], Heard]:
    """Return the newest heartbeats of the open launch's nodes; an unchanged one keeps its moment."""
    launch = history.open_launch
    found: dict[tuple[int, int], Heard] = {}
    if launch is None:
        return found
    for rank, beat in launch.heartbeats.items():
        known = heard.get((launch.number, rank))
        listed = launch.beats_listed.get(rank)
        if known is None or (known.counter, known.listed) != (beat.counter, listed):
            known = Heard(counter=beat.counter, at=now, listed=listed)
        found[launch.number, rank] = known
    return found


def look(
    history: History,
    now: datetime,
    *,
    sights: Sights,
    logged: Mapping[str, float] | None = None,
    curve: Curve | None = None,
    instances: Sequence[Instance] = (),
) -> View:
    """Return what to show at ``now``, by the reader's clock.

    ``logged`` has the newest metrics, which the log has before the heartbeats do; ``instances``, a listing of
    the machines, makes the open launch's bill more exact.
    """
    launch = history.current_launches[-1] if history.current_launches else None
    ledger = bill(history, now, instances=instances)
    step, total = newest_step(history), steps_total(history)
    if curve is not None and curve.steps and history.finished is None:
        step = max(step, curve.steps[-1])
    metrics = report.metrics(history)
    if history.finished is None:
        metrics |= logged or {}
    rate = steps_per_second(sights.points)
    commit = history.find_commit(history.head)
    beats = [] if launch is None else list(launch.heartbeats.values())
    notices = [beat.notice_seconds for beat in beats if beat.notice_seconds is not None]
    uploads = [beat.upload_seconds for beat in beats if beat.upload_seconds is not None]
    end = ended_at(history) or now
    open_ = history.open_launch
    ranks = range(0 if open_ is None else open_.intent.num_nodes)
    return View(
        job_id=history.submission.job_id,
        state=job_state(history),
        detail=_detail(history),
        provider=history.submission.provider,
        num_attempts=len(history.attempts),
        elapsed_seconds=max(0.0, (end - history.first_submission.at).total_seconds()),
        step=step,
        steps_total=total,
        counts_steps=not history.has_no_session,
        steps_per_second=rate,
        seconds_left=seconds_left(step, total, rate),
        metrics=metrics,
        curve=curve,
        offer=None if launch is None else launch.intent.offer,
        is_launched=open_ is not None,
        nodes=() if open_ is None else tuple(_node(open_, rank, now, sights.heard) for rank in ranks),
        spent=ledger.spent,
        on_demand=ledger.on_demand_equivalent,
        currency=ledger.currency,
        others=ledger.others,
        commit=history.head,
        commit_age_seconds=None if commit is None else max(0.0, (now - commit.at).total_seconds()),
        upload_seconds=max(uploads, default=None),
        notice_seconds=min(notices, default=None),
        warnings=(*_notices(launch, now), *warnings(history)),
    )


def _detail(history: History) -> str:
    """Return why the job is in its state, if the rest of the view does not show it."""
    if history.open_launch is not None and history.finished is None:
        return "" if history.stop is None else f"stop requested ({history.stop.reason})"
    return report.detail(history)


def _node(
    launch: LaunchHistory, rank: int, now: datetime, heard: Mapping[tuple[int, int], Heard]
) -> NodeView:
    slot = launch.slots.get(rank)
    if slot is None:
        return NodeView(rank=rank, state="requested")
    if slot.instance_id is None:
        return NodeView(rank=rank, state="void")
    last = own_exit(launch, rank)
    if last is not None:
        return NodeView(rank=rank, state=last.outcome, address=slot.address)
    beat = launch.heartbeats.get(rank)
    if beat is None:
        return NodeView(rank=rank, state="starting", address=slot.address)
    word = heard.get((launch.number, rank))
    silent = 0.0 if word is None else (now - word.at).total_seconds()
    return NodeView(
        rank=rank,
        state=beat.state,
        address=beat.address,
        silent_seconds=silent if silent >= SILENT_SECONDS else None,
        transfer=beat.transfer,
    )


def _notices(launch: LaunchHistory | None, now: datetime) -> list[str]:
    """Return a line for each node that is about to be reclaimed."""
    if launch is None or launch.closed is not None:
        return []
    found = []
    for rank, notice in sorted(launch.notices.items()):
        if own_exit(launch, rank) is None:
            left = max(0.0, (notice.deadline - now).total_seconds())
            found.append(f"node {rank} will be reclaimed in {left:.0f} s ({notice.source})")
    return found
