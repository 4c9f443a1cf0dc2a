"""The hourly price of a node: its machine, and extras that are billed with it, such as its boot disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cloudspot.model import Offer, PricePart

HOURS_A_MONTH: Final = 730.0
"""The hours in an average month, for price lists with monthly prices."""
_DECIMALS: Final = 6

Extras = Mapping[str, float | None]
"""Hourly prices by name, such as ``disk``; None for an unknown price."""


def with_extras(offer: Offer, extras: Extras, *, on_demand: Extras | None = None) -> Offer:
    """Return a machine's offer with the extras added to its price and listed among its price parts.

    Unknown extras are not included in the price; the price parts show this. ``on_demand`` holds the on-demand
    extras, if they differ.
    """
    parts = {"machine": offer.price_per_hour, **extras}
    return msgspec.structs.replace(
        offer,
        price_per_hour=_total(offer.price_per_hour, extras),
        on_demand_price_per_hour=_total(offer.on_demand_price_per_hour, on_demand or extras),
        extras_per_hour=_total(0.0, extras),
        price_parts=tuple(PricePart(name=name, per_hour=price) for name, price in parts.items()),
    )


def price_with_extras(offer: Offer, machine: float) -> float:
    """Return the offer's price if its machine has this price, including the offer's extras."""
    return round(machine + offer.extras_per_hour, _DECIMALS)


def _total(machine: float, extras: Extras) -> float:
    return round(machine + sum(price or 0.0 for price in extras.values()), _DECIMALS)
