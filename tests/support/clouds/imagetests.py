"""What holds for the images of every emulated cloud, beside the kit."""

import pytest
from support.clouds.emulated_account import ALWAYS, EmulatedAccount, Fault

from cloudspot.errors import AuthError, CapacityError
from cloudspot.testing import plaincalls
from cloudspot.testing.imagekit import KEY, ImageHostTests


class EmulatedImageTests(ImageHostTests):
    create, remove = "", ""
    """The actions that make and remove an image."""
    create_right, remove_right = "", ""
    """The rights that they take."""
    other_image = ""

    def provider(self, account: EmulatedAccount, *, key):
        return account.provider_with(setup_key=key)

    @pytest.mark.full
    def test_a_machine_starts_with_the_disk_of_the_image(self, account):
        machine = self._machine(account)
        self._wait_for(account, machine)
        before = set(account.cloud.host.machines)
        self._launch(account, self.provider(account, key=KEY), launch=2)
        (new,) = set(account.cloud.host.machines) - before
        assert account.cloud.host.machines[new].disk == f"/disks/{account.host_id(machine.id)}"
        assert account.cloud.host.machines[account.host_id(machine.id)].disk is None

    @pytest.mark.full
    def test_an_image_whose_machine_ends_too_early_has_failed_and_is_replaced(self, account):
        machine = self._machine(account)
        begun = account.provider().image_host().save(machine, key=KEY, job_name="kit-job")
        plaincalls.terminate(account.provider().provisioner(), [machine.id])
        account.pass_time(600.0)
        found = account.provider().image_host().find(KEY)
        assert found is not None
        assert found.id == begun.id
        assert not found.is_ready
        assert found.failure
        assert self._wait_for(account, self._machine(account, launch=2)).is_ready
        assert len(account.provider().image_host().images()) == 1

    @pytest.mark.full
    def test_a_launch_from_an_image_that_was_just_removed_asks_for_another_offer(self, account):
        made = self._make(account)
        provider = self.provider(account, key=KEY)
        request = provider.provisioner().render(self._group(account, provider, launch=2))
        account.provider().image_host().remove(made.id)
        with pytest.raises(CapacityError, match="the image with the job's setup was removed"):
            plaincalls.create(provider.provisioner(), request, token="kit-2")
        assert len(account.running()) == 1

    @pytest.mark.full
    def test_an_image_on_another_base_is_not_used(self, account):
        self._make(account)
        other = account.provider_with(setup_key=KEY, image=self.other_image)
        assert other.image_host().find(KEY) is None
        assert len(other.image_host().images()) == 1

    def test_a_right_that_is_missing_is_named(self, account):
        machine = self._machine(account)
        host = account.provider().image_host()
        self._deny(account, self.create)
        with pytest.raises(AuthError, match=self.create_right):
            host.save(machine, key=KEY, job_name="kit-job")
        assert host.find(KEY) is None
        account.heal()
        made = self._wait_for(account, machine)
        self._deny(account, self.remove)
        with pytest.raises(AuthError, match=self.remove_right):
            host.remove(made.id)
        account.heal()
        assert host.find(KEY) is not None

    @staticmethod
    def _deny(account, action):
        code, status = account.errors[Fault.DENIED]
        account.cloud.faults.inject(action, code, status=status, times=ALWAYS)

    @pytest.mark.full
    def test_an_answer_that_is_lost_makes_no_second_image(self, account):
        machine = self._machine(account)
        code, status = account.errors[Fault.UNWELL]
        account.cloud.faults.inject(self.create, code, status=status, happens=True)
        made = self._wait_for(account, machine)
        assert [one.id for one in account.provider().image_host().images()] == [made.id]
