"""What a cloud runs as a function: one pass of ``cloudspot reconcile`` over its store's jobs."""

from __future__ import annotations

import os

from cloudspot.cli.main import program

EVERY = "CLOUDSPOT_DRIVER_EVERY"
"""The variable with the seconds from one pass to the next."""
NAME = "CLOUDSPOT_DRIVER_NAME"
"""The variable with what people are told that drives their jobs; ``CLOUDSPOT_STORE`` has the store's URL."""


def handle(*_event: object) -> dict[str, int]:
    """Make a pass, whatever the event says.

    The signature fits every cloud's contract: an event and its context, an event alone, or a request. What
    the pass did is printed, which clouds keep as the function's log.

    Raises:
        RuntimeError: some job could not be driven, so that the cloud counts a failure; the others were.
    """
    status: object = 0
    try:
        program.main(
            ["reconcile", "--as", os.environ[NAME], "--every", os.environ[EVERY]], prog_name="cloudspot"
        )
    except SystemExit as end:  # The program always ends so.
        status = end.code
    if status:
        raise RuntimeError(f"the pass ended with status {status}; the log says why")
    return {"status": 0}
