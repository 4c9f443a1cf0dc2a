"""What one run of ``cloudspot`` knows besides its command's arguments."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cloudspot.controller.loop import Driver
    from cloudspot.controller.outbox import Outbox

DEFAULT_PROVIDER = "local"
"""Where a job runs when the command line names no provider."""


@dataclass(frozen=True)
class ChosenStore:
    """A store's URL, and what named it."""

    url: str
    origin: str


@dataclass
class Invocation:
    """The options before the command, and the store that the command works on."""

    debug: bool = False
    """An expected error keeps its traceback."""
    store: str | None = None
    """The ``--store`` given before the command."""
    chosen_store: ChosenStore | None = None
    """What named it matters to the reader of an error."""
    outbox: Outbox | None = None
    """The messages that the command's drivers send; None: it has driven nothing."""


def current_invocation() -> Invocation:
    """Return the invocation of the running command; outside of any command, an empty one."""
    context = click.get_current_context(silent=True)
    return Invocation() if context is None else context.find_root().ensure_object(Invocation)


def current_driver(name: str | None = None) -> Driver:
    """Return the running command as a driver, by default of the command's and its host's name.

    The command waits for its outbox at its end.
    """
    from cloudspot.controller.loop import Driver  # which few of the commands need

    context = click.get_current_context(silent=True)
    command = "cloudspot" if context is None else context.info_name
    driver = Driver(name or f"{command} on {socket.gethostname()}")
    invocation = current_invocation()
    invocation.outbox = driver.outbox = invocation.outbox or driver.outbox
    return driver
