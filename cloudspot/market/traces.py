"""Recorded markets, which show when a zone had spot machines, in the format of skypilot-org/spot-traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from cloudspot.decoding import decode
from cloudspot.errors import SpecError
from cloudspot.market.situation import Bools, Floats, Ints

_NUM_LOOKS_AT_LEAST = 2


class _Metadata(msgspec.Struct, frozen=True):
    gap_seconds: Annotated[float, msgspec.Meta(ge=1.0, le=86400.0)]
    """The minimum is 1, because a finer gap creates more ticks than fit into memory."""


class _File(msgspec.Struct, frozen=True):
    """The parts of a file that are read; the file may contain others, such as prices."""

    metadata: _Metadata
    data: Annotated[list[Annotated[float, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=_NUM_LOOKS_AT_LEAST)]


@dataclass(frozen=True)
class Market:
    """Zones that were observed at the same times."""

    is_up: Bools
    """Whether there was capacity, of shape [ticks, zones]."""
    tick_hours: float

    @property
    def hours(self) -> float:
        """How long the zones were observed."""
        return len(self.is_up) * self.tick_hours


def read_market(paths: Sequence[Path], *, num_nodes: int = 1) -> Market:
    """Return the market in these files, one zone each; capacity means that ``num_nodes`` machines were free.

    All files begin at the same time, and the market ends with the shortest file. If their intervals differ,
    the shortest interval is the tick, and each observation holds until the next.

    Raises:
        SpecError: a file cannot be read or is not a trace.
    """
    found = [_read(path) for path in paths]
    gap = min(one.metadata.gap_seconds for one in found)
    seconds = min(one.metadata.gap_seconds * len(one.data) for one in found)
    ticks = np.arange(int(seconds / gap + 1e-9)) * gap
    columns = [np.asarray(one.data)[_looks(one, ticks)] >= num_nodes for one in found]
    return Market(np.stack(columns, axis=1), gap / 3600.0)


def _looks(trace: _File, seconds: Floats) -> Ints:
    """Return the index of the newest observation at each time."""
    found: Ints = (seconds / trace.metadata.gap_seconds + 1e-9).astype(int)
    return found


def _read(path: Path) -> _File:
    try:
        trace: _File = decode(path.read_bytes(), _File)
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(
            f'{path} is not a trace of the form {{"metadata": {{"gap_seconds": N}}, "data": [...]}}: {error}'
        ) from error
    return trace


def windows(market: Market, *, num_ticks: int, num_runs: int, seed: int) -> Bools:
    """Return markets for runs that begin at random places in the recording, of shape [ticks, zones, runs].

    No two runs begin at the same place. There are fewer than ``num_runs`` runs if fewer places in the
    recording are followed by ``num_ticks`` ticks. The same arguments give the same places.
    """
    num_places = len(market.is_up) - num_ticks + 1
    assert num_places > 0, "the caller has compared the lengths"
    places = np.random.default_rng(seed).choice(num_places, size=min(num_runs, num_places), replace=False)
    found: Bools = market.is_up[np.sort(places) + np.arange(num_ticks)[:, np.newaxis]]
    return found.swapaxes(1, 2)
