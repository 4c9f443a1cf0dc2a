"""The contents of the live view of a job, computed from its records. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from cloudspot.cli.following.pace import Point, seconds_left, steps_per_second
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import CheckpointId, Seat, Transfer
from cloudspot.jobstore.nodes.seats import Seats, seats_of
from cloudspot.model import Instance, Offer
from cloudspot.story import report
from cloudspot.story.advice import warnings
from cloudspot.story.ledger import bill
from cloudspot.story.outcomes import own_beat, own_exit
from cloudspot.story.progress import newest_step, steps_total
from cloudspot.story.series import Curve
from cloudspot.story.states import ended_at, is_holding, job_state, nodes_of

SILENT_SECONDS = 20.0
"""Nodes send a heartbeat every five seconds; the view mentions when four are missing."""


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node of the newest generation, or a node that is about to join or leave."""

    name: str
    state: str
    """``requested``, ``booting``, ``holding``, the state in the node's heartbeat, or how the node ended."""
    is_newcomer: bool = False
    """Whether the node has not been in any generation yet."""
    stands_in_for: str | None = None
    """The node that it will replace once it is ready."""
    leaves_seconds: float | None = None
    """The time left in its notice; None if it has no notice."""
    is_excluded: bool = False
    """Whether the training has continued without the node."""
    address: str | None = None
    silent_seconds: float | None = None
    """The time since its last new heartbeat; None if that was recent or the node has ended."""
    transfer: Transfer | None = None


@dataclass(frozen=True, kw_only=True)
class View:
    """The known facts about a job at one moment."""

    job_id: str
    state: str
    detail: str
    provider: str
    generation: int
    """The newest generation's number, or 0 if there is none yet."""
    num_nodes: int
    """The number of nodes in the generation."""
    max_nodes: int
    elapsed_seconds: float
    """The time since the submission."""
    step: int
    steps_total: int | None
    counts_steps: bool
    """Whether the script has a session; without one, ``step`` is the step of the newest checkpoint."""
    steps_per_second: float | None
    seconds_left: float | None
    metrics: Mapping[str, float]
    curve: Curve | None
    offers: tuple[tuple[Offer, int], ...]
    """The offers with live or requested nodes, and the numbers of these nodes; if there are none, the last
    offer with 0."""
    nodes: tuple[NodeView, ...]
    spent: float
    on_demand: float
    currency: str
    others: Mapping[str, float]
    """The cost in other currencies."""
    commit: CheckpointId | None
    commit_age_seconds: float | None
    upload_seconds: float | None
    """The duration of the newest upload, on the slowest node."""
    notice_seconds: float | None
    """The length of the provider's notices."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SeenHeartbeat:
    """A node's newest heartbeat, and when it was first seen here, because machines' clocks may differ."""

    counter: int
    at: datetime
    listed: object = field(default=None, compare=False)
    """The version of the newest heartbeat in the listing; this heartbeat may not have been read yet."""


@dataclass(frozen=True, kw_only=True)
class Sights:
    """Observations from earlier looks at a job's records."""

    points: tuple[Point, ...] = ()
    heard: Mapping[Seat, SeenHeartbeat] = field(default_factory=dict)


def newest_heartbeats(
    known_heartbeats: Mapping[Seat, SeenHeartbeat], history: History, now: datetime
) -> dict[Seat, SeenHeartbeat]:
    """Return the newest heartbeats of the live nodes; an unchanged heartbeat keeps its time."""
    updated: dict[Seat, SeenHeartbeat] = {}
    for launch in history.live_launches:
        for rank, beat in launch.heartbeats.items():
            seat = Seat(launch.number, rank)
            known, listed = known_heartbeats.get(seat), launch.beats_listed.get(rank)
            if known is None or (known.counter, known.listed) != (beat.counter, listed):
                known = SeenHeartbeat(counter=beat.counter, at=now, listed=listed)
            updated[seat] = known
    return updated


def look(
    history: History,
    now: datetime,
    *,
    sights: Sights,
    logged: Mapping[str, float] | None = None,
    curve: Curve | None = None,
    instances: Sequence[Instance] | None = None,
) -> View:
    """Return the view at ``now``, by the reader's clock.

    ``logged`` holds the newest metrics, which reach the log before the heartbeats. ``instances``, a listing
    of the machines, makes the bill for running machines more exact.
    """
    ledger = bill(history, now, instances=instances)
    step, total = newest_step(history), steps_total(history)
    if curve is not None and curve.steps and history.finished is None:
        step = max(step, curve.steps[-1])
    metrics = report.metrics(history)
    if history.finished is None:
        metrics |= logged or {}
    rate = steps_per_second(sights.points)
    commit = history.find_commit(history.head)
    seats = seats_of(history.current_launches, history.generations)
    newest = (
        history.launches[seat.launch - 1].heartbeats.get(seat.rank)
        for seat in (*seats.members, *seats.newcomers)
    )
    beats = [beat for beat in newest if beat is not None]
    notices = [beat.notice_seconds for beat in beats if beat.notice_seconds is not None]
    uploads = [beat.upload_seconds for beat in beats if beat.upload_seconds is not None]
    end = ended_at(history) or now
    return View(
        job_id=history.submission.job_id,
        state=job_state(history),
        detail=_detail(history),
        provider=history.submission.provider,
        generation=len(history.generations),
        num_nodes=history.num_nodes,
        max_nodes=nodes_of(history).max,
        elapsed_seconds=max(0.0, (end - history.first_submission.at).total_seconds()),
        step=step,
        steps_total=total,
        counts_steps=not history.has_no_session,
        steps_per_second=rate,
        seconds_left=seconds_left(step, total, rate),
        metrics=metrics,
        curve=curve,
        offers=_offers(history),
        nodes=tuple(_nodes(history, seats, now, sights.heard)),
        spent=ledger.spent,
        on_demand=ledger.on_demand_equivalent,
        currency=ledger.currency,
        others=ledger.others,
        commit=history.head,
        commit_age_seconds=None if commit is None else max(0.0, (now - commit.at).total_seconds()),
        upload_seconds=max(uploads, default=None),
        notice_seconds=min(notices, default=None),
        warnings=(*_notices(history, now), *report.kept_warning(history, now), *warnings(history)),
    )


def _detail(history: History) -> str:
    """Return why the job is in its state, unless the rest of the view shows the reason."""
    if history.live_launches and history.finished is None and job_state(history) != "holding":
        if history.stop is None:
            return ""
        figures = f": {history.stop.detail}" if history.stop.detail else ""
        return f"stop requested ({history.stop.reason}){figures}"
    return report.detail(history)


def _offers(history: History) -> tuple[tuple[Offer, int], ...]:
    by_key: dict[str, tuple[Offer, int]] = {}
    for launch in history.live_launches:
        offer = launch.intent.offer
        _, count = by_key.get(offer.key, (offer, 0))
        by_key[offer.key] = (offer, count + len(launch.live_ranks))
    if not by_key and history.current_launches:
        return ((history.current_launches[-1].intent.offer, 0),)
    return tuple(by_key.values())


def _nodes(
    history: History, seats: Seats, now: datetime, heard: Mapping[Seat, SeenHeartbeat]
) -> Iterator[NodeView]:
    """Yield the members in rank order, then joining nodes, then excluded nodes that are still running."""
    if not seats.live:
        return
    is_held = bool(history.generations) and is_holding(history, history.generations[-1])
    members = [seat for seat in seats.members if history.launch_of(seat) in history.current_launches]
    for seat in (*members, *sorted(seats.newcomers), *sorted(seats.live & seats.excluded)):
        launch = history.launches[seat.launch - 1]
        view = _node(launch, seat, now, heard)
        notice = launch.notices.get(seat.rank) if seat in seats.live else None
        left = None if notice is None else max(0.0, (notice.deadline - now).total_seconds())
        is_newcomer, principal = seat in seats.newcomers, launch.intent.principals.get(seat)
        waits = view.state in {"ready", "restoring"} and is_held and seat in seats.members
        yield replace(
            view,
            state="holding" if waits else view.state,
            is_newcomer=is_newcomer,
            stands_in_for=None if principal is None or not is_newcomer else str(principal),
            leaves_seconds=left,
            is_excluded=seat in seats.excluded,
        )


def _node(launch: LaunchHistory, seat: Seat, now: datetime, heard: Mapping[Seat, SeenHeartbeat]) -> NodeView:
    slot, beat = launch.slots.get(seat.rank), own_beat(launch, seat.rank)
    if slot is None:
        return NodeView(name=str(seat), state="requested")
    if launch.is_over(seat.rank):
        last = own_exit(launch, seat.rank)
        return NodeView(name=str(seat), state="lost" if last is None else last.outcome, address=slot.address)
    if beat is None:
        return NodeView(name=str(seat), state="booting", address=slot.address)
    seen = heard.get(seat)
    silent = 0.0 if seen is None else (now - seen.at).total_seconds()
    return NodeView(
        name=str(seat),
        state=beat.state,
        address=beat.address,
        silent_seconds=silent if silent >= SILENT_SECONDS else None,
        transfer=beat.transfer,
    )


def _notices(history: History, now: datetime) -> list[str]:
    """Return a line for each node that is about to be reclaimed."""
    texts = []
    for launch in history.live_launches:
        for rank, notice in sorted(launch.notices.items()):
            if rank in launch.live_ranks:
                left = max(0.0, (notice.deadline - now).total_seconds())
                node = Seat(launch.number, rank)
                texts.append(f"node {node} will be reclaimed in {left:.0f} s ({notice.source})")
    return texts
