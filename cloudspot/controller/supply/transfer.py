"""The cost of moving a job's checkpoints between an offer's machines and the bucket; pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from cloudspot.controller.assess.measured import MAX_INTERVALS
from cloudspot.controller.supply.expected_losses import hours_until_loss
from cloudspot.jobstore.journal.history import History
from cloudspot.market.knowledge import Knowledge
from cloudspot.model import GIB, Offer


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The bytes of checkpoints that one node moves. Code, logs and records are too small to count."""

    bytes_per_hour: float = 0.0
    """The bytes uploaded in an hour of training, as the node's share of the checkpoints."""
    restored_bytes: float = 0.0
    """The bytes downloaded at each start: the newest checkpoint, as if each node read all of it."""


NO_TRAFFIC = Traffic()
"""The traffic of a job without a commit, whose traffic is not known yet."""


def traffic_of(history: History) -> Traffic:
    """Return a node's traffic, measured from the newest commits; ``NO_TRAFFIC`` before the first.

    The full size of a checkpoint counts, even if a part of it was already in the bucket.
    """
    generations = {one.number: one for one in history.generations}
    # A fork begins with a commit of the other job, which belongs to no generation of its own.
    commits = [one for one in history.commits if one.generation in generations][-MAX_INTERVALS:]
    num_bytes = seconds = 0.0
    for before, commit in pairwise([None, *commits]):
        assert commit is not None
        generation = generations[commit.generation]
        is_first = before is None or before.generation != commit.generation
        since = generation.at if before is None or is_first else before.at
        num_bytes += commit.size / len(generation.members)
        seconds += max(0.0, (commit.at - since).total_seconds())
    if not commits or seconds == 0:
        return NO_TRAFFIC
    return Traffic(bytes_per_hour=num_bytes / seconds * 3600, restored_bytes=commits[-1].size)


def price_with_transfer(offer: Offer, traffic: Traffic, knowledge: Knowledge) -> float:
    """Return the cost of an hour of training on a node of the offer: its price and its transfer.

    The transfer consists of an hour's checkpoints, and one restore for each expected loss of such a machine.
    """
    if not offer.transfer_price_per_gib:
        return offer.price_per_hour
    restored = traffic.restored_bytes / hours_until_loss(offer, knowledge)
    return offer.price_per_hour + offer.transfer_price_per_gib * (traffic.bytes_per_hour + restored) / GIB
