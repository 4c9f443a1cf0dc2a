"""The kit of provisioners on a real account: what it may cost, and what is left of it.

::

    from cloudspot.testing.livekit import LiveAccount, LiveProvisionerTests

    class TestMyAccount(LiveProvisionerTests):
        @pytest.fixture(scope="session")
        def live(self):
            yield from LiveAccount.session("mycloud", {"region": "north"}, most_cost=2.0)

Credentials are those of the environment. Job ids and tokens begin with a prefix of the run's own, and nothing
else in the account is touched. Each test ends its machines. In the end the account's inventories are searched
for the prefix: what is found is ended and named, and the run fails.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from cloudspot import registry
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import Provider
from cloudspot.jobfile.spec import JobSpec, spec_from_json
from cloudspot.model import InstanceGroup
from cloudspot.testing.account import Account
from cloudspot.testing.kit import wait_until
from cloudspot.testing.provisionerkit import ProvisionerTests

COUNTED_SECONDS = 600.0
"""Before a launch its machines are counted for this long; a test that takes longer adds the rest."""


class LiveAccount(Account):
    """One run's part of a real account, and a guard on what it costs."""

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
        """Yield an account for a session of tests; in the end, name and end what is left, and fail then."""
        account = cls(name, options, most_cost=most_cost)
        yield account
        left = account.sweep()
        print(f"\nthis run has cost about {account.cost:.2f} at the most")
        assert left == [], f"found in the account at the end: {left}"

    def provider(self) -> Provider:
        return registry.open_provider(self._name, self._spec)

    def reclaim(self, instance_id: str) -> None:
        """Let the cloud take the machine, with the notice that it gives."""
        self.provider().preempt(instance_id)

    def begin(self) -> None:
        """Give the next test a prefix of its own."""
        self._num_tests += 1
        self.prefix = f"{self._run}{self._num_tests}-"
        self._began, self._price_per_hour = time.monotonic(), 0.0

    def finish(self) -> None:
        """End the machines of a test, wait until they have ended, and count what took longer."""
        self.provider().provisioner().terminate(sorted(self.running()))
        wait_until(lambda: self.running() == set(), "the test's machines end", seconds=self.patience_seconds)
        longer = time.monotonic() - self._began - COUNTED_SECONDS
        self.cost += max(0.0, longer) * self._price_per_hour / 3600

    def sweep(self) -> list[str]:
        """End what the account's inventories show of this run; return what it was, and who could not say."""
        left = []
        for inventory in self.provider().inventories(all_regions=False):
            try:
                for asset in inventory.assets(ProvisionerTests.stores):
                    if asset.job_id.startswith(self._run):
                        left.append(f"{asset.kind} {asset.id}")
                        inventory.end(asset)
            except CloudspotError as error:  # The others are searched all the same.
                left.append(f"perhaps {inventory.title}: {error}")
        return left

    def reserve(self, group: InstanceGroup) -> None:
        """Count a launch as ten minutes of its machines; stop the run before it may pass its limit."""
        seconds = group.offer.billing.charged_seconds(COUNTED_SECONDS)
        cost = group.num_nodes * group.offer.price_per_hour * seconds / 3600
        if self.cost + cost > self._most_cost:
            pytest.exit(f"stopped: the next launch may pass the limit of {self._most_cost:.2f}", returncode=1)
        self.cost += cost
        self._price_per_hour += group.num_nodes * group.offer.price_per_hour


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
        """Yield the account with a prefix for one test; end the test's machines behind it."""
        live.begin()
        yield live
        live.finish()
