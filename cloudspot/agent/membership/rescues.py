"""Choose which survivors save their state after others were lost, and at which boundary (P8)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cloudspot.jobstore.layout.records import HeldState, RankLikeness


@dataclass(frozen=True)
class Choice:
    """The boundary at which to save, and the ranks that save."""

    boundary: int
    step: int
    ranks: tuple[int, ...]
    """The ranks that save, in ascending order."""
    keepers: tuple[tuple[int, int], ...]
    """Pairs, in ascending order, of another rank whose own state a saver has and that saver."""
    is_exact: bool
    """Whether the ranks without a saver had no own state that matters."""


def choose(
    reports: Iterable[HeldState], likeness: Collection[RankLikeness], *, world_size: int
) -> Choice | str:
    """Return at which boundary the ranks that have reported save, or why no state can be saved.

    ``likeness`` contains the earlier reports of all ranks, including lost ones.

    The newest boundary that any rank holds is a valid state of the training: a rank that has finished that
    step had the complete sum of the gradients. Each part of a sharded state must be held by at least one
    saver.
    """
    held = sorted(reports, key=lambda each: each.rank)
    if not held:
        return "no rank holds the state of a boundary"
    digests = {digest for each in likeness for digest in each.digests}
    if len(digests) > len({boundary for boundary, _ in digests}):
        return "the ranks have not held the same weights"
    newest = max(each.boundary for each in held)
    before = min(each.before for each in held if each.boundary == newest)
    if any(each.boundary not in {newest, before} for each in held):
        return "the ranks do not meet in each step: the states that they hold are more than one step apart"
    for boundary in (newest, before):
        there = [each for each in held if each.boundary == boundary]
        ranks = {each.rank for each in there}
        if not there or any(ranks.isdisjoint(holders) for each in there for holders in each.holders):
            continue
        keepers = {lost: each.rank for each in reversed(there) for lost in each.keeps if lost not in ranks}
        num_known = len(ranks) + len(keepers)
        if num_known < world_size and any(each.needs_all for each in there):
            continue
        if len({(each.step, each.digest) for each in there}) > 1:
            return "the ranks do not hold the same weights"
        same = {each.rank for each in likeness if each.draws is False}
        is_alike = len(same) == world_size and not any(each.draws for each in held)
        has_buffers = 0 in ranks | keepers.keys() or not any(each.differs for each in there)
        is_exact = num_known == world_size or (is_alike and has_buffers)
        savers = tuple(sorted(ranks))
        return Choice(boundary, there[0].step, savers, tuple(sorted(keepers.items())), is_exact)
    return "only ranks that were lost held a part of the state, or knew their place in the data"
