"""The base of the kits that launch machines in an account."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar, TypeVar

import msgspec

from cloudspot.decoding import decode
from cloudspot.model import Instance, InstanceGroup, InstanceState, LaunchRequest, Market, Offer, Resources
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account
from cloudspot.testing.kit import Kit, wait_until

T = TypeVar("T")


class LaunchingKit(Kit):
    """The base of the kits whose fixture ``account`` is an Account."""

    resources: ClassVar[Resources] = Resources()
    """The resources of the machines."""
    user_data: ClassVar[str] = "#!/usr/bin/env bash\nsleep 600\n"
    """The boot script."""
    stores: ClassVar[tuple[str, str]] = ("file:///kit/a", "file:///kit/b")
    """The ``canonical_url`` of two stores."""

    def _group(
        self, account: Account, *, num_nodes: int = 1, market: Market = Market.SPOT, **fields: Any
    ) -> InstanceGroup:
        group = InstanceGroup(
            **{
                "job_id": f"{account.prefix}1",
                "launch": 1,
                "num_nodes": num_nodes,
                "min_nodes": num_nodes,
                "job_nodes": num_nodes,
                "offer": fields.pop("offer", None) or self._offer(account, market),
                "resources": self.resources,
                "user_data": self.user_data,
                "max_seconds": 3600.0,
                "decided_at": datetime.now(timezone.utc),
                "store_url": self.stores[0],
                **fields,
            }
        )
        account.reserve(group)
        return group

    def _offers(self, account: Account) -> Sequence[Offer]:
        """Return the offers for the kit's resources, which are looked up once in each test."""
        if "_found" not in self.__dict__:
            found = plaincalls.offers(account.provider().provisioner(), self.resources)
            self._found = sorted(found, key=lambda one: one.key)
        return self._found

    def _offer(self, account: Account, market: Market = Market.SPOT) -> Offer:
        found = [one for one in self._offers(account) if one.market is market]
        assert found, f"nothing is offered on the {market.value} market for {self.resources}"
        return found[0]

    def _request(self, account: Account, **fields: Any) -> LaunchRequest:
        return account.provider().provisioner().render(self._group(account, **fields))

    @staticmethod
    def _create(account: Account, request: LaunchRequest, *, token: str = "1") -> Sequence[Instance]:
        """Create machines with a new provisioner, as another process would."""
        return plaincalls.create(account.provider().provisioner(), request, token=account.prefix + token)


def stored(value: msgspec.Struct, kind: type[T]) -> T:
    """Return the value after storing it in a record and reading it back."""
    again: T = decode(msgspec.json.encode(value), kind)
    return again


def ids(instances: Sequence[Instance]) -> list[str]:
    """Return the machines' ids."""
    return [one.id for one in instances]


def alive(account: Account) -> list[Instance]:
    """Return the machines of the test that are listed and have not ended."""
    return [one for one in account.listed() if one.state is not InstanceState.ENDED]


def are_untouched(account: Account, machines: set[str]) -> bool:
    """Return whether only these machines may be running, and none of them has begun to end."""
    up = {one.id for one in account.listed() if one.state.is_up}
    return up == account.running() == machines


def wait(account: Account, condition: Callable[[], object], what: str) -> None:
    """Return when the condition holds; fail the test if the account takes too long."""
    wait_until(condition, what, seconds=account.patience_seconds)


def wait_for_end(account: Account) -> None:
    """Return when all machines of the test have ended."""
    wait(account, lambda: account.running() == set() and alive(account) == [], "all machines end")
