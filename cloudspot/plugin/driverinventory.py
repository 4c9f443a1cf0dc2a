"""Find the drivers of known stores by name, for providers whose functions and roles have no tags."""

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
    """Return the name of the driver that belongs to the store with this label."""
    return f"cloudspot-driver-{hashlib.sha256(store_label.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class DriverRest:
    """The remaining parts of a driver whose function was removed or not created yet."""

    parts: tuple[str, ...]
    """The kinds of the parts, such as ``role``."""
    since: datetime | None
    """When the oldest part was created, or None if unknown."""


class DriverInventory(Inventory):
    """The inventory of drivers: each is one asset, which is in use as long as it has its function.

    A driver is found only with the label of its store, because its name contains a digest of the label.
    """

    @abstractmethod
    def host_of(self, name: str) -> FunctionHost:
        """Return the host of the driver, whether or not the driver exists."""

    @abstractmethod
    def rest_of(self, name: str) -> DriverRest | None:
        """Return the driver's parts except its function, if cloudspot created them; None if none exist."""

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return the drivers of these stores, complete or partial; see Inventory."""
        assets = []
        for store_url in store_urls:
            name = driver_name(store_url)
            # The parts that outlive the function are read first, so that a concurrent removal hides no part.
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
        """Remove all parts of the driver.

        Raises:
            CloudspotError: the driver had lost its function and has been deployed again in the meantime.
        """
        host = self.host_of(asset.id)
        # If a driver's store no longer exists, the driver may still have its function, which is removed too.
        if not asset.is_in_use and host.status(asset.id) is not None:
            raise CloudspotError(f"{asset.id}: a driver has been deployed again under this name")
        host.remove(asset.id)
