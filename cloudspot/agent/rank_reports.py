"""What the ranks report of their end in the hand-off directory, as far as it is what they would write.

The training writes there, so a report may be of any size and content. One that no rank of ours would write
counts as none, and the log says so: how the processes ended tells the rest.
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
    """``drained-R.json``: the rank leaves as it was asked to."""

    step: Tally | None
    """At which its state is sealed; None: without a save."""


class RankEnded(msgspec.Struct, frozen=True, kw_only=True):
    """``final.json``: rank 0 is at the end of its loop, or has left it, and its last state is sealed."""

    step: Tally
    is_saved: bool
    """False: the training had made all its steps before, and there was nothing to save."""
    weights_sha256: str | None
    are_weights_sharded: bool = False
    left_early: bool = False
    planned: Tally | None = None


class RankError(msgspec.Struct, frozen=True, kw_only=True):
    """``failed-R.json``: an error ends the rank."""

    type: str
    """With its module."""
    message: str
    causes: tuple[str, ...] = ()
    """The messages of the errors in whose handling it was raised, the nearest first."""


class RankSurvives(msgspec.Struct, frozen=True, kw_only=True):
    """``survives-R.json``: the state that the rank still holds after others were lost, or failed."""

    held: HeldState | None
    problem: str
    """Why it holds nothing."""
    attempt: Tally
    """For which it was asked last; 0: it was not asked yet."""
    is_ending: bool


class RankRescued(msgspec.Struct, frozen=True, kw_only=True):
    """``rescued-R.json``: the rank has sealed its part, as it was told to."""

    attempt: Tally
    step: Tally | None
    """None: its state has changed since."""


class RankImports(msgspec.Struct, frozen=True, kw_only=True):
    """``imports-R.json``: what the rank imports slowly, and may be imported once a machine."""

    seconds: dict[str, Seconds]
    """By the names that ``run.preload`` takes."""


Report = TypeVar(
    "Report", RankDrained, RankEnded, RankError, RankImports, RankLikeness, RankRescued, RankSurvives
)


def read_report(path: Path, report_type: type[Report]) -> Report | None:
    """Return the report, or None: there is none that can be used."""
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
