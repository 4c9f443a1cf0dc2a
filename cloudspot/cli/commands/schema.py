"""``cloudspot schema``: print the JSON Schema of the job file, for editors and other programs."""

from __future__ import annotations

from importlib import resources

import click

from cloudspot.cli.screen import output

SHIPPED = "job.schema.json"


@click.command("schema")
def schema() -> None:
    """Print the JSON Schema of the job file.

    The schema includes the tables of the installed providers. The schema that `cloudspot init` names in a job
    file is the same, but covers only the built-in providers.
    """
    from cloudspot.errors import PluginError
    from cloudspot.jobfile.json_schema import job_schema
    from cloudspot.registry import provider_class, provider_names

    options = {}
    for name in provider_names():
        try:
            options[name] = provider_class(name).options_type
        except PluginError as error:
            output.warn(str(error))
    output.echo_json(job_schema(options))


def shipped_schema_url() -> str:
    """Return the ``file://`` URL of the schema in this installation of cloudspot."""
    from pathlib import Path

    return Path(str(resources.files("cloudspot") / SHIPPED)).resolve().as_uri()
