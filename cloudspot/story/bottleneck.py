"""Find the bottleneck of a training from measurements of its machines, and advise what to try; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Heartbeat
from cloudspot.story.outcomes import own_beat

LimitKind = Literal["data-loader", "saves", "gpu", "network", "cpu", "none"]

DATA_WAIT = 0.15
"""If waiting for batches takes this share of the time or more, the data loader is the bottleneck."""
SAVES = 0.05
"""If saves take this share of the time or more, they are the bottleneck; ``"auto"`` keeps them below it."""
BUSY = 0.85
"""A GPU, a network or the cores count as fully used from this share of use on."""


@dataclass(frozen=True)
class Bottleneck:
    """The measured bottleneck of a training."""

    kind: LimitKind
    share: float
    """The share of the time, or of the resource's capacity."""
    advice: str

    @property
    def text(self) -> str:
        """The bottleneck and the advice in one line."""
        return f"{_SUMMARIES[self.kind].format(self.share)}; {self.advice}"


_SUMMARIES: dict[LimitKind, str] = {
    "data-loader": "data loader: {:.0%} of the time goes to waiting for batches",
    "saves": "saves: {:.0%} of the time goes to saving",
    "gpu": "GPU: busy {:.0%} of the time",
    "network": "network: {:.0%} of the link is used",
    "cpu": "CPU: all cores busy {:.0%} of the time",
    "none": "no measured resource: the busiest resource is in use {:.0%} of the time",
}
_ADVICE: dict[LimitKind, str] = {
    "data-loader": "try more workers (num_workers), or prepare the data once",
    "saves": "try a longer checkpoint.interval",
    "gpu": "more speed needs a faster GPU, more nodes, or lower precision",
    "network": "try larger batches a step, or fewer and larger machines",
    "cpu": "try machines with more cores or with a GPU",
    "none": "try larger batches, or profile the script",
}


def bottleneck(history: History) -> Bottleneck | None:
    """Return the bottleneck of the newest measured generation, or None if nothing has been measured yet.

    A training goes at the pace of its slowest node, so the largest of the nodes' figures counts.
    """
    beats = _measured(history)
    found = [beat.utilization for beat in beats if beat.utilization is not None]
    if not found:
        return None
    waits = max((one.data_wait or 0.0 for one in found), default=0.0)
    saves = _saves(history, beats)
    gpu = max((share for one in found for share in one.gpus), default=None)
    network = max((one.network or 0.0 for one in found), default=0.0)
    cpu = max((one.cpu or 0.0 for one in found), default=0.0)
    if waits >= DATA_WAIT:
        return _limit("data-loader", waits)
    if saves >= SAVES:
        return _limit("saves", saves)
    if gpu is not None and gpu >= BUSY:
        return _limit("gpu", gpu)
    if network >= BUSY:
        return _limit("network", network)
    if cpu >= BUSY:
        return _limit("cpu", cpu)
    return _limit("none", max(cpu, network, gpu or 0.0))


def _limit(kind: LimitKind, share: float) -> Bottleneck:
    return Bottleneck(kind, share, _ADVICE[kind])


def _measured(history: History) -> Sequence[Heartbeat]:
    """Return the heartbeats with measurements from the newest generation that has any."""
    for generation in reversed(history.generations):
        beats = [own_beat(history.launches[seat.launch - 1], seat.rank) for seat in generation.seats]
        found = [beat for beat in beats if beat is not None and beat.utilization is not None]
        if found:
            return found
    return ()


def _saves(history: History, beats: Sequence[Heartbeat]) -> float:
    """Return the share of the time spent on saves: the cost of a save over the time between two saves."""
    lost = [beat.save_cost.lost_seconds or 0.0 for beat in beats if beat.save_cost is not None]
    stall = max([*(beat.stall_seconds or 0.0 for beat in beats), *lost], default=0.0)
    newest = (
        [commit.at for commit in history.commits if commit.generation == beats[-1].generation]
        if beats
        else []
    )
    between = [(later - earlier).total_seconds() for earlier, later in pairwise(newest[-2:])]
    return min(1.0, stall / between[0]) if between and between[0] > 0 else 0.0
