"""The exit statuses of ``cloudspot``, except those that an error's class defines."""

from __future__ import annotations

SUCCEEDED = 0
FAILED = 1
"""The job failed, or an error occurred whose class defines no status of its own."""
STOPPED = 10
"""The job was stopped before its end, by a person or by one of its limits."""
SUSPENDED = 11
"""The job has waited for ``spot.max_wait`` in vain; a driver launches it again once there is capacity."""
INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as in shells. A submitted job continues."""
PIPE_CLOSED = 141
"""Nothing reads the output any more: 128 + SIGPIPE, as in shells."""

OF_OUTCOME = {"succeeded": SUCCEEDED, "failed": FAILED, "stopped": STOPPED}
"""The exit status by the outcome of a job."""
