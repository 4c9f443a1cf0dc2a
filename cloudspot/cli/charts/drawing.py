"""Draw the curves, bars and legends of charts; this is the only module that uses matplotlib."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudspot.errors import CloudspotError
from cloudspot.story.series import Curve
from cloudspot.story.spans import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_METRICS = 12
MIN_SHARE = 0.001
"""A state with a smaller share of the total length of all bars is invisible, so the legend omits it."""
NUM_MARKED = 60
"""Points are marked on curves that have at most this many points."""

_COLORS = {
    "queued": "#dddddd",
    "launching": "#aaaaaa",
    "setup": "#cc79a7",
    "staging": "#882255",
    "restoring": "#e69f00",
    "starting": "#f0e442",
    "training": "#009e73",
    "lost": "#d55e00",
    "saving": "#56b4e9",
    "holding": "#999933",
    "standby": "#999933",
    "transfer": "#0072b2",
    "waiting": "#ffffff",
    "suspended": "#ffffff",
    "ended": "#ffffff",
    "unknown": "#ffffff",
}
"""The palette of Okabe and Ito, which colour-blind people can distinguish."""
_HATCHES = {"lost": "////", "standby": "\\\\\\\\", "unknown": "xxxx", "waiting": "....", "suspended": "oo"}
CURVE_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
GREY = "#767676"


def new_figure(names: Sequence[str], *, num_rows: int) -> tuple[Figure, list[tuple[str, Axes]], Axes]:
    """Return a figure with a panel for each metric and, below them, the axes of the timeline."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = names[:MAX_METRICS]
    num_columns = 1 if len(shown) == 1 else 2
    num_lines = math.ceil(len(shown) / num_columns)
    below_height = 1.3 + 0.28 * num_rows
    figure = Figure(figsize=(10, 0.5 + 2.5 * num_lines + below_height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(num_lines + 1, num_columns, height_ratios=[*[2.5] * num_lines, below_height])
    panels = []
    for number, name in enumerate(shown):
        line, column = divmod(number, num_columns)
        # If the number is odd, the last metric has its own row.
        is_alone = number == len(shown) - 1 and column == 0
        axes = figure.add_subplot(grid[line, :] if is_alone else grid[line, column])
        axes.set_title(name, fontsize=10, loc="left", parse_math=False)
        axes.set_xlabel("step", fontsize=9)
        _plain(axes)
        axes.grid(color="#e6e6e6", linewidth=0.6)
        panels.append((name, axes))
    below = figure.add_subplot(grid[num_lines, :])
    _plain(below)
    if len(shown) < len(names):
        below.set_title(f"{len(names) - len(shown)} more metrics are not shown", fontsize=9, loc="right")
    return figure, panels, below


def _plain(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_curve(
    axes: Axes,
    curve: Curve,
    *,
    color: str,
    linestyle: str = "-",
    marker: str | None = None,
    label: str | None = None,
) -> Any:
    """Draw a curve and return its line; non-finite values become gaps with a mark at the bottom."""
    if not len(curve):
        return None
    values = [value if math.isfinite(value) else math.nan for value in curve.values]
    if marker is None:
        marker = "o" if len(values) <= NUM_MARKED else ""
    [line] = axes.plot(
        curve.steps,
        values,
        color=color,
        linestyle=linestyle,
        linewidth=1.3,
        marker=marker,
        markersize=3,
        label=label,
    )
    odd = [step for step, value in zip(curve.steps, curve.values, strict=True) if not math.isfinite(value)]
    if odd:
        axes.plot(
            odd, [0.02] * len(odd), "x", color="black", markersize=5, transform=axes.get_xaxis_transform()
        )
        axes.set_title("x: no finite value", fontsize=8, loc="right")
    return line


def draw_bars(
    axes: Axes, rows: Sequence[tuple[str, Sequence[Span]]], starts: Sequence[datetime], total_seconds: float
) -> float:
    """Draw bars for each row, with the first row at the top; return the seconds per unit of the axis."""
    unit, scale = _unit(total_seconds)
    for number, ((_, spans), start) in enumerate(zip(rows, starts, strict=True)):
        for state, found in _by_state(_merged(spans)):
            ranges = [((span.start - start).total_seconds() / scale, span.seconds / scale) for span in found]
            axes.broken_barh(ranges, (-number - 0.38, 0.76), **_look(state))
    axes.set_yticks([-number for number in range(len(rows))], [name for name, _ in rows])
    axes.set_ylim(-len(rows) + 0.5, 0.75)
    axes.set_xlim(0, max(total_seconds, 1e-3) / scale)
    axes.set_xlabel(f"{unit} since the submission", fontsize=9)
    return scale


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Join adjacent spans in the same state; gaps between generations still separate them."""
    merged: list[Span] = []
    for span in spans:
        if merged and merged[-1].state == span.state and merged[-1].end == span.start:
            merged[-1] = replace(merged[-1], end=span.end)
        else:
            merged.append(span)
    return merged


def _by_state(spans: Sequence[Span]) -> Iterator[tuple[str, list[Span]]]:
    for state in _COLORS:
        found = [span for span in spans if span.state == state]
        if found:
            yield state, found


def _look(state: str) -> dict[str, Any]:
    hatch = _HATCHES.get(state)
    return {"facecolor": _COLORS[state], "edgecolor": "#444444", "linewidth": 0.4, "hatch": hatch}


def _unit(seconds: float) -> tuple[str, float]:
    for unit, scale in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 3 * scale:
            return unit, scale
    return "seconds", 1.0


def draw_ranges(rows: Sequence[tuple[str, float, tuple[float, float]]], *, label: str) -> Figure:
    """Return a figure with a mean and a range for each row, the first at the top; the axis starts at 0."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.0 + 0.4 * len(rows)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _plain(axes)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.6)
    for number, (_, mean, (low, high)) in enumerate(rows):
        axes.plot([low, high], [-number] * 2, color=CURVE_COLORS[0], linewidth=5, alpha=0.4)
        axes.plot([mean], [-number], "o", color=CURVE_COLORS[0], markersize=5)
        axes.text(mean, 0.22 - number, f"{mean:.3f}", fontsize=8, ha="center", va="bottom")
    axes.set_yticks([-number for number in range(len(rows))], [name for name, _, _ in rows])
    axes.set_ylim(0.5 - len(rows), 0.75)
    axes.set_xlim(left=0)
    axes.set_xlabel(label, fontsize=9)
    return figure


def draw_legend(axes: Axes, spans: Sequence[Span], handles: Sequence[Any]) -> None:
    """Add a legend below the timeline, for its colours and the ``handles``."""
    from matplotlib.patches import Patch

    states = [
        Patch(**_look(state), label=state)
        for state, found in _by_state(spans)
        if sum(span.seconds for span in found) > MIN_SHARE * sum(span.seconds for span in spans)
    ]
    axes.legend(
        handles=[*states, *handles],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.32 if axes.get_ylim()[0] > -4 else -0.16),
        ncols=6,
        fontsize=8,
        frameon=False,
    )


def new_cost_figure(num_rows: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes one below another, each with space for its number of bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [1.0 + 0.28 * count for count in num_rows]
    figure = Figure(figsize=(10, 0.9 + sum(heights)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    found = [figure.add_subplot(grid[number, 0]) for number in range(len(heights))]
    for axes in found:
        _plain(axes)
    return figure, found


def draw_stacks(
    axes: Axes, rows: Sequence[tuple[str, Mapping[str, float], float]], *, unit: str
) -> list[str]:
    """Draw a bar for each row (name, parts by state, mark), the first row at the top; return the states."""
    shown = [state for state in _COLORS if any(parts.get(state) for _, parts, _ in rows)]
    for number, (_, parts, mark) in enumerate(rows):
        left = 0.0
        for state in shown:
            if parts.get(state):
                axes.barh(-number, parts[state], left=left, height=0.76, **_look(state))
                left += parts[state]
        axes.plot([mark], [-number], "|", color="black", markersize=11, markeredgewidth=1.6)
    axes.set_yticks([-number for number in range(len(rows))], [name for name, _, _ in rows])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(-len(rows) + 0.5, 0.75)
    axes.set_xlim(left=0)
    axes.set_xlabel(unit, fontsize=9)
    return shown


def draw_cost_legend(figure: Figure, states: Sequence[str], mark: str) -> None:
    """Add a legend below all axes, for the colours of the bars and for the marks."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(**_look(state), label=state) for state in states]
    handles.append(Line2D([], [], linestyle="", marker="|", color="black", markersize=11, label=mark))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8, frameon=False)


def save(figure: Figure, path: Path) -> None:
    """Write the chart in the format of the path's suffix; raise CloudspotError if that fails."""
    import matplotlib as mpl

    data = io.BytesIO()
    # A single path with a million points would overflow the renderer. Text in an SVG file remains text.
    settings = {"agg.path.chunksize": 20_000, "svg.fonttype": "none"}
    with mpl.rc_context(settings), warnings.catch_warnings():
        # Users choose the names of metrics; a character that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(data, format=path.suffix.lower()[1:])
    try:
        path.write_bytes(data.getvalue())
    except OSError as error:
        raise CloudspotError(f"--plot: cannot write {path}: {error.strerror}") from error
