"""Collect the lines of ``cloudspot providers check`` while a plugin tries one step after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from cloudspot.calls import InstancesRequest, OffersRequest
from cloudspot.errors import AuthError, CloudspotError
from cloudspot.interfaces import Provisioner
from cloudspot.model import CheckResult, InstanceGroup, Market, Offer, Resources

MAX_SKEW_SECONDS = 240.0
"""The maximum clock difference; clouds refuse a request whose time is wrong by five minutes or more."""
_MISSING_RIGHT = ("access denied", "lack")
"""An AuthError with one of these words concerns a permission; others concern the credentials."""


class NotKnown(CloudspotError):
    """A check could not be made, for the reason in the message; this does not count as a failure."""


class Checklist:
    """The lines of the checks made so far; a failure does not end the list."""

    def __init__(self, *, remedy: str) -> None:
        """``remedy`` is the advice if a permission is missing."""
        self.remedy = remedy
        """The advice given if a permission is missing."""
        self._found: list[CheckResult] = []

    def attempt(self, name: str, ask: Callable[[], str], remedy: str = "") -> bool:
        """Record the result of ``ask``, or its failure with a remedy; return whether it succeeded."""
        try:
            self._found.append(CheckResult(name=name, ok=True, detail=ask()))
        except NotKnown as error:
            self._found.append(CheckResult(name=name, ok=True, is_known=False, detail=str(error)))
        except CloudspotError as error:
            is_right = isinstance(error, AuthError) and any(sign in str(error) for sign in _MISSING_RIGHT)
            advice = remedy or (self.remedy if is_right else "")
            self._found.append(CheckResult(name=name, ok=False, detail=str(error), remedy=advice))
            return False
        return True

    def attempt_listing(self, provisioner: Provisioner) -> None:
        """List the machines of all jobs."""

        def look() -> str:
            return f"{len(provisioner.instances(InstancesRequest()).instances)} machines of cloudspot's"

        self.attempt("listing", look)

    def attempt_offers(
        self,
        provisioner: Provisioner,
        resources: Resources,
        *,
        remark: Callable[[Offer], str] = lambda _: "",
    ) -> list[Offer]:
        """Request offers, and return them, the cheapest first; return none after a failure.

        The line names the cheapest offer, followed by its ``remark``.
        """
        offers: list[Offer] = []

        def look() -> str:
            found = provisioner.offers(OffersRequest(resources=resources)).offers
            offers.extend(sorted(found, key=lambda one: one.price_per_hour))
            if not offers:
                raise CloudspotError("no machine type fits; ask for less in resources, or try another region")
            first = offers[0]
            return (
                f"{len(offers)}, from {first.price_per_hour:g} {first.currency} an hour "
                f"({first.market.value} {first.instance_type} in {first.zone}{remark(first)})"
            )

        self.attempt("offers", look)
        return offers

    def results(self) -> tuple[CheckResult, ...]:
        """Return all lines, in order."""
        return tuple(self._found)


def cheapest_by_market(offers: Sequence[Offer]) -> Iterator[tuple[Market, Offer]]:
    """Yield each market that has an offer, together with its cheapest offer."""
    for market in Market:
        ours = [one for one in offers if one.market is market]
        if ours:
            yield market, min(ours, key=lambda one: one.price_per_hour)


def trial_launch(offer: Offer) -> InstanceGroup:
    """Return a launch of one machine, for a dry run."""
    return InstanceGroup(
        job_id="check",
        launch=1,
        num_nodes=1,
        job_nodes=1,
        min_nodes=1,
        offer=offer,
        resources=Resources(),
        user_data="#!/bin/sh\nshutdown -h now\n",
        max_seconds=60.0,
        decided_at=datetime.now(timezone.utc),
        store_url="check",
    )


def compare_clock(date: str | None, *, server: str) -> str:
    """Compare this clock with the ``Date`` header of an answer.

    Raises:
        NotKnown: the answer has no date.
        CloudspotError: the difference is so large that requests are refused.
    """
    if date is None:
        raise NotKnown(f"the answer of {server} has no date")
    skew = (datetime.now(timezone.utc) - parsedate_to_datetime(date)).total_seconds()
    if abs(skew) > MAX_SKEW_SECONDS:
        raise CloudspotError(f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} {server}'s")
    return f"within {max(2.0, abs(skew)):.0f} s of {server}'s"
