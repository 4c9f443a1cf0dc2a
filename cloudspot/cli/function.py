"""The entry point of a cloud function: one pass of ``cloudspot reconcile``, or ``cloudspot reap``."""

from __future__ import annotations

import os
import time

from cloudspot.cli import exit_codes
from cloudspot.cli.main import program
from cloudspot.model import REAP_EVENT
from cloudspot.plugin.answers import number

EVERY = "CLOUDSPOT_DRIVER_EVERY"
"""The variable with the seconds between two passes."""
NAME = "CLOUDSPOT_DRIVER_NAME"
"""The variable with the driver's name in messages; ``CLOUDSPOT_STORE`` has the store's URL."""

PROVIDER = "CLOUDSPOT_DRIVER_PROVIDER"
"""The variable with the provider in whose account the function runs."""

MAX_WAIT_SECONDS = 30.0


def handle(event: object = None, *_context: object) -> dict[str, int]:
    """Make a pass after the event's ``wait_seconds``, if any; return the status of the command.

    With ``REAP_EVENT`` it runs ``cloudspot reap`` instead, in its own region and for its own store. The
    signature fits the contracts of all clouds: an event and its context, an event alone, or a request. The
    output of the pass goes to the function's log. A job that could not be driven is named there, but does not
    make the function fail, because the other jobs were driven.

    Raises:
        RuntimeError: no job could be driven; the message has the status.
    """
    if isinstance(event, dict):
        time.sleep(min(MAX_WAIT_SECONDS, number(event.get("wait_seconds"), most=1e9) or 0.0))
    arguments = ["reconcile", "--as", os.environ[NAME], "--every", os.environ[EVERY]]
    if event == REAP_EVENT:
        arguments = ["reap", "--yes", "--provider", os.environ[PROVIDER]]
    status: object = 0
    try:
        program.main(arguments, prog_name="cloudspot")
    except SystemExit as end:  # The program always ends this way.
        status = end.code
    if status not in {exit_codes.SUCCEEDED, exit_codes.FAILED}:
        raise RuntimeError(f"the pass ended with status {status}; see the log")
    return {"status": int(status == exit_codes.FAILED)}
