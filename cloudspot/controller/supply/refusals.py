"""Find refused offers, and how long they are left alone; pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from cloudspot.calls.retrying import doubled
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import VoidOutcome
from cloudspot.model import Offer
from cloudspot.story.outcomes import end_so_far, void_outcome

CAPACITY_COOL_SECONDS = 60.0
"""How long an offer without capacity is left alone; doubled with each further refusal in a row."""
MAX_CAPACITY_COOL_SECONDS = 900.0
"""The longest time before an offer without capacity is retried."""
QUOTA_COOL_SECONDS = 600.0
"""How long an offer refused for quota is left alone: longer, because somebody has to raise the quota."""
MAX_QUOTA_COOL_SECONDS = 3600.0
"""The longest time before an offer refused for quota is retried."""
OVERLAPPING = frozenset({"notice", "moved", "rebalance", "market"})
"""The reasons of launches whose machines run beside the machines that they replace."""
BEFOREHAND = OVERLAPPING | {"growth"}
"""The reasons of launches whose machines the training does not need for now."""


def waiting_since(history: History) -> datetime:
    """Return when the job last ran or, if it has not run yet, when it was submitted or resumed."""
    ends = (launch.over_at(rank) for launch in history.current_launches for rank in launch.claimed)
    return max((end for end in ends if end is not None), default=history.asked_at)


def cool_until(offer: Offer, history: History, why: str = "first") -> datetime | None:
    """Return until when launches for this reason leave the offer alone, or None if they need not."""
    found = cooling(offer, history, why)
    return None if found is None else found[1]


def cooling(offer: Offer, history: History, why: str = "first") -> tuple[VoidOutcome, datetime] | None:
    """Return how the offer was last refused, and until when launches for this reason leave it alone.

    A machine that was lost before it trained counts as a refusal if other nodes trained on without it. If a
    quota had no room for old and new machines at once, this refusal does not count once the old machines have
    ended.
    """
    refusals = 0
    newest: tuple[VoidOutcome, datetime] | None = None
    for launch in reversed(history.current_launches):
        if launch.intent.offer.key != offer.key:
            continue
        refused = refusal(history, launch)
        if refused is None:
            if launch.claimed:
                break
            continue
        if refused[0] == "quota" and launch.intent.why in OVERLAPPING and why not in OVERLAPPING:
            continue
        refusals += 1
        newest = newest or refused
    if newest is None:
        return None
    outcome, at = newest
    if outcome == "quota":
        wait = doubled(QUOTA_COOL_SECONDS, refusals - 1, most=MAX_QUOTA_COOL_SECONDS)
    else:
        wait = doubled(CAPACITY_COOL_SECONDS, refusals - 1, most=MAX_CAPACITY_COOL_SECONDS)
    return outcome, at + timedelta(seconds=wait)


def refusal(history: History, launch: LaunchHistory) -> tuple[VoidOutcome, datetime] | None:
    """Return whether quota or capacity denied the launch some of its machines, and when; otherwise None."""
    for rank, slot in sorted(launch.slots.items()):
        if slot.instance_id is None:
            outcome, _ = void_outcome(launch)
            if outcome in {"capacity", "quota"}:
                return outcome, launch.slots[rank].at
    is_wasted = launch.intent.why in BEFOREHAND and launch.number not in history.generations_by_launch
    if is_wasted and launch.claimed and launch.ended_at is not None:
        return "capacity", launch.ended_at
    return None


def refused_offers(history: History) -> set[str]:
    """Return the keys of the offers that can never work."""
    ends = ((launch, end_so_far(launch)) for launch in history.current_launches)
    return {launch.intent.offer.key for launch, end in ends if end is not None and end.outcome == "refused"}


def newest_refusal(history: History) -> str:
    """Return the provider's newest message that refused an offer for good, or an empty string."""
    ends = (end_so_far(launch) for launch in reversed(history.current_launches))
    return next((end.detail for end in ends if end is not None and end.outcome == "refused"), "")
