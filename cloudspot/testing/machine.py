"""The machine that the notice and identity kits need, as seen by a process that runs on it."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from datetime import datetime

from cloudspot.interfaces import Provider
from cloudspot.model import Instance


class OtherEvent(str, enum.Enum):
    """An event of a metadata service other than a reclaim of the machine."""

    ANOTHER_MACHINE = "another machine"
    """Another machine will be reclaimed."""
    FREEZE = "freeze"
    """The machine will pause for seconds, for example while it is moved to another host."""
    REBOOT = "reboot"
    """The machine will be rebooted."""


class Trouble(str, enum.Enum):
    """A failure of a metadata service that is still reachable."""

    ERROR = "error"
    """Every response has status 500."""
    GARBAGE = "garbage"
    """Every response is an HTML page with status 200."""
    HANG = "hang"
    """The service accepts each request but never answers."""


class Machine(ABC):
    """A machine of a launch; this process reads its metadata as if it ran on the machine.

    The best choice is a fake metadata service on loopback, to which the plugin's own environment variable
    points. If a method is not supported, raise NotImplementedError; the tests that need it are then
    deviations.
    """

    instance: Instance
    """The machine as a provisioner would list it: id, rank, address, zone, type, market."""
    notice_seconds: float
    """The length of this cloud's notices, according to its documentation."""

    @abstractmethod
    def provider(self) -> Provider:
        """Return a provider as a new process on the machine would create it."""

    def give_notice(self, deadline: datetime | None) -> None:
        """Announce, as the cloud, a reclaim of the machine at ``deadline`` (UTC), or at no stated time."""
        raise NotImplementedError

    def give_other_event(self, event: OtherEvent) -> None:
        """Announce, as the cloud, an event that does not reclaim this machine."""
        raise NotImplementedError

    def silence(self) -> None:
        """Make the metadata service unreachable: connections are refused or not answered."""
        raise NotImplementedError

    def trouble_with(self, trouble: Trouble) -> None:
        """Make the metadata service fail in this way from now on."""
        raise NotImplementedError
