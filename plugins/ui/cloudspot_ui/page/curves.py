"""Metrics as curves over steps, time and money; does no I/O. Only this module uses leather."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from xml.etree.ElementTree import Element

import leather
from leather import svg
from markupsafe import Markup

from cloudspot.story.series import Curve

WIDTH, HEIGHT = 460, 230
MAX_POINTS = 300
"""The maximum number of points that are drawn; for longer curves, the extremes of each section are drawn."""
AXES = ("steps", "time", "money")
COLORS = tuple(f"var(--curve-{number})" for number in range(10))
"""The colours of the compared jobs, in order; the style sheet defines each for light and dark pages."""
LOST = "var(--lost-curve)"
_LONG_NUMBER = re.compile(r"(-?\d+\.\d)\d+")

_theme = leather.theme
_theme.background_color = "none"
_theme.margin = 0.03
_theme.tick_color, _theme.zero_color = "var(--grid)", "var(--axis)"
_theme.label_color = _theme.axis_title_color = _theme.legend_color = "var(--soft-ink)"
_theme.tick_font_family = _theme.axis_title_font_family = _theme.legend_font_family = "inherit"
_theme.tick_font_size = _theme.axis_title_font_size = 13
_theme.axis_title_gap = 8
_theme.legend_font_char_height = _theme.legend_gap = 0


@dataclass(frozen=True)
class Drawn:
    """A line of a picture and its style."""

    curve: Curve
    name: str
    color: str
    is_lost: bool = False
    """Whether these steps were made again."""
    is_dashed: bool = False
    """Whether the line is dashed, because another line may lie below it."""


@dataclass(frozen=True)
class Panel:
    """A metric's pictures and its last values."""

    name: str
    pictures: Mapping[str, Markup]
    """The pictures by axis, without axes that cannot be drawn."""
    newest: Sequence[tuple[str, int, str]]
    """For each job, its name, the last step and the value at that step."""
    sample: Sequence[tuple[int, str]]
    """Some steps of the first job with their values, for readers who cannot see pictures."""


class Spending:
    """The cost of a job until each moment, in the currency of its bill."""

    def __init__(self, report: Mapping[str, Any], now: datetime) -> None:
        """Read the machines of ``show --json``; each is assumed to have a constant price."""
        self.currency: str = report["cost"]["currency"]
        self._machines = [
            (
                datetime.fromisoformat(line["started"]).timestamp(),
                (now if line["ended"] is None else datetime.fromisoformat(line["ended"])).timestamp(),
                line["spent"],
            )
            for line in report["ledger"]
            if line["currency"] == self.currency
        ]

    def at(self, moment: float) -> float:
        """Return the amount spent until ``moment``, in seconds since 1970."""
        found: float = sum(
            spent * min(1.0, max(0.0, (moment - begun) / (ended - begun))) if ended > begun else spent
            for begun, ended, spent in self._machines
            if moment >= begun
        )
        return found


@dataclass(frozen=True)
class Unit:
    """A unit of time for an axis."""

    name: str
    seconds: float


def unit_of(seconds: float) -> Unit:
    """Return the largest unit in which the time is at least two."""
    for name, length in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return Unit(name, length)
    return Unit("seconds", 1.0)


@dataclass(frozen=True)
class Measures:
    """The quantities on the axes of one job."""

    start: datetime
    spending: Spending
    unit: Unit
    """The unit of time, which is the same for all jobs of a picture."""

    def along(self, axis: str) -> Callable[[int, float], float]:
        """Return a function from a step and a time in seconds since 1970 to a position on the axis."""
        if axis == "steps":
            return lambda step, _: float(step)
        if axis == "time":
            begun, length = self.start.timestamp(), self.unit.seconds
            return lambda _, time: max(0.0, time - begun) / length
        return lambda _, time: self.spending.at(time)


def panel(name: str, drawn: Sequence[tuple[Drawn, Measures]], *, axes: Sequence[str] = AXES) -> Panel:
    """Return the pictures of one metric over some of ``AXES``; the lines may be of several jobs."""
    units = [measures.unit.name for _, measures in drawn]
    names = {"steps": "step", "time": f"{units[0]} since the submission"}
    currencies = {measures.spending.currency for _, measures in drawn}
    if len(currencies) == 1:
        names["money"] = f"{next(iter(currencies))} spent"
    pictures = {}
    for axis in axes:
        label = names.get(axis)
        if label is None:
            continue  # amounts of different currencies
        lines = [(one, list(_points(one.curve, measures.along(axis)))) for one, measures in drawn]
        picture = _picture(lines, f"{name} over {label}", label)
        if picture is not None:
            pictures[axis] = picture
    kept = [one for one, _ in drawn if not one.is_lost and len(one.curve)]
    return Panel(
        name=name,
        pictures=pictures,
        newest=[(one.name, one.curve.steps[-1], _number(one.curve.values[-1])) for one in kept],
        sample=_sample(kept[0].curve) if kept else (),
    )


def _points(curve: Curve, place: Callable[[int, float], float]) -> Iterator[tuple[float, float | None]]:
    """Yield the points to draw; a value that is not finite breaks the line."""
    for index in _chosen(curve.values):
        value = curve.values[index]
        yield place(curve.steps[index], curve.times[index]), value if math.isfinite(value) else None


def _chosen(values: Sequence[float]) -> Sequence[int]:
    """Return the indices of the points to draw, in order: both ends and the extremes of each section."""
    if len(values) <= MAX_POINTS:
        return range(len(values))
    num_stretches = MAX_POINTS // 2 - 1
    chosen = {0, len(values) - 1}
    for number in range(num_stretches):
        part = range(number * len(values) // num_stretches, (number + 1) * len(values) // num_stretches)
        known = [index for index in part if math.isfinite(values[index])] or [part[0]]
        chosen.add(min(known, key=values.__getitem__))
        chosen.add(max(known, key=values.__getitem__))
    return sorted(chosen)


def _picture(
    lines: Sequence[tuple[Drawn, Sequence[tuple[float, float | None]]]], title: str, label: str
) -> Markup | None:
    known = [(x, y) for _, points in lines for x, y in points if y is not None]
    if not known:
        return None
    chart = leather.Chart()
    chart.add_x_scale(*_span([x for x, _ in known]))
    chart.add_y_scale(*_span([y for _, y in known]))
    chart.add_x_axis(name=label, tick_formatter=_tick)
    chart.add_y_axis(tick_formatter=_tick)
    for one, points in lines:
        found = [point for point in points if point[1] is not None]
        if found:
            dashes = "4 3" if one.is_lost else "8 5" if one.is_dashed else None
            is_dot = len(found) == 1
            shape = leather.Dots(one.color, 3) if is_dot else leather.Line(one.color, 1.6, dashes)
            shape.legend_to_svg = _no_legend
            chart.add_series(leather.Series(found if is_dot else list(points)), shape)
    return _svg(chart, title)


def _svg(chart: Any, title: str) -> Markup:
    """Return the chart as an element."""
    group = chart.to_svg_group(WIDTH, HEIGHT)
    root = Element("svg", {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria-label": title})
    root.append(group)
    for element in group.iter():
        for name, value in element.items():
            element.set(name, _LONG_NUMBER.sub(r"\1", value))  # a tenth of a pixel is enough
    return Markup(svg.stringify(root))  # noqa: S704 - ElementTree escapes


def _no_legend(*_: Any) -> Sequence[Any]:
    """Return no legend, because the page has its own, whose text does not shrink on a phone."""
    return ()


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis, with a single value in the middle."""
    least, most = min(values), max(values)
    if least == most:
        room = abs(least) / 2 or 0.5
        return least - room, most + room
    return least, most


def _tick(value: Any, _index: int, _count: int) -> str:
    return f"{float(value):,.6g}" if abs(float(value)) < 1e6 else f"{float(value):.3g}"


def _number(value: float) -> str:
    return f"{value:.6g}"


def _sample(curve: Curve) -> Sequence[tuple[int, str]]:
    """Return at most twelve evenly spaced steps with their values, including the last step."""
    num_rows = min(12, len(curve))
    indices = sorted({round(number * (len(curve) - 1) / max(1, num_rows - 1)) for number in range(num_rows)})
    return [(curve.steps[index], _number(curve.values[index])) for index in indices]
