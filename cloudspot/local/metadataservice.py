"""What a machine's metadata service is made of: a pure answer to a request, and what it may know.

A cloud's own service (of a plugin's sandbox) subclasses :class:`MetadataService`; a machine's
supervisor serves it at the cloud's real address. The class stands alone, so that it is tested
without a machine: make a :class:`MachineView`, ask ``answer``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, ClassVar

import msgspec

_POLL_SECONDS = 0.05


class StandingNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's word that it takes the machine."""

    deadline: datetime
    """When the machine ends (UTC)."""
    action: str = "terminate"
    given_at: datetime = msgspec.field(default_factory=lambda: datetime.now(timezone.utc))


class MachineView:
    """What a metadata service may know of its machine. Thread-safe."""

    def __init__(
        self,
        *,
        address: str,
        facts: Mapping[str, Any],
        user_data: bytes = b"",
        tags: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Keep the facts that never change; ``tags`` is asked anew each time."""
        self.address = address
        """The machine's own, at which the other machines reach it."""
        self.facts = dict(facts)
        """What the cloud said of the machine when it started it (``EmulatedMachine.metadata``)."""
        self.user_data = user_data
        self.notice: StandingNotice | None = None
        """Set when a reclaim has been announced; never taken back."""
        self._tags = tags

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags as they are now."""
        return dict(self._tags())

    def wait_for_change(self, timeout_seconds: float) -> bool:
        """Return as soon as the tags or the notice change; for services with a long poll.

        Returns whether they did within ``timeout_seconds``.
        """
        before = (self.notice, self.tags)
        end = time.monotonic() + timeout_seconds
        while time.monotonic() < end:
            if (self.notice, self.tags) != before:
                return True
            time.sleep(_POLL_SECONDS)
        return False


@dataclass(frozen=True)
class Request:
    """One request of a program on the machine."""

    method: str
    """In capitals."""
    path: str
    """With the query, as it was sent."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """What the service says."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)
    hop_limit: int | None = None
    """The time to live of the answer's packets: with 1 no container behind a router receives them.
    None: the system's own."""


class MetadataService(ABC):
    """One machine's metadata service. ``answer`` runs in a thread of its own for each request."""

    server_version: ClassVar[str] = "metadata"
    """The header ``Server`` of each answer."""

    def __init__(self, view: MachineView) -> None:
        self.view = view

    @abstractmethod
    def answer(self, request: Request) -> Answer:
        """Answer a request as the cloud's own service would; may take its time (a long poll)."""
