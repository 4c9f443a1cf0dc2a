"""The machine's notice on its disk: any process that learns of the machine's end writes it; all obey it.

The agent gets a notice from the provider or through SIGTERM, and the machine's shutdown hook
(``agent.shutdown``) gets one from its caller. Notices may arrive in any order, even while no agent runs.
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
    """The deadline (monotonic); all processes of a machine share this clock, even after a restart."""
    seen: float
    """When the notice was first seen (monotonic)."""
    action: str
    source: str


class NoticeFile:
    """The notice file in the node's directory. Any process may use it; thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "notice.json"

    def give(self, reclaim: Reclaim) -> Reclaim:
        """Write the notice, unless the stored one has no later deadline; return the notice that counts now.

        Raises:
            OSError: the file cannot be written.
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
        """Return the stored notice, or None if there is none."""
        try:
            written = decode(self._path.read_bytes(), _Written)
        except FileNotFoundError:
            return None
        return Reclaim(
            notice=PreemptionNotice(deadline=None, action=written.action, source=written.source),
            deadline=written.deadline,
            seen=written.seen,
        )
