"""``cloudspot compare``: show how jobs differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from cloudspot.cli.charts.plots import check_plot, plot_jobs, take_picture
from cloudspot.cli.completers import complete_jobs
from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.jobsummary import steps_lost_text
from cloudspot.cli.sharedoptions import json_option, plot_option, store_option
from cloudspot.errors import BundleError, CorruptData, ObjectMissing, SpecError
from cloudspot.host.size_text import size_text
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.code.extraction import read_bundle
from cloudspot.jobstore.jobs.submission import code_key
from cloudspot.story.comparison import (
    CodeFile,
    code_differences,
    code_files,
    differing_fields,
    job_file_differences,
    results,
)

_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
MOST_JOBS = 10
_CHANGES = {"added": "+", "removed": "-", "changed": "~"}


@click.command("compare")
@click.argument("job_ids", metavar="A B [C ...]", nargs=-1, shell_complete=complete_jobs)
@click.option("--no-diff", is_flag=True, help="List the files that differ, without their diffs.")
@plot_option
@store_option
@json_option
def compare(
    job_ids: tuple[str, ...], no_diff: bool, plot: Path | None, store_url: str | None, as_json: bool
) -> None:
    """Show how jobs differ.

    Compares the job files, the code, and the results, including the metrics, of two to ten jobs.
    Differences in the code are shown only for two jobs.
    """
    if not 2 <= len(job_ids) <= MOST_JOBS:
        raise SpecError(f"name 2 to {MOST_JOBS} jobs: got {len(job_ids)}")
    if plot is not None:
        check_plot(plot)
    jobs = [open_job(store_url, job_id) for job_id in job_ids]
    compared = _compare_two(*jobs, with_diff=not no_diff) if len(jobs) == 2 else _compare_many(jobs)
    if as_json:
        output.echo_json(compared)
    elif len(jobs) == 2:
        found = [compared["a"], compared["b"]]
        _echo_results(found)
        _echo_job_files(found, [(one["field"], [one["a"], one["b"]]) for one in compared["job_file"]])
        _echo_code(compared)
    else:
        _echo_results(compared["jobs"])
        _echo_job_files(compared["jobs"], [(one["field"], one["values"]) for one in compared["job_file"]])
    if plot is not None:
        plot_jobs(plot, [take_picture(job) for job in jobs])
        output.echo(f"drawn: {plot}", error=True)


def _compare_two(a: Job, b: Job, *, with_diff: bool) -> dict[str, Any]:
    now = datetime.now(timezone.utc)
    first, second = (results(job.first_history, now) for job in (a, b))
    return {
        "a": first,
        "b": second,
        "job_file": job_file_differences(a.first_history, b.first_history),
        "code": _code(a, b, with_diff=with_diff),
        "metrics": [
            {"name": name, "a": values[0], "b": values[1]} for name, values in _metrics([first, second])
        ],
    }


def _compare_many(jobs: Sequence[Job]) -> dict[str, Any]:
    now = datetime.now(timezone.utc)
    found = [results(job.first_history, now) for job in jobs]
    return {
        "jobs": found,
        "job_file": differing_fields([job.first_history for job in jobs]),
        "metrics": [{"name": name, "values": values} for name, values in _metrics(found)],
    }


def _metrics(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[float | None]]]:
    """Return the latest values of each metric, in the order of the jobs."""
    names = sorted({name for one in found for name in one["metrics"]})
    return [(name, [one["metrics"].get(name) for one in found]) for name in names]


def _code(a: Job, b: Job, *, with_diff: bool) -> dict[str, Any]:
    """Return the comparison of the code; ``files`` is None if the code is no longer in the store."""
    hashes = [job.first_history.submission.code_sha256 for job in (a, b)]
    comparison: dict[str, Any] = {"same": hashes[0] == hashes[1], "files": [], "error": None}
    if comparison["same"]:
        return comparison
    try:
        files = [_read_code(job) for job in (a, b)]
    except (ObjectMissing, CorruptData, BundleError) as error:
        return {**comparison, "files": None, "error": str(error)}
    comparison["files"] = code_differences(*files)
    if not with_diff:
        for file in comparison["files"]:
            file["diff"] = None
    return comparison


def _read_code(job: Job) -> dict[str, CodeFile]:
    submission = job.first_history.submission
    data = with_retries(job.store).get(code_key(submission))
    return code_files(read_bundle(data, sha256=submission.code_sha256))


def _echo_results(found: Sequence[Mapping[str, Any]]) -> None:
    rows = [(name, [cell(one) for one in found]) for name, cell in _ROWS]
    rows += [(f"metrics.{name}", list(map(_number, values))) for name, values in _metrics(found)]
    shown = [(f"{' ' if len(set(cells)) == 1 else '*'} {name}", *cells) for name, cells in rows]
    output.echo_table(("", *(one["id"] for one in found)), shown, num_folding=len(found))


def _goodput(one: Mapping[str, Any]) -> str:
    if one["goodput"] is None or (one["unknown_seconds"] and not one["goodput"]):
        return "unknown"
    return ("at least " if one["unknown_seconds"] else "") + f"{100 * one['goodput']:.0f}%"


_ROWS: Sequence[tuple[str, Callable[[Mapping[str, Any]], str]]] = (
    ("state", lambda one: str(one["state"])),
    ("submitted", lambda one: output.moment_text(one["submitted"])),
    ("provider", lambda one: str(one["provider"])),
    ("offers", lambda one: ", ".join(one["offers"]) or "-"),
    ("step", lambda one: str(one["step"])),
    ("steps lost", steps_lost_text),
    ("nodes", lambda one: str(one["nodes"])),
    ("generations", lambda one: str(one["generations"])),
    ("notices", lambda one: str(one["notices"])),
    ("duration", lambda one: output.duration_text(one["duration"])),
    ("goodput", _goodput),
    ("cost", lambda one: money_text(one["cost"]["spent"], one["cost"]["currency"])),
    ("cloudspot", lambda one: str(one["version"])),
    ("code", lambda one: str(one["code_sha256"][:12])),
)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _echo_job_files(found: Sequence[Mapping[str, Any]], fields: Sequence[tuple[str, Sequence[Any]]]) -> None:
    output.echo()
    if not fields:
        output.echo("the job files are the same")
        return
    rows = [(name, *map(_setting, values)) for name, values in fields]
    output.echo_table(("JOB FILE", *(one["id"] for one in found)), rows, num_folding=len(found))


def _setting(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _echo_code(value: Mapping[str, Any]) -> None:
    code = value["code"]
    output.echo()
    if code["same"]:
        output.echo(f"the code is the same, {value['a']['code_sha256'][:12]}")
        return
    if code["files"] is None:
        output.echo(f"the code differs, but cannot be compared: {code['error']}")
        return
    output.echo("the code differs:", style="bold")
    for file in code["files"]:
        sizes = [size_text(file[key]) for key in ("a_bytes", "b_bytes") if file[key] is not None]
        output.echo(f"  {_CHANGES[file['change']]} {file['path']} ({' > '.join(sizes)})")
    for file in code["files"]:
        if file["diff"]:
            output.echo()
            for line in file["diff"]:
                output.echo(line, style=_DIFF_STYLES.get(line[:1]))
