"""What the kits of notices and identity ask for: a machine, seen by a process that runs on it."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from datetime import datetime

from cloudspot.interfaces import Provider
from cloudspot.model import Instance


class OtherEvent(str, enum.Enum):
    """What a metadata service may tell besides a reclaim of the machine."""

    ANOTHER_MACHINE = "another machine"
    """Another machine will be taken."""
    FREEZE = "freeze"
    """The machine will stand still for seconds, as when it is moved to another host."""
    REBOOT = "reboot"
    """The machine will be booted again."""


class Trouble(str, enum.Enum):
    """How a metadata service fails that answers all the same."""

    ERROR = "error"
    """Every answer has a status of 500."""
    GARBAGE = "garbage"
    """Every answer is a page of HTML with a status of 200."""
    HANG = "hang"
    """It takes each request, and answers nothing."""


class Machine(ABC):
    """A machine of a launch whose metadata this process reads as if it ran there.

    Best a fake metadata service on loopback, to which the plugin's own environment variable leads. What
    cannot be arranged raises NotImplementedError, and the tests that need it are deviations.
    """

    instance: Instance
    """The machine as a provisioner would list it: id, rank, address, zone, type, market."""
    notice_seconds: float
    """How long the notices of this cloud are, by its documentation."""

    @abstractmethod
    def provider(self) -> Provider:
        """Return a provider as a new process on the machine has it."""

    def give_notice(self, deadline: datetime | None) -> None:
        """Let the cloud announce that it takes the machine at this moment, in UTC; None: it names none."""
        raise NotImplementedError

    def give_other_event(self, event: OtherEvent) -> None:
        """Let the cloud announce what does not take this machine."""
        raise NotImplementedError

    def silence(self) -> None:
        """Let the metadata service be gone: whoever connects is refused, or hears nothing."""
        raise NotImplementedError

    def trouble_with(self, trouble: Trouble) -> None:
        """Let the metadata service fail in this way from now on."""
        raise NotImplementedError
