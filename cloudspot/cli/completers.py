"""Shell completion of job ids, stores, providers, nodes and generations.

Completion is quick and silent: it reads little, and offers nothing if an error occurs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cloudspot.interfaces import ObjectStore

MAX_JOBS = 200
"""More ids than anyone would read; typing one more letter narrows them down."""
MAX_GENERATIONS = 1000


_Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _quiet(find: Callable[[click.Context, str], Iterable[str]]) -> _Complete:
    """Return a completer that offers the results starting with the typed text, and nothing on errors."""

    @functools.wraps(find)
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        try:
            return [one for one in find(ctx, incomplete) if one.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - errors must not disturb a line being typed
            return []

    return complete


@_quiet
def complete_jobs(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """Return the ids of the store's jobs that start with the text; this reads only a listing."""
    from cloudspot.cli.jobs import open_named_store
    from cloudspot.jobstore.layout import keys

    store = open_named_store(_store_url(ctx))
    found = store.list_objects(keys.index_prefix() + incomplete)
    names = (match[0] for meta in found if (match := keys.index.match(meta.key)) is not None)
    return list(islice(names, MAX_JOBS))


@_quiet
def complete_stores(_ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """Return the names of the stores in the config file."""
    from cloudspot.cli.config import load_config

    return load_config().stores


@_quiet
def complete_providers(_ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """Return the names of the installed providers without importing them."""
    from cloudspot.registry import provider_names

    return provider_names()


@_quiet
def complete_nodes(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """Return the names of the job's nodes; this reads only a listing."""
    from cloudspot.jobstore.layout import keys

    store, job_id = _job(ctx)
    listed = store.list_objects(keys.nodes_prefix(job_id))
    found = [keys.recognize(meta.key, keys.REPORTS) for meta in listed]
    places = {report[1][1:] for report in found if report is not None}
    return [f"{launch}.{rank}" for launch, rank in sorted(places)]


@_quiet
def complete_generations(ctx: click.Context, _incomplete: str) -> Iterable[str]:
    """Return the numbers of the job's generations, from its summary."""
    from cloudspot.jobstore.jobs.reader import read_summary

    summary = read_summary(*_job(ctx))
    num_generations = 0 if summary is None else min(summary.starts, MAX_GENERATIONS)
    return [str(number) for number in range(1, num_generations + 1)]


def _job(ctx: click.Context) -> tuple[ObjectStore, str]:
    """Return the store and the id of the job on the unfinished command line."""
    from cloudspot.cli.jobs import find_job, open_named_store

    store = open_named_store(_store_url(ctx))
    # If the line ends with an option that lacks its value, click leaves the arguments unparsed.
    return store, find_job(store, ctx.params.get("job_id") or ctx.args[0])


def _store_url(ctx: click.Context) -> str | None:
    """Return the store named on the unfinished command line, whose options are parsed without callbacks."""
    from cloudspot.cli.config import named_store

    text = ctx.params.get("store_url")
    return None if text is None else named_store(text, "--store").url
