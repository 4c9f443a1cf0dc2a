"""How a node leaves."""

from __future__ import annotations

from dataclasses import dataclass

from cloudspot.jobstore.records import Final


@dataclass(frozen=True)
class Leaving:
    """The node's last word, before it is written: see ``records.Exit``."""

    outcome: str
    detail: str
    exit_code: int = 0
    permanent: bool = False
    log_tail: tuple[str, ...] = ()
    final: Final | None = None
    saved_step: int | None = None
    """The step at which the ranks drained."""


class LeavingError(Exception):
    """Unwinds whatever the node was doing: it has to leave."""

    def __init__(self, leaving: Leaving) -> None:
        super().__init__(leaving.detail)
        self.leaving = leaving
