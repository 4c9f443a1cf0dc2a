"""The options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from cloudspot.cli.completers import complete_jobs, complete_nodes, complete_providers, complete_stores
from cloudspot.cli.invocation import DEFAULT_PROVIDER, current_invocation
from cloudspot.errors import SpecError

_Command = TypeVar("_Command", bound=Callable[..., Any])

STORE_VARIABLE = "CLOUDSPOT_STORE"
STORE_HELP = (
    "Object store that holds the jobs: a URL such as file:///data/jobs, or a name from your config file."
)
DEBUG_HELP = "Show the traceback of an error."
JSON_HELP = "Print JSON (documented in docs/cli.md)."


def _choose_store(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the URL of the store named after the command, before it, or in the variable, in this order.

    Return None if nothing names a store.
    """
    assert param.name is not None
    invocation, origin = current_invocation(), "--store"
    source = ctx.get_parameter_source(param.name)
    if source is not ParameterSource.COMMANDLINE and invocation.store is not None:
        value = invocation.store
    elif source is ParameterSource.ENVIRONMENT:
        origin = STORE_VARIABLE
    if value is None or ctx.resilient_parsing:
        return value
    from cloudspot.cli.config import named_store

    invocation.chosen_store = named_store(value, origin)
    return invocation.chosen_store.url


store_option = click.option(
    "--store",
    "store_url",
    metavar="STORE",
    envvar=STORE_VARIABLE,
    show_envvar=True,
    callback=_choose_store,
    shell_complete=complete_stores,
    help=STORE_HELP,
)


def parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Return a callback that parses an option; a ValueError becomes a SpecError that names the option."""

    def convert(_ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise SpecError(f"{param.opts[-1]}: {error}") from None

    return convert


def _note_debug(_ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        current_invocation().debug = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_note_debug,
    help=DEBUG_HELP,
)

json_option = click.option("--json", "as_json", is_flag=True, help=JSON_HELP)

plain_option = click.option(
    "--plain", "is_plain", is_flag=True, help="Print plain lines instead of the live view, as in a pipe."
)

plot_option = click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the metrics and the timeline into FILE (.png, .svg or .pdf).",
)

job_argument = click.argument("job_id", metavar="ID", shell_complete=complete_jobs)
"""A job's id, or a prefix of exactly one id in the store."""

# click does not check the file: its reader reports all errors in the same words.
job_file_argument = click.argument(
    "job_file", default="job.toml", type=click.Path(readable=False, path_type=Path)
)


def _parse_node(name: str) -> Any:
    from cloudspot.story.node_names import parse_seat

    return parse_seat(name)


def node_option(*, help: str) -> Callable[[_Command], _Command]:  # noqa: A002 - as in click
    """Return the option for the name of a node, such as 2.0, whose value is the seat."""
    return click.option(
        "--node",
        callback=parsed(_parse_node),
        shell_complete=complete_nodes,
        metavar="NODE",
        help=help,
    )


provider_option = click.option(
    "--provider",
    "provider_name",
    default=DEFAULT_PROVIDER,
    show_default=True,
    metavar="NAME",
    shell_complete=complete_providers,
    help="The provider to run the job on.",
)

overrides_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Override a field of the job file, such as limits.max_cost=5. Repeatable.",
)
