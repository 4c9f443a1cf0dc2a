"""``cloudspot replay``: makes the requests of a recording again, and names how the answers differ."""

from __future__ import annotations

import click


@click.command("replay")
def replay() -> None:
    """Not there yet."""
