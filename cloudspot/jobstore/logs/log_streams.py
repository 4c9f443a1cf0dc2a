"""The names of log streams, one per machine, and of sources that programs read."""

from __future__ import annotations

import re

_NAME = re.compile(r"[1-9][0-9]{0,8}-(?:0|[1-9][0-9]{0,3})")
UTILIZATION = "utilization"
"""The source of the lines in which the agent reports the machine's ``records.Utilization``, as JSON."""
METRICS = "metrics"
"""The source of the lines that ``run.log()`` writes: JSON objects with ``step``, ``time``, ``values``."""

FOR_PROGRAMS = frozenset({METRICS, UTILIZATION})
"""The sources whose lines are not meant for people."""


def stream_name(launch: int, rank: int) -> str:
    """Return the name of a node's stream."""
    return f"{launch}-{rank}"


def is_node_stream(stream: str) -> bool:
    """Return whether ``stream_name`` could have made this name; other streams may exist."""
    return _NAME.fullmatch(stream) is not None


def parse_stream(stream: str) -> tuple[int, int]:
    """Return the launch and the rank in a stream's name, ``<launch>-<rank>``."""
    launch, _, rank = stream.partition("-")
    return int(launch), int(rank)
