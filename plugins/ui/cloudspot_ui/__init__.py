"""cloudspot's jobs as pages. Only running a command imports the libraries that pages need."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cloudspot.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from cloudspot.interfaces import DriverTask

cloudspot_api_version = 2

COMMANDS = ("report", "share", "tensorboard", "top", "ui", "unshare")


@hookimpl
def cloudspot_command(name: str) -> click.Command | None:
    """Return the named command: each is a module of ``cloudspot_ui.commands``."""
    if name not in COMMANDS:
        return None
    command: click.Command = getattr(import_module(f"cloudspot_ui.commands.{name}"), name)
    return command


@hookimpl
def cloudspot_driver_task(name: str) -> type[DriverTask] | None:
    """Return the task ``shared-page``, which refreshes the page of ``share --live``."""
    from cloudspot_ui.shared_page import SharedPage

    return SharedPage if name == SharedPage.name else None
