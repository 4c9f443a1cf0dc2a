"""Open the store and the job that a command names, and create the ids of new jobs."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cloudspot.cli.config import configured_options, default_store
from cloudspot.cli.invocation import (
    DEFAULT_PROVIDER,
    ChosenStore,
    current_driver,
    current_invocation,
)
from cloudspot.controller.ownership import open_to_drive
from cloudspot.errors import CloudspotError, JobNotFound, SpecError
from cloudspot.interfaces import LogSink, ObjectStore, Provider
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.access.store_clock import store_time
from cloudspot.jobstore.checkpoints.retention import standing_checkpoints
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, Submission
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.registry import open_job_store, open_provider, open_store, with_driver_options

if TYPE_CHECKING:
    from cloudspot.controller.loop import Controller

SILENT_SECONDS = 600.0
"""A live node reports every few seconds, unless it cannot reach the store."""
STEPS_NAMED = 20
"""The maximum number of steps that the error about a missing step lists."""
_SUFFIX_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""Base 32 without characters that look alike."""
_SUFFIX_LENGTH = 4
_MAX_ID_LENGTH = 63


def open_named_store(store_url: str | None, *, may_be_new: bool = False) -> ObjectStore:
    """Open the store that ``--store`` or CLOUDSPOT_STORE names, or else the default store.

    ``may_be_new`` allows a store that the first submission will create.
    """
    if store_url is None:
        # Remember where the choice came from, for errors that mention it.
        chosen = current_invocation().chosen_store = unnamed_store()
        store_url = chosen.url
    return open_store(store_url) if may_be_new else open_job_store(store_url)


def unnamed_store(provider: Provider | None = None) -> ChosenStore:
    """Return the store to use if none is named: the user's default or, if there is none, the provider's.

    Raise SpecError if there is no default. ``provider`` defaults to the default provider.
    """
    chosen = default_store()
    if chosen is not None:
        return chosen
    provider = provider or open_provider(DEFAULT_PROVIDER, None)
    url = provider.default_store()
    if url is None:
        raise SpecError(
            f"no store: provider {provider.name!r} has no default; set store in the job file, "
            "or give --store or CLOUDSPOT_STORE"
        )
    return ChosenStore(url, f"the default of the provider {provider.name}")


def new_job_id(name: str) -> str:
    """Return ``<name>-<suffix>`` with a random suffix; a long name is cut to fit a DNS label."""
    suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
    stem = name[: _MAX_ID_LENGTH - _SUFFIX_LENGTH - 1].rstrip("-")
    return f"{stem}-{suffix}"


def check_job_id(text: str) -> str:
    """Return an id given by ``--name`` unchanged; raise SpecError if it is not a DNS label."""
    if keys.JOB_ID.fullmatch(text) is None:
        raise SpecError(
            f"--name must be 1 to {_MAX_ID_LENGTH} lower-case letters, digits and hyphens (not at either "
            f"end): got {text!r}"
        )
    return text


def find_job(store: ObjectStore, text: str) -> str:
    """Return the id of the only job whose id is ``text`` or starts with it.

    Raises:
        JobNotFound: there is no such job, or there are several; the message lists them.
    """
    if re.fullmatch(r"[a-z0-9-]{1,63}", text) is None:
        raise JobNotFound(f"{text!r} is not a job id; ids are lower-case letters, digits and hyphens")
    listed = (keys.index.match(meta.key) for meta in store.list_objects(keys.index_prefix() + text))
    job_ids: list[str] = [match[0] for match in listed if match is not None]
    if text in job_ids:
        return text
    if not job_ids:
        raise JobNotFound(f"no job {text!r} in {store.url}; list them with: cloudspot ps --store {store.url}")
    if len(job_ids) > 1:
        more = ", ..." if len(job_ids) > 8 else ""
        raise JobNotFound(f"{text!r} matches {len(job_ids)} jobs: {', '.join(job_ids[:8])}{more}")
    return job_ids[0]


@dataclass(frozen=True)
class Job:
    """A job in a store, with the objects that commands need, each created at its first use."""

    store: ObjectStore
    id: str

    @cached_property
    def reader(self) -> HistoryReader:
        """The reader, which caches what it has read."""
        return HistoryReader(self.store, self.id)

    def history(self) -> History:
        """Read the job's records again."""
        return self.reader.read()

    @cached_property
    def first_history(self) -> History:
        """The records at the first read."""
        return self.history()

    @cached_property
    def _opened(self) -> tuple[Submission, JobSpec, str | None]:
        submission, spec = self.reader.read_job()
        return submission, spec, self.reader.submission_sha256

    @property
    def submitted(self) -> tuple[Submission, JobSpec]:
        """The submission and its job file, as first read."""
        return self._opened[:2]

    @property
    def submission_sha256(self) -> str | None:
        """The hash of the submission, as first read."""
        return self._opened[2]

    @cached_property
    def spec(self) -> JobSpec:
        """The job file as submitted."""
        return self.submitted[1]

    @cached_property
    def provider(self) -> Provider:
        """The provider to which the job was submitted or resumed, with this computer's options."""
        submission, spec = self.submitted
        return open_to_drive(self.store, submission, spec, configured_options)

    def controller(
        self, *, sleep: Callable[[float], None] = time.sleep, known: History | None = None
    ) -> Controller:
        """Return a controller of the job for its current submission.

        It waits by calling ``sleep``. Its first tick contains the events since ``known``, or all events.
        """
        from cloudspot.controller.loop import Controller  # only few commands need it

        provider = self.provider
        return Controller(
            self.store,
            self.id,
            provider,
            sleep=sleep,
            reader=self.reader,
            opened_for=self.submission_sha256,
            known=known,
            driver=current_driver(),
        )

    @cached_property
    def log_sink(self) -> LogSink:
        """The sink that holds the job's log lines."""
        submission, spec = self.submitted
        # Reading the log must not use options of this computer that a record names.
        spec = with_driver_options(spec, submission.provider, configured_options(submission.provider))
        provider = open_provider(submission.provider, spec)
        return provider.log_sink(self.store, self.id) or ObjectStoreLogSink(self.store, self.id)

    def check_not_moved(self) -> None:
        """Raise CloudspotError if the job was moved to another store, where it must be driven or stopped."""
        elsewhere = self.first_history.moved_to
        if elsewhere is not None and elsewhere != self.store.canonical_url:
            raise CloudspotError(f"job {self.id} was moved; give --store {elsewhere}")

    def checkpoints_at(self, step: int | None) -> Sequence[CheckpointId]:
        """Return the checkpoints, or those of ``step``, the best to resume from first; SpecError if none."""
        checkpoints = standing_checkpoints(self.store, self.id, self.reader.journal.read())
        if step is None:
            return checkpoints
        wanted = [each for each in checkpoints if each.step == step]
        if not wanted:
            steps = sorted({each.step for each in checkpoints})
            more = "..., " if len(steps) > STEPS_NAMED else ""
            named = more + ", ".join(map(str, steps[-STEPS_NAMED:]))
            raise SpecError(f"job {self.id} has no checkpoint of step {step}; it has: {named or 'none'}")
        return wanted

    def check_silence(self) -> None:
        """Raise CloudspotError if a node has reported recently, by the store's clock: it is still alive.

        This reads only the times of objects, so it also works for a job with malformed records.
        """
        listed = self.store.list_objects(keys.nodes_prefix(self.id))
        reports = [meta.modified_at for meta in listed if keys.recognize(meta.key, keys.REPORTS) is not None]
        if not reports:
            return
        silent = (store_time(self.store) - max(reports)).total_seconds()
        if silent < SILENT_SECONDS:
            raise CloudspotError(
                f"a node of job {self.id} reported {max(0.0, silent):.0f} s ago, so the job may have "
                "machines; stop the job where it is driven, and wait until no node has reported for "
                f"{SILENT_SECONDS:.0f} s"
            )

    def command(self, name: str) -> str:
        """Return a command line, for use in messages, that runs ``name`` on this job."""
        return self.store_command(f"{name} {self.id}")

    def store_command(self, name: str) -> str:
        """Return a command line, for use in messages, that runs ``name`` on this job's store."""
        at = "" if self.store.url == unnamed_store().url else f" --store {self.store.url}"
        return f"cloudspot {name}{at}"


def open_job(store_url: str | None, text: str) -> Job:
    """Open the job that a command's ``--store`` and ``ID`` name."""
    store = open_named_store(store_url)
    return Job(store, find_job(store, text))
