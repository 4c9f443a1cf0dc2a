"""The options and arguments that several commands share."""

from __future__ import annotations

import click

from cloudspot.cli.main import debug_option

__all__ = ["debug_option", "job_argument", "json_option", "store_option"]

STORE_VARIABLE = "CLOUDSPOT_STORE"
STORE_HELP = "Object store that holds the jobs, such as file:///data/jobs."
JSON_HELP = "Print JSON (documented in docs/cli.md)."

store_option = click.option(
    "--store",
    "store_url",
    metavar="URL",
    envvar=STORE_VARIABLE,
    show_envvar=True,
    help=STORE_HELP,
)

json_option = click.option("--json", "as_json", is_flag=True, help=JSON_HELP)

job_argument = click.argument("job_id", metavar="ID")
"""A job's id, or a prefix that only one job of the store has."""
