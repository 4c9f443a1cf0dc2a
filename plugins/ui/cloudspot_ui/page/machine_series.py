"""The utilization of a job's machines over time, from their agents' lines in the log; does no I/O."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import msgspec

from cloudspot.decoding import decode
from cloudspot.jobstore.layout.records import Seat, Utilization
from cloudspot.jobstore.logs.log_streams import UTILIZATION, parse_stream
from cloudspot.model import LogRecord
from cloudspot.story.series import Curve

MAX_NODES = 10
"""The maximum number of nodes with curves, one for each colour: the latest nodes that have measured anything.
"""


def _mean(shares: Sequence[float]) -> float | None:
    return 100 * sum(shares) / len(shares) if shares else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _mebibytes(*rates: float | None) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) / (1 << 20) if known else None


FIGURES: dict[str, Callable[[Utilization], float | None]] = {
    "GPU, %": lambda one: _mean(one.gpus),
    "GPU memory, %": lambda one: _mean(one.gpu_memory),
    "CPU, %": lambda one: _percent(one.cpu),
    "Memory, %": lambda one: _percent(one.memory),
    "Waiting for batches, %": lambda one: _percent(one.data_wait),
    "A step, s": lambda one: one.step_seconds,
    "Disk, MiB/s": lambda one: _mebibytes(one.disk_read, one.disk_written),
    "Network, MiB/s": lambda one: _mebibytes(one.received, one.sent),
}
"""Maps each figure with a picture, named with its unit, to a function that returns its value."""


class MachineSeries:
    """Collects log lines as they arrive, and returns the curves of each node."""

    def __init__(self) -> None:
        self._nodes: dict[Seat, list[Utilization]] = {}

    def add(self, record: LogRecord) -> bool:
        """Add a line; return whether it is an agent's measurement of its machine."""
        if record.source != UTILIZATION:
            return False
        try:
            measured = decode(record.text, Utilization)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return True  # another version of cloudspot may use another format
        self._nodes.setdefault(Seat(*parse_stream(record.stream)), []).append(measured)
        return True

    def curves(self, figure: str) -> Sequence[tuple[Seat, Curve]]:
        """Return a curve over time for each of the latest nodes that has measured the figure."""
        value_of = FIGURES[figure]
        found = []
        for seat in sorted(self._nodes)[-MAX_NODES:]:
            steps, times, values = array("q"), array("d"), array("d")
            for one in self._nodes[seat]:
                value = value_of(one)
                if value is not None:
                    steps.append(one.step)
                    times.append(one.at.timestamp())
                    values.append(value)
            if values:
                found.append((seat, Curve(figure, steps, times, values)))
        return found
