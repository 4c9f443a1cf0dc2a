"""The rule by which nodes are left alone: which nodes may still deliver, and which may still resume; pure.

Drivers apply this rule before they end a machine, and retention before it deletes a checkpoint. All durations
count from when the caller first saw the event, by the caller's own clock; no writer's wall clock is used.
"""

from __future__ import annotations

from cloudspot.jobstore.layout.records import Heartbeat

DELIVERY_GRACE_SECONDS = 60 * 60.0
"""A node that has to leave is left alone for this long while its heartbeats report that it delivers, because
nobody else has its state."""
STOP_GRACE_SECONDS = 10 * 60.0
"""After a stop request, any node may take this long to save a checkpoint and end."""
DRAIN_SECONDS = 120.0
"""The longest time for which the drain of a lost node may continue on its peers. The drain's save is worth
the wait, and the peers report that they are still running.
"""
END_GRACE_SECONDS = 60.0
"""After the job's end, a node without a report may take this long."""
EXIT_GRACE_SECONDS = 120.0
"""After its exit record, or once the training continues without it, a node may take this long to shut down.
"""
SILENT_LIMIT_SECONDS = 60 * 60.0
"""A node in the training is ended if its heartbeat has not changed for this long. The node counts as dead
once the provider reports its machine as ended.
"""
SILENT_NEWCOMER_SECONDS = 5 * 60.0
"""The same limit for a node that has been in no generation yet, and so has no state that others need."""
BEATING_SECONDS = 2 * 60.0
"""A heartbeat that has not changed for this long no longer shows the activity of its node."""

DELIVERING_STATES = frozenset({"draining", "uploading", "ending"})
RESUMING_STATES = frozenset({"setup", "staging", "restoring", "ready"})
"""The states of a node that has chosen, or is about to choose, the checkpoint from which it resumes."""


def may_deliver(
    beat: Heartbeat | None, *, silent_seconds: float, waited_seconds: float, grace_seconds: float
) -> bool:
    """Return whether a node that has to leave is left alone for now, because it may be delivering its state.

    Args:
        beat: the node's newest heartbeat; None if it has none, or if nobody considers it any more.
        silent_seconds: how long its counter has not changed.
        waited_seconds: how long it has been known that the node has to leave.
        grace_seconds: how long any node is left alone for that reason.
    """
    delivers = beat is not None and beat.state in DELIVERING_STATES and silent_seconds < BEATING_SECONDS
    return waited_seconds < (max(grace_seconds, DELIVERY_GRACE_SECONDS) if delivers else grace_seconds)


def may_resume(beat: Heartbeat, *, silent_seconds: float) -> bool:
    """Return whether the node may be about to resume from a checkpoint that it chose earlier."""
    return beat.state in RESUMING_STATES and silent_seconds < BEATING_SECONDS
