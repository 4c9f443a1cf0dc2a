"""What the kits of notices and identity ask for: a machine, seen by a process that runs on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime

from cloudspot.interfaces import Provider
from cloudspot.model import Instance


class Machine(ABC):
    """A machine of a launch whose metadata this process reads as if it ran there.

    Best a fake metadata service on loopback, to which the plugin's own environment variable leads. What
    cannot be arranged raises NotImplementedError, and the tests that need it are deviations.
    """

    instance: Instance
    """The machine as a provisioner would list it: id, rank, address, zone, type, market."""

    @abstractmethod
    def provider(self) -> Provider:
        """Return a provider as a new process on the machine has it."""

    def give_notice(self, deadline: datetime) -> None:
        """Let the cloud announce that it takes the machine at this moment, in UTC."""
        raise NotImplementedError

    def silence(self) -> None:
        """Let the metadata service answer nothing more."""
        raise NotImplementedError
