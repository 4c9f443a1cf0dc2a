"""``cloudspot replay``: makes a recording's requests again, and lists how the answers differ."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import json_option
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.hookspecs import SANDBOX_VARIABLE


@click.command("replay")
@click.argument(
    "recording", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="RECORDING"
)
@json_option
@click.pass_context
def replay(ctx: click.Context, recording: Path, as_json: bool) -> None:
    """Make the requests of a RECORDING again in a sandbox, and list how the cloud's answers differ.

    RECORDING is a file that `cloudspot prove` has saved beside its report. The command runs only inside the
    sandbox of the same cloud, because the requests buy machines: cloudspot sandbox aws -- cloudspot replay
    RECORDING. Each difference concerns a field, an order, a code or a delay; the exit status is 1 if there
    are any.
    """
    from cloudspot_prove import replay as replaying
    from cloudspot_prove.clouds import cloud_of
    from cloudspot_prove.differences import find_differences
    from cloudspot_prove.recording import read_head, read_lines

    provider = read_head(recording).provider
    if os.environ.get(SANDBOX_VARIABLE) != provider:
        raise SpecError(f"run it in a sandbox: cloudspot sandbox {provider} -- cloudspot replay {recording}")
    pairs = list(replaying.replay(cloud_of(provider), list(read_lines(recording))))
    with suppress(CloudspotError):  # The machines end with the sandbox.
        replaying.end_machines(provider)
    found = find_differences(pairs)
    num_same = sum(one.is_same_request for one in pairs)
    if as_json:
        differences = [msgspec.structs.asdict(one) for one in found]
        output.echo_json({"repeated": len(pairs), "same_request": num_same, "differences": differences})
    else:
        for one in found:
            output.echo(f"{one.kind:>5}  {one.action}  {one.where}: {one.text}")
        output.echo(
            f"{len(pairs)} requests were made again, {num_same} of them whole; {len(found)} differences"
        )
    ctx.exit(1 if found else 0)
