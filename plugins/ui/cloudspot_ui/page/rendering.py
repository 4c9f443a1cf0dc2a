"""Makes the HTML of pages. Every value is escaped; no page loads anything or runs a script of its data."""

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
"""How many metrics have pictures."""
MAX_ROWS = 200
"""How many rows a table has; the newest ones, and the page says so."""
MAX_JOBS = 1_000
"""How many jobs a list has."""
_FOLDER = Path(__file__).parent
SECTIONS = ("summary", "curves", "timeline", "utilization", "bill", "machines", "checkpoints", "log")
"""The parts of a job's page in order. Each is an element with this id, and has a template of this name."""


@dataclass(frozen=True)
class Frame:
    """What surrounds a page."""

    policy: str | None = None
    """The Content-Security-Policy of a file; a server says it in a header."""
    index: str | None = None
    """Where the list of all jobs is; None: nowhere."""
    script: str | None = None
    """Where the script of a live page is; None: the page has none."""
    is_refreshed: bool = False
    """A newer page comes to the same place every minute or two."""


INERT = Frame(
    policy="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
"""A file that loads nothing and runs nothing."""


def job_page(story: JobStory, *, is_live: bool = False) -> str:
    """Return the whole page of a job, as a file that loads and runs nothing.

    If it ``is_live``, it says that it is put again and again.
    """
    frame = replace(INERT, is_refreshed=is_live)
    page: str = render("job.html", **job_page_parts(story, job_sections(story), frame))
    return page


def job_page_parts(story: JobStory, sections: Mapping[str, Markup], frame: Frame) -> Mapping[str, Any]:
    """Return what the template of a job's page needs."""
    return {"frame": frame, "sections": sections, **_head(story)}


def job_sections(story: JobStory, **links: Any) -> dict[str, Markup]:
    """Return the HTML of each of ``SECTIONS``; ``links`` are what a live page adds to it."""
    values = {**_head(story), **_values(story), **links}
    return {name: render(f"{name}.html", **values) for name in SECTIONS}


def index_page(story: StoreStory) -> str:
    """Return the page of a store, as a file that loads and runs nothing."""
    page: str = render("index.html", frame=INERT, story=story, rows=index_rows(story))
    return page


def index_rows(story: StoreStory, *, max_jobs: int = MAX_JOBS, **links: Any) -> Markup:
    """Return the table of a store's jobs; ``links`` are what a live page adds to it."""
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
    """Return the HTML of a template with these values, each escaped."""
    return Markup(_environment().get_template(template).render(values))  # noqa: S704 - jinja has escaped


@lru_cache
def style() -> Markup:
    """Return the style sheet of all pages."""
    return Markup((_FOLDER / "style.css").read_text())  # noqa: S704 - our own file


def moment(value: datetime | str) -> Markup:
    """Return a time of day with its date, in UTC, as an element that programs can read."""
    given = datetime.fromisoformat(value) if isinstance(value, str) else value
    text = given.astimezone(timezone.utc)
    return Markup('<time datetime="{}">{}</time>').format(
        f"{text:%Y-%m-%dT%H:%M:%SZ}", f"{text:%Y-%m-%d %H:%M:%S} UTC"
    )


def _newest(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the newest rows of a table, in their order."""
    return rows[max(0, len(rows) - MAX_ROWS) :]
