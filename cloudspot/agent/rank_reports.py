"""Read the ranks' reports from the hand-off directory.

The training can write to that directory, so a report may have any size and content. An invalid report is
logged and ignored; then only the processes' exit statuses are used.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import TypeVar

import msgspec

from cloudspot.decoding import Seconds, Tally, decode
from cloudspot.host.bounded_reads import read_at_most
from cloudspot.jobstore.layout.records import HeldState, RankLikeness

_log = logging.getLogger(__name__)

MAX_REPORT_BYTES = 1 << 20


class RankDrained(msgspec.Struct, frozen=True, kw_only=True):
    """``drained-R.json``: the rank leaves on request."""

    step: Tally | None
    """The step of the sealed state, or None if no state was saved."""


class RankEnded(msgspec.Struct, frozen=True, kw_only=True):
    """``final.json``: rank 0 has reached the end of its loop or has left it, and its last state is sealed."""

    step: Tally
    is_saved: bool
    """False if the training had already made all its steps, so there was no state to save."""
    weights_sha256: str | None
    are_weights_sharded: bool = False
    left_early: bool = False
    planned: Tally | None = None


class RankError(msgspec.Struct, frozen=True, kw_only=True):
    """``failed-R.json``: an error ends the rank."""

    type: str
    """The error's type, including its module."""
    message: str
    causes: tuple[str, ...] = ()
    """The messages of the errors during whose handling it was raised, nearest first."""


class RankSurvives(msgspec.Struct, frozen=True, kw_only=True):
    """``survives-R.json``: the state that the rank still holds after other ranks were lost or failed."""

    held: HeldState | None
    problem: str
    """Why the rank holds no state."""
    attempt: Tally
    """The attempt for which the rank was last asked to save; 0 if it has not been asked yet."""
    is_ending: bool


class RankRescued(msgspec.Struct, frozen=True, kw_only=True):
    """``rescued-R.json``: the rank has sealed its part on request."""

    attempt: Tally
    step: Tally | None
    """The step of the saved state, or None if the state has changed since the order."""


class RankOwnState(msgspec.Struct, frozen=True, kw_only=True):
    """``own-state-R.json``: the rank does not hand over the state that only it has."""

    problem: str
    """The reason."""


class RankImports(msgspec.Struct, frozen=True, kw_only=True):
    """``imports-R.json``: the rank's slow imports, which could be done once per machine."""

    seconds: dict[str, Seconds]
    """The duration of each import, by the name to use in ``run.preload``."""


Report = TypeVar(
    "Report",
    RankDrained,
    RankEnded,
    RankError,
    RankImports,
    RankLikeness,
    RankOwnState,
    RankRescued,
    RankSurvives,
)


def read_report(path: Path, report_type: type[Report]) -> Report | None:
    """Return the report, or None if it is missing or invalid."""
    try:
        report: Report = decode(read_at_most(path, MAX_REPORT_BYTES), report_type)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        _complain(path, str(error))
        return None
    return report


@functools.cache
def _complain(path: Path, fault: str) -> None:
    _log.warning("the report %s is ignored: %s", path.name, fault)
