"""What one run of ``cloudspot`` knows besides its command's arguments."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
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


def driver_name() -> str:
    """Return what people are told that drives a job while this command does: the command and its host."""
    context = click.get_current_context(silent=True)
    command = "cloudspot" if context is None else context.info_name
    return f"{command} on {socket.gethostname()}"


def current_invocation() -> Invocation:
    """Return the invocation of the running command; outside of any command, an empty one."""
    context = click.get_current_context(silent=True)
    return Invocation() if context is None else context.find_root().ensure_object(Invocation)


def current_outbox() -> Outbox:
    """Return the outbox of the running command, which waits for it at its end."""
    from cloudspot.controller.outbox import Outbox  # which few of the commands need

    invocation = current_invocation()
    invocation.outbox = invocation.outbox or Outbox()
    return invocation.outbox
