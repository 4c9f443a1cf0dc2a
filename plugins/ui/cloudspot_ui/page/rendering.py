"""Renders the HTML of pages. Every value is escaped; no page loads anything or runs a script in its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from cloudspot import __version__
from cloudspot.cli.screen.output import duration_text
from cloudspot.host.size_text import size_text
from cloudspot.jobfile.amounts import cost_text, money_text
from cloudspot_ui.page.curves import AXES, COLORS, LOST, Drawn, Measures, Panel, Spending, panel, unit_of
from cloudspot_ui.page.lanes import lanes
from cloudspot_ui.page.machine_series import FIGURES
from cloudspot_ui.page.store_story import StoreStory
from cloudspot_ui.page.story import JobStory

MAX_PANELS = 24
"""The maximum number of metrics with pictures."""
MAX_ROWS = 200
"""The maximum number of rows in a table; if a page omits older rows, it says so."""
MAX_JOBS = 1_000
"""The maximum number of jobs in a list."""
_FOLDER = Path(__file__).parent
SECTIONS = ("summary", "curves", "timeline", "utilization", "bill", "machines", "checkpoints", "log")
"""The sections of a job's page in order: each is the id of an element, and the name of its template."""


@dataclass(frozen=True)
class Frame:
    """The parts of a page around its content."""

    policy: str | None = None
    """The Content-Security-Policy of a file; a server sends it in a header instead."""
    index: str | None = None
    """The path of the list of all jobs, or None if there is no list."""
    script: str | None = None
    """The path of a live page's script, or None if the page has no script."""
    is_refreshed: bool = False
    """Whether a newer page replaces this one every minute or two."""


INERT = Frame(
    policy="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
"""The frame of a file that loads nothing and runs nothing."""


def job_page(story: JobStory, *, is_live: bool = False) -> str:
    """Return the whole page of a job, as a file that loads and runs nothing.

    If it ``is_live``, the page says that newer pages will replace it.
    """
    frame = replace(INERT, is_refreshed=is_live)
    page: str = render("job.html", **job_page_parts(story, job_sections(story), frame))
    return page


def job_page_parts(story: JobStory, sections: Mapping[str, Markup], frame: Frame) -> Mapping[str, Any]:
    """Return the values for the template of a job's page."""
    return {"frame": frame, "sections": sections, **_head(story)}


def job_sections(story: JobStory, **links: Any) -> dict[str, Markup]:
    """Return the HTML of each of ``SECTIONS``; ``links`` are further values that a live page passes."""
    values = {**_head(story), **_values(story), **links}
    return {name: render(f"{name}.html", **values) for name in SECTIONS}


def index_page(story: StoreStory) -> str:
    """Return the page of a store, as a file that loads and runs nothing."""
    page: str = render("index.html", frame=INERT, story=story, rows=index_rows(story))
    return page


def index_rows(story: StoreStory, *, max_jobs: int = MAX_JOBS, **links: Any) -> Markup:
    """Return the table of a store's jobs; ``links`` are further values that a live page passes."""
    return render("rows.html", story=story, max_jobs=max_jobs, **links)


def _head(story: JobStory) -> dict[str, Any]:
    return {"job": story.report, "read_at": story.at}


def _values(story: JobStory) -> dict[str, Any]:
    report = story.report
    start = datetime.fromisoformat(report["created"])
    measures = Measures(start, Spending(report, story.at), unit_of(story.times.total_seconds))
    names = story.series.names()
    return {
        "story": story,
        "panels": [_panel(name, story, measures) for name in names[:MAX_PANELS]],
        "machines": [one for name in FIGURES if (one := _machines(name, story, measures)) is not None],
        "num_more_metrics": max(0, len(names) - MAX_PANELS),
        "axes": AXES,
        "lanes": lanes(story.history, story.times),
        "max_rows": MAX_ROWS,
    }


def _panel(name: str, story: JobStory, measures: Measures) -> Panel:
    lost = [Drawn(curve, "made again", LOST, is_lost=True) for curve in story.series.lost(name)]
    kept = Drawn(story.series.curve(name), story.report["id"], COLORS[0])
    return panel(name, [(one, measures) for one in (*lost, kept)])


def _machines(figure: str, story: JobStory, measures: Measures) -> Panel | None:
    curves = story.machines.curves(figure)
    drawn = [
        (Drawn(curve, str(seat), color), measures)
        for (seat, curve), color in zip(curves, COLORS, strict=False)
    ]
    return panel(figure, drawn, axes=("time",)) if drawn else None


@lru_cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"version": __version__, "style": style(), "cost_text": cost_text}
    environment.filters |= {
        "duration": duration_text,
        "size": size_text,
        "moment": moment,
        "money": money_text,
        "newest": _newest,
    }
    return environment


def render(template: str, /, **values: Any) -> Markup:
    """Return the HTML of a template with these values, which are escaped."""
    return Markup(_environment().get_template(template).render(values))  # noqa: S704 - jinja has escaped


@lru_cache
def style() -> Markup:
    """Return the style sheet of all pages."""
    return Markup((_FOLDER / "style.css").read_text())  # noqa: S704 - our own file


def moment(value: datetime | str) -> Markup:
    """Return a date and time in UTC, as an element that programs can read."""
    given = datetime.fromisoformat(value) if isinstance(value, str) else value
    text = given.astimezone(timezone.utc)
    return Markup('<time datetime="{}">{}</time>').format(
        f"{text:%Y-%m-%dT%H:%M:%SZ}", f"{text:%Y-%m-%d %H:%M:%S} UTC"
    )


def _newest(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the last ``MAX_ROWS`` rows of a table, in their order."""
    return rows[max(0, len(rows) - MAX_ROWS) :]
