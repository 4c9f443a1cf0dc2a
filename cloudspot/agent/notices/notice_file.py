"""The one notice of this machine, on its disk: whoever learns of the end writes it, and all go by it.

The agent learns of it from the provider or by SIGTERM, the machine's shutdown hook (``agent.shutdown``)
from whoever runs it; in any order, and while there is no agent.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cloudspot.agent.reclaim import CLOCK_SECONDS, Reclaim
from cloudspot.decoding import decode
from cloudspot.host.locks import lock
from cloudspot.host.partial_files import write_whole
from cloudspot.model import PreemptionNotice


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """``notice.json``."""

    deadline: float
    """Monotonic, which all processes of a machine share; also after the agent was started again."""
    seen: float
    """Monotonic."""
    action: str
    source: str


class NoticeFile:
    """The file, in the node's directory. Any process may use it; thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "notice.json"

    def give(self, reclaim: Reclaim) -> Reclaim:
        """Write the notice, unless one stands that ends as early; return the one that stands now.

        Raises:
            OSError: it cannot be written.
        """
        with lock(self._path.with_suffix(".lock")):
            standing = self.read()
            if standing is not None and standing.deadline <= reclaim.deadline + CLOCK_SECONDS:
                return standing
            written = _Written(
                deadline=reclaim.deadline,
                seen=reclaim.seen,
                action=reclaim.notice.action,
                source=reclaim.notice.source,
            )
            write_whole(self._path, msgspec.json.encode(written))
            return reclaim

    def read(self) -> Reclaim | None:
        """Return the standing notice, or None."""
        try:
            written = decode(self._path.read_bytes(), _Written)
        except FileNotFoundError:
            return None
        return Reclaim(
            notice=PreemptionNotice(deadline=None, action=written.action, source=written.source),
            deadline=written.deadline,
            seen=written.seen,
        )
