"""What hosts of drivers promise on every emulated cloud, as tests: the function is really run.

A subclass sets the attributes and brings the methods that raise NotImplementedError.
"""

import contextlib
import io
import json
import re
import zipfile
from datetime import datetime, timezone
from types import MappingProxyType

import pytest
from msgspec import structs

from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.model import DriverFunction
from cloudspot.plugin.driverinventory import driver_name

NAME = "cloudspot-driver-0123456789ab"
GOOD = "def handle(event, *_):\n    print('given', sorted(event))\n    return {'status': 0}\n"
BAD = "def handle(event, *_):\n    print('asked')\n    raise RuntimeError('no bucket for you')\n"
NEEDS_RIGHTS = (
    "import itertools\nasked = itertools.count(1)\n"
    "def handle(event, *_):\n"
    "    print('no right to list')\n"
    "    if next(asked) < 3: raise RuntimeError('the pass ended with status 4')\n"
)
MIN_CUTS = 10
"""A deployment and a removal are at least that many calls."""


class FunctionHostTests:
    """Tests of a cloud's ``FunctionHost``."""

    store = ""
    files = MappingProxyType({})
    """What the archive has besides the driver."""
    state = "Active"
    done = '{"status": 0}'
    """What a pass leaves in the log of functions when it has ended well."""
    everything = ()
    """All that a driver leaves in the account, as ``left`` lists it; ``reaping`` with its daily run."""
    reaping = ()
    removed = ()
    """What ``remove`` tells, in order."""
    changes = r""
    """The calls that change what is deployed, as a pattern; ``newer`` has those of newer code."""
    newer = ()
    needed_rights = ()
    impatient = ("", "", None)
    """A constant, as module, name and value, with which a function that lacks rights is tried once."""
    refused_store, needs_store = "", ""
    too_new, says_too_new = (2, 40), ""
    foreign_system, says_foreign = (None, "", None), ""
    cost_each_minute, says_ten_minutes = "", "every 10 minutes"

    def account(self, directory):
        """Return a context: the emulated cloud and the host of functions of its owner."""
        raise NotImplementedError

    def functions(self, cloud):
        """Return the cloud's functions."""
        raise NotImplementedError

    def left(self, cloud):
        """Return all of the account that is a driver's."""
        raise NotImplementedError

    def hear(self, cloud, *, is_notice):
        """Let the cloud tell that a machine will be taken, or something else about it."""
        raise NotImplementedError

    def pass_time(self, cloud, host, seconds):
        """Let the cloud's schedules find so many seconds gone."""
        raise NotImplementedError

    def check_daily_run(self, cloud, *, is_there):
        """Check the daily schedule and the rights for it."""
        raise NotImplementedError

    def cutting(self, host, cut):
        """Return a context in which ``cut`` is called after each call of the host's that it counts."""
        raise NotImplementedError

    def function(self, code=GOOD, *, every=60.0, store=None):
        """Return a driver that is one small module."""
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w") as archive:
            for name, text in {"driving.py": code, **self.files}.items():
                archive.writestr(zipfile.ZipInfo(name), text)  # without the time
        store = store or self.store
        return DriverFunction(
            name=NAME, archive=target.getvalue(), unpacked_bytes=len(code), handler="driving.handle",
            every_seconds=every, store_url=store, environment={"CLOUDSPOT_STORE": store},
        )  # fmt: skip

    def said(self, cloud):
        """Return what functions have printed when events ran them."""
        log = self.functions(cloud)._directory / "functions.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if not line.startswith("FC Invoke")]

    # --- deploying --------------------------------------------------------------------------------

    @pytest.mark.full
    def test_a_driver_is_deployed_again_without_a_change_and_removed_without_a_rest(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            assert host.status(NAME) is None
            host.deploy(self.function())
            assert self.left(cloud) == list(self.everything)
            found = host.status(NAME)
            assert (found.state, found.every_seconds) == (self.state, 60.0)
            assert NAME in found.where
            assert abs((datetime.now(timezone.utc) - found.changed_at).total_seconds()) < 60
            assert self.changes_of(cloud, lambda: host.deploy(self.function())) == set()
            newer = self.function(GOOD + "# newer\n", every=300.0)
            assert self.changes_of(cloud, lambda: host.deploy(newer)) == set(self.newer)
            assert host.status(NAME).every_seconds == 300.0
            assert [one.partition("_")[0] for one in host.remove(NAME)] == list(self.removed)
            assert self.left(cloud) == []
            assert host.remove(NAME) == []

    def changes_of(self, cloud, act):
        """Return which calls of ``act`` change what is deployed."""
        first = len(cloud.faults.calls)
        act()
        called = {call.action for call in cloud.faults.calls[first:]}
        return {one for one in called if re.fullmatch(self.changes, one)}

    @pytest.mark.full
    def test_with_reap_it_has_a_daily_run_and_more_rights_until_it_is_deployed_without(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            reaping = structs.replace(self.function(), reaps=True)
            assert any("once a day" in line for line in host.plan(reaping))
            host.deploy(reaping)
            assert self.left(cloud) == list(self.reaping)
            self.check_daily_run(cloud, is_there=True)
            host.deploy(self.function())
            assert self.left(cloud) == list(self.everything)
            self.check_daily_run(cloud, is_there=False)

    @pytest.mark.full
    def test_a_missing_right_is_named_and_a_later_deployment_goes_on(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            for right in self.needed_rights:
                cloud.faults.denied.add(right)
                with pytest.raises(AuthError, match=right):
                    host.deploy(self.function())
                cloud.faults.denied.clear()
                host.deploy(self.function())
                assert self.left(cloud) == list(self.everything), right
                host.remove(NAME)

    @pytest.mark.soak
    @pytest.mark.timeout(900)
    def test_what_is_cut_off_after_any_call_is_finished_by_the_next(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            for num_done in range(100):
                if not self.is_cut(host, lambda: host.deploy(self.function()), after=num_done):
                    break
                host.deploy(self.function())
                assert self.left(cloud) == list(self.everything), num_done
                self.is_cut(host, lambda: host.remove(NAME), after=num_done)
                host.remove(NAME)
                assert self.left(cloud) == [], num_done
            assert MIN_CUTS < num_done < 99

    def is_cut(self, host, act, *, after):
        """Do it, but end it after so many calls and one; return whether that came first."""
        calls = []

        def cut():
            calls.append(None)
            if len(calls) > after:
                raise KeyboardInterrupt

        with self.cutting(host, cut):
            try:
                act()
            except KeyboardInterrupt:
                return True
        return False

    # --- running ----------------------------------------------------------------------------------

    @pytest.mark.full
    def test_a_driver_that_does_not_run_is_told_with_its_own_words_and_better_code_replaces_it(
        self, tmp_path
    ):
        with self.account(tmp_path) as (_, host):
            with pytest.raises(CloudspotError, match=r"does not run: no bucket for you .*asked"):
                host.deploy(self.function(BAD))
            host.deploy(self.function())
            assert host.status(NAME).state == self.state

    @pytest.mark.full
    def test_a_notice_and_a_schedule_run_it_and_nothing_else_does(self, tmp_path, wait_until):
        with self.account(tmp_path) as (cloud, host):
            host.deploy(self.function())
            before = len(self.said(cloud))
            self.hear(cloud, is_notice=False)
            self.hear(cloud, is_notice=True)
            wait_until(lambda: len(self.said(cloud)) >= before + 2)
            # Of a notice, it waits until the node has said so, too.
            assert self.said(cloud)[before:] == ["given ['wait_seconds']", self.done]
            self.pass_time(cloud, host, 61.0)
            wait_until(lambda: len(self.said(cloud)) >= before + 4)
            assert self.said(cloud)[before + 2 :] == ["given []", self.done]

    @pytest.mark.full
    def test_rights_that_come_later_are_waited_for_and_not_for_ever(self, tmp_path, monkeypatch):
        with self.account(tmp_path) as (_, host):
            host.deploy(self.function(NEEDS_RIGHTS))
            monkeypatch.setattr(*self.impatient)
            with pytest.raises(CloudspotError, match=r"status 4 .*no right to list"):
                host.deploy(self.function(NEEDS_RIGHTS + "# newer\n"))

    # --- refusals ---------------------------------------------------------------------------------

    @pytest.mark.full
    def test_what_cannot_run_is_refused_before_anything_is_asked(self, tmp_path):
        refused = [
            ({"every": 90.0}, "intervals of whole minutes"),
            ({"every": 30.0}, "intervals of whole minutes"),
            ({"store": self.refused_store}, f"{self.needs_store}; the store is {self.refused_store}"),
        ]
        with self.account(tmp_path) as (cloud, host):
            for changes, message in refused:
                for act in (host.plan, host.deploy):
                    with pytest.raises(SpecError, match=message):
                        act(self.function(**changes))
            assert cloud.faults.calls == []
            assert self.left(cloud) == []

    @pytest.mark.full
    def test_code_for_a_newer_c_library_and_other_systems_are_refused(self, tmp_path, monkeypatch):
        with self.account(tmp_path) as (_, host):
            with pytest.raises(SpecError, match=self.says_too_new):
                host.plan(structs.replace(self.function(), needs_glibc=self.too_new))
            monkeypatch.setattr(*self.foreign_system)
            with pytest.raises(SpecError, match=self.says_foreign):
                host.plan(self.function())

    @pytest.mark.full
    def test_what_it_costs_is_said_before(self, tmp_path):
        with self.account(tmp_path) as (_, host):
            *_, cost = host.plan(self.function())
            assert cost == f"about {self.cost_each_minute} a month at 3 s a pass, and the store's requests"
            assert json.dumps(host.plan(self.function(every=600.0))).count(self.says_ten_minutes) == 1


class DriverInventoryTests:
    """Tests of how ``reap`` finds drivers where nothing of them has a tag, besides ``FunctionHostTests``."""

    def drivers(self, host):
        """Return the account's inventory of drivers."""
        raise NotImplementedError

    def lose_function(self, host, name):
        """Delete the function, with what runs it, and nothing else."""
        raise NotImplementedError

    def named(self):
        """Return a driver with the name that ``cloudspot driver`` gives it."""
        return structs.replace(self.function(), name=driver_name(self.store))

    @pytest.mark.full
    def test_a_reaper_knows_the_drivers_of_its_stores_and_no_others(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            host.deploy(self.function())  # of a store that nobody gives
            strangers = self.left(cloud)
            drivers, driver = self.drivers(host), self.named()
            assert drivers.assets([self.store, f"{self.store}-other"]) == []
            host.deploy(driver)
            (found,) = drivers.assets([self.store, f"{self.store}-other"])
            assert (found.id, found.store_url, found.is_in_use) == (driver.name, self.store, True)
            assert abs((datetime.now(timezone.utc) - found.created_at).total_seconds()) < 120
            drivers.end(found)  # Its store is gone, says whoever reaps.
            drivers.end(found)
            assert drivers.assets([self.store]) == []
            assert self.left(cloud) == strangers

    @pytest.mark.full
    def test_a_reaper_ends_what_a_removal_was_cut_off_at_unless_a_driver_has_it_again(self, tmp_path):
        with self.account(tmp_path) as (cloud, host):
            drivers, driver = self.drivers(host), self.named()
            host.deploy(driver)
            whole = self.left(cloud)
            self.lose_function(host, driver.name)
            (lost,) = drivers.assets([self.store])
            assert (lost.is_in_use, lost.store_url) == (False, self.store)
            assert abs((datetime.now(timezone.utc) - lost.created_at).total_seconds()) < 120
            host.deploy(driver)
            with pytest.raises(
                CloudspotError, match=f"{driver.name}: a driver has been deployed again under this name"
            ):
                drivers.end(lost)
            assert self.left(cloud) == whole
            self.lose_function(host, driver.name)
            drivers.end(lost)
            drivers.end(lost)
            assert drivers.assets([self.store]) == []
            assert self.left(cloud) == []


@contextlib.contextmanager
def calling_after(owners, cut):
    """Let ``cut`` be called after each call of these methods, given as pairs of owner and name."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in owners:
            call = getattr(owner, name)

            def wrapped(*rest, _call=call, **more):
                answer = _call(*rest, **more)
                cut()
                return answer

            patch.setattr(owner, name, wrapped)
        yield
