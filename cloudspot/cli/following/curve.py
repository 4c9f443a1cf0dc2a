"""Draw a curve with braille dots, or with asterisks for ASCII-only terminals. This module does no I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille character, by row and column."""


@dataclass(frozen=True)
class Drawing:
    """A curve as lines of characters, with the highest values at the top."""

    lines: tuple[str, ...]
    lowest: float
    """The value of the lowest line."""
    highest: float


def draw(
    steps: Sequence[int], values: Sequence[float], *, width: int, height: int, ascii_only: bool
) -> Drawing | None:
    """Return the curve as ``height`` lines of ``width`` characters, or None if no value is finite.

    The steps must be in ascending order; they are spread evenly over the width. Each column of dots shows the
    mean of its finite values, and lines connect the columns that have such values.
    """
    across, down = (1, 1) if ascii_only else (2, 4)
    columns = _means(steps, values, width * across)
    known = [value for value in columns if value is not None]
    if not known:
        return None
    lowest, highest = min(known), max(known)
    grid = [[0] * width for _ in range(height)]
    for column, (low, high) in enumerate(_rows(columns, lowest, highest, height * down)):
        for row in range(low, high + 1):
            bit = 1 if ascii_only else _DOTS[row % down][column % across]
            grid[row // down][column // across] |= bit
    lines = tuple("".join(_character(bits, ascii_only=ascii_only) for bits in line) for line in grid)
    return Drawing(lines, lowest, highest)


def _character(bits: int, *, ascii_only: bool) -> str:
    if not bits:
        return " "
    return "*" if ascii_only else chr(_BRAILLE + bits)


def _means(steps: Sequence[int], values: Sequence[float], num_columns: int) -> list[float | None]:
    """Return the mean of the values in each column, with the steps spread evenly."""
    first, last = (steps[0], steps[-1]) if steps else (0, 0)
    span = max(1, last - first)
    sums, counts = [0.0] * num_columns, [0] * num_columns
    for step, value in zip(steps, values, strict=True):
        if math.isfinite(value):
            column = (step - first) * (num_columns - 1) // span
            sums[column] += value
            counts[column] += 1
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


def _rows(
    columns: Sequence[float | None], lowest: float, highest: float, num_rows: int
) -> list[tuple[int, int]]:
    """Return the first and last row of each column's dots, counted from the top; (0, -1) without dots."""
    span = highest - lowest

    def row(value: float) -> int:
        # A constant curve is in the middle.
        share = (value - lowest) / span if span > 0 else 0.5
        return round((1.0 - share) * (num_rows - 1))

    rows = [(0, -1)] * len(columns)
    before: tuple[int, float] | None = None
    for column, value in enumerate(columns):
        if value is None:
            continue
        here = row(value)
        rows[column] = (here, here)
        if before is not None:
            _connect(rows, before[0], row(before[1]), column, here)
        before = (column, value)
    return rows


def _connect(found: list[tuple[int, int]], start: int, start_row: int, end: int, end_row: int) -> None:
    """Fill the columns between two points so that steep parts of the line stay connected."""
    distance = end - start
    previous = start_row
    for column in range(start + 1, end + 1):
        here = start_row + round((end_row - start_row) * (column - start) / distance)
        step = 1 if here > previous else -1
        low, high = sorted((here, previous + step)) if abs(here - previous) > 1 else (here, here)
        found[column] = (low, high)
        previous = here
