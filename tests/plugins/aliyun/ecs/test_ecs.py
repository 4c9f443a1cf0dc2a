import re
import time
from datetime import datetime, timezone
from types import MappingProxyType

import pytest
from support.clouds.emulated_account import ALWAYS, Call, EmulatedAccount, Fault
from support.clouds.imagetests import EmulatedImageTests
from support.clouds.provisionertests import (
    JOB,
    SCRIPT,
    AccountTests,
    CloudProvisionerTests,
    CompressedScriptTests,
    LaunchKit,
    RequestTokenTests,
)

from cloudspot.calls import TerminateRequest
from cloudspot.controller.ownership import MAX_LABEL
from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ProvisionError,
    QuotaError,
    SpecError,
    TransientError,
)
from cloudspot.model import (
    ANNOUNCED,
    EndReason,
    InstanceState,
    Market,
)
from cloudspot.plugin import cloudprovider
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Sold
from cloudspot.testing.imagekit import KEY, OTHER_KEY
from cloudspot.testing.offerkit import OfferTests
from cloudspot.testing.provisionerkit import ProvisionerTests
from cloudspot.testing.purchasekit import PurchaseTests
from cloudspot_aliyun.options import MAX_OWN_TAGS, AliyunOptions
from cloudspot_aliyun.provider import AliyunProvider
from cloudspot_aliyun.setup_images import SNAPSHOT_TRIES
from cloudspot_aliyun_sandbox.account import BARE_IMAGE_ID, IMAGE_ID
from cloudspot_aliyun_sandbox.market import KINDS, spot_price, zones_of

STORE = "oss://bucket/prefix"
TYPE = "ecs.gn7i-c8g1.2xlarge"
ZONE = "cn-hangzhou-i"
NO_STOCK = "OperationDenied.NoStock"


class Kit(LaunchKit):
    defaults = MappingProxyType({"instance_types": (TYPE,)})
    store = STORE
    where = MappingProxyType({"zone": ZONE})


@pytest.fixture
def kit(cloud):
    return Kit(cloud)


class EcsAccount(EmulatedAccount):
    options = MappingProxyType({"instance_types": (TYPE,)})
    calls = MappingProxyType({Call.CREATE: "RunInstances", Call.LIST: "DescribeInstances"})
    errors = MappingProxyType(
        {
            Fault.UNWELL: ("InternalError", 500),
            Fault.THROTTLED: ("Throttling.User", 400),
            Fault.DENIED: ("Forbidden.RAM", 403),
            Fault.QUOTA: ("QuotaExceed.ElasticQuota", 403),
            Fault.REFUSED: ("InvalidImageId.NotFound", 404),
        }
    )
    unknown_ids = ("i-bp1nobodys0000000", "machine-1")

    def pass_time(self, seconds):
        super().pass_time(seconds)
        self.cloud.monotonic += seconds


class PlainEcsAccount(EcsAccount):
    """Sells two types without accelerators, in all zones."""

    options = MappingProxyType({"instance_types": ("ecs.g7.xlarge", "ecs.g7.2xlarge")})

    def sold(self):
        return [
            Sold(
                instance_type=name,
                zone=zone,
                market=market,
                price_per_hour=price,
                cpus=kind.cpus,
                memory_bytes=int(kind.memory_gib) << 30,
            )
            for name in self.options["instance_types"]
            for kind in [KINDS[name]]
            for zone in zones_of(kind, "cn-hangzhou")
            for market, price in (
                (Market.SPOT, spot_price(kind, zone)),
                (Market.ON_DEMAND, kind.price),
            )
        ]

    def facts(self, instance_id):
        ecs = self.cloud.ecs
        machine = ecs.machines.by_id[instance_id]
        disk = machine.boot_disk
        return {
            "instance_type": machine.instance_type,
            "zone": machine.zone,
            "disk_bytes": disk.size_gib << 30,
            "labels": machine.tags,
            "max_seconds": machine.auto_release_at and machine.auto_release_at - time.time(),
        }


class TestEcsKit(ProvisionerTests, PurchaseTests, OfferTests):
    deviations = MappingProxyType(
        {
            "test_a_reclaimed_machine_says_so": "ECS releases a reclaimed machine and lists it no more",
            "test_all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else[accelerators]": (
                "types that a job names are offered, whatever they have; see test_sold.py"
            ),
            "test_a_machine_bears_the_labels_of_its_job": "labels are carried on Kubernetes alone",
        }
    )

    @pytest.fixture
    def account(self, cloud):
        return PlainEcsAccount(cloud)


class TestEcsImages(EmulatedImageTests):
    create, remove = "CreateImage", "DeleteImage"
    create_right, remove_right = "ecs:CreateImage", "ecs:DeleteImage"
    other_image = BARE_IMAGE_ID

    @pytest.fixture
    def account(self, cloud):
        return EcsAccount(cloud)

    @pytest.mark.parametrize("image", [IMAGE_ID, BARE_IMAGE_ID])
    def test_only_an_image_of_cloudspots_making_is_removed(self, account, image):
        with pytest.raises(CloudspotError, match=f"^image {image} was not made by cloudspot$"):
            account.provider().image_host().remove(image)
        assert account.cloud.faults.count("DeleteImage") == 0

    def test_an_image_that_another_account_shares_is_neither_listed_nor_removed(self, account):
        made = self._make(account)
        account.cloud.account.images[made.id]["ImageOwnerAlias"] = "others"
        host = account.provider().image_host()
        assert (host.find(KEY), list(host.images())) == (None, [])
        with pytest.raises(CloudspotError, match="was not made by cloudspot"):
            host.remove(made.id)

    @pytest.mark.full
    def test_the_snapshot_goes_with_the_image(self, account):
        made = self._make(account)
        assert len(self._snapshots(account)) == 1
        account.provider().image_host().remove(made.id)
        assert self._snapshots(account) == []

    @pytest.mark.full
    def test_an_image_goes_with_its_snapshot_while_machines_that_started_from_it_live(self, account):
        made = self._make(account)
        self._launch(account, self.provider(account, key=KEY), launch=2)
        account.provider().image_host().remove(made.id)
        assert self._snapshots(account) == []
        assert len(account.running()) == 2

    @pytest.mark.full
    def test_a_snapshot_is_deleted_when_ecs_has_forgotten_its_image(self, account):
        made = self._make(account)
        account.cloud.faults.inject("DeleteSnapshot", "SnapshotCreatedImage", status=403, times=7)
        account.provider().image_host().remove(made.id)
        assert self._snapshots(account) == []

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("code", "kind"), [("Forbidden.RAM", AuthError), ("SnapshotCreatedImage", TransientError)]
    )
    def test_a_snapshot_that_stays_is_named(self, account, code, kind):
        made = self._make(account)
        (snapshot,) = self._snapshots(account)
        account.cloud.faults.inject("DeleteSnapshot", code, status=403, times=ALWAYS)
        with pytest.raises(
            kind, match=rf"{snapshot}, which is billed, of image {made.id} \(ecs:DeleteSnapshot\)"
        ):
            account.provider().image_host().remove(made.id)
        assert account.cloud.faults.count("DeleteSnapshot") <= 3 * SNAPSHOT_TRIES

    def test_an_image_that_is_being_made_is_removed_later(self, account):
        host = account.provider().image_host()
        begun = host.save(self._machine(account), key=KEY, job_name="kit-job")
        with pytest.raises(TransientError, match="ecs:DeleteImage"):
            host.remove(begun.id)
        account.pass_time(600.0)
        host.remove(begun.id)
        assert list(host.images()) == []

    def test_a_disk_of_which_another_snapshot_is_made_is_saved_later(self, account):
        account.cloud.faults.inject("CreateImage", "QuotaExceed.ConcurrentSnapshotQuota", status=403)
        assert self._make(account).is_ready

    def test_images_on_several_pages_are_all_found(self, account, monkeypatch):
        monkeypatch.setattr("cloudspot_aliyun.api.NUMBERED_PAGE", 1)
        machine, host = self._machine(account), account.provider().image_host()
        for key in (KEY, OTHER_KEY):
            host.save(machine, key=key, job_name="kit-job")
        assert sorted(one.key for one in host.images()) == sorted([KEY, OTHER_KEY])

    def test_an_image_is_in_the_resource_group_of_the_machines(self, account):
        account.cloud.account.resource_groups.add("rg-acfm12345678")
        provider = account.provider_with(resource_group="rg-acfm12345678")
        made = provider.image_host().save(self._machine(account), key=KEY, job_name="kit-job")
        assert account.cloud.account.images[made.id]["ResourceGroupId"] == "rg-acfm12345678"

    @pytest.mark.full
    def test_a_machine_has_room_for_all_of_the_image(self, account):
        provider = account.provider_with(disk=200 * 2**30)
        made = self._launch(account, provider, launch=1)
        provider.image_host().save(made, key=KEY, job_name="kit-job")
        assert self._wait(account).size_gib == 200
        group = self._group(account, self.provider(account, key=KEY), launch=2)
        assert group.offer.image_gib == 200
        self._launch(account, self.provider(account, key=KEY), launch=2)

    def _snapshots(self, account):
        rows = account.cloud.ask("DescribeSnapshots")["Snapshots"]["Snapshot"]
        return [one["SnapshotId"] for one in rows]


class TestEcsPromises(CloudProvisionerTests, RequestTokenTests, CompressedScriptTests, AccountTests):
    name = "Alibaba Cloud"
    service = "ECS"
    console_right = "ecs:GetInstanceConsoleOutput"
    launch_call, list_call = "RunInstances", "DescribeInstances"
    throttled = ("Throttling.User", 400)
    zone, type = ZONE, TYPE
    image_gib = 20
    are_ranks_known_at_once = False
    max_script_bytes = 32768
    account = "1234567890123456"
    no_capacity = rf"^launching 2 spot {TYPE} in {ZONE}: .*sold out.*\({NO_STOCK}\)$"
    strangers = ("i-bp1nobodys0000000", "machine-1")
    not_visible = r"InvalidResourceId\.NotFound"
    unreached = r"no answer from 127\.0\.0\.1: \[Errno \d+\] Connection refused$"

    garbled_listing = "DescribeInstances: the answer cannot be read"

    @pytest.fixture
    def door(self, ecs_door):
        return ecs_door

    def give_role(self, body, name):
        body["run_instances"]["RamRoleName"] = name

    def disk_gib(self, request):
        return request.body["run_instances"]["SystemDisk"]["Size"]

    def launch_stranger(self, kit):
        kit.cloud.ask(
            "RunInstances",
            ImageId="ubuntu_24_04_x64_20G_alibase_20261101.vhd",
            InstanceType="ecs.g7.large",
            VSwitchId="vsw-bp1cnhangzhou0001",
            SecurityGroupId=next(iter(kit.cloud.place.groups)),
        )

    def tamper(self, kit, instance):
        kit.cloud.ask(
            "TagResources",
            ResourceType="instance",
            ResourceId=[instance.id],
            Tag=[{"Key": "cloudspot-launch", "Value": "first"}],
        )

    def without_api(self, monkeypatch):
        monkeypatch.setenv("ECS_ENDPOINT", "http://127.0.0.1:1")
        return AliyunProvider(AliyunOptions(region="cn-hangzhou")).provisioner()

    def check_facts(self, kit, rank, instance, machine):
        facts = machine.metadata
        assert facts["hostname"] == machine.host_name == f"digits-1-1-{rank}"
        assert (facts["http-tokens"], facts["role"], facts["zone-id"]) == ("required", "cloudspot-node", ZONE)
        assert facts["private-ipv4"] == machine.address

    @pytest.mark.parametrize(
        ("code", "status", "kind"),
        [
            ("Zone.NotOnSale", 403, CapacityError),
            ("InvalidResourceType.NotSupported", 403, CapacityError),
            ("InstanceType.Offline", 403, CapacityError),
            ("OperationDenied.SpotPriceLowerThanPublicPrice", 403, CapacityError),
            ("InvalidSpotPriceLimit.LowerThanPublicPrice", 400, CapacityError),
            ("QuotaExceeded.PrivateIpAddress", 400, CapacityError),
            ("QuotaExceed.ElasticQuota", 403, QuotaError),
            ("QuotaExceed.PostPaidDisk", 403, QuotaError),
            ("InvalidInstanceType.ValueUnauthorized", 403, QuotaError),
            ("InsufficientBalance", 403, AuthError),
            ("RealNameAuthenticationError", 403, AuthError),
            ("Forbidden.RiskControl", 403, AuthError),
            ("InvalidAccessKeyId.Inactive", 400, AuthError),
            ("InvalidParameter.Conflict", 400, ProvisionError),
            ("InternalError", 500, TransientError),
            ("ServiceUnavailable", 503, TransientError),
            ("IdempotentProcessing", 400, TransientError),
            ("LastTokenProcessing", 400, TransientError),
        ],
    )
    def test_each_refusal_says_what_to_do_next(self, kit, code, status, kind, capfd):
        self.check_refusal(kit, code, status, kind)
        assert capfd.readouterr() == ("", "")  # The SDK would have its own say.


# --- the request ----------------------------------------------------------------------------------


def test_the_request_holds_all_that_ecs_is_asked_for(cloud):
    cloud.place.key_pairs.add("mine")
    kit = Kit(
        cloud,
        key_pair="mine",
        max_price=9.125,
        disk=500 * 2**30,
        disk_performance="PL2",
        metadata_hops=2,
        public_bandwidth=5,
        resource_group="rg-acfm1234567890",
        protected_hour=True,
        tags={"team": "vision"},
    )
    body = kit.request(num_nodes=2).body
    assert (body["region"], body["user_data"]) == ("cn-hangzhou", SCRIPT)
    (group,) = cloud.place.groups
    assert body["run_instances"] == {
        "InstanceType": TYPE,
        "ImageId": "ubuntu_24_04_x64_20G_alibase_20261101.vhd",
        "ZoneId": ZONE,
        "VSwitchId": "vsw-bp1cnhangzhou0002",
        "SecurityGroupIds": [group],
        "Amount": 2,
        "MinAmount": 2,
        "InstanceName": "digits-1-1-[0,1]",
        "HostName": "digits-1-1-[0,1]",
        "InstanceChargeType": "PostPaid",
        "SpotStrategy": "SpotWithPriceLimit",
        "SpotPriceLimit": 9.125,
        "SpotDuration": 1,
        "SpotInterruptionBehavior": "Terminate",
        "SystemDisk": {"Category": "cloud_essd", "Size": "500", "PerformanceLevel": "PL2"},
        "RamRoleName": "cloudspot-node",
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "AutoReleaseTime": "2026-09-21T15:44:00Z",
        "HttpPutResponseHopLimit": 2,
        "InternetMaxBandwidthOut": 5,
        "InternetChargeType": "PayByTraffic",
        "KeyPairName": "mine",
        "ResourceGroupId": "rg-acfm1234567890",
        "Tag": [
            {"Key": "team", "Value": "vision"},
            {"Key": "cloudspot-job", "Value": "digits-1"},
            {"Key": "cloudspot-launch", "Value": "1"},
            {"Key": "cloudspot-num-nodes", "Value": "2"},
            {"Key": "cloudspot-max-seconds", "Value": "3600"},
            {"Key": "MASTER_PORT", "Value": "29500"},
            {"Key": "cloudspot-store", "Value": STORE},
        ],
    }


def test_the_market_price_goes_where_nobody_bids(kit):
    asked = kit.request().body["run_instances"]
    assert (asked["SpotStrategy"], asked["SpotDuration"]) == ("SpotAsPriceGo", 0)
    assert "SpotPriceLimit" not in asked


def test_a_machine_by_pay_as_you_go_is_asked_for_without_a_word_of_spot(kit):
    asked = kit.request(market="on-demand").body["run_instances"]
    assert [(name, value) for name, value in asked.items() if name.startswith("Spot")] == [
        ("SpotStrategy", "NoSpot")
    ]


def test_more_machines_than_one_call_makes_are_refused(kit):
    with pytest.raises(SpecError, match="nodes: ECS launches at most 100 machines at once; got 101"):
        kit.request(num_nodes=101)


def test_a_long_label_of_the_store_is_carried_whole(kit):
    store = "oss://bucket/" + "p" * (MAX_LABEL - 13)
    kit.launch(store_url=store)
    (one,) = kit.listed().values()
    assert (one.store_url, len(store)) == (store, MAX_LABEL)


def test_as_many_tags_as_the_options_take_leave_room_for_all_of_cloudspots(cloud):
    kit = Kit(cloud, tags={f"team-{i}": "vision" for i in range(20 - MAX_OWN_TAGS)})
    kit.launch(num_nodes=2)
    listed = list(kit.listed().values())
    kit.provisioner.announce(listed, dict.fromkeys(ANNOUNCED, "1"))
    shown = [cloud.ecs.machines.by_id[one.id].tags for one in listed]
    assert [len(one) for one in shown] == [20, 20]
    assert [one["MASTER_ADDR"] for one in shown] == ["1", "1"]


@pytest.mark.parametrize("job_id", ["8-digits", "a" * 63, "a--b"])
def test_every_jobs_machines_have_names_that_ecs_takes_and_ranks_at_their_end(kit, job_id):
    kit.launch(job_id=job_id, num_nodes=12)
    listed = kit.listed(job_id)
    assert sorted(one.rank for one in listed.values()) == list(range(12))
    for one in listed.values():
        assert kit.cloud.host.machines[one.id].host_name.endswith(f"-1-{one.rank:02d}")
        assert kit.cloud.describe(one.id)[one.id]["InstanceName"].endswith(f"{job_id}-1-{one.rank:02d}")


# --- create ---------------------------------------------------------------------------------------


def test_a_replay_sends_the_very_bytes_of_the_first_time(kit):
    request = kit.request(num_nodes=2)
    plaincalls.create(kit.provisioner, request, token="t")
    kit.cloud.now += 300.0
    plaincalls.create(kit.provisioner, request, token="t")
    changing = {"Signature", "SignatureNonce", "Timestamp"}
    first, again = (
        {name: value for name, value in call.items() if name not in changing}
        for call in kit.cloud.calls("RunInstances")
    )
    assert first == again
    assert first["AutoReleaseTime"] == "2026-09-21T15:44:00Z"


def test_a_token_counts_for_as_long_as_the_plugin_says_and_no_longer(kit):
    (one,) = kit.launch()
    kit.cloud.now += kit.provisioner.token_seconds - 1
    assert [again.id for again in kit.launch()] == [one.id]
    kit.cloud.now += 1
    assert [again.id for again in kit.launch()] != [one.id]


def test_a_token_whose_machines_are_gone_makes_no_others(kit):
    (one,) = kit.launch()
    kit.cloud.host.end(one.id, EndReason.RECLAIMED)
    assert [again.id for again in kit.launch()] == [one.id]
    assert kit.cloud.alive == []


def test_a_bid_below_the_markets_price_is_a_lack_of_capacity(cloud):
    kit = Kit(cloud, max_price=0.9)
    cloud.ecs.catalogue.prices[TYPE, ZONE] = 0.901
    with pytest.raises(CapacityError, match="SpotPriceLowerThanPublicPrice"):
        kit.launch()
    cloud.ecs.catalogue.prices[TYPE, ZONE] = 0.9
    assert len(kit.launch()) == 1


def test_a_quota_says_what_to_ask_for(kit):
    kit.cloud.faults.vcpu_quota["on-demand"] = 8
    kit.launch(market="on-demand")
    with pytest.raises(
        QuotaError, match=r"QuotaExceed\.AfterpayInstance\); ask for more in the Quota Center"
    ):
        kit.launch(market="on-demand", token="token-2", launch=2)


def test_an_account_in_arrears_stops_everything(kit):
    request = kit.request()
    kit.cloud.ecs.is_in_arrears = True
    with pytest.raises(AuthError) as error:
        plaincalls.create(kit.provisioner, request, token="t")
    assert str(error.value) == (
        f"launching 1 spot {TYPE} in {ZONE}: the account cannot buy: Your account has been in arrears. "
        "(Account.Arrearage); settle it in the console's Expenses"
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ImageId": "m-bp1nobodysimage0000"}, "image"),
        ({"InstanceType": "ecs.z9.huge"}, "instance_types"),
        ({"KeyPairName": "nobodys"}, "key_pair"),
        ({"RamRoleName": "nobodys"}, "role"),
        ({"DeploymentSetId": "ds-bp1nobodysset0000"}, "deployment_set"),
        ({"VSwitchId": "vsw-bp1nobodysvswitch"}, "vswitches"),
        ({"SecurityGroupIds": ["sg-bp1nobodysgroup00"]}, "security_groups"),
        ({"SystemDisk": {"Category": "cloud_essd", "Size": "1"}}, "disk"),
        ({"SystemDisk": {"Category": "cloud_tape", "Size": "40"}}, "disk_type"),
    ],
)
def test_what_was_removed_since_the_offers_is_named_by_its_option(kit, monkeypatch, change, field):
    monkeypatch.setattr(cloudprovider, "NEW_ROLE_SECONDS", 0.0)
    request = kit.request()
    request.body["run_instances"].update(change)
    with pytest.raises(ProvisionError, match=rf"^providers\.aliyun\.{field}: launching 1 spot ecs\.\S+ in "):
        plaincalls.create(kit.provisioner, request, token="t")


@pytest.mark.parametrize("right", ["ram:PassRole", "ecs:RunInstances"])
def test_a_right_that_is_missing_is_named(kit, right):
    request = kit.request()
    kit.cloud.faults.denied = {right}
    with pytest.raises(AuthError, match=rf"lack {right}.*docs/aliyun\.md has the policy"):
        plaincalls.create(kit.provisioner, request, token="t")


def test_credentials_that_have_expired_are_told(kit):
    request = kit.request()
    kit.cloud.faults.expired_keys = {"LTAI5tExampleKeyOfATest"}
    with pytest.raises(AuthError, match="the Alibaba Cloud credentials have expired"):
        plaincalls.create(kit.provisioner, request, token="t")


def test_a_key_that_expires_in_mid_run_is_renewed_and_the_call_made_again(kit, monkeypatch):
    request = kit.request()

    def expire(call):
        kit.cloud.faults.expired_keys = {"LTAI5tExampleKeyOfATest"}
        monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", "LTAI5tTheNextKey")
        monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "TheNextSecret")

    kit.cloud.faults.expired_keys = {"LTAI5tExampleKeyOfATest"}
    kit.cloud.faults.on_call = expire
    assert len(plaincalls.create(kit.provisioner, request, token="t")) == 1
    assert [call.error for call in kit.cloud.faults.calls][-2:] == ["InvalidSecurityToken.Expired", None]


# --- instances ------------------------------------------------------------------------------------


def test_every_page_of_a_listing_is_read(kit):
    for launch in (1, 2):
        kit.launch(launch=launch, token=f"token-{launch}", num_nodes=60)
    assert len(kit.listed()) == 120
    assert kit.cloud.faults.count("DescribeInstances") == 2


def test_a_machine_with_an_empty_tag_is_nobodys_and_spoils_no_list(kit):
    nobodys, mine = kit.launch(num_nodes=2)
    empty = [{"Key": "cloudspot-job", "Value": ""}]
    kit.cloud.ask("TagResources", ResourceType="instance", ResourceId=[nobodys.id], Tag=empty)
    assert [one.id for one in plaincalls.instances(kit.another())] == [mine.id]


def test_a_machine_of_somebody_elses_without_an_id_spoils_no_list(kit, monkeypatch):
    strangers, mine = kit.launch(num_nodes=2)
    machine = kit.cloud.ecs.machines.by_id[strangers.id]
    monkeypatch.setattr(machine, "describe", lambda: {"Status": "Running"})
    found = plaincalls.instances(kit.another(), job_id=JOB)
    assert [one.id for one in found] == [mine.id]


def test_a_machine_that_is_being_taken_is_on_its_way_out_and_then_told_as_reclaimed(kit):
    (one,) = kit.launch()
    assert kit.listed()[one.id].state is InstanceState.RUNNING
    kit.cloud.host.warn(one.id, datetime(2026, 11, 20, tzinfo=timezone.utc))
    found = kit.listed()[one.id]
    assert (found.state, found.end_reason) == (InstanceState.SHUTTING_DOWN, EndReason.RECLAIMED)
    kit.cloud.host.end(one.id, EndReason.RECLAIMED)
    found = kit.listed()[one.id]
    assert (found.state, found.end_reason) == (InstanceState.ENDED, EndReason.RECLAIMED)
    kit.cloud.monotonic += 3600.0
    assert kit.listed() == {}


def test_a_machine_that_vanishes_unannounced_proves_nothing(kit):
    (one,) = kit.launch()
    assert list(kit.listed()) == [one.id]
    kit.cloud.host.end(one.id, EndReason.LOST)
    assert kit.listed() == {}


def test_a_released_machine_is_told_as_ended_by_whoever_released_it(kit):
    (one,) = kit.launch()
    kit.listed()
    kit.cloud.host.ends_at_once = False
    plaincalls.terminate(kit.provisioner, [one.id])
    assert kit.listed()[one.id].state is InstanceState.SHUTTING_DOWN
    kit.cloud.host.end(one.id, EndReason.TERMINATED)
    found = kit.listed()[one.id]
    assert (found.state, found.end_reason) == (InstanceState.ENDED, EndReason.TERMINATED)
    other = kit.cloud.provider(instance_types=(TYPE,)).provisioner()
    assert plaincalls.instances(other, job_id="digits-1") == ()


def test_a_machine_that_has_shut_itself_down_is_billed_and_not_dead(kit):
    (one,) = kit.launch()
    kit.cloud.host.end(one.id, EndReason.SELF)
    assert kit.listed()[one.id].state is InstanceState.SHUTTING_DOWN
    assert kit.cloud.describe(one.id)[one.id]["Status"] == "Stopped"
    plaincalls.terminate(kit.provisioner, [one.id])
    assert kit.cloud.describe(one.id) == {}


def test_a_machine_without_its_tags_is_still_found_by_its_id(kit):
    (one,) = kit.launch()
    before = kit.listed()[one.id]
    kit.cloud.ask("UntagResources", ResourceType="instance", ResourceId=[one.id], TagKey=["cloudspot-job"])
    assert kit.listed() == {one.id: before}


def test_a_profile_that_is_switched_to_another_account_in_mid_run_proves_nothing_and_launches_nothing(
    kit, monkeypatch
):
    kit = Kit(kit.cloud, account="1234567890123456")
    request = kit.request()
    (one,) = plaincalls.create(kit.provisioner, request, token="t")
    assert list(kit.listed()) == [one.id]
    kit.cloud.ecs.accounts["LTAI5tTheNextKey"] = "9999999999999999"
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", "LTAI5tTheNextKey")
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "TheNextSecret")
    for call in (kit.listed, lambda: plaincalls.create(kit.provisioner, request, token="t-2")):
        with pytest.raises(AuthError, match="the credentials are of account 9999999999999999; use"):
            call()
    assert kit.cloud.faults.count("RunInstances") == 1


def test_a_profile_that_is_switched_while_the_machines_are_listed_proves_nothing(cloud, monkeypatch):
    kit = Kit(cloud, account="1234567890123456")
    kit.listed()
    cloud.ecs.accounts["LTAI5tTheNextKey"] = "9999999999999999"

    def switch(call):
        monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", "LTAI5tTheNextKey")
        monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "TheNextSecret")

    cloud.faults.on_call = switch
    with pytest.raises(AuthError, match="the credentials are of account 9999999999999999"):
        kit.listed()


def test_the_account_is_asked_for_once_for_each_key(cloud, monkeypatch):
    kit = Kit(cloud, account="1234567890123456")
    for _ in range(3):
        kit.listed()
    assert cloud.faults.count("GetCallerIdentity") == 1
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", "LTAI5tTheNextKey")
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "TheNextSecret")
    kit.listed()
    assert cloud.faults.count("GetCallerIdentity") == 2


def test_a_machine_that_was_missed_once_and_found_by_its_id_is_looked_for_as_before(kit):
    (one,) = kit.launch()
    kit.listed()
    kit.cloud.ask("UntagResources", ResourceType="instance", ResourceId=[one.id], TagKey=["cloudspot-job"])
    machine = kit.cloud.ecs.machines.by_id[one.id]
    for hidden in (True, False, True, False):
        machine.visible_at = kit.cloud.now + (1.0 if hidden else 0.0)
        assert list(kit.listed()) == ([] if hidden else [one.id])
        kit.cloud.monotonic += 1800.0


# --- announce, terminate, release -----------------------------------------------------------------


def test_announced_facts_are_tags_which_the_machines_metadata_show(kit):
    made = kit.launch(num_nodes=2)
    listed = list(kit.listed().values())
    facts = {"MASTER_ADDR": listed[0].address, "NUM_NODES": "2"}
    assert [kit.cloud.host.tags[one.id] for one in made] == [{}, {}]
    for _ in range(2):
        kit.provisioner.announce(listed, facts)
    for one in made:
        shown = kit.cloud.host.tags[one.id]
        assert {name: shown[name] for name in ("MASTER_ADDR", "NUM_NODES", "MASTER_PORT")} == {
            **facts,
            "MASTER_PORT": "29500",
        }
        assert kit.cloud.describe(one.id)[one.id]["MetadataOptions"]["HttpTokens"] == "required"
    assert kit.cloud.faults.count("ModifyInstanceMetadataOptions") == 2


@pytest.mark.parametrize(("code", "status"), [("InvalidParameter", 400), ("Forbidden.RAM", 403)])
def test_an_account_whose_metadata_cannot_show_tags_goes_without(kit, code, status):
    kit.launch(num_nodes=2)
    listed = list(kit.listed().values())
    kit.cloud.faults.inject("ModifyInstanceMetadataOptions", code, status=status, times=2)
    for _ in range(2):
        kit.provisioner.announce(listed, {"MASTER_ADDR": listed[0].address})
    assert kit.cloud.faults.count("ModifyInstanceMetadataOptions") == 2
    assert kit.cloud.host.tags[listed[0].id] == {}


def test_machines_that_may_not_be_tagged_find_each_other_by_their_records(kit):
    kit.launch(num_nodes=2)
    listed = list(kit.listed().values())
    kit.cloud.faults.inject("TagResources", "InvalidTag.Mismatch", status=400)
    kit.provisioner.announce(listed, {"MASTER_ADDR": listed[0].address})
    assert kit.cloud.faults.count("ModifyInstanceMetadataOptions") == 2


def test_a_machine_is_released_by_ecs_when_its_time_is_up_though_nobody_asks_for_it(kit):
    (one,) = kit.launch()
    # An hour and a half after the minute in which it was decided on.
    assert f"{datetime.fromtimestamp(kit.cloud.now, timezone.utc):%H:%M:%S}" == "14:13:20"
    assert kit.cloud.describe(one.id)[one.id]["AutoReleaseTime"] == "2026-09-21T15:44Z"
    kit.cloud.now += 5400.0 + 39.0
    assert one.id in kit.listed()
    kit.cloud.now += 1.0
    assert kit.listed() == {}
    assert kit.cloud.alive == []


@pytest.mark.parametrize("late", [0.0, 599.0])
def test_a_short_life_ends_no_earlier_than_ecs_allows_by_a_clock_that_is_slow(kit, late):
    request = kit.request(max_seconds=60.0)
    kit.cloud.now += late + 15 * 60.0
    (one,) = plaincalls.create(kit.provisioner, request, token="t")
    assert kit.cloud.alive == [one.id]


def test_one_machine_that_cannot_be_released_yet_keeps_no_other(kit):
    first, second = kit.launch(num_nodes=2)
    kit.cloud.faults.inject("DeleteInstances", "IncorrectInstanceStatus", status=403, times=2)
    (refused,) = kit.provisioner.terminate(TerminateRequest(instance_ids=(first.id, second.id))).refused
    assert refused.instance_id == first.id
    assert "IncorrectInstanceStatus" in refused.reason
    assert kit.cloud.alive == [first.id]


@pytest.mark.full
@pytest.mark.parametrize("code", ["OperationDenied.DeletionProtection", "Forbidden.RAM"])
def test_one_machine_that_can_never_be_released_keeps_no_other(kit, code):
    made = kit.launch(num_nodes=60)
    # The first call as a whole, and then the first machine alone.
    kit.cloud.faults.inject("DeleteInstances", code, status=403, times=2)
    request = TerminateRequest(instance_ids=tuple(one.id for one in made))
    (refused,) = kit.provisioner.terminate(request).refused
    assert refused.instance_id == made[0].id
    assert re.match(rf"^releasing {made[0].id}: .*{code}", refused.reason)
    assert kit.cloud.alive == [made[0].id]


@pytest.mark.full
def test_a_machine_alone_that_is_protected_is_refused_and_without_the_right_none_is_tried_again(kit):
    (one,) = kit.launch()
    request = TerminateRequest(instance_ids=(one.id,))
    kit.cloud.faults.inject("DeleteInstances", "OperationDenied.DeletionProtection", status=403)
    assert [each.instance_id for each in kit.provisioner.terminate(request).refused] == [one.id]
    kit.cloud.faults.inject("DeleteInstances", "Forbidden.RAM", status=403)
    with pytest.raises(AuthError):
        kit.provisioner.terminate(request)


def test_an_api_that_is_unwell_is_not_asked_for_each_machine(kit):
    made = kit.launch(num_nodes=2)
    kit.cloud.faults.inject("DeleteInstances", "ServiceUnavailable", status=503)
    with pytest.raises(TransientError, match=r"^releasing 2 machines: "):
        plaincalls.terminate(kit.provisioner, [one.id for one in made])
    assert kit.cloud.faults.count("DeleteInstances") == 1


@pytest.mark.full
def test_a_deployment_set_is_made_used_and_removed_with_the_job(cloud):
    kit = Kit(cloud, deployment_set="auto")
    made = kit.launch(num_nodes=2)
    ((set_id, name),) = cloud.place.deployment_sets.items()
    assert name == "cloudspot-digits-1-bb20024f"
    described = cloud.describe(*(one.id for one in made))
    assert {one["DeploymentSetId"] for one in described.values()} == {set_id}
    assert [one.id for one in kit.launch(num_nodes=2)] == [one.id for one in made]
    with pytest.raises(TransientError, match="DependencyViolation"):
        kit.provisioner.release("digits-1", store_url=STORE)
    plaincalls.terminate(kit.provisioner, [one.id for one in made])
    kit.provisioner.release("digits-1", store_url="oss://bucket/another")
    assert list(cloud.place.deployment_sets) == [set_id]
    for _ in range(2):
        kit.provisioner.release("digits-1", store_url=STORE)
    assert cloud.place.deployment_sets == {}


def test_a_deployment_set_that_another_driver_removed_meanwhile_is_removed(cloud):
    kit = Kit(cloud, deployment_set="auto")
    made = kit.launch(num_nodes=2)
    plaincalls.terminate(kit.provisioner, [one.id for one in made])
    cloud.faults.inject("DeleteDeploymentSet", "InvalidDeploymentSetId.NotFound", happens=True)
    kit.provisioner.release("digits-1", store_url=STORE)
    assert cloud.place.deployment_sets == {}


@pytest.mark.full
def test_a_launch_that_is_too_large_for_a_deployment_set_is_refused_before_it_is_sent(cloud):
    kit = Kit(cloud, deployment_set="auto")
    with pytest.raises(
        SpecError, match=r"^providers\.aliyun\.deployment_set: a set holds at most 20 machines"
    ):
        kit.request(num_nodes=21)
    assert len(kit.launch(num_nodes=20)) == 20
    assert len(Kit(cloud).launch(num_nodes=21, launch=2, token="another")) == 21


def test_a_deployment_set_that_is_full_in_a_zone_may_have_room_in_another(cloud):
    kit = Kit(cloud, deployment_set="auto")
    kit.launch(num_nodes=20)
    with pytest.raises(CapacityError, match="DeploymentSetInstanceQuotaFull"):
        kit.launch(num_nodes=1, job_nodes=20, launch=2, token="token-2")


def test_a_disk_too_small_for_its_performance_is_refused_before_it_is_sent(cloud):
    with pytest.raises(
        SpecError,
        match=r"^providers\.aliyun\.disk_performance: a disk of PL3 has at least 1261 GiB, and this one would have 70;",
    ):
        Kit(cloud, disk_performance="PL3").request()
    assert len(Kit(cloud, disk_performance="PL3", disk=1261 * 2**30).launch()) == 1


def test_a_node_that_is_replaced_alone_joins_the_deployment_set_of_its_job(cloud):
    kit = Kit(cloud, deployment_set="auto")
    kit.launch(num_nodes=2)
    (one,) = kit.launch(num_nodes=1, job_nodes=2, launch=2, token="token-2")
    (set_id,) = cloud.place.deployment_sets
    assert cloud.describe(one.id)[one.id]["DeploymentSetId"] == set_id


def test_a_job_of_one_node_needs_no_deployment_set(cloud):
    Kit(cloud, deployment_set="auto").launch()
    assert cloud.faults.count("CreateDeploymentSet") == 0


def test_without_a_deployment_set_release_asks_nobody(kit):
    kit.provisioner.release("digits-1")
    assert kit.cloud.faults.calls == []
