"""Which survivors save what they hold after others were lost, and at which boundary (P8); pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cloudspot.jobstore.layout.records import HeldState, RankLikeness


@dataclass(frozen=True)
class Choice:
    """Where to save, and who."""

    boundary: int
    step: int
    ranks: tuple[int, ...]
    """Ascending."""
    is_exact: bool
    """Whether the ranks that do not save had nothing of their own that counts."""


def choose(
    reports: Iterable[HeldState], likeness: Collection[RankLikeness], *, world_size: int
) -> Choice | str:
    """Return where the ranks that have reported save, or why nothing can be saved.

    ``likeness`` is what all ranks have told before, lost ones too.

    The newest boundary that any of them holds is a state of the training: a rank that has finished that step
    had the whole sum of the gradients. A part of a sharded state needs a holder among those that save.
    """
    held = sorted(reports, key=lambda each: each.rank)
    if not held:
        return "no rank holds the state of a boundary"
    told = {digest for each in likeness for digest in each.digests}
    if len(told) > len({boundary for boundary, _ in told}):
        return "the ranks have not held the same weights"
    newest = max(each.boundary for each in held)
    before = min(each.before for each in held if each.boundary == newest)
    if any(each.boundary not in {newest, before} for each in held):
        return "the ranks do not meet in each step: what they hold is more than one apart"
    for boundary in (newest, before):
        there = [each for each in held if each.boundary == boundary]
        ranks = {each.rank for each in there}
        if not there or any(ranks.isdisjoint(holders) for each in there for holders in each.holders):
            continue
        if len({(each.step, each.digest) for each in there}) > 1:
            return "the ranks do not hold the same weights"
        same = {each.rank for each in likeness if each.draws is False}
        is_alike = len(same) == world_size and not any(each.draws for each in held)
        has_buffers = 0 in ranks or not any(each.differs for each in there)
        is_exact = len(ranks) == world_size or (is_alike and has_buffers)
        return Choice(boundary, there[0].step, tuple(sorted(ranks)), is_exact)
    return "only ranks that were lost held a part of the state"
