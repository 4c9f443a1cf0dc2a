"""``cloudspot compare``: how two jobs differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from cloudspot.cli.charts.plots import check_plot, plot_two, take_picture
from cloudspot.cli.completers import complete_jobs
from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.jobsummary import steps_lost_text
from cloudspot.cli.sharedoptions import json_option, plot_option, store_option
from cloudspot.errors import BundleError, CorruptData, ObjectMissing
from cloudspot.host.size_text import size_text
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.code.extraction import read_bundle
from cloudspot.jobstore.jobs.submission import code_key
from cloudspot.story.comparison import CodeFile, code_differences, code_files, job_file_differences, results

_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
_CHANGES = {"added": "+", "removed": "-", "changed": "~"}


@click.command("compare")
@click.argument("first_id", metavar="A", shell_complete=complete_jobs)
@click.argument("second_id", metavar="B", shell_complete=complete_jobs)
@click.option("--no-diff", is_flag=True, help="Name the files that differ, without their diffs.")
@plot_option
@store_option
@json_option
def compare(
    first_id: str, second_id: str, no_diff: bool, plot: Path | None, store_url: str | None, as_json: bool
) -> None:
    """Show how two jobs differ.

    Compares their job files, their code, and their results, including the metrics.
    """
    if plot is not None:
        check_plot(plot)
    a, b = open_job(store_url, first_id), open_job(store_url, second_id)
    now = datetime.now(timezone.utc)
    first, second = (results(job.first_history, now) for job in (a, b))
    comparison = {
        "a": first,
        "b": second,
        "job_file": job_file_differences(a.first_history, b.first_history),
        "code": _code(a, b, with_diff=not no_diff),
        "metrics": [
            {"name": name, "a": first["metrics"].get(name), "b": second["metrics"].get(name)}
            for name in sorted({*first["metrics"], *second["metrics"]})
        ],
    }
    if as_json:
        output.echo_json(comparison)
    else:
        _echo_results(comparison)
        _echo_job_files(comparison)
        _echo_code(comparison)
    if plot is not None:
        plot_two(plot, take_picture(a), take_picture(b))
        output.echo(f"drawn: {plot}", error=True)


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


def _echo_results(value: Mapping[str, Any]) -> None:
    a, b = value["a"], value["b"]
    rows = [(name, cell(a), cell(b)) for name, cell in _ROWS]
    rows += [(f"metrics.{one['name']}", _number(one["a"]), _number(one["b"])) for one in value["metrics"]]
    shown = [(f"{' ' if first == second else '*'} {name}", first, second) for name, first, second in rows]
    output.echo_table(("", a["id"], b["id"]), shown, num_folding=2)


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


def _echo_job_files(value: Mapping[str, Any]) -> None:
    output.echo()
    if not value["job_file"]:
        output.echo("the job files are the same")
        return
    rows = [(one["field"], _setting(one["a"]), _setting(one["b"])) for one in value["job_file"]]
    output.echo_table(("JOB FILE", value["a"]["id"], value["b"]["id"]), rows, num_folding=2)


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
        output.echo(f"the code differs; it cannot be compared: {code['error']}")
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
