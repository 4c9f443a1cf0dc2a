"""A comparison of several jobs: their curves, results and differences of their job files; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cloudspot.cli.screen.printable import printable_value
from cloudspot.story.comparison import differing_fields, results
from cloudspot_ui.page.curves import COLORS, Drawn, Measures, Panel, Spending, panel, unit_of
from cloudspot_ui.page.story import JobStory

LEAST, MOST = 2, 10
MAX_PANELS = 24


@dataclass(frozen=True)
class Comparison:
    """The content of a page that compares several jobs."""

    results: Sequence[dict[str, Any]]
    panels: Sequence[Panel]
    fields: Sequence[dict[str, Any]]
    """The differences of the job files: ``field``, and ``values`` in the order of the jobs."""


def compare(stories: Sequence[JobStory], now: datetime) -> Comparison:
    """Return the comparison of two to ten jobs."""
    unit = unit_of(max(one.times.total_seconds for one in stories))
    measures = [
        Measures(datetime.fromisoformat(one.report["created"]), Spending(one.report, now), unit)
        for one in stories
    ]
    names = list(dict.fromkeys(name for story in stories for name in story.series.names()))[:MAX_PANELS]
    panels = [
        panel(
            name,
            [
                (Drawn(curve, story.report["id"], color, is_dashed=number % 2 == 1), one)
                for number, (story, one, color) in enumerate(zip(stories, measures, COLORS, strict=False))
                if len(curve := story.series.curve(name))
            ],
        )
        for name in names
    ]
    differing = differing_fields([story.history for story in stories])
    return Comparison(
        results=[printable_value(results(story.history, now)) for story in stories],
        panels=panels,
        fields=printable_value(tuple(differing)),
    )
