"""What a node costs an hour: its machine, and what is billed with it, such as its boot disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cloudspot.model import Offer, PricePart

HOURS_A_MONTH: Final = 730.0
"""An average month, where a price list has a GiB by the month."""
_DECIMALS: Final = 6

Extras = Mapping[str, float | None]
"""Prices an hour by name, such as ``disk``; None: it costs something, but nobody tells how much."""


def with_extras(offer: Offer, extras: Extras, *, on_demand: Extras | None = None) -> Offer:
    """Return the offer of a machine with what is billed beside it, and with the parts of its price.

    What is not known is left out of the price, and the parts say so. ``on_demand`` is what the same costs on
    demand, if that differs.
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
    """Return the offer's price if the machine costs this; one that tells of no extras is a machine alone."""
    return round(machine + offer.extras_per_hour, _DECIMALS)


def _total(machine: float, extras: Extras) -> float:
    return round(machine + sum(price or 0.0 for price in extras.values()), _DECIMALS)
