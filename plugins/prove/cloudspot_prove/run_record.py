"""What a first run was about to do, and has done: a file of JSON lines, each on the disk before it happens.

So a run that was killed at any moment goes on when its command is repeated. All of it is in a directory of
the user's own, with the recordings.
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
    """The run, with all that it was told."""

    run: str
    provider: str
    store_url: str
    """A place of the run's own; all of its jobs are there."""
    settings: tuple[str, ...]
    """For ``--set``."""
    max_cost: float
    currency: str | None
    train_seconds: float
    steps: tuple[str, ...]
    image_has_torch: bool
    gpu: str | None
    other_region: str | None
    key: str
    """Of the pseudonyms."""
    at: float


class StepBegan(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """A step is about to begin."""

    step: str
    at: float


class JobIntended(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """A job of this id is about to be submitted; it costs this at the most."""

    step: str
    job_id: str
    max_cost: float


class DriverIntended(msgspec.Struct, frozen=True, kw_only=True, tag="driver"):
    """A function is about to be deployed, and has to be removed."""


class StepEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A step is over."""

    step: str
    status: str
    """``passed``, ``failed`` or ``skipped``."""
    why: str = ""
    """In cloudspot's own words."""
    seconds: float = 0.0
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    """What it has measured that is in no job and no recording."""


class CleanedUp(msgspec.Struct, frozen=True, kw_only=True, tag="cleaned"):
    """Nothing of the run is left in the account."""

    leftovers: tuple[str, ...]
    """Kinds of what its jobs had left, and what could not be looked at; all that was found was ended."""


class Compared(msgspec.Struct, frozen=True, kw_only=True, tag="compared"):
    """The recorded requests were made again in the emulation."""

    differences: tuple[dict[str, Any], ...] = ()
    why_not: str = ""
    """Why they were not; empty: they were."""


class Saved(msgspec.Struct, frozen=True, kw_only=True, tag="saved"):
    """The user has read the report; the run is over."""


Event = Began | StepBegan | JobIntended | DriverIntended | StepEnded | CleanedUp | Compared | Saved


class RunRecord:
    """The record of one run."""

    def __init__(self, directory: Path) -> None:
        """Read what stands there."""
        self.directory = directory
        self.events: list[Event] = []
        with suppress(FileNotFoundError):
            for line in (directory / "run.jsonl").read_bytes().split(b"\n"):
                # A line that a kill has cut short is about something that was not begun.
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
        """Return what the run was told."""
        return next(one for one in self.events if isinstance(one, Began))

    @property
    def recordings(self) -> Path:
        """Return the directory of the recordings."""
        return self.directory / "recordings"

    @property
    def is_over(self) -> bool:
        """Return whether the run needs nothing any more."""
        return any(isinstance(one, Saved) for one in self.events)

    @property
    def ended(self) -> Mapping[str, StepEnded]:
        """Return the steps that are over, by name."""
        return {one.step: one for one in self.events if isinstance(one, StepEnded)}

    @property
    def cleaned(self) -> CleanedUp | None:
        """Return what was found when the account was cleaned up; None: it was not yet."""
        return next((one for one in self.events if isinstance(one, CleanedUp)), None)

    @property
    def compared(self) -> Compared | None:
        """Return how the cloud's answers differ from the emulation's; None: nobody has looked yet."""
        return next((one for one in self.events if isinstance(one, Compared)), None)

    @property
    def has_driver(self) -> bool:
        """Return whether a function may have been deployed."""
        return any(isinstance(one, DriverIntended) for one in self.events)

    def jobs(self, step: str | None = None) -> Sequence[JobIntended]:
        """Return the jobs that may have been submitted, in a step or in all."""
        found = [one for one in self.events if isinstance(one, JobIntended)]
        return [one for one in found if step in {None, one.step}]


def new_run(provider: str, base_store: str, **told: Any) -> RunRecord:
    """Begin a run, which ``base_store`` keeps in a place of its own."""
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
            **told,
        )
    )
    return record


def unfinished_run(provider: str) -> RunRecord | None:
    """Return the provider's run that was cut short, if there is one."""
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
