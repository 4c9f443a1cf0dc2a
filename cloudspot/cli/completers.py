"""Shell completion of job ids, stores, providers and attempts.

Quick and silent: it reads little, and offers nothing if anything goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import click

MAX_JOBS = 200
"""More ids than anyone reads; one more letter narrows them down."""


def complete_jobs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of the store's jobs that begin like this; reads only a listing."""
    return _quietly(lambda: _job_ids(ctx, incomplete))


def complete_stores(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the stores in the user's file."""

    def names() -> Iterable[str]:
        from cloudspot.cli.config import load_config

        return load_config().stores

    return _quietly(lambda: [name for name in names() if name.startswith(incomplete)])


def complete_providers(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the installed providers without importing them."""

    def names() -> Iterable[str]:
        from cloudspot.registry import provider_names

        return provider_names()

    return _quietly(lambda: [name for name in names() if name.startswith(incomplete)])


def complete_attempts(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the numbers of the job's attempts, from its summary."""
    return _quietly(lambda: [number for number in _attempts(ctx) if number.startswith(incomplete)])


def _quietly(look: Callable[[], Iterable[str]]) -> list[str]:
    try:
        return list(look())
    except Exception:  # noqa: BLE001 - a half-typed line is no place for a message
        return []


def _job_ids(ctx: click.Context, prefix: str) -> list[str]:
    from cloudspot.cli.jobs import open_named_store
    from cloudspot.jobstore import keys

    store = open_named_store(_store_url(ctx))
    found = store.list_objects(keys.index_prefix() + prefix)
    return [meta.key.removeprefix(keys.index_prefix()) for meta in islice(found, MAX_JOBS)]


def _attempts(ctx: click.Context) -> list[str]:
    from cloudspot.cli.jobs import find_job, open_named_store
    from cloudspot.jobstore.reader import read_summary

    store = open_named_store(_store_url(ctx))
    # If the line ends with an option that lacks its value, click leaves the arguments unparsed.
    summary = read_summary(store, find_job(store, ctx.params.get("job_id") or ctx.args[0]))
    return [] if summary is None else [str(number) for number in range(1, summary.attempts + 1)]


def _store_url(ctx: click.Context) -> str | None:
    """Return the store named on the half-typed line: its options are parsed, but no callback has run."""
    from cloudspot.cli.config import named_store

    text = ctx.params.get("store_url")
    return None if text is None else named_store(text, "--store").url
