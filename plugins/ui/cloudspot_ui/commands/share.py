"""``cloudspot share``: make a link to a job's page, which needs only a browser."""

from __future__ import annotations

import secrets
from datetime import datetime, timezone

import click

from cloudspot.calls import LinkRequest
from cloudspot.cli.joblog.logpieces import warn_of_gaps
from cloudspot.cli.jobs import open_job
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import job_argument, json_option, parsed, store_option
from cloudspot.errors import SpecError
from cloudspot.jobfile.quantities import parse_duration
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout import keys
from cloudspot.story.states import TERMINAL_STATES

MOST_SECONDS = 7 * 86_400.0
"""The maximum time for which clouds sign links."""
_MEDIA_TYPE = "text/html; charset=utf-8"


@click.command("share")
@job_argument
@click.option(
    "--for",
    "seconds",
    callback=parsed(parse_duration),
    default="7d",
    show_default=True,
    metavar="DURATION",
    help="How long the link works, at most 7d.",
)
@click.option(
    "--live",
    "is_live",
    is_flag=True,
    help="Let the job's driver refresh the page every minute or two until the link ends.",
)
@store_option
@json_option
def share(job_id: str, seconds: float, is_live: bool, store_url: str | None, as_json: bool) -> None:
    """Upload a page about a job to its bucket, and print a link to it.

    Anyone who has the link can see the page without credentials until the link expires. The page shows the
    job as it is now or, with --live, is updated while the job is driven. `unshare` ends all links to the
    job's pages.
    """
    if not 1 <= seconds <= MOST_SECONDS:
        raise SpecError(f"--for must be 1s to 7d, the most for which clouds sign links: got {seconds:g} s")
    job = open_job(store_url, job_id)
    token = secrets.token_hex(16)  # never used before, so that links that were ended do not work again
    request = LinkRequest(
        key=keys.shared_page(job.id, token),
        seconds=seconds,
        media_type=_MEDIA_TYPE,
    )
    job.store.link(request)  # done before the page is uploaded, because the store may refuse links
    from cloudspot_ui.page.rendering import job_page
    from cloudspot_ui.page.story import JobReading
    from cloudspot_ui.shared_page import LiveShares, SharedPage

    warn_of_gaps(job)
    store, story = with_retries(job.store), JobReading(job).read(datetime.now(timezone.utc))
    is_live = is_live and story.report["state"] not in TERMINAL_STATES
    store.put(request.key, job_page(story, is_live=is_live).encode(errors="replace"))
    link = job.store.link(request)
    if is_live:
        asked = LiveShares({**LiveShares.read(store, job.id).ends, token: link.ends_at})
        store.put(keys.task(job.id, SharedPage.name), asked.to_bytes())
    if as_json:
        value = {"url": link.url, "ends": link.ends_at.isoformat(), "note": link.note, "is_live": is_live}
        output.echo_json(value)
        return
    output.echo(link.url)
    output.echo(f"the link ends at {output.moment_text(link.ends_at)}", error=True)
    if is_live:
        output.echo("the job's driver refreshes the page; `show` reports if it cannot", error=True)
    if link.note:
        output.warn(f"the link ends earlier than --for: {link.note}")
    output.echo(f"end the link earlier: {job.command('unshare')}", error=True)
