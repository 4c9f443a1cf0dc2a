"""The machine that the kits of notices and identity need, as seen by a process that runs on it."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from datetime import datetime

from cloudspot.interfaces import Provider
from cloudspot.model import Instance


class OtherEvent(str, enum.Enum):
    """An event of a metadata service other than a reclaim of the machine."""

    ANOTHER_MACHINE = "another machine"
    """Another machine will be taken."""
    FREEZE = "freeze"
    """The machine will pause for seconds, for example while it is moved to another host."""
    REBOOT = "reboot"
    """The machine will be rebooted."""


class Trouble(str, enum.Enum):
    """A failure of a metadata service that is still reachable."""

    ERROR = "error"
    """Every answer has a status of 500."""
    GARBAGE = "garbage"
    """Every answer is a page of HTML with a status of 200."""
    HANG = "hang"
    """It accepts each request, and never answers."""


class Machine(ABC):
    """A machine of a launch whose metadata this process reads as if it ran there.

    A fake metadata service on loopback, set by the plugin's own environment variable, is best. A method that
    is not supported raises NotImplementedError, and the tests that need it are deviations.
    """

    instance: Instance
    """The machine as a provisioner would list it: id, rank, address, zone, type, market."""
    notice_seconds: float
    """The length of this cloud's notices, by its documentation."""

    @abstractmethod
    def provider(self) -> Provider:
        """Return a provider as in a new process on the machine."""

    def give_notice(self, deadline: datetime | None) -> None:
        """Make the cloud announce that it takes the machine at ``deadline`` (UTC), or at no stated time."""
        raise NotImplementedError

    def give_other_event(self, event: OtherEvent) -> None:
        """Make the cloud announce an event that does not take this machine."""
        raise NotImplementedError

    def silence(self) -> None:
        """Make the metadata service unreachable: connections are refused or not answered."""
        raise NotImplementedError

    def trouble_with(self, trouble: Trouble) -> None:
        """Make the metadata service fail in this way from now on."""
        raise NotImplementedError
