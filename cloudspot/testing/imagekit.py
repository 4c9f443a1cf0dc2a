"""The promises of an image host as tests, which a plugin's author subclasses.

::

    from cloudspot.testing.imagekit import ImageHostTests

    class TestMyImages(ImageHostTests):
        @pytest.fixture
        def account(self):
            return MyAccount()

``account`` is an Account, as in :mod:`cloudspot.testing.provisionerkit`. An image that is not removed is
billed forever, and an image with a different setup is worse than none.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import ClassVar

import msgspec

from cloudspot.decoding import convert
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import Provider
from cloudspot.model import Instance, InstanceGroup, InstanceState, MachineImage, Market, Resources
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account
from cloudspot.testing.kit import Kit

KEY, OTHER_KEY = "0123456789abcdef0123456789abcdef01234567", "f" * 40
COPY_SECONDS = 5.0
"""The time between two searches for an image."""
NUM_LOOKS = 120
DECIDED_AT = datetime(2026, 11, 1, tzinfo=timezone.utc)


class ImageHostTests(Kit):
    """A test for each promise of ImageHost; ``account`` is an Account whose provider has an image host."""

    resources: ClassVar[Resources] = Resources()
    """The resources of the machines."""

    def provider(self, account: Account, *, key: str | None) -> Provider:
        """Return the account's provider with a ``setup_key``; override it if it needs more than options."""
        provider = account.provider()
        options = {**msgspec.to_builtins(provider.options), "setup_key": key}
        return type(provider)(convert(options, provider.options_type))

    def test_an_account_without_images_has_none(self, account: Account) -> None:
        host = account.provider().image_host()
        assert host.find(KEY) is None
        assert list(host.images()) == []

    def test_an_image_is_found_by_the_key_of_its_setup_alone(self, account: Account) -> None:
        made = self._make(account)
        host = account.provider().image_host()
        assert [one.id for one in host.images()] == [made.id]
        assert host.find(OTHER_KEY) is None
        assert (made.key, made.job_name, made.failure) == (KEY, "kit-job", "")
        assert made.size_gib is None or made.size_gib > 0
        assert made.created_at is None or made.created_at.tzinfo is not None

    def test_machines_start_from_the_image_of_their_setup(self, account: Account) -> None:
        before = self._rendered(account, KEY)
        made = self._make(account)
        assert made.id not in before
        assert made.id in self._rendered(account, KEY)
        assert self._rendered(account, OTHER_KEY) == before
        assert self._rendered(account, None) == before

    def test_no_machine_starts_from_an_image_that_is_not_ready(self, account: Account) -> None:
        host = account.provider().image_host()
        begun = host.save(self._machine(account), key=KEY, job_name="kit-job")
        assert begun.is_ready or begun.id not in self._rendered(account, KEY)

    def test_an_image_is_made_once_for_its_setup(self, account: Account) -> None:
        machine = self._machine(account)
        first = account.provider().image_host().save(machine, key=KEY, job_name="kit-job")
        again = account.provider().image_host().save(machine, key=KEY, job_name="kit-job")
        assert again.id == first.id
        ready = self._wait(account)
        later = account.provider().image_host().save(machine, key=KEY, job_name="kit-job")
        assert (ready.id, later.id) == (first.id, first.id)
        assert len(account.provider().image_host().images()) == 1

    def test_setups_have_images_of_their_own(self, account: Account) -> None:
        machine = self._machine(account)
        host = account.provider().image_host()
        ids = {key: host.save(machine, key=key, job_name="kit-job").id for key in (KEY, OTHER_KEY)}
        assert len(set(ids.values())) == 2
        for key, id_ in ids.items():
            found = host.find(key)
            assert found is not None
            assert found.id == id_

    def test_a_machine_of_an_image_starts_from_it(self, account: Account) -> None:
        self._make(account)
        provider = self.provider(account, key=KEY)
        assert self._launch(account, provider, launch=2).state is not InstanceState.ENDED

    def test_a_removed_image_is_gone_and_its_setup_runs_again(self, account: Account) -> None:
        before = self._rendered(account, KEY)
        made = self._make(account)
        host = account.provider().image_host()
        host.remove(made.id)
        host.remove(made.id)
        assert host.find(KEY) is None
        assert list(host.images()) == []
        assert self._rendered(account, KEY) == before

    def test_an_image_that_was_removed_can_be_made_again(self, account: Account) -> None:
        made = self._make(account)
        account.provider().image_host().remove(made.id)
        assert self._wait_for(account, self._machine(account, launch=2)).is_ready

    # --- parts ------------------------------------------------------------------------------------

    def _make(self, account: Account) -> MachineImage:
        return self._wait_for(account, self._machine(account))

    def _wait_for(self, account: Account, machine: Instance) -> MachineImage:
        account.provider().image_host().save(machine, key=KEY, job_name="kit-job")
        return self._wait(account)

    def _wait(self, account: Account) -> MachineImage:
        for _ in range(NUM_LOOKS):
            found = account.provider().image_host().find(KEY)
            if found is None or found.failure:
                raise CloudspotError(f"the image was not made: {found}")
            if found.is_ready:
                return found
            account.pass_time(COPY_SECONDS)
        raise AssertionError(f"the image is not ready after {NUM_LOOKS} checks")

    def _machine(self, account: Account, *, launch: int = 1) -> Instance:
        made = self._launch(account, account.provider(), launch=launch)
        for _ in range(NUM_LOOKS):
            for one in account.listed():
                if one.id == made.id and one.state is InstanceState.RUNNING:
                    return one
            account.pass_time(1.0)
        raise AssertionError(f"machine {made.id} is not running")

    def _launch(self, account: Account, provider: Provider, *, launch: int) -> Instance:
        group = self._group(account, provider, launch=launch)
        account.reserve(group)
        provisioner = provider.provisioner()
        (made,) = plaincalls.create(provisioner, provisioner.render(group), token=f"{account.prefix}{launch}")
        return made

    def _rendered(self, account: Account, key: str | None) -> str:
        provider = self.provider(account, key=key)
        group = self._group(account, provider, launch=1)
        return msgspec.json.encode(provider.provisioner().render(group)).decode()

    def _group(self, account: Account, provider: Provider, *, launch: int) -> InstanceGroup:
        offers = plaincalls.offers(provider.provisioner(), self.resources)
        return InstanceGroup(
            job_id=f"{account.prefix}1",
            launch=launch,
            num_nodes=1,
            min_nodes=1,
            job_nodes=1,
            offer=min((one for one in offers if one.market is Market.SPOT), key=lambda one: one.key),
            resources=self.resources,
            user_data="#!/usr/bin/env bash\nsleep 600\n",
            max_seconds=3600.0,
            decided_at=DECIDED_AT,
            store_url="file:///kit/a",
        )
