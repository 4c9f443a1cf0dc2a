"""The entry point of a cloud function: one pass of ``cloudspot reconcile``, or ``cloudspot reap``."""

from __future__ import annotations

import os
import time

from cloudspot.cli import exit_codes
from cloudspot.cli.main import program
from cloudspot.model import REAP_EVENT
from cloudspot.plugin.answers import number

EVERY = "CLOUDSPOT_DRIVER_EVERY"
"""The variable that holds the number of seconds between two passes."""
NAME = "CLOUDSPOT_DRIVER_NAME"
"""The variable that holds the driver's name for messages; ``CLOUDSPOT_STORE`` holds the store's URL."""

PROVIDER = "CLOUDSPOT_DRIVER_PROVIDER"
"""The variable that holds the provider in whose account the function runs."""

MAX_WAIT_SECONDS = 30.0


def handle(event: object = None, *_context: object) -> dict[str, int]:
    """Make a pass after the event's ``wait_seconds``, if any; return the command's exit status.

    With ``REAP_EVENT``, run ``cloudspot reap`` instead, in the function's own region and for its own store.
    The signature suits all clouds, which pass an event and its context, only an event, or a request. The
    output of the pass goes to the function's log. The log names jobs that could not be driven, but these do
    not make the function fail, because the other jobs were driven.

    Raises:
        RuntimeError: no job could be driven; the message contains the exit status.
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
