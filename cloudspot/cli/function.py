"""What a cloud runs as a function: one pass of ``cloudspot reconcile``, or ``cloudspot reap``."""

from __future__ import annotations

import os
import time

from cloudspot.cli import exit_codes
from cloudspot.cli.main import program
from cloudspot.model import REAP_EVENT
from cloudspot.plugin.answers import number

EVERY = "CLOUDSPOT_DRIVER_EVERY"
"""The variable with the seconds from one pass to the next."""
NAME = "CLOUDSPOT_DRIVER_NAME"
"""The variable with what people are told that drives their jobs; ``CLOUDSPOT_STORE`` has the store's URL."""

PROVIDER = "CLOUDSPOT_DRIVER_PROVIDER"
"""The variable with the provider in whose account it runs."""

MAX_WAIT_SECONDS = 30.0


def handle(event: object = None, *_context: object) -> dict[str, int]:
    """Make a pass, after ``wait_seconds`` of the event, if it has them; return the status of the command.

    With ``REAP_EVENT`` it runs ``cloudspot reap`` instead, in its own region and for its own store.
    The signature fits every cloud's contract: an event and its context, an event alone, or a request. What
    was done is printed, which clouds keep as the function's log. A job that could not be driven is named
    there, and does not fail the function: the others were driven.

    Raises:
        RuntimeError: no job could be driven; it names the status.
    """
    if isinstance(event, dict):
        time.sleep(min(MAX_WAIT_SECONDS, number(event.get("wait_seconds"), most=1e9) or 0.0))
    arguments = ["reconcile", "--as", os.environ[NAME], "--every", os.environ[EVERY]]
    if event == REAP_EVENT:
        arguments = ["reap", "--yes", "--provider", os.environ[PROVIDER]]
    status: object = 0
    try:
        program.main(arguments, prog_name="cloudspot")
    except SystemExit as end:  # The program always ends so.
        status = end.code
    if status not in {exit_codes.SUCCEEDED, exit_codes.FAILED}:
        raise RuntimeError(f"the pass ended with status {status}; the log says why")
    return {"status": int(status == exit_codes.FAILED)}
