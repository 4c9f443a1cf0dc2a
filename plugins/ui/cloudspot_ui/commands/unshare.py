"""``cloudspot unshare``: end the links to a job's pages."""

from __future__ import annotations

import click

from cloudspot.cli.jobs import open_job
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import job_argument, store_option
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout import keys


@click.command("unshare")
@job_argument
@store_option
def unshare(job_id: str, store_url: str | None) -> None:
    """End all links to a job's pages by deleting the pages. The command is safe to repeat."""
    job = open_job(store_url, job_id)
    store = with_retries(job.store)
    from cloudspot_ui.shared_page import SharedPage

    # The record comes first, so that no driver uploads a page after it was deleted.
    store.delete_many([form(job.id, SharedPage.name) for form in (keys.task, keys.task_done)])
    found = [meta.key for meta in store.list_objects(keys.shared_pages_prefix(job.id))]
    store.delete_many(found)
    pages = "page" if len(found) == 1 else "pages"
    output.echo(f"deleted {len(found)} {pages} of job {job.id}; links to its pages do not work any more")
