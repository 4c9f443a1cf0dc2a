"""The outcome of a node that is leaving, before its exit record is written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cloudspot.jobstore.layout.records import Final, NodeOutcome


@dataclass(frozen=True)
class Leaving:
    """The content of the future exit record: see ``records.Exit``."""

    outcome: NodeOutcome
    detail: str
    exit_code: int = 0
    permanent: bool = False
    is_consequence: bool = False
    """Another node's failure ended the training here, so that node's machine is to be kept."""
    waits_until: datetime | None = None
    is_cut_off: bool = False
    fingerprint: str | None = None
    log_tail: tuple[str, ...] = ()
    final: Final | None = None
    saved_step: int | None = None
    """The step at which the ranks drained."""


class LeavingError(Exception):
    """Raised to end the node's current work, because the node must leave."""

    def __init__(self, leaving: Leaving) -> None:
        super().__init__(leaving.detail)
        self.leaving = leaving
