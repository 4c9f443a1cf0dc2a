"""A job's situation in the spot market, as far as its driver knows it: the input of its policy; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np

from cloudspot.controller.assess.measured import (
    assumed_seconds_to_go,
    doubt_seconds,
    restart_seconds,
    start_seconds,
)
from cloudspot.controller.supply.refusals import cool_until, refusal, waiting_since
from cloudspot.jobfile.spec import JobSpec, SpotSpec
from cloudspot.jobstore.journal.history import History
from cloudspot.market.hazards import usual_elsewhere
from cloudspot.market.knowledge import Knowledge, pool
from cloudspot.market.plugin_policy import plugin_policy
from cloudspot.market.policies import Deadline, Greedy, OnDemand, SpotThenOnDemand
from cloudspot.market.situation import NOTHING, Floats, MarketPolicy, Situation
from cloudspot.model import Offer
from cloudspot.story.outcomes import launch_end, was_reclaimed

DEFAULT_MAX_WAIT_SECONDS = 600.0
"""The time for which ``spot-then-on-demand`` waits for spot if the job sets no ``spot.max_wait``."""
UNKNOWN_AGE_HOURS = 1.0
"""The time for which a pool is assumed to have had capacity if the job knows nothing about it."""
UNKNOWN_WORK_HOURS = 1e6
"""The remaining training of a job without a known length or a deadline, which stands for no limit."""
RESERVE_SECONDS = 120.0
"""The time reserved for the driver's looks, the provider's answers and a late decision."""
RESERVE_SHARE = 0.25
"""The share by which a start may exceed the measured starts."""


def policy_of(spot: SpotSpec, knowledge: Knowledge) -> MarketPolicy:
    """Return the market policy that a job file selects.

    Raises:
        PluginError: the policy's plugin is missing or broken.
        SpecError: the policy's options are wrong.
    """
    if spot.policy == "on-demand":
        return OnDemand()
    if spot.policy == "spot":
        return Greedy(knowledge.usual)
    if spot.policy == "deadline":
        return Deadline(knowledge.usual)
    if spot.policy != "spot-then-on-demand":
        return plugin_policy(spot.policy, spot.options, knowledge.usual)
    max_wait = DEFAULT_MAX_WAIT_SECONDS if spot.max_wait is None else spot.max_wait
    return SpotThenOnDemand(knowledge.usual, max_wait / 3600)


def situation(
    spec: JobSpec,
    history: History,
    offers: Sequence[Offer],
    now: datetime,
    *,
    held: int = NOTHING,
    hourly: Callable[[Offer], float],
    on_demand_price: float,
    knowledge: Knowledge,
    why: str,
) -> Situation:
    """Return the situation, with the spot ``offers`` as zones; ``held`` is an index, or as in ``Situation``.

    ``hourly`` returns the cost of a node-hour of an offer; ``on_demand_price`` is that cost on demand. An
    offer that cools down counts as lacking capacity. Any other offer counts as available, because a request
    that finds no capacity costs nothing.
    """
    start = start_seconds(history) / 3600
    seconds_left = assumed_seconds_to_go(spec, history)
    if seconds_left is not None:
        seconds_left += doubt_seconds(history)
    deadline = math.inf if spec.spot.deadline is None else spec.spot.deadline / 3600
    hours = (now - history.asked_at).total_seconds() / 3600
    # The held pool has capacity, even if a request for more machines was refused.
    ready = [
        index == held or (until := cool_until(one, history, why)) is None or until <= now
        for index, one in enumerate(offers)
    ]
    num_zones = len({one.zone for one in offers})

    def column(values: Sequence[float]) -> Floats:
        return np.array(values, float).reshape(len(offers), 1)

    return Situation(
        hours=hours,
        length=0.0,  # so that a plan for the deadline holds at any pace of the training
        deadline=deadline,
        start_hours=float(f"{start:.2g}"),
        move_hours=float(f"{min(start, restart_seconds(history) / 3600):.2g}"),
        look_hours=RESERVE_SECONDS / 3600 + RESERVE_SHARE * start,
        work_left=np.array([UNKNOWN_WORK_HOURS if seconds_left is None else seconds_left / 3600]),
        starting=np.zeros(1),
        held=np.array([held]),
        idle_hours=np.array([(now - waiting_since(history)).total_seconds() / 3600]),
        is_up=np.array(ready, bool).reshape(len(offers), 1),
        ages=column([_age_hours(one, history, now) for one in offers]),
        loss_factors=column([knowledge.loss_factor(pool(one.zone, one.instance_type)) for one in offers]),
        badness=np.array([knowledge.badness]),
        elsewhere=np.array([usual_elsewhere(knowledge.usual, max(1, num_zones))]),
        prices=column([hourly(one) / on_demand_price for one in offers]),
    )


def _age_hours(offer: Offer, history: History, now: datetime) -> float:
    """Return how long the pool has had capacity, as far as the job knows.

    A pool without capacity is not observed, so the time at which its capacity returned is not known.
    """
    for launch in reversed(history.launches):
        other = launch.intent.offer
        if (other.zone, other.instance_type, other.market) != (offer.zone, offer.instance_type, offer.market):
            continue
        if refusal(history, launch) is not None:
            break
        end = launch_end(launch) if was_reclaimed(launch) else None
        since = launch.intent.at if end is None else end.at
        return max(0.0, (now - since).total_seconds() / 3600)
    return UNKNOWN_AGE_HOURS
