"""The journal of a first run: JSON lines, each of which is on the disk before the event that it announces.

So a run that was killed at any moment continues when its command is repeated. The journal and the recordings
are in a directory that belongs to the user.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from cloudspot.decoding import decode
from cloudspot.host.private_directories import make_private
from cloudspot.jobstore.jobs.state_home import state_home

_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"


class Began(msgspec.Struct, frozen=True, kw_only=True, tag="began"):
    """The run, with all its settings."""

    run: str
    provider: str
    store_url: str
    """A prefix that only this run uses, and which contains all of its jobs."""
    settings: tuple[str, ...]
    """The values of ``--set``."""
    max_cost: float
    currency: str | None
    train_seconds: float
    steps: tuple[str, ...]
    image_has_torch: bool
    gpu: str | None
    other_region: str | None
    key: str
    """The pseudonyms' key."""
    at: float


class StepBegan(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """A step is about to begin."""

    step: str
    at: float


class JobIntended(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """A job with this id is about to be submitted; ``max_cost`` is its cost limit."""

    step: str
    job_id: str
    max_cost: float


class DriverIntended(msgspec.Struct, frozen=True, kw_only=True, tag="driver"):
    """A function is about to be deployed, and must later be removed."""


class StepEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A step is over."""

    step: str
    status: str
    """``passed``, ``failed`` or ``skipped``."""
    why: str = ""
    """The reason, in cloudspot's own words."""
    seconds: float = 0.0
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    """Its measurements that are in no job and no recording."""


class CleanedUp(msgspec.Struct, frozen=True, kw_only=True, tag="cleaned"):
    """Nothing of the run is left in the account."""

    leftovers: tuple[str, ...]
    """The kinds of resources that its jobs had left, all of which were removed, and those that could not be
    listed.
    """


class Compared(msgspec.Struct, frozen=True, kw_only=True, tag="compared"):
    """The recorded requests were made again in the emulation."""

    differences: tuple[dict[str, Any], ...] = ()
    why_not: str = ""
    """Why they were not made again; empty if they were."""


class Saved(msgspec.Struct, frozen=True, kw_only=True, tag="saved"):
    """The user has read the report; the run is over."""


Event = Began | StepBegan | JobIntended | DriverIntended | StepEnded | CleanedUp | Compared | Saved


class RunRecord:
    """The record of one run."""

    def __init__(self, directory: Path) -> None:
        """Read the existing record."""
        self.directory = directory
        self.events: list[Event] = []
        with suppress(FileNotFoundError):
            for line in (directory / "run.jsonl").read_bytes().split(b"\n"):
                # A line that was cut off by a kill announces an event that did not begin.
                with suppress(msgspec.DecodeError):
                    self.events.append(decode(line, Event))

    def write(self, event: Event) -> None:
        """Append an event; it is on the disk when this returns."""
        handle = os.open(self.directory / "run.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            whole = b"" if size == 0 or os.pread(handle, 1, size - 1) == b"\n" else b"\n"
            os.write(handle, whole + msgspec.json.encode(event) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        self.events.append(event)

    @property
    def began(self) -> Began:
        """Return the run's settings."""
        return next(one for one in self.events if isinstance(one, Began))

    @property
    def recordings(self) -> Path:
        """Return the directory of the recordings."""
        return self.directory / "recordings"

    @property
    def is_over(self) -> bool:
        """Return whether the run is complete."""
        return any(isinstance(one, Saved) for one in self.events)

    @property
    def ended(self) -> Mapping[str, StepEnded]:
        """Return the steps that are over, by name."""
        return {one.step: one for one in self.events if isinstance(one, StepEnded)}

    @property
    def cleaned(self) -> CleanedUp | None:
        """Return the result of cleaning up the account, or None if that has not been done yet."""
        return next((one for one in self.events if isinstance(one, CleanedUp)), None)

    @property
    def compared(self) -> Compared | None:
        """Return how the cloud's answers differ from the emulation's, or None before the comparison."""
        return next((one for one in self.events if isinstance(one, Compared)), None)

    @property
    def has_driver(self) -> bool:
        """Return whether a function may have been deployed."""
        return any(isinstance(one, DriverIntended) for one in self.events)

    def jobs(self, step: str | None = None) -> Sequence[JobIntended]:
        """Return the jobs that may have been submitted, in one step or in all steps."""
        found = [one for one in self.events if isinstance(one, JobIntended)]
        return [one for one in found if step in {None, one.step}]


def new_run(provider: str, base_store: str, **fields: Any) -> RunRecord:
    """Begin a run, with a store of its own under ``base_store``."""
    run = "".join(secrets.choice(_LETTERS) for _ in range(5))
    directory = _home() / f"{provider}-{run}"
    make_private(directory)
    make_private(directory / "recordings")
    record = RunRecord(directory)
    record.write(
        Began(
            run=run,
            provider=provider,
            store_url=f"{base_store.rstrip('/')}/prove-{run}",
            key=secrets.token_hex(32),
            at=time.time(),
            **fields,
        )
    )
    return record


def unfinished_run(provider: str) -> RunRecord | None:
    """Return the provider's interrupted run, or None if there is none."""
    for record in _runs(provider):
        if record.events and isinstance(record.events[0], Began) and not record.is_over:
            return record
    return None


def _runs(provider: str) -> Iterator[RunRecord]:
    for path in sorted(_home().glob(f"{provider}-*/run.jsonl")):
        yield RunRecord(path.parent)


def _home() -> Path:
    home = state_home() / "prove"
    make_private(home)
    return home
