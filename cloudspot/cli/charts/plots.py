"""The charts of ``--plot``: metrics against steps, above the job's timeline; and the costs of jobs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudspot.cli.charts.drawing import (
    CURVE_COLORS,
    GREY,
    draw_bars,
    draw_cost_legend,
    draw_curve,
    draw_legend,
    draw_ranges,
    draw_stacks,
    new_cost_figure,
    new_figure,
    save,
)
from cloudspot.cli.joblog.logpieces import warn_of_gaps
from cloudspot.cli.joblog.logtail import LogTail, lives_of
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.errors import SpecError
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Seat
from cloudspot.story.outlays import Row
from cloudspot.story.progress import first_step, newest_step, steps_total
from cloudspot.story.series import MetricSeries
from cloudspot.story.spans import Span
from cloudspot.story.states import job_state
from cloudspot.story.timeline import Timeline, timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
MAX_ROWS = 48
"""The maximum number of nodes in the timeline; older nodes are omitted, and the chart states how many."""
LABEL_SHARE = 0.07
"""The share of the axis that a launch's label needs."""


@dataclass(frozen=True)
class Picture:
    """The data for the chart of one job."""

    history: History
    times: Timeline
    series: MetricSeries


def check_plot(path: Path) -> None:
    """Raise SpecError if no chart can be written to the path; called before any data is read."""
    if path.suffix.lower() not in SUFFIXES:
        raise SpecError(f"--plot must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}: got {str(path)!r}")
    if not path.parent.is_dir():
        raise SpecError(f"--plot: there is no directory {path.parent}; create it first")
    if path.is_dir():
        raise SpecError(f"--plot: {path} is a directory; name a file")
    if importlib.util.find_spec("matplotlib") is None:
        raise SpecError("--plot needs matplotlib; run: pip install matplotlib")


def take_picture(job: Job) -> Picture:
    """Read the data for the job's chart, including the whole log; raise TransientError if that fails."""
    history = job.first_history
    series = MetricSeries()
    series.know(history.generations)
    warn_of_gaps(job)
    series.extend(LogTail(job.log_sink, lives=lambda: lives_of(history)).new_records())
    if series.num_malformed:
        output.warn(f"{series.num_malformed} unreadable lines in the metrics of job {job.id} are not drawn")
    return Picture(history, timeline(history, datetime.now(timezone.utc)), series)


def plot_job(path: Path, picture: Picture) -> None:
    """Draw a job's metrics, one panel each, above its timeline; raises the same errors as ``save``."""
    shown = picture.times.nodes[max(0, len(picture.times.nodes) - MAX_ROWS) :]
    figure, panels, below = new_figure(picture.series.names(), num_rows=1 + len(shown))
    figure.suptitle(_title(picture), fontsize=12, parse_math=False)
    labelled: dict[str, Any] = {}
    for name, axes in panels:
        for lost in picture.series.lost(name):
            labelled["made again"] = draw_curve(axes, lost, color=GREY, marker="" if len(lost) > 1 else ".")
        draw_curve(axes, picture.series.curve(name), color=CURVE_COLORS[0])
        for generation in picture.history.generations[1:]:
            line = axes.axvline(first_step(generation), color=GREY, linewidth=0.8, linestyle="--", zorder=0)
            labelled["resumed"] = line
    for label, line in labelled.items():
        line.set_label(label)
    rows: list[tuple[str, Sequence[Span]]] = [("job", picture.times.spans)]
    rows += [(f"node {line.seat}", line.spans) for line in shown]
    scale = draw_bars(below, rows, [picture.times.start] * len(rows), picture.times.total_seconds)
    start = picture.times.start
    handles = [*_marks(below, picture, [line.seat for line in shown], scale), *labelled.values()]
    draw_legend(below, [span for _, spans in rows for span in spans], handles)
    if len(shown) < len(picture.times.nodes):
        num_older = len(picture.times.nodes) - len(shown)
        below.set_xlabel(f"{below.get_xlabel()}; {num_older} older nodes are not shown")
    starts = [(launch.intent.at - start).total_seconds() / scale for launch in picture.history.launches]
    width = below.get_xlim()[1]
    for number, (at, until) in enumerate(pairwise([*starts, width]), start=1):
        below.axvline(at, color="black", linewidth=0.6, zorder=0)
        if until - at > LABEL_SHARE * width:
            below.text(at, 0.45, f" launch {number}", fontsize=7, color="#444444", va="bottom")
    save(figure, path)


def plot_jobs(path: Path, pictures: Sequence[Picture]) -> None:
    """Draw the metrics of several jobs in common panels, above their timelines; raises as ``save`` does."""
    names = tuple(dict.fromkeys(name for picture in pictures for name in picture.series.names()))
    figure, panels, below = new_figure(names, num_rows=len(pictures))
    ids = [picture.history.submission.job_id for picture in pictures]
    figure.suptitle(f"{', '.join(ids[:-1])} and {ids[-1]}", fontsize=12, parse_math=False)
    for name, axes in panels:
        looks = zip(cycle(CURVE_COLORS), cycle(("-", "--")), strict=False)
        for picture, job_id, (color, style) in zip(pictures, ids, looks, strict=False):
            draw_curve(axes, picture.series.curve(name), color=color, linestyle=style, label=job_id)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False)
    rows = [(job_id, picture.times.spans) for job_id, picture in zip(ids, pictures, strict=True)]
    longest = max(picture.times.total_seconds for picture in pictures)
    draw_bars(below, rows, [picture.times.start for picture in pictures], longest)
    draw_legend(below, [span for picture in pictures for span in picture.times.spans], [])
    save(figure, path)


def plot_outcomes(path: Path, costs: Sequence[tuple[str, float, tuple[float, float]]]) -> None:
    """Draw each policy's mean cost and cost range; raises the same errors as ``save``."""
    save(draw_ranges(costs, label="cost as a share of on-demand: mean, 10th to 90th percentile"), path)


def plot_costs(path: Path, rows: Sequence[Row], *, title: str) -> None:
    """Draw the costs of each row by purpose, with one panel per currency; raises as ``save`` does."""
    currencies = list(dict.fromkeys(row.currency for row in rows)) or [""]
    panels = [[row for row in rows if row.currency == currency] for currency in currencies]
    figure, found = new_cost_figure([max(1, min(len(panel), MAX_ROWS)) for panel in panels])
    figure.suptitle(title, fontsize=12, parse_math=False)
    states: list[str] = []
    for axes, currency, panel in zip(found, currencies, panels, strict=True):
        bars = [(row.key, row.purposes, row.on_demand_equivalent) for row in panel[:MAX_ROWS]]
        states += draw_stacks(axes, bars, unit=currency)
        if len(panel) > MAX_ROWS:
            axes.set_title(f"{len(panel) - MAX_ROWS} more are not shown", fontsize=9, loc="right")
    draw_cost_legend(figure, list(dict.fromkeys(states)), "on demand")
    save(figure, path)


def _marks(axes: Axes, picture: Picture, seats: Sequence[Seat], scale: float) -> list[Any]:
    """Mark notices on their nodes, and commits on the job; return the handles for the legend."""
    start, handles = picture.times.start, []

    def at(moment: datetime) -> float:
        return (moment - start).total_seconds() / scale

    rows = {seat: -1 - number for number, seat in enumerate(seats)}
    notices = [one for one in picture.times.answers if (one.notice.launch, one.rank) in rows]
    if notices:
        x = [at(one.notice.at) for one in notices]
        y = [rows[Seat(one.notice.launch, one.rank)] for one in notices]
        handles += axes.plot(x, y, "v", color="black", markersize=6, markeredgecolor="white", label="notice")
    if picture.history.commits:
        x = [at(commit.at) for commit in picture.history.commits]
        y = [0] * len(x)
        handles += axes.plot(x, y, "D", color="black", markersize=4, markeredgecolor="white", label="commit")
    return handles


def _title(picture: Picture) -> str:
    history, times = picture.history, picture.times
    parts = [
        history.submission.job_id,
        job_state(history),
        f"step {output.steps_text(newest_step(history), steps_total(history))}",
        output.duration_text(times.total_seconds),
    ]
    if times.goodput is not None and not times.seconds["unknown"]:
        parts.append(f"goodput {100 * times.goodput:.0f}%")
    return "  |  ".join(parts)
