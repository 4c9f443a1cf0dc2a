"""``cloudspot providers``: list the installed providers, and check that one is ready for a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from cloudspot.calls import CheckRequest
from cloudspot.cli.completers import complete_providers
from cloudspot.cli.config import default_store, open_configured
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import json_option, store_option
from cloudspot.interfaces import Provider
from cloudspot.jobfile.spec import load_job
from cloudspot.model import CheckResult, Resources
from cloudspot.registry import list_providers, open_store


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def providers(ctx: click.Context, as_json: bool) -> None:
    """List providers, and check that one is ready.

    Without a subcommand, this lists the providers.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json=as_json)


@providers.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the installed providers; broken ones are shown with their errors."""
    _list(as_json=as_json)


def _mark(result: CheckResult) -> output.Styled:
    if not result.is_known:
        return output.Styled("unknown", "yellow")
    if not result.ok:
        return output.Styled("FAILED ", "red")
    return output.Styled("advice ", "yellow") if result.remedy else output.Styled("ok     ", "green")


def _list(*, as_json: bool) -> None:
    entries = list_providers()
    if as_json:
        output.echo_json(entries)
        return
    rows = [(entry.name, entry.distribution, entry.version, entry.error or "ok") for entry in entries]
    output.echo_table(("NAME", "DISTRIBUTION", "VERSION", "STATUS"), rows)


@providers.command("check")
@click.argument("name", shell_complete=complete_providers)
@click.option(
    "--job-file",
    type=click.Path(path_type=Path),
    help="Job file with the provider's options in [providers.NAME].",
)
@store_option
@json_option
@click.pass_context
def check(ctx: click.Context, name: str, job_file: Path | None, store_url: str | None, as_json: bool) -> None:
    """Check that a job can run on provider NAME: credentials, permissions, network and, if known, the store.

    Prints a line for each check, with a remedy if the check fails, or with advice. Exits with 1 if a check
    fails.
    """
    spec = None if job_file is None else load_job(job_file)
    resources = None if spec is None else spec.resources.to_model()
    chosen = default_store()
    url = store_url or (spec and spec.store) or (chosen and chosen.url)
    results = check_all(open_configured(name, spec), url or None, resources)
    is_ready = all(result.ok for result in results)
    if as_json:
        lines = [{**msgspec.structs.asdict(result), "remedy": result.remedy or None} for result in results]
        output.echo_json({"provider": name, "ok": is_ready, "checks": lines})
    else:
        echo_results(results)
        if not results:
            output.echo(f"provider {name} has nothing to check")
    if not is_ready:
        ctx.exit(1)


def check_all(provider: Provider, store_url: str | None, resources: Resources | None) -> list[CheckResult]:
    """Return the results of checking a provider, and a store if one is named."""
    request = CheckRequest(resources=resources)
    results = list(provider.check(request).results)
    return results if store_url is None else [*results, *open_store(store_url).check(request).results]


def echo_results(results: Sequence[CheckResult]) -> None:
    """Print a line for each result."""
    for result in results:
        texts = [result.detail, result.remedy]
        detail = "; ".join(text for text in texts if text)
        output.echo(_mark(result), f" {result.name}" + (f": {detail}" if detail else ""))
