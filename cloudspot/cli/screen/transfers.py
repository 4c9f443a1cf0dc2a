"""How offers show what moving checkpoints costs, where some of them are away from the bucket's region."""

from __future__ import annotations

from collections.abc import Sequence

from cloudspot.jobfile.amounts import money_text
from cloudspot.model import Offer

EXPLAINED = (
    "TRANSFER: of a GiB between there and the bucket's region; it counts in the choice once the job has "
    "committed a checkpoint, and in the bill as it is moved"
)


def transfer_column(offers: Sequence[Offer]) -> tuple[list[str], list[list[str]]]:
    """Return the header and each offer's cell of the column TRANSFER; empty if all are in the region."""
    if not any(one.transfer_price_per_gib for one in offers):
        return [], [[] for _ in offers]
    return ["TRANSFER"], [[money_text(one.transfer_price_per_gib, one.currency)] for one in offers]
