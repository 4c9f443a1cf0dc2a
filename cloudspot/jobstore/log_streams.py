"""What the log's streams and sources are called: one stream a machine, one source a speaker."""

from __future__ import annotations

METRICS = "metrics"
"""The source of the lines that ``run.log()`` writes: JSON objects with ``step``, ``time``, ``values``."""


def stream_name(launch: int, rank: int) -> str:
    """Return the name of the stream of a launch's node."""
    return f"{launch}-{rank}"


def parse_stream(stream: str) -> tuple[int, int]:
    """Return the launch and the rank of a stream's name, ``<launch>-<rank>``."""
    launch, _, rank = stream.partition("-")
    return int(launch), int(rank)
