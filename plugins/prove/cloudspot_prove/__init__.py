"""The first run on a real account.

Importing the package imports no SDK; the commands do so when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cloudspot.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

cloudspot_api_version = 2

COMMANDS = ("prove", "replay")


@hookimpl
def cloudspot_command(name: str) -> click.Command | None:
    """Return the named command: each is a module of ``cloudspot_prove.commands``."""
    if name not in COMMANDS:
        return None
    command: click.Command = getattr(import_module(f"cloudspot_prove.commands.{name}"), name)
    return command
