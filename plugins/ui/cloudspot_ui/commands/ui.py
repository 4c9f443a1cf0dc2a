"""``cloudspot ui``: show a store's jobs live in a browser."""

from __future__ import annotations

import secrets
import socket

import click

from cloudspot.cli.jobs import open_named_store
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import store_option
from cloudspot.errors import CloudspotError


@click.command("ui")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port; 0 means any free port.  [default: 0]"
)
@click.option(
    "--write", "may_write", is_flag=True, help="Let pages also stop, resume, move and preempt jobs."
)
@store_option
def ui(port: int, may_write: bool, store_url: str | None) -> None:
    """Show a store's jobs in a browser, and keep the pages up to date.

    The command prints the URL to open, and serves the pages until Ctrl-C. Only browsers on this computer that
    have opened this URL can use them. The command does not drive jobs; `attach` and `reconcile` do.
    """
    store = open_named_store(store_url)
    import uvicorn

    from cloudspot_ui.live.access import Access
    from cloudspot_ui.live.site import Site

    listening = socket.socket()
    # Leftover connections of an earlier site must not block the port.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen()  # a browser that connects before the server is ready waits
    except OSError as error:
        raise CloudspotError(f"--port: {port} cannot be used: {error.strerror}") from error
    bound = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    guarded = Access(Site(store, may_write=may_write).application(), bound, token=token)
    server = uvicorn.Server(
        uvicorn.Config(
            guarded,
            log_level="error",
            access_log=False,  # the first URL contains the token
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
        )
    )
    output.echo(f"open http://127.0.0.1:{bound}/?token={token}")
    output.echo("Ctrl-C ends the site; the jobs go on", error=True)
    server.run(sockets=[listening])
