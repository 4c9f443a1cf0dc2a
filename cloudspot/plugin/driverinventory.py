"""The drivers of known stores, found by their names, for providers whose functions and roles have no tags."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudspot.errors import CloudspotError
from cloudspot.interfaces import FunctionHost, Inventory
from cloudspot.model import Asset


def driver_name(store_label: str) -> str:
    """Return the name of the driver of the store with this label."""
    return f"cloudspot-driver-{hashlib.sha256(store_label.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class DriverRest:
    """What is left of a driver whose function is gone, or not yet made."""

    parts: tuple[str, ...]
    """Such as ``role``."""
    since: datetime | None
    """When the oldest of them was made; None: nothing tells."""


class DriverInventory(Inventory):
    """Each driver is one asset, with its schedules and its role; it stands as long as its function does.

    A driver shows only to those who know the store whose digest its name holds.
    """

    @abstractmethod
    def host_of(self, name: str) -> FunctionHost:
        """Return the host on which the driver is, or would be."""

    @abstractmethod
    def rest_of(self, name: str) -> DriverRest | None:
        """Return what is left of the driver without its function, if it is cloudspot's; None: nothing."""

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return the drivers of these stores, whole or in part; see Inventory."""
        assets = []
        for store_url in store_urls:
            name = driver_name(store_url)
            # First what outlives the function: a removal in between would leave neither.
            rest, status = self.rest_of(name), self.host_of(name).status(name)
            if status is not None or rest is not None:
                parts = ("function",) if status is not None else ()
                assets.append(
                    Asset(
                        kind="driver",
                        id=name,
                        where="" if status is None else status.where,
                        store_url=store_url,
                        created_at=status.changed_at if status is not None else rest.since if rest else None,
                        is_in_use=status is not None,
                        detail=", ".join((*parts, *(rest.parts if rest else ()))),
                    )
                )
        return assets

    def end(self, asset: Asset) -> None:
        """Remove all of the driver.

        Raises:
            CloudspotError: it had lost its function, and has one again: it was deployed meanwhile.
        """
        host = self.host_of(asset.id)
        # The driver of a store that is gone is found with its function, and goes with it.
        if not asset.is_in_use and host.status(asset.id) is not None:
            raise CloudspotError(f"{asset.id}: a driver has it now")
        host.remove(asset.id)
