"""How often a job loses steps that an interval save would have kept, by its own journal; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cloudspot.jobstore.layout.records import Commit, Generation, JournalRecord

PRIOR_LOSSES: Final = 1.0
PRIOR_NODE_SECONDS: Final = 86400.0
"""A job begins as if it had seen one such loss in one day of one node."""
JOINT_LOSSES_PER_SECOND: Final = 1.0 / (7 * 86400.0)
"""The least rate, whatever the job has seen: once a week all of its machines go at once, as when a zone
fails. No job runs for long enough to learn that rate by itself."""


def losses_per_second(records: Iterable[JournalRecord], num_nodes: int) -> float:
    """Return the expected rate of losses after which steps are repeated, over all nodes of the job.

    A loss is a generation that did not end with a drain, the end of its loop, or a save by its survivors; one
    without any save counts, as nothing tells whether it had made a step. The rate of a node is the mean of a
    gamma distribution: the prior's losses and time plus the job's own. Time counts as far as commits prove
    that a generation trained, so waiting for machines is no evidence.
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
