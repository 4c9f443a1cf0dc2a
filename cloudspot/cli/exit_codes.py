"""The exit statuses of ``cloudspot``, except those that an error's class defines."""

from __future__ import annotations

SUCCEEDED = 0
FAILED = 1
"""The job failed, or an error occurred whose class defines no exit status of its own."""
STOPPED = 10
"""The job was stopped early, by a person or by one of its limits."""
SUSPENDED = 11
"""The job waited for ``spot.max_wait`` in vain; a driver launches it again once there is capacity."""
INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as in shells. If a job was submitted, it continues."""
PIPE_CLOSED = 141
"""Nobody reads the output any more: 128 + SIGPIPE, as in shells."""

OF_OUTCOME = {"succeeded": SUCCEEDED, "failed": FAILED, "stopped": STOPPED}
"""The exit status for each outcome of a job."""
