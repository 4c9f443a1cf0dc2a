"""``cloudspot completion``: print the script with which a shell completes commands, options and job ids."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    SHELL is bash, zsh or fish. docs/cli.md describes where to install the script.
    """
    class_ = get_completion_class(shell)
    program = ctx.find_root().command
    assert class_ is not None
    click.echo(class_(program, {}, "cloudspot", "_CLOUDSPOT_COMPLETE").source())  # noqa: TID251 - a script of ours
