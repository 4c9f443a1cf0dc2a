"""A host of emulated machines that gives each what its cloud's images and roles hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cloudspot.emulation.cloud import EmulatedMachine, MachineHost, MachineStatus


class FurnishedHost(MachineHost):
    """Passes calls on to another host; ``furnish`` changes each machine before it boots.

    So the API that starts machines knows nothing of key seeds and images.
    """

    def __init__(self, host: MachineHost, furnish: Callable[[EmulatedMachine], EmulatedMachine]) -> None:
        self.network = host.network
        self._host = host
        self._furnish = furnish

    def allocate_address(self) -> str:
        """See MachineHost."""
        return self._host.allocate_address()

    def start(self, machine: EmulatedMachine) -> None:
        """Start the furnished machine; see MachineHost."""
        self._host.start(self._furnish(machine))

    def terminate(self, machine_id: str) -> None:
        """See MachineHost."""
        self._host.terminate(machine_id)

    def reclaim(self, machine_id: str, *, notice_seconds: float) -> None:
        """See MachineHost."""
        self._host.reclaim(machine_id, notice_seconds=notice_seconds)

    def set_tags(self, machine_id: str, tags: Mapping[str, str]) -> None:
        """See MachineHost."""
        self._host.set_tags(machine_id, tags)

    def states(self) -> Mapping[str, MachineStatus]:
        """See MachineHost."""
        return self._host.states()
