"""The fields of a job for filtering, sorting and the table of ``ps``."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, get_args

from cloudspot.errors import SpecError
from cloudspot.jobfile.quantities import parse_duration, parse_moment
from cloudspot.jobstore.layout.records import JobState, Summary
from cloudspot.story.states import TERMINAL_STATES

METRICS = "metrics."
"""The prefix of a metric's name."""


def duration(job: Summary) -> float | None:
    """Return the seconds from a job's submission to its end, or to the last observation.

    Return None if the job has ended and its summary is too old to contain this time.
    """
    if job.finished_at is None and job.state in TERMINAL_STATES:
        return None
    return max(0.0, ((job.finished_at or job.at) - job.submitted_at).total_seconds())


@dataclass(frozen=True)
class _Kind:
    """The syntax of field values in a filter."""

    parse: Callable[[str, datetime], Any]
    example: str
    is_text: bool = False


def _parse_number(text: str, _now: datetime) -> float:
    number = float(text)
    if math.isnan(number):
        raise ValueError("NaN cannot be compared, so no job would match")
    return number


def _parse_duration(text: str, now: datetime) -> float:
    try:
        return _parse_number(text, now)
    except ValueError:
        return parse_duration(text)


_TEXT = _Kind(lambda text, _now: text, "text, in which * matches anything", is_text=True)
_NUMBER = _Kind(_parse_number, "a number")
_DURATION = _Kind(_parse_duration, 'a duration such as "90s" or "1h30m"')
_MOMENT = _Kind(lambda text, now: parse_moment(text, now=now), 'a time such as "2d" (ago) or "2026-11-20"')

_FIELDS: Mapping[str, tuple[_Kind, Callable[[Summary], Any]]] = {
    "id": (_TEXT, lambda job: job.job_id),
    "name": (_TEXT, lambda job: job.name or job.job_id),
    "state": (_TEXT, lambda job: job.state),
    "provider": (_TEXT, lambda job: job.provider),
    "code": (_TEXT, lambda job: job.code_sha256),
    "detail": (_TEXT, lambda job: job.detail),
    "step": (_NUMBER, lambda job: job.step),
    "progress": (_NUMBER, lambda job: job.step / job.steps_total if job.steps_total else None),
    "starts": (_NUMBER, lambda job: job.starts),
    "nodes": (_NUMBER, lambda job: job.num_nodes),
    "cost": (_NUMBER, lambda job: job.spent),
    "duration": (_DURATION, duration),
    "submitted": (_MOMENT, lambda job: job.submitted_at),
    "started": (_MOMENT, lambda job: job.started_at),
    "finished": (_MOMENT, lambda job: job.finished_at),
}
_STATES: Sequence[str] = [state for some in get_args(JobState) for state in get_args(some)]
FIELD_NAMES = (*_FIELDS, f"{METRICS}NAME")
"""The field names for ``--filter`` and ``--sort``."""

_FILTER = re.compile(r"\s*([^=!<>]+?)\s*(!=|<=|>=|==?|<|>)\s*(.*?)\s*", re.DOTALL)
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def parse_filter(text: str, *, now: datetime) -> Callable[[Summary], bool]:
    """Return a predicate for a filter such as ``state=failed`` or ``metrics.loss<0.3``.

    A job without a value for the field matches only ``!=``.

    Raises:
        SpecError: the text is not a filter; the message lists the fields, or shows the expected form.
    """
    match = _FILTER.fullmatch(text)
    if match is None:
        raise SpecError(
            f"--filter must be FIELD, one of = != < <= > >=, and a value, such as state=failed: got {text!r}"
        )
    name, sign, wanted = match.groups()
    sign = "=" if sign == "==" else sign
    kind, value_of = _field(name, "--filter")
    if kind.is_text and sign not in {"=", "!="}:
        raise SpecError(f"--filter {name}: text can only be compared with = and !=: got {text!r}")
    try:
        operand = kind.parse(wanted, now)
    except ValueError:
        raise SpecError(f"--filter {name}: expected {kind.example}, got {wanted!r}") from None
    if name == "state" and not any(fnmatchcase(state, wanted) for state in _STATES):
        raise SpecError(f"--filter state: expected one of {', '.join(_STATES)}, got {wanted!r}")

    def passes(job: Summary) -> bool:
        actual = value_of(job)
        if actual is None:
            return sign == "!="
        if kind.is_text:
            # A hash may be abbreviated, as in the table.
            pattern = f"{operand}*" if name == "code" else operand
            return fnmatchcase(actual, pattern) is (sign == "=")
        return _COMPARE[sign](actual, operand)

    return passes


def sort_jobs(jobs: Iterable[Summary], field: str) -> list[Summary]:
    """Return the jobs sorted by a field: in ascending order, or in descending order if it starts with ``-``.

    Jobs without a value (or with NaN) come last; jobs with equal values keep their order.

    Raises:
        SpecError: there is no such field; the message lists the fields.
    """
    name = field.removeprefix("-")
    _, value_of = _field(name, "--sort")
    known: list[Summary] = []
    unknown: list[Summary] = []
    for job in jobs:
        value = value_of(job)
        (unknown if value is None or value != value else known).append(job)  # noqa: PLR0124 (NaN)
    known.sort(key=value_of, reverse=field.startswith("-"))
    return [*known, *unknown]


def metric_of(field: str) -> str | None:
    """Return the metric that a field in a filter or sort names, or None."""
    match = _FILTER.fullmatch(field)
    name = (match[1] if match else field).removeprefix("-").strip()
    return name.removeprefix(METRICS) if name.startswith(METRICS) else None


def metric_names(jobs: Sequence[Summary], *, first: Sequence[str] = ()) -> list[str]:
    """Return the names of the jobs' metrics: those in ``first``, then the others, the most frequent first."""
    counts: dict[str, int] = {}
    for job in jobs:
        for name in job.metrics:
            counts[name] = counts.get(name, 0) + 1
    wanted = [name for name in dict.fromkeys(first) if name in counts]
    return [*wanted, *sorted(counts.keys() - set(wanted), key=lambda name: (-counts[name], name))]


def _field(name: str, option: str) -> tuple[_Kind, Callable[[Summary], Any]]:
    metric = name.removeprefix(METRICS) if name.startswith(METRICS) else ""
    if metric:
        return _NUMBER, lambda job: job.metrics.get(metric)
    if name not in _FIELDS:
        near = difflib.get_close_matches(name, FIELD_NAMES, n=1)
        hint = f"did you mean {near[0]!r}? The fields are" if near else "the fields are"
        raise SpecError(f"{option}: unknown field {name!r}; {hint} {', '.join(FIELD_NAMES)}")
    return _FIELDS[name]
