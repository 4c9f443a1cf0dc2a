"""Moments in the life of the jobs that the command line's tests write."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

START = datetime.now(timezone.utc) - timedelta(hours=3)


def at(minutes: float) -> datetime:
    """Return a moment of the job's life."""
    return START + timedelta(minutes=minutes)


def ago(minutes: float) -> str:
    """Return how long ago ``at(minutes)`` was, as a duration; the tests may run for long."""
    return f"{(datetime.now(timezone.utc) - at(minutes)).total_seconds():.0f}s"
