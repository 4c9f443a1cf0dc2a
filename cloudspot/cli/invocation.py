"""The context of one run of ``cloudspot``, apart from its command's arguments."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cloudspot.controller.loop import Driver
    from cloudspot.controller.outbox import Outbox

DEFAULT_PROVIDER = "local"
"""The provider of a job if the command line names none."""


@dataclass(frozen=True)
class ChosenStore:
    """A store's URL, and the origin of this choice."""

    url: str
    origin: str


@dataclass
class Invocation:
    """The options given before the command, and the store that the command uses."""

    debug: bool = False
    """Whether an expected error is shown with its traceback."""
    store: str | None = None
    """The ``--store`` given before the command."""
    chosen_store: ChosenStore | None = None
    """The store that was used although the command line named none; errors mention its origin."""
    outbox: Outbox | None = None
    """The messages that the command's drivers send; None if it has driven nothing."""


def current_invocation() -> Invocation:
    """Return the invocation of the running command, or an empty one outside of any command."""
    context = click.get_current_context(silent=True)
    return Invocation() if context is None else context.find_root().ensure_object(Invocation)


def current_driver(name: str | None = None) -> Driver:
    """Return the running command as a driver, named by default after the command and the host.

    At its end, the command waits for the driver's outbox.
    """
    from cloudspot.controller.loop import Driver  # only few commands need it

    context = click.get_current_context(silent=True)
    command = "cloudspot" if context is None else context.info_name
    driver = Driver(name or f"{command} on {socket.gethostname()}")
    invocation = current_invocation()
    invocation.outbox = driver.outbox = invocation.outbox or driver.outbox
    return driver
