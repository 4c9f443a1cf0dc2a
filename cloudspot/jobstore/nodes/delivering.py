"""Who may still deliver, and who may still resume: the one rule by which nodes are left alone; pure.

Drivers ask it before they end a machine, and retention asks it before it deletes a
checkpoint. All ages are the asker's own: what its clock has counted since it first saw what they count from.
No writer's wall clock has a part in them.
"""

from __future__ import annotations

from cloudspot.jobstore.layout.records import Heartbeat

DELIVERY_GRACE_SECONDS = 60 * 60.0
"""A node that has to go is left alone for this long while its heartbeats say that it delivers: nobody else
has what it holds."""
STOP_GRACE_SECONDS = 10 * 60.0
"""After a request to stop, any node may take this long to checkpoint and end."""
DRAIN_SECONDS = 120.0
"""How long at most the drain of a node that is gone may go on at its peers: what it saves is worth waiting
for, and meanwhile they say that they run."""
END_GRACE_SECONDS = 60.0
"""After the job's end, a node that has said nothing yet may take this long."""
EXIT_GRACE_SECONDS = 120.0
"""After its exit record, or once the training goes on without it, a node may take this long to shut itself
down."""
SILENT_LIMIT_SECONDS = 60 * 60.0
"""A node in the training whose heartbeat stands still for this long is ended. It is dead when the provider
says so."""
SILENT_NEWCOMER_SECONDS = 5 * 60.0
"""The same for a node that was in no generation yet: nobody else misses what it has."""
BEATING_SECONDS = 2 * 60.0
"""A heartbeat that has stood still for this long no longer tells what its node does."""

DELIVERING_STATES = frozenset({"draining", "uploading", "ending"})
RESUMING_STATES = frozenset({"setup", "staging", "restoring", "ready"})
"""Of a node that has chosen, or is about to choose, the checkpoint from which the next generation resumes."""


def may_deliver(
    beat: Heartbeat | None, *, silent_seconds: float, waited_seconds: float, grace_seconds: float
) -> bool:
    """Return whether a node that has to go is left alone for now, since it may deliver what only it holds.

    Args:
        beat: the node's newest heartbeat; None: it has none, or nobody listens to it any more.
        silent_seconds: for how long its counter has stood still.
        waited_seconds: for how long it has been known that the node has to go.
        grace_seconds: how long any node is left alone for that reason.
    """
    delivers = beat is not None and beat.state in DELIVERING_STATES and silent_seconds < BEATING_SECONDS
    return waited_seconds < (max(grace_seconds, DELIVERY_GRACE_SECONDS) if delivers else grace_seconds)


def may_resume(beat: Heartbeat, *, silent_seconds: float) -> bool:
    """Return whether the node may be about to resume, from a checkpoint that it chose a while ago."""
    return beat.state in RESUMING_STATES and silent_seconds < BEATING_SECONDS
