"""The kits on a real account, with a limit of their cost and a check that nothing is left.

::

    from cloudspot.testing.livekit import LiveAccount, LiveJobTests, LiveProvisionerTests, LiveStoreTests

    @pytest.fixture(scope="session")
    def live():
        yield from LiveAccount.session("mycloud", {"region": "north"}, most_cost=2.0)

    @pytest.fixture(scope="session")
    def live_store():
        return "my://bucket"

    class TestMyAccount(LiveProvisionerTests): ...
    class TestMyStore(LiveStoreTests): ...
    class TestMyJobs(LiveJobTests): ...

The credentials come from the environment. Job ids and tokens begin with a prefix that is unique to the run,
and nothing else in the account is touched. Each test ends its machines. At the end, the account's inventories
are searched for the prefix: any assets found are ended and named, and the run fails.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from cloudspot import registry
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.spec import JobSpec, spec_from_json
from cloudspot.model import InstanceGroup
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account
from cloudspot.testing.jobkit import JobCloud, WholeJobTests
from cloudspot.testing.kit import wait_until
from cloudspot.testing.provisionerkit import ProvisionerTests
from cloudspot.testing.storekit import ObjectStoreTests

COUNTED_SECONDS = 600.0
"""The time for which machines are counted before their launch; a test that takes longer adds the rest."""


class LiveAccount(Account):
    """One run's part of a real account, with a limit of its cost."""

    patience_seconds = 600.0

    def __init__(self, name: str, options: Mapping[str, Any], *, most_cost: float) -> None:
        """Do no I/O; ``most_cost`` is in the currency of the provider's offers."""
        self.prefix = self._run = f"kit-{secrets.token_hex(3)}-"
        self.unknown_ids = ()
        self._name = name
        self._spec: JobSpec = spec_from_json(
            {"name": "kit", "run": {"entrypoint": "train.py"}, "providers": {name: dict(options)}}
        )
        self._most_cost, self.cost = most_cost, 0.0
        self._num_tests = 0
        self._began, self._price_per_hour = time.monotonic(), 0.0

    @classmethod
    def session(cls, name: str, options: Mapping[str, Any], *, most_cost: float) -> Iterator[LiveAccount]:
        """Yield an account for a session of tests; at its end, end and name any assets left, and fail."""
        account = cls(name, options, most_cost=most_cost)
        yield account
        left = account.sweep()
        print(f"\nthis run has cost about {account.cost:.2f} at the most")
        assert left == [], f"found in the account at the end: {left}"

    def provider(self) -> Provider:
        return registry.open_provider(self._name, self._spec)

    def reclaim(self, instance_id: str) -> None:
        """Make the cloud reclaim the machine, with its usual notice."""
        plaincalls.preempt(self.provider(), instance_id)

    def begin(self) -> None:
        """Give the next test its own prefix."""
        self._num_tests += 1
        self.prefix = f"{self._run}{self._num_tests}-"
        self._began, self._price_per_hour = time.monotonic(), 0.0

    def finish(self) -> None:
        """End the machines of a test, wait until they have ended, and count their additional time."""
        plaincalls.terminate(self.provider().provisioner(), sorted(self.running()))
        wait_until(lambda: self.running() == set(), "the test's machines end", seconds=self.patience_seconds)
        longer = time.monotonic() - self._began - COUNTED_SECONDS
        self.cost += max(0.0, longer) * self._price_per_hour / 3600

    def store_url(self, store: str) -> str:
        """Return the URL of an empty part of the store, for the test that has begun."""
        return f"{store.rstrip('/')}/{self.prefix.rstrip('-')}"

    def job_cloud(self, store: str) -> JobCloud:
        """Return the cloud for a whole job of the begun test, which may use a quarter of the limit."""
        share = self._most_cost / 4
        self._count(share)
        options = self._spec.providers[self._name]
        settings = [f"providers.{self._name}.{key}={_toml(value)}" for key, value in options.items()]
        return JobCloud(
            provider=self._name,
            store=self.store_url(store),
            settings=(*settings, f"limits.max_cost={share}", 'limits.max_runtime="1h"'),
            notice=None,
            job_id=f"{self.prefix}job",
        )

    def sweep(self) -> list[str]:
        """End this run's assets in the account's inventories; return them, and inventories that failed."""
        left = []
        for inventory in self.provider().inventories(all_regions=False):
            try:
                for asset in inventory.assets(ProvisionerTests.stores):
                    if asset.job_id.startswith(self._run):
                        left.append(f"{asset.kind} {asset.id}")
                        inventory.end(asset)
            except CloudspotError as error:  # The other inventories are searched all the same.
                left.append(f"perhaps {inventory.title}: {error}")
        return left

    def reserve(self, group: InstanceGroup) -> None:
        """Count a launch as ten minutes of its machines; stop the run before it may exceed its limit."""
        seconds = group.offer.billing.charged_seconds(COUNTED_SECONDS)
        cost = group.num_nodes * group.offer.price_per_hour * seconds / 3600
        self._count(cost)
        self._price_per_hour += group.num_nodes * group.offer.price_per_hour

    def _count(self, cost: float) -> None:
        if self.cost + cost > self._most_cost:
            pytest.exit(f"stopped: the next launch may pass the limit of {self._most_cost:.2f}", returncode=1)
        self.cost += cost


class LiveProvisionerTests(ProvisionerTests):
    """The promises that a real account can show; the fixture ``live`` is a LiveAccount of the session."""

    user_data: ClassVar[str] = "#!/usr/bin/env bash\nsleep 900\nshutdown -h now\n"
    deviations: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "test_a_listing_that_fails_tells_nothing",
            "test_a_lost_answer_makes_no_second_machine",
            "test_a_new_machine_that_no_listing_shows_yet_is_found_by_its_token",
            "test_each_refusal_of_a_launch_says_what_to_do_next_and_leaves_nothing",
            "test_fewer_on_demand_than_needed_are_none",
            "test_fewer_than_needed_are_none",
            "test_fewer_than_wished_but_enough_are_kept_and_a_replay_finds_them",
            "test_without_room_for_all_there_are_none",
        ),
        "a real cloud cannot be told to refuse, to lag or to lose an answer",
    )

    @pytest.fixture
    def account(self, live: LiveAccount) -> Iterator[LiveAccount]:
        """Yield the account with a prefix for one test; end the test's machines afterwards."""
        live.begin()
        yield live
        live.finish()


class LiveStoreTests(ObjectStoreTests):
    """The promises of a real store; besides ``live``, the fixture ``live_store`` is a URL to write below."""

    @pytest.fixture
    def store(self, live: LiveAccount, live_store: str) -> Iterator[ObjectStore]:
        """Yield an empty part of the store; delete its objects afterwards."""
        live.begin()
        store = registry.open_store(live.store_url(live_store))
        yield store
        empty(store)


class LiveJobTests(WholeJobTests):
    """Whole jobs on real machines; besides ``live``, the fixture ``live_store`` is a URL to write below."""

    @pytest.fixture
    def cloud(self, live: LiveAccount, live_store: str) -> Iterator[JobCloud]:
        """Yield a cloud for one job; end its machines and delete its records afterwards."""
        live.begin()
        yield live.job_cloud(live_store)
        live.finish()
        empty(registry.open_store(live.store_url(live_store)))


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def empty(store: ObjectStore) -> None:
    """Delete every object of the store."""
    for one in list(store.list_objects("")):
        store.delete(one.key)
