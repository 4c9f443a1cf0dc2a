"""Compare jobs by their job files, code and results; pure."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cloudspot.jobstore.code.extraction import Member
from cloudspot.jobstore.journal.history import History
from cloudspot.story.report import show_json

MAX_TEXT_BYTES = 256 << 10
"""The largest file that is shown as a diff; a larger file is only reported as different."""
MAX_DIFF_LINES = 200
"""The maximum number of lines shown of one file's diff."""


@dataclass(frozen=True)
class CodeFile:
    """A file of a job's code, with the properties that are compared."""

    size: int
    digest: bytes
    """The digest of the content, the mode and a symlink's target."""
    text: str | None
    """The content, or None if the file is too large or not text."""


def code_files(members: Iterable[Member]) -> dict[str, CodeFile]:
    """Return the files of a bundle by name, with the content that a diff may need."""
    return {member.name: _code_file(member) for member in members}


def _code_file(member: Member) -> CodeFile:
    content = member.content if member.target is None else f"link to {member.target}\n".encode()
    mode = b"x" if member.is_executable else b"l" if member.target is not None else b"-"
    text: str | None = None
    if len(content) <= MAX_TEXT_BYTES and b"\0" not in content:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = None
    return CodeFile(len(content), hashlib.sha256(mode + content).digest(), text)


def differing_fields(histories: Sequence[History]) -> list[dict[str, Any]]:
    """Return the job file fields that are not the same in all jobs.

    Each entry has ``field`` and ``values``; the values are in the order of the jobs, with None where the
    field is not set. Only the tables of the jobs' own providers are compared, because nothing reads the
    others.
    """
    used = {history.submission.provider for history in histories}

    def read(history: History) -> dict[str, Any]:
        tables = history.submission.spec.get("providers", {})
        return {
            **history.submission.spec,
            "providers": {name: tables[name] for name in tables if name in used},
        }

    found = [dict(_flat("", read(history))) for history in histories]
    names = sorted({name for one in found for name in one})
    values = {name: [one.get(name) for one in found] for name in names}
    return [
        {"field": name, "values": some}
        for name, some in values.items()
        if any(one != some[0] for one in some[1:])
    ]


def job_file_differences(a: History, b: History) -> list[dict[str, Any]]:
    """Return the fields that differ between two jobs' job files, in the form of ``field_differences``."""
    return [
        {"field": one["field"], "a": one["values"][0], "b": one["values"][1]}
        for one in differing_fields((a, b))
    ]


def field_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the leaves of the tables that differ, with ``field``, ``a`` and ``b`` (None if not set)."""
    first, second = dict(_flat("", a)), dict(_flat("", b))
    return [
        {"field": name, "a": first.get(name), "b": second.get(name)}
        for name in sorted({*first, *second})
        if first.get(name) != second.get(name)
    ]


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of the tables by their paths; a list counts as one value."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    elif prefix and not isinstance(value, Mapping):
        yield prefix, value


def code_differences(a: Mapping[str, CodeFile], b: Mapping[str, CodeFile]) -> list[dict[str, Any]]:
    """Return the files that differ, with ``path``, ``change``, ``a_bytes``, ``b_bytes`` and ``diff``."""
    differences = []
    for path in sorted({*a, *b}):
        first, second = a.get(path), b.get(path)
        if first is not None and second is not None and first.digest == second.digest:
            continue
        differences.append(
            {
                "path": path,
                "change": "added" if first is None else "removed" if second is None else "changed",
                "a_bytes": None if first is None else first.size,
                "b_bytes": None if second is None else second.size,
                "diff": _diff(path, first, second),
            }
        )
    return differences


def _diff(path: str, a: CodeFile | None, b: CodeFile | None) -> list[str] | None:
    """Return the lines of the unified diff, or None if there is no text to compare."""
    texts = [one.text for one in (a, b) if one is not None]
    if any(text is None for text in texts):
        return None
    before, after = ("" if one is None else one.text or "" for one in (a, b))
    lines = difflib.unified_diff(
        before.splitlines(),
        after.splitlines(),
        "/dev/null" if a is None else f"a/{path}",
        "/dev/null" if b is None else f"b/{path}",
        lineterm="",
    )
    found = list(lines)
    if len(found) > MAX_DIFF_LINES:
        left = len(found) - MAX_DIFF_LINES
        return [*found[:MAX_DIFF_LINES], f"... {left} more lines"]
    return found


def results(history: History, now: datetime) -> dict[str, Any]:
    """Return the results of a job as ``compare --json`` shows them."""
    report = show_json(history, now)
    return {
        **{name: report[name] for name in _SAME},
        "version": history.submission.version,
        "submitted": report["created"],
        "offers": list(
            dict.fromkeys(launch.intent.offer.key for launch in history.launches if launch.claimed)
        ),
        **{name: len(report[name]) for name in ("nodes", "generations", "notices")},
        "duration": report["time"]["total"],
        "unknown_seconds": report["time"]["unknown"],
        "cost": {name: found for name, found in report["cost"].items() if name in _SAME_COST},
    }


_SAME = (
    "id",
    "provider",
    "code_sha256",
    "state",
    "step",
    "steps_lost",
    "steps_lost_is_exact",
    "goodput",
    "metrics",
)
"""The fields that are taken from ``show --json``."""
_SAME_COST = ("spent", "on_demand_equivalent", "currency", "others")
