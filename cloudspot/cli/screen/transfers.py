"""The column for the price of moving checkpoints, if some offers are outside the bucket's region."""

from __future__ import annotations

from collections.abc import Sequence

from cloudspot.jobfile.amounts import money_text
from cloudspot.model import Offer

EXPLAINED = (
    "TRANSFER: the price of a GiB to or from the bucket's region; it counts in the choice of offers once the "
    "job has committed a checkpoint, and in the bill when data is moved"
)


def transfer_column(offers: Sequence[Offer]) -> tuple[list[str], list[list[str]]]:
    """Return the header and cells of the column TRANSFER, or nothing if all offers are in the region."""
    if not any(one.transfer_price_per_gib for one in offers):
        return [], [[] for _ in offers]
    return ["TRANSFER"], [[money_text(one.transfer_price_per_gib, one.currency)] for one in offers]
