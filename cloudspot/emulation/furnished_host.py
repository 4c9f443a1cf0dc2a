"""A host of emulated machines that adds to each what its cloud's images and roles give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cloudspot.emulation.cloud import EmulatedMachine, MachineHost, MachineStatus


class FurnishedHost(MachineHost):
    """Another host, whose machines ``furnish`` changes before they boot.

    So the API that starts machines needs to know nothing of seeds of keys and of what images hold.
    """

    def __init__(self, host: MachineHost, furnish: Callable[[EmulatedMachine], EmulatedMachine]) -> None:
        self.network = host.network
        self._host = host
        self._furnish = furnish

    def allocate_address(self) -> str:
        """Return an address that no machine has; see MachineHost."""
        return self._host.allocate_address()

    def start(self, machine: EmulatedMachine) -> None:
        """Start to boot the machine as it is furnished; see MachineHost."""
        self._host.start(self._furnish(machine))

    def terminate(self, machine_id: str) -> None:
        """Ask for the machine's end; see MachineHost."""
        self._host.terminate(machine_id)

    def reclaim(self, machine_id: str, *, notice_seconds: float) -> None:
        """Announce the end, and bring it; see MachineHost."""
        self._host.reclaim(machine_id, notice_seconds=notice_seconds)

    def set_tags(self, machine_id: str, tags: Mapping[str, str]) -> None:
        """Replace the machine's tags; see MachineHost."""
        self._host.set_tags(machine_id, tags)

    def states(self) -> Mapping[str, MachineStatus]:
        """Return how the machines are; see MachineHost."""
        return self._host.states()
