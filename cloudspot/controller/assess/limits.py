"""Whether a job has reached a limit, and what it may still spend below ``limits.max_cost``; pure.

A stop also costs money, because machines run until they have saved and ended. So the job stops when the money
spent plus the cost of a stop reaches the limit, and a machine is bought only if its start and its stop fit
below the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cloudspot.controller.assess.measured import DEFAULT_START_SECONDS, start_seconds
from cloudspot.errors import SpecError
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Heartbeat, StopReason
from cloudspot.model import GIB, Instance, Offer
from cloudspot.story.ledger import Ledger, cost_until, spent_in
from cloudspot.story.outcomes import last_sign, own_beat
from cloudspot.story.stretches import OVER

LOOK_SECONDS = 30.0
"""The time from when a stop is due until the nodes know of it: a driver's look and a node's look."""
DEFAULT_BOUNDARY_SECONDS = 30.0
"""The time until all ranks reach a step where they save; once a step was measured, two steps count."""
DEFAULT_SAVE_SECONDS = 120.0
"""The time for the last save and its upload, until one has been measured."""
DEFAULT_END_SECONDS = 120.0
"""The time from a node's exit record to the end of its machine, until one has been measured."""
DEFAULT_STOP_SECONDS = LOOK_SECONDS + DEFAULT_BOUNDARY_SECONDS + DEFAULT_SAVE_SECONDS + DEFAULT_END_SECONDS


@dataclass(frozen=True)
class Reached:
    """A limit that the job has reached."""

    reason: StopReason
    detail: str = ""
    """The figures behind this, for people to read."""


def reached_limit(spec: JobSpec, ledger: Ledger, budget: Budget | None) -> Reached | None:
    """Return the limit that the job has reached (``max_cost`` or ``max_runtime``), or None."""
    if budget is not None and budget.spent + budget.stop_cost >= budget.limit:
        return Reached("max_cost", budget.text)
    limit = spec.limits.max_runtime
    return Reached("max_runtime") if limit is not None and ledger.run_seconds >= limit else None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The amount that a job with ``limits.max_cost`` may still spend."""

    limit: float
    currency: str
    spent: float
    stop_cost: float = 0.0
    """The cost of the machines that live or may come, until a stop requested now has ended them."""
    stop_seconds: float = DEFAULT_STOP_SECONDS
    start_seconds: float = DEFAULT_START_SECONDS
    checkpoint_bytes: int = 0
    """The size of the newest checkpoint; 0 before the first. Moving the checkpoint between regions may cost
    money.
    """

    @property
    def text(self) -> str:
        """Return how close the job is to the limit, for people to read."""
        limit = money_text(self.limit, self.currency)
        if not self.stop_cost:
            return f"{money_text(self.spent, self.currency)} of {limit} spent"
        stop = money_text(self.stop_cost, self.currency)
        return (
            f"{money_text(self.spent, self.currency)} of {limit} spent, and the stop, which takes up to "
            f"{self.stop_seconds:.0f} s, may cost {stop}"
        )

    def cost_of(self, offer: Offer, num_nodes: int) -> float:
        """Return the least cost of ``num_nodes`` machines: start and stop, or the shortest time charged.

        Each machine restores the newest checkpoint, and together they save another one.
        """
        seconds = offer.billing.charged_seconds(self.start_seconds + self.stop_seconds)
        moved = _transfer_cost(offer, (num_nodes + 1) * self.checkpoint_bytes)
        return num_nodes * seconds * offer.price_per_hour / 3600 + moved

    def affords(self, offer: Offer, num_nodes: int) -> bool:
        """Return whether the cost stays below the limit with ``num_nodes`` more machines."""
        return self.spent + self.stop_cost + self.cost_of(offer, num_nodes) < self.limit

    def why_not(self, offer: Offer, num_nodes: int) -> str:
        """Return the message that ``num_nodes`` machines of the offer are not bought."""
        cost = money_text(self.cost_of(offer, num_nodes), offer.currency)
        return (
            f"limits.max_cost of {money_text(self.limit, self.currency)} has no room for {num_nodes} x "
            f"{offer.instance_type} ({offer.market.value}), whose start and stop alone cost {cost}"
        )


def budget_of(
    spec: JobSpec,
    history: History,
    ledger: Ledger,
    now: datetime,
    *,
    instances: Sequence[Instance] | None = None,
) -> Budget | None:
    """Return the budget left at ``now``, or None if the job has no ``limits.max_cost``.

    ``ledger`` is the job's bill.
    """
    limits = spec.limits
    if limits.max_cost is None:
        return None
    start, seconds = start_seconds(history), stop_seconds(history)
    currency = limits.currency or ledger.currency
    ends = now + timedelta(seconds=seconds)
    later = cost_until(history, ledger, now, ends, currency, instances=instances)
    live = [one for one in history.live_launches if one.intent.offer.currency == currency]
    unseen = sum(_unseen_cost(launch, now, start, seconds, instances or ()) for launch in live)
    checkpoint_bytes = history.commits[-1].size if history.commits else 0
    last_save = max((_transfer_cost(one.intent.offer, checkpoint_bytes) for one in live), default=0.0)
    return Budget(
        limit=limits.max_cost,
        currency=currency,
        spent=spent_in(ledger, limits.currency),
        stop_cost=max(0.0, later) + unseen + last_save,
        stop_seconds=seconds,
        start_seconds=start,
        checkpoint_bytes=checkpoint_bytes,
    )


def check_affordable(budget: Budget | None, offers: Sequence[Offer], num_nodes: int) -> None:
    """Check that a job that is about to be submitted or resumed can run at all.

    Raises:
        SpecError: ``limits.max_cost`` has no room for ``num_nodes`` machines of any offer.
    """
    if budget is None or any(budget.affords(offer, num_nodes) for offer in offers):
        return
    cheapest = min(offers, key=lambda offer: budget.cost_of(offer, num_nodes))
    spent = f", and {money_text(budget.spent, budget.currency)} is spent" if budget.spent else ""
    raise SpecError(
        f"{budget.why_not(cheapest, num_nodes)}{spent}; raise the limit with --set limits.max_cost=..."
    )


def new_budget(spec: JobSpec, currency: str) -> Budget | None:
    """Return the budget of a job before it is submitted, or None if it has no ``limits.max_cost``."""
    limits = spec.limits
    if limits.max_cost is None:
        return None
    return Budget(limit=limits.max_cost, currency=limits.currency or currency, spent=0.0)


def stop_seconds(history: History) -> float:
    """Return the duration of a stop that is due now, by the longest times measured.

    The stop has four parts: all nodes learn of it, all reach a boundary, they save and upload, and the
    machines end after the nodes' exit records. A part that has not been measured yet counts with its default.
    Once the job has ended, nothing more is saved: a machine that is kept for inspection only has to end.
    """
    beats = [
        beat
        for launch in history.launches
        for rank in launch.claimed
        if (beat := own_beat(launch, rank)) is not None
    ]
    boundary = max((2 * step for beat in beats for step in _step_seconds(beat)), default=None)
    saves = [
        beat.upload_seconds + max(beat.stall_seconds or 0.0, _copy_seconds(beat))
        for beat in beats
        if beat.upload_seconds is not None
    ]
    ends = [seconds for launch in history.launches for seconds in _end_seconds(launch)]
    if history.finished is not None:
        return LOOK_SECONDS + max(ends, default=DEFAULT_END_SECONDS)
    return (
        LOOK_SECONDS
        + (DEFAULT_BOUNDARY_SECONDS if boundary is None else boundary)
        + max(saves, default=DEFAULT_SAVE_SECONDS)
        + max(ends, default=DEFAULT_END_SECONDS)
    )


def _copy_seconds(beat: Heartbeat) -> float:
    """Return the duration of a save's copying, which a drain does not do concurrently with a step."""
    return 0.0 if beat.save_cost is None else beat.save_cost.copy_seconds


def _step_seconds(beat: Heartbeat) -> Iterator[float]:
    """Yield the duration of a step in the node's newest generation, if the node has made steps there."""
    phases = [one for one in beat.phases if one.generation == beat.generation]
    begun = next((one.at for one in phases if one.state == "training"), None)
    over = next((one.at for one in phases if one.state in OVER), beat.at)
    num_steps = beat.step - beat.restored_step
    if begun is not None and num_steps > 0:
        yield max(0.0, (over - begun).total_seconds()) / num_steps


def _end_seconds(launch: LaunchHistory) -> Iterator[float]:
    """Yield how long each machine ran after its node's exit record, if the provider reported its end."""
    for rank, last in launch.own_exits.items():
        certificate = launch.certificate(rank)
        # The node's clock may be slow. The node's last heartbeat has the store's time, and comes just before
        # the exit.
        left = max(last.at, last_sign(launch, rank))
        # If the provider did not report an end, the certificate repeats the time that the node reported.
        if certificate is not None and certificate.ended_at > left:
            yield (certificate.ended_at - left).total_seconds()


def _transfer_cost(offer: Offer, num_bytes: int) -> float:
    return num_bytes / GIB * offer.transfer_price_per_gib


def _unseen_cost(
    launch: LaunchHistory, now: datetime, start: float, stop: float, instances: Sequence[Instance]
) -> float:
    """Return the cost of unseen machines that may run, up to the end of a stop that is requested now.

    The time of such machines counts up to the length of a start, because a machine unseen for longer never
    came.
    """
    owners = {slot.instance_id for slot in launch.claimed.values()}
    seen = [
        one for one in instances if one.launch == launch.number and one.id not in owners and one.state.is_up
    ]
    num_unseen = max(0, len(launch.open_ranks) - len(seen))
    age = max(0.0, (now - launch.intent.at).total_seconds())
    charged = launch.intent.offer.billing.charged_seconds(min(age, start) + stop)
    return num_unseen * charged * launch.price_per_hour / 3600
