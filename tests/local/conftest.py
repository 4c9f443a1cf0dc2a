from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.records.own_notes import note
from support.worlds.groups import group_of

from cloudspot.local.machines import MachineDirectory
from cloudspot.local.options import LocalOptions
from cloudspot.local.provider import LocalProvider
from cloudspot.model import Instance, LaunchRequest, Market, Resources
from cloudspot.testing import plaincalls


class Host:
    """The local provider as a controller sees it, with boot scripts of a test's own."""

    def __init__(self, home: Path, wait_until: Callable[..., None]) -> None:
        self.home = home
        note("job", store_url="")
        self.wait_until = wait_until

    def render(
        self,
        user_data: str,
        *,
        launch: int = 1,
        store_url: str = "",
        num_nodes: int = 1,
        min_nodes: int | None = None,
        market: Market = Market.SPOT,
        max_seconds: float = 600.0,
        options: LocalOptions | None = None,
    ) -> LaunchRequest:
        provisioner = LocalProvider(options).provisioner()
        offer = next(offer for offer in plaincalls.offers(provisioner, Resources()) if offer.market is market)
        return provisioner.render(
            group_of(
                offer,
                num_nodes=num_nodes,
                job_id="job",
                launch=launch,
                min_nodes=num_nodes if min_nodes is None else min_nodes,
                user_data=user_data,
                max_seconds=max_seconds,
                store_url=store_url,
            )
        )

    def launch(self, user_data: str, *, token: str = "token", **arguments) -> list[MachineDirectory]:
        """Create machines from a boot script's text, and return their directories by rank."""
        request = self.render(user_data, **arguments)
        provisioner = LocalProvider(arguments.get("options")).provisioner()
        return [
            MachineDirectory(self.home / "machines" / instance.id)
            for instance in plaincalls.create(provisioner, request, token=token)
        ]

    def instance(self, machine: MachineDirectory) -> Instance:
        """Return the machine by the provider's word."""
        listed = plaincalls.instances(LocalProvider().provisioner())
        return next(instance for instance in listed if instance.id == machine.id)

    def wait_for_end(self, machine: MachineDirectory) -> Instance:
        self.wait_until(lambda: self.instance(machine).state == "ended")
        return self.instance(machine)

    def wait_for_console(self, machine: MachineDirectory, text: str) -> str:
        """Wait until the boot script has written the text, and return all that it wrote."""
        self.wait_until(lambda: machine.console.exists() and text in machine.console.read_text())
        return machine.console.read_text()


@pytest.fixture
def host(local_home: Path, wait_until: Callable[..., None]) -> Host:
    return Host(local_home, wait_until)
