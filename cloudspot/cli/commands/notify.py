"""``cloudspot notify``: check that the messages of jobs reach people."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cloudspot.cli import exit_codes
from cloudspot.cli.config import config_path, load_config
from cloudspot.cli.preparing.notifying import check_messages, with_notify
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import overrides_option
from cloudspot.controller.sending import send
from cloudspot.errors import SpecError
from cloudspot.jobfile.spec import load_job
from cloudspot.jobstore.jobs.submission import check_secrets
from cloudspot.model import Message, Severity


@click.group("notify")
def notify() -> None:
    """Check whether the messages of jobs arrive."""


@notify.command("test")
@click.argument("job_file", required=False, type=click.Path(readable=False, path_type=Path))
@overrides_option
@click.pass_context
def test(ctx: click.Context, job_file: Path | None, overrides: tuple[str, ...]) -> None:
    """Send a message to each URL of [notify], and print whether it was accepted.

    [notify] is read from JOB_FILE, or from job.toml if it exists; if that file has no [notify], from the
    config file. Exits with 1 if a URL did not accept the message.
    """
    path = job_file or Path("job.toml")
    if job_file is None and not path.exists():
        settings, job = load_config().notify, "test"
    else:
        spec = with_notify(load_job(path, overrides=overrides))
        settings, job = spec.notify, spec.name
    if not settings.is_wanted:
        raise SpecError(f"neither {path} nor {config_path()} has a [notify] table with urls and events")
    check_secrets(settings.secret_names, os.environ)
    check_messages(settings, os.environ)
    urls = settings.resolved(os.environ)
    message = Message(
        job_id=job,
        title=f"{job}: test",
        body="This is a test. Messages about jobs arrive here. Events: "
        + ", ".join(kind.value for kind in settings.events),
        severity=Severity.INFO,
    )
    errors = send(settings.through, message, urls, own=urls)  # the user named these URLs in this command
    for name in urls:
        mark = output.Styled("FAILED", "red") if name in errors else output.Styled("ok    ", "green")
        output.echo(mark, f"  {name}", f" {errors[name]}" if name in errors else "")
    ctx.exit(exit_codes.FAILED if errors else exit_codes.SUCCEEDED)
