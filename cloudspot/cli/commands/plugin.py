"""``cloudspot plugin``: start a new plugin, and show which promises a plugin keeps."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from cloudspot.cli import exit_codes
from cloudspot.cli.completers import complete_providers
from cloudspot.cli.screen import output
from cloudspot.errors import CloudspotError


@click.group("plugin")
def plugin() -> None:
    """Write a plugin, and check its promises."""


@plugin.command("new")
@click.argument("name", metavar="NAME")
@click.argument(
    "directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path, file_okay=False)
)
def new(name: str, directory: Path | None) -> None:
    """Write a distribution cloudspot-NAME to start from.

    The files are written to DIR, by default ./cloudspot-NAME, for a provider NAME and stores at NAME://. The
    docstring of every method states its promise, and its body raises NotImplementedError until you write it.
    The failing tests show what remains to be done. No existing file is replaced.
    """
    from cloudspot.cli.authoring import scaffold

    scaffold.check_name(name)
    directory = Path(f"cloudspot-{name}") if directory is None else directory
    scaffold.write_files(directory, scaffold.files(name))
    output.echo(f"wrote {directory}; read its README.md first. Next:")
    output.echo(f"    cd {shlex.quote(str(directory))}")
    output.echo('    python -m pip install --editable ".[test]"')
    output.echo("    python -m pytest  # failures show what is left to do")
    output.echo(f"    cloudspot plugin check {name}")


@plugin.command("check")
@click.argument("name", shell_complete=complete_providers)
@click.option(
    "--tests",
    metavar="DIR",
    default="tests",
    show_default=True,
    type=click.Path(path_type=Path, exists=True),
    help="The directory of the plugin's tests, which apply the kits.",
)
@click.option(
    "--kit",
    "kits",
    metavar="KIT",
    multiple=True,
    help="Run only this kit, such as ObjectStoreTests. Repeatable.",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write the report to FILE as JSON.",
)
@click.pass_context
def check(ctx: click.Context, name: str, tests: Path, kits: tuple[str, ...], json_file: Path | None) -> None:
    """Show which promises the installed plugin NAME keeps.

    Runs only the kits in the plugin's tests, and lists each promise that is broken, skipped or declared as a
    deviation. Exits with 1 if a promise is broken or its test was not run. After Ctrl-C, or if a test ended
    the process, the report covers the tests that were run.
    """
    from cloudspot.cli.authoring.kitrun import report_on

    report = report_on(name, tests, kits)
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise CloudspotError(f"{json_file} cannot be written: {error.strerror}") from error
    output.echo(", ".join(f"{part} {version}" for part, version in report["versions"].items()))
    output.echo(f"declares: {', '.join(report['capabilities']) or 'nothing'}")
    lists = ("deviations", "skipped", "failures", "not_run")
    rows = [
        (one["kit"], one["class"], str(one["passed"]), *(str(len(one[each])) for each in lists))
        for one in report["kits"]
    ]
    output.echo_table(("KIT", "CLASS", "PASSED", "DEVIATIONS", "SKIPPED", "FAILED", "NOT RUN"), rows)
    for title, field in (("deviates", "deviations"), ("skipped", "skipped"), ("FAILED", "failures")):
        for kit_run in report["kits"]:
            _echo_promises(
                output.Styled(title, "red" if field == "failures" else None), kit_run["kit"], kit_run[field]
            )
    for kit_run in report["kits"]:
        for promise in kit_run["not_run"]:
            output.echo(
                f"not run: {kit_run['kit']}, {promise}: it was deselected, or the run ended before it"
            )
    for place, reason in report["errors"].items():
        output.echo(output.Styled("FAILED", "red"), f": {place}: {reason}")
    for kit in report["not_tested"]:
        output.echo(f"not tested: {kit}")
    if not report["ok"]:
        ctx.exit(exit_codes.FAILED)


def _echo_promises(title: output.Styled, kit: str, reasons: Mapping[str, str]) -> None:
    """Print a kit's promises, each with its reason; a reason that several share is printed once."""
    promises_of: dict[str, list[str]] = {}
    for promise, reason in reasons.items():
        promises_of.setdefault(reason, []).append(promise)
    for reason, promises in promises_of.items():
        if len(promises) == 1:
            output.echo(title, f": {kit}, {promises[0]}: {reason}")
        else:
            output.echo(title, f": {kit}, {len(promises)} promises: {reason}")
            for promise in promises:
                output.echo(f"    {promise}")
