"""Report which ranks of this node do not hand over their own state, and why (P8)."""

from __future__ import annotations

import logging
from pathlib import Path

from cloudspot.agent.rank_reports import RankOwnState, read_report
from cloudspot.agent.status import Status
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

MAX_PROBLEM = 200
"""The maximum number of characters of a rank's reason that are reported."""


class HandOverWatch:
    """Follows the ranks of one generation, and reports those that do not hand over their own state."""

    def __init__(self, handoff: Path, status: Status) -> None:
        """Create it, and clear the warning about the previous generation."""
        self._handoff = handoff
        self._status = status
        self._problems: dict[int, str] = {}
        status.warn("hand-over", None)

    def look(self) -> None:
        """Warn once about each rank, in the log and for ``show``."""
        for rank in self._status.ranks:
            path = files.own_state_path(self._handoff, rank)
            if rank in self._problems or not path.exists():
                continue
            report = read_report(path, RankOwnState)
            problem = "it reports no reason" if report is None else report.problem[:MAX_PROBLEM]
            self._problems[rank] = problem
            _log.warning("rank %d does not hand over its own state: %s", rank, problem)
            reasons = dict.fromkeys(self._problems.values())
            problems = (
                f"rank {', '.join(str(r) for r, each in self._problems.items() if each == reason)}: {reason}"
                for reason in reasons
            )
            self._status.warn(
                "hand-over",
                "a rank's own state, such as its random generators, would be lost with it; "
                f"{'; '.join(problems)}",
            )
