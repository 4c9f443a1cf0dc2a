"""How a command finds its store and its job, and how new jobs get their ids."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from functools import cached_property

import click

from cloudspot.cli.config import ChosenStore, default_store
from cloudspot.cli.main import find_program
from cloudspot.cli.options import DEFAULT_PROVIDER
from cloudspot.errors import JobNotFound, SpecError
from cloudspot.interfaces import LogSink, ObjectStore, Provider
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore import keys
from cloudspot.jobstore.history import History
from cloudspot.jobstore.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.reader import HistoryReader
from cloudspot.jobstore.records import Submission
from cloudspot.registry import open_provider, open_store

_SUFFIX_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""Base 32 without the letters and digits that are read for one another."""
_SUFFIX_LENGTH = 4
_MAX_ID_LENGTH = 63


def default_store_url() -> str:
    """Return the store that commands read when neither ``--store`` nor CLOUDSPOT_STORE names one.

    Raises:
        SpecError: the user's file is malformed.
    """
    return _default_store().url


def open_named_store(store_url: str | None) -> ObjectStore:
    """Open the store of ``--store``, or the default one."""
    if store_url is None:
        chosen = note_store(_default_store())
        store_url = chosen.url
    return open_store(store_url)


def note_store(chosen: ChosenStore) -> ChosenStore:
    """Remember who named the store, for the message of an error that names it; return it."""
    context = click.get_current_context(silent=True)
    if context is not None:
        find_program(context).chosen_store = chosen
    return chosen


def _default_store() -> ChosenStore:
    chosen = default_store()
    if chosen is not None:
        return chosen
    url = open_provider(DEFAULT_PROVIDER, None).default_store()
    assert url is not None
    return ChosenStore(url, f"the default of the provider {DEFAULT_PROVIDER}")


def new_job_id(name: str) -> str:
    """Return ``<name>-<suffix>`` with four random letters; a long name is cut to fit a DNS label."""
    suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
    stem = name[: _MAX_ID_LENGTH - _SUFFIX_LENGTH - 1].rstrip("-")
    return f"{stem}-{suffix}"


def check_job_id(text: str) -> str:
    """Return an id given by ``--name`` as it is.

    Raises:
        SpecError: it is no DNS label.
    """
    if keys.JOB_ID.fullmatch(text) is None:
        raise SpecError(
            f"--name must be 1 to {_MAX_ID_LENGTH} lower-case letters, digits and inner hyphens: got {text!r}"
        )
    return text


def find_job(store: ObjectStore, text: str) -> str:
    """Return the id of the one job whose id is, or starts with, ``text``.

    Raises:
        JobNotFound: no job, or several; the message lists them.
    """
    if re.fullmatch(r"[a-z0-9-]{1,63}", text) is None:
        raise JobNotFound(f"{text!r} is no job id; ids are lower-case letters, digits and hyphens")
    found = [
        meta.key.removeprefix(keys.index_prefix()) for meta in store.list_objects(keys.index_prefix() + text)
    ]
    if text in found:
        return text
    if not found:
        raise JobNotFound(f"no job {text!r} in {store.url}; list them with: cloudspot ps --store {store.url}")
    if len(found) > 1:
        more = ", ..." if len(found) > 8 else ""
        raise JobNotFound(f"{text!r} names {len(found)} jobs: {', '.join(found[:8])}{more}")
    return found[0]


@dataclass(frozen=True)
class Job:
    """One job of a store, with what its commands need; each is made when first used."""

    store: ObjectStore
    id: str

    @cached_property
    def reader(self) -> HistoryReader:
        """Return the reader that keeps what it has read between calls."""
        return HistoryReader(self.store, self.id)

    def history(self) -> History:
        """Read the job's records anew."""
        return self.reader.read()

    @cached_property
    def first_history(self) -> History:
        """Return the records as they were when first asked for."""
        return self.history()

    @cached_property
    def submitted(self) -> tuple[Submission, JobSpec]:
        """Read what was submitted."""
        return self.reader.read_job()

    @cached_property
    def spec(self) -> JobSpec:
        """Return the job file as it was submitted."""
        return self.submitted[1]

    @cached_property
    def provider(self) -> Provider:
        """Open the provider on which the job was submitted."""
        return open_provider(self.submitted[0].provider, self.spec)

    @cached_property
    def log_sink(self) -> LogSink:
        """Return where the job's log lines are."""
        return self.provider.log_sink(self.store, self.id) or ObjectStoreLogSink(self.store, self.id)

    def command(self, name: str) -> str:
        """Return the command line that does ``name`` to this job, for a message."""
        at = "" if self.store.url == default_store_url() else f" --store {self.store.url}"
        return f"cloudspot {name} {self.id}{at}"


def open_job(store_url: str | None, text: str) -> Job:
    """Open the job that a command's ``--store`` and ``ID`` name."""
    store = open_named_store(store_url)
    return Job(store, find_job(store, text))
