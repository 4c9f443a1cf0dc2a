"""``cloudspot report``: write a page about a job or a store to one file."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import click

from cloudspot.cli.completers import complete_jobs
from cloudspot.cli.joblog.logpieces import warn_of_gaps
from cloudspot.cli.jobs import open_job, open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import store_option
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.host.partial_files import whole_file
from cloudspot.host.size_text import size_text


@click.command("report")
@click.argument("job_id", metavar="[ID]", required=False, shell_complete=complete_jobs)
@click.option("--index", "is_index", is_flag=True, help="Write a page about all jobs of the store.")
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The file for the page, such as report.html; an existing file is replaced.",
)
@store_option
@click.pass_context
def report(ctx: click.Context, job_id: str | None, is_index: bool, path: Path, store_url: str | None) -> None:
    """Write a page about a job, or with --index about a store's jobs, to one file.

    The page needs no server and loads nothing, so it can be sent to anyone. The page shows the job as it is
    now.
    """
    if is_index == (job_id is not None):
        found = "both ID and --index" if is_index else "neither ID nor --index"
        raise SpecError(f"give either ID or --index: got {found}")
    if not path.parent.is_dir():
        raise SpecError(f"--output: there is no directory {path.parent}; create it first")
    from cloudspot_ui.page.rendering import index_page, job_page
    from cloudspot_ui.page.store_story import StoreStory
    from cloudspot_ui.page.story import JobReading

    now = datetime.now(timezone.utc)
    if job_id is None:
        story = StoreStory.read(open_named_store(store_url), now)
        page = index_page(story)
    else:
        job = open_job(store_url, job_id)
        warn_of_gaps(job)
        page = job_page(JobReading(job).read(now))
    data = page.encode(errors="replace")
    try:
        with whole_file(path) as file:
            file.write(data)
    except OSError as error:
        raise CloudspotError(f"--output: cannot write {path}: {error.strerror}") from error
    output.echo(f"written: {path}, {size_text(len(data))}")
    if job_id is None:
        story.stored.report_faults(ctx)
