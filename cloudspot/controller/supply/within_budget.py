"""Decide how much of a needed launch fits below ``limits.max_cost``; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from cloudspot.controller.actions import Postpone
from cloudspot.controller.assess.limits import Budget
from cloudspot.controller.supply.needs import Need
from cloudspot.controller.supply.policy import NoOffer
from cloudspot.jobstore.journal.history import History
from cloudspot.model import Offer


@dataclass(frozen=True)
class TooDear:
    """Nothing is bought, because a purchase would exceed ``limits.max_cost``."""

    why: str
    detail: str
    """The figures."""


def already_too_dear(budget: Budget | None, needed: Need, history: History) -> TooDear | None:
    """Return TooDear if the budget has no room even at the price of the cheapest live launch, else None.

    The check saves a request for offers at each look while the job continues to train.
    """
    known = [
        msgspec.structs.replace(launch.intent.offer, price_per_hour=launch.price_per_hour)
        for launch in history.live_launches
        if launch.claimed
    ]
    if budget is None or not known:
        return None
    cheapest = min(known, key=lambda offer: offer.price_per_hour)
    if budget.affords(cheapest, needed.min_nodes):
        return None
    return TooDear(budget.why_not(cheapest, needed.min_nodes), budget.text)


def choose_within(
    budget: Budget | None,
    needed: Need,
    offers: Sequence[Offer],
    choose: Callable[[Sequence[Offer]], Offer | Postpone | NoOffer],
) -> Offer | Postpone | NoOffer | TooDear:
    """Return ``choose``'s choice among all offers or, if that is too dear, among the affordable ones."""
    choice = choose(offers)
    if budget is None or not isinstance(choice, Offer) or budget.affords(choice, needed.min_nodes):
        return choice
    affordable = choose([one for one in offers if budget.affords(one, needed.min_nodes)])
    if isinstance(affordable, NoOffer):
        return TooDear(budget.why_not(choice, needed.min_nodes), budget.text)
    return affordable


def count_within(budget: Budget | None, needed: Need, offer: Offer) -> int:
    """Return how many nodes of the needed launch the budget affords; at least ``needed.min_nodes``."""
    counts = range(needed.num_nodes, needed.min_nodes, -1)
    return next(
        (count for count in counts if budget is None or budget.affords(offer, count)), needed.min_nodes
    )
