"""Estimate from the journal how often a job loses steps that an interval save would have kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cloudspot.jobstore.layout.records import Commit, Generation, JournalRecord

PRIOR_LOSSES: Final = 1.0
PRIOR_NODE_SECONDS: Final = 86400.0
"""The prior: one such loss in one day of one node."""
JOINT_LOSSES_PER_SECOND: Final = 1.0 / (7 * 86400.0)
"""The minimum rate: once a week, all machines of the job fail at once, for example with their zone. No job
runs long enough to measure that rate itself."""


def losses_per_second(records: Iterable[JournalRecord], num_nodes: int) -> float:
    """Return the expected rate, summed over the job's nodes, of losses after which steps are repeated.

    A loss is a generation that did not end with a drain, the end of its loop, or a save by its survivors. A
    generation without any save counts, because it may have made steps. The rate per node is the mean of a
    gamma distribution: the prior's losses and time plus the job's own. Only time in which commits prove that
    a generation trained is counted, so waiting for machines is not.
    """
    losses, node_seconds = PRIOR_LOSSES, PRIOR_NODE_SECONDS
    current: Generation | None = None
    newest: Commit | None = None
    for record in records:
        if isinstance(record, Generation):
            losses += current is not None and not _keeps_all(newest)
            node_seconds += _trained_node_seconds(current, newest)
            current, newest = record, None
        elif isinstance(record, Commit):
            newest = record
    node_seconds += _trained_node_seconds(current, newest)
    return max(JOINT_LOSSES_PER_SECOND, num_nodes * losses / node_seconds)


def _keeps_all(commit: Commit | None) -> bool:
    return commit is not None and (commit.is_last or commit.rescue is not None)


def _trained_node_seconds(generation: Generation | None, newest: Commit | None) -> float:
    if generation is None or newest is None:
        return 0.0
    return len(generation.members) * max(0.0, (newest.at - generation.at).total_seconds())
