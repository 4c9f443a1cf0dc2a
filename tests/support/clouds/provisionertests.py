"""What the provisioners of clouds do beyond the kit's promises: their words, their tries, their request.

A subclass sets the attributes, brings the fixtures ``kit`` (a ``LaunchKit``) and ``door`` (the emulation's
server, whose ``app`` answers), and fills in the methods that raise NotImplementedError.
"""

import base64
import gzip
from datetime import datetime, timezone
from types import MappingProxyType

import msgspec
import pytest
from support.worlds.groups import group_of

from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ProvisionError,
    SpecError,
    TransientError,
)
from cloudspot.model import InstanceState, Market, Resources
from cloudspot.plugin import cloudprovider
from cloudspot.testing import plaincalls

SCRIPT = "#!/usr/bin/env bash\necho boot\n"
JOB = "digits-1"


class LaunchKit:
    """A provisioner of an emulated account, and requests for it."""

    defaults = MappingProxyType({})
    """The options of the provider."""
    store = ""
    where = MappingProxyType({})
    """The arguments of ``cloud.offer`` that choose the place."""

    def __init__(self, cloud, **options):
        self.cloud = cloud
        self.options = {**self.defaults, **options}
        self.decided_at = datetime.fromtimestamp(cloud.now, timezone.utc)
        self.provisioner = self.another()

    def another(self):
        """Return a provisioner with the same options that has looked up nothing."""
        return self.cloud.provider(**self.options).provisioner()

    def group(self, *, launch=1, num_nodes=1, market="spot", script=SCRIPT, **fields):
        return group_of(
            self.cloud.offer(self.provisioner, market=market, **self.where),
            **{
                "num_nodes": num_nodes,
                "job_id": JOB,
                "launch": launch,
                "user_data": script,
                "max_seconds": 3600.0,
                "decided_at": self.decided_at,
                "store_url": self.store,
                **fields,
            },
        )

    def request(self, **fields):
        return self.provisioner.render(self.group(**fields))

    def launch(self, *, token="token-1", **fields):
        return plaincalls.create(self.provisioner, self.request(**fields), token=token)

    def listed(self, job_id=JOB):
        return {one.id: one for one in plaincalls.instances(self.provisioner, job_id=job_id)}

    def host_id(self, instance_id):
        """Return what the host of the machines calls the one of this id."""
        return instance_id


class CloudProvisionerTests:
    """Tests of ``Provisioner``."""

    name = None
    """What messages call the cloud."""
    launch_call = None
    list_call = None
    num_list_tries = 3
    """How often a listing that fails is tried."""
    throttled = ("Throttling", 400)
    """Code and HTTP status of a throttled call."""
    broken = ("InternalError", 500)
    zone = None
    type = None
    image_gib = 0
    made_state = InstanceState.PENDING
    are_ranks_known_at_once = True
    """``create`` already tells the ranks and the addresses."""
    no_capacity = ""
    """A regular expression for a launch of two spot machines where there is one."""
    strangers = ()
    """Ids of no machine of ours."""
    not_visible = ""
    """A regular expression for an announcement to a machine that does not show yet."""
    unreached = "no answer from 127"
    garbled_status = "200 OK"
    garbled_launch = "the answer cannot be read"
    garbled_listing = "listing the machines: the answer cannot be read"
    going_reason = None
    """The end reason of a machine that we have terminated and that is still going."""

    console_right = ""
    """The right to read a machine's console."""

    def give_role(self, body, name):
        """Let the request give its machines another role."""
        raise NotImplementedError

    def disk_gib(self, request):
        raise NotImplementedError

    def launch_stranger(self, kit):
        """Launch a machine that is not cloudspot's."""
        raise NotImplementedError

    def tamper(self, kit, instance):
        """Change the mark that says to which launch a machine belongs."""
        raise NotImplementedError

    def without_api(self, monkeypatch):
        """Return a provisioner whose API nobody serves."""
        raise NotImplementedError

    def check_facts(self, kit, rank, instance, machine):
        """Assert what a machine is told by its metadata."""
        raise NotImplementedError

    # --- the request ------------------------------------------------------------------------------

    def test_the_boot_disk_has_the_images_size_and_what_the_job_asks_on_top(self, kit):
        def size(**resources):
            return int(self.disk_gib(kit.request(resources=Resources(**resources))))

        assert size() == self.image_gib + 50
        assert size(disk_bytes=100 * 2**30 + 1) == self.image_gib + 101

    # --- create -----------------------------------------------------------------------------------

    def test_one_call_makes_all_machines_of_a_launch(self, kit):
        made = kit.launch(num_nodes=3)
        assert kit.cloud.faults.count(self.launch_call) == 1
        assert [(one.launch, one.job_id, one.market) for one in made] == [(1, JOB, Market.SPOT)] * 3
        assert {(one.state, one.zone, one.instance_type, one.store_url) for one in made} == {
            (self.made_state, self.zone, self.type, kit.store)
        }
        if self.are_ranks_known_at_once:
            assert [one.rank for one in made] == [0, 1, 2]
            assert len({one.address for one in made} - {None}) == 3
        listed = kit.listed()
        assert set(listed) == {one.id for one in made}
        assert {kit.host_id(one) for one in listed} == set(kit.cloud.host.machines)
        assert sorted((one.rank, one.zone, one.instance_type, one.store_url) for one in listed.values()) == [
            (rank, self.zone, self.type, kit.store) for rank in range(3)
        ]
        assert len({one.address for one in listed.values()} - {None}) == 3

    def test_each_machine_boots_with_its_own_facts(self, kit):
        made = kit.launch(num_nodes=2)
        listed = kit.listed()
        for rank, one in enumerate(made):
            machine = kit.cloud.host.machines[kit.host_id(one.id)]
            assert machine.user_data == SCRIPT.encode()
            assert machine.address == listed[one.id].address
            assert one.address in ({machine.address} if self.are_ranks_known_at_once else {None})
            assert listed[one.id].rank == rank
            job = machine.job
            assert (job.job_id, job.launch, job.rank, job.num_nodes) == (JOB, 1, rank, 2)
            self.check_facts(kit, rank, one, machine)

    def test_no_capacity_is_found_out_in_one_try_and_leaves_nothing(self, kit):
        request = kit.request(num_nodes=2)
        kit.cloud.faults.capacity["*", "*", "spot"] = 1
        with pytest.raises(CapacityError, match=self.no_capacity):
            plaincalls.create(kit.provisioner, request, token="t")
        assert kit.cloud.faults.count(self.launch_call) == 1
        assert kit.cloud.alive == []

    def check_refusal(self, kit, code, status, kind, *, num_calls=1):
        """Assert that an answer to the launch means this class of error, and is not tried again."""
        request = kit.request()
        kit.cloud.faults.inject(self.launch_call, code, status=status, times=3)
        with pytest.raises(kind, match=code) as error:
            plaincalls.create(kit.provisioner, request, token="t")
        assert type(error.value) is kind
        assert kit.cloud.faults.count(self.launch_call) == num_calls
        assert kit.cloud.alive == []

    def test_a_throttled_launch_is_tried_three_times(self, kit):
        request = kit.request()
        code, status = self.throttled
        kit.cloud.faults.inject(self.launch_call, code, status=status, times=5)
        with pytest.raises(TransientError, match=f"{self.name} throttles the requests"):
            plaincalls.create(kit.provisioner, request, token="t")
        assert kit.cloud.faults.count(self.launch_call) == 3
        assert len(plaincalls.create(kit.provisioner, request, token="t")) == 1
        assert kit.cloud.faults.count(self.launch_call) == 6

    @pytest.mark.full
    def test_an_api_that_is_not_there_leaves_the_outcome_open(self, kit, monkeypatch):
        request = kit.request()
        provisioner = self.without_api(monkeypatch)
        with pytest.raises(TransientError, match=self.unreached):
            plaincalls.create(provisioner, request, token="t")
        with pytest.raises(TransientError, match=f"listing the machines: {self.unreached}"):
            plaincalls.instances(provisioner)

    def test_an_answer_that_is_none_of_the_clouds_leaves_the_outcome_open(self, kit, door):
        def proxy(environ, start_response):
            start_response(self.garbled_status, [("Content-Type", "text/html"), ("Content-Length", "6")])
            return [b"<html>"]

        request = kit.request()
        door.app = proxy
        with pytest.raises(TransientError, match=self.garbled_launch):
            plaincalls.create(kit.provisioner, request, token="t")
        with pytest.raises(TransientError, match=self.garbled_listing):
            kit.listed()

    # --- listing ----------------------------------------------------------------------------------

    def test_a_job_sees_its_own_machines_only(self, kit):
        (one,) = kit.launch()
        (other,) = kit.launch(job_id="digits-2", token="t-2")
        self.launch_stranger(kit)
        assert len(kit.cloud.alive) == 3
        assert list(kit.listed()) == [one.id]
        assert {found.id for found in plaincalls.instances(kit.provisioner)} == {one.id, other.id}

    def test_a_machine_that_is_going_is_alive(self, kit):
        (instance,) = kit.launch()
        kit.listed()
        kit.cloud.host.ends_at_once = False
        plaincalls.terminate(kit.provisioner, [instance.id])
        found = kit.listed()[instance.id]
        assert (found.state, found.end_reason) == (InstanceState.SHUTTING_DOWN, self.going_reason)

    def test_a_machine_whose_launch_mark_was_tampered_with_belongs_to_none(self, kit):
        (instance,) = kit.launch()
        self.tamper(kit, instance)
        assert kit.listed()[instance.id].launch == 0

    def test_a_listing_that_fails_at_first_is_made_again(self, kit):
        (instance,) = kit.launch()
        code, status = self.broken
        kit.cloud.faults.inject(self.list_call, code, status=status, times=self.num_list_tries - 1)
        assert list(kit.listed()) == [instance.id]

    # --- announce, terminate ----------------------------------------------------------------------

    def test_announcing_to_machines_that_are_not_visible_yet_is_tried_again(self, kit):
        kit.cloud.faults.describe_lag_seconds = 10.0
        made = kit.launch()
        with pytest.raises(TransientError, match=self.not_visible):
            kit.provisioner.announce(made, {"MASTER_ADDR": "10.77.0.11", "NUM_NODES": "2"})

    def test_terminating_nothing_asks_nobody(self, kit):
        plaincalls.terminate(kit.provisioner, [])
        assert kit.cloud.faults.calls == []

    # --- a role that is seconds old ---------------------------------------------------------------

    def test_a_role_that_may_be_seconds_old_is_tried_again_for_a_while(self, kit, monkeypatch):
        """A profile that was made a moment ago was refused for good."""
        request = kit.request()
        self.give_role(request.body, "nobodys")
        with pytest.raises(TransientError, match=r"it may be too new to be known: trying again$"):
            plaincalls.create(kit.provisioner, request, token="t")
        monkeypatch.setattr(cloudprovider, "NEW_ROLE_SECONDS", 0.0)
        with pytest.raises(ProvisionError, match=rf"^providers\.{kit.provisioner.provider}\.") as error:
            plaincalls.create(kit.provisioner, request, token="t")
        assert "too new" not in str(error.value)
        assert kit.cloud.alive == []

    # --- the console ------------------------------------------------------------------------------

    def test_a_machine_that_has_printed_nothing_has_an_empty_console(self, kit):
        (instance,) = kit.launch()
        kit.listed()
        assert kit.provisioner.console(instance) == ""

    def test_what_a_machine_prints_can_be_read_while_it_runs_the_end_of_a_long_text(self, kit):
        (instance,) = kit.launch()
        kit.listed()
        text = "line\n" * 99_999 + "cloudspot: this machine cannot serve its job: no role é\n"
        kit.cloud.host.consoles[kit.host_id(instance.id)] = text
        found = kit.provisioner.console(instance)
        assert found.endswith("line\ncloudspot: this machine cannot serve its job: no role é\n")
        assert len(found.encode()) <= 64 << 10

    def test_who_may_not_read_consoles_is_told_which_right_is_missing(self, kit):
        (instance,) = kit.launch()
        kit.listed()
        kit.cloud.faults.denied = {self.console_right}
        with pytest.raises(AuthError) as error:
            kit.provisioner.console(instance)
        assert self.console_right in str(error.value)

    def test_the_console_of_a_machine_that_is_not_there_is_an_error(self, kit):
        (instance,) = kit.launch()
        stranger = msgspec.structs.replace(instance, id=self.strangers[0])
        with pytest.raises(CloudspotError):
            kit.provisioner.console(stranger)


class RequestTokenTests:
    """For clouds that compare a repeated token's request with the first one."""

    def test_a_token_that_was_used_for_another_request_is_refused(self, kit):
        kit.launch()
        with pytest.raises(ProvisionError, match="IdempotentParameterMismatch"):
            kit.launch(script=SCRIPT + "more\n")


class CompressedScriptTests:
    """For clouds whose user data may be compressed."""

    max_script_bytes = 0
    service = None

    def test_a_long_boot_script_is_compressed_always_to_the_same_bytes(self, kit):
        script = SCRIPT + "# so that it is long\n" * (self.max_script_bytes // 10)
        body = kit.request(script=script).body
        assert body == kit.request(script=script).body
        assert gzip.decompress(base64.b64decode(body["user_data_gzip"])).decode() == script
        assert len(msgspec.json.encode(body)) < self.max_script_bytes
        (instance,) = kit.launch(script=script)
        assert gzip.decompress(kit.cloud.host.machines[instance.id].user_data).decode() == script

    def test_a_script_of_just_the_limit_goes_as_it_is(self, kit):
        script = SCRIPT + "x" * (self.max_script_bytes - len(SCRIPT))
        (instance,) = kit.launch(script=script)
        assert kit.cloud.host.machines[instance.id].user_data == script.encode()
        assert "user_data_gzip" not in kit.request(script=script).body

    def test_a_boot_script_that_is_too_long_even_compressed_is_refused(self, kit):
        script = SCRIPT + "".join(f"{i**7 % 1000003:x}" for i in range(self.max_script_bytes))
        message = rf"the boot script has \d+ bytes and \d+ compressed; {self.service} accepts {self.max_script_bytes}"
        with pytest.raises(SpecError, match=message):
            kit.request(script=script)


class AccountTests:
    """For clouds whose controllers know the job's account."""

    account = None

    def test_another_accounts_empty_listing_proves_nothing(self, kit):
        other = "9" * len(self.account)
        with pytest.raises(AuthError) as error:
            plaincalls.instances(type(kit)(kit.cloud, account=other).provisioner)
        provider = kit.provisioner.provider
        assert str(error.value) == (
            f"providers.{provider}.account: the job's machines are in account {other}, but the credentials "
            f"are of account {self.account}; use credentials of {other}"
        )
        assert plaincalls.instances(type(kit)(kit.cloud, account=self.account).provisioner) == ()
