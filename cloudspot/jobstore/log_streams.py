"""The names of log streams, one for each machine, and of the source of metrics."""

from __future__ import annotations

METRICS = "metrics"
"""The source of the lines that ``run.log()`` writes: JSON objects with ``step``, ``time``, ``values``."""


def stream_name(launch: int, rank: int) -> str:
    """Return the name of a node's stream."""
    return f"{launch}-{rank}"


def parse_stream(stream: str) -> tuple[int, int]:
    """Return the launch and the rank that a stream's name, ``<launch>-<rank>``, holds."""
    launch, _, rank = stream.partition("-")
    return int(launch), int(rank)
