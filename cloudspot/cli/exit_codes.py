"""The exit statuses of ``cloudspot`` beside those that an error's class names."""

from __future__ import annotations

SUCCEEDED = 0
FAILED = 1
"""The job failed; also any error whose class names no status of its own."""
STOPPED = 10
"""The job was stopped before its end, by a person or by one of its limits."""
INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as shells have it. A job that was submitted goes on."""
PIPE_CLOSED = 141
"""Nobody reads the output any more: 128 + SIGPIPE, as shells have it."""

_OUTCOMES = {"succeeded": SUCCEEDED, "failed": FAILED, "stopped": STOPPED}


def of_outcome(outcome: str) -> int:
    """Return the exit status for how a job ended."""
    return _OUTCOMES[outcome]
