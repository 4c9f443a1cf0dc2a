import json
from types import MappingProxyType

import msgspec
import pytest
from support.clouds.emulated_account import Call, EmulatedAccount, Fault
from support.clouds.imagetests import EmulatedImageTests
from support.clouds.provisionertests import (
    SCRIPT,
    CloudProvisionerTests,
    LaunchKit,
)
from support.worlds.groups import group_of

from cloudspot.calls import TerminateRequest
from cloudspot.errors import (
    AuthError,
    CapacityError,
    CloudspotError,
    ProvisionError,
    QuotaError,
    SpecError,
    TransientError,
)
from cloudspot.model import EndReason, InstanceState, LaunchRequest, Market, Resources
from cloudspot.plugin import cloudprovider
from cloudspot.testing import plaincalls
from cloudspot.testing.imagekit import KEY
from cloudspot.testing.offerkit import OfferTests
from cloudspot.testing.provisionerkit import ProvisionerTests
from cloudspot.testing.purchasekit import PurchaseTests
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp.request import request_id
from cloudspot_gcp_sandbox.catalogue import BARE_IMAGE, Image

STORE = "gs://bucket/prefix"
PROJECT = "my-project-123"
NAMES = [f"cs-digits-1-60e73611-1-{rank}" for rank in range(3)]
BULK_INSERT = "compute.regionInstances.bulkInsert"
IN_A = "us-central1-a"
FIRST_NUMBER = 7_000_000_000_000_000_001


class Kit(LaunchKit):
    store = STORE

    def host_id(self, instance_id):
        return instance_id.split("/")[1]


@pytest.fixture
def kit(cloud):
    return Kit(cloud)


def set_label(cloud, name, label, value):
    """Change a label of a machine, as somebody may do by hand."""
    found = cloud.listed()[name]
    cloud.client("InstancesClient").set_labels_unary(
        project=PROJECT,
        zone=IN_A,
        instance=name,
        instances_set_labels_request_resource={
            "labels": dict(found.labels) | {label: value},
            "label_fingerprint": found.label_fingerprint,
        },
    )


class ComputeAccount(EmulatedAccount):
    calls = MappingProxyType({Call.CREATE: BULK_INSERT, Call.LIST: "compute.instances.aggregatedList"})
    errors = MappingProxyType(
        {
            Fault.UNWELL: ("internalError", 500),
            Fault.THROTTLED: ("rateLimitExceeded", 403),
            Fault.DENIED: ("forbidden", 403),
            Fault.QUOTA: ("quotaExceeded", 403),
            Fault.REFUSED: ("invalid", 400),
        }
    )
    unknown_ids = ("us-central1-b/cs-digits-1-60e73611-1-0/71", "machine-1")

    def host_id(self, instance_id):
        return instance_id.split("/")[1]


class PlainComputeAccount(ComputeAccount):
    """Sells two types without accelerators in two regions, whose spot prices come from the price list."""

    options = MappingProxyType(
        {"machine_types": ("n2-standard-4", "n2-standard-8"), "regions": ("us-central1", "europe-west4")}
    )

    def facts(self, instance_id):
        zone, name, _ = instance_id.split("/")
        found = self.cloud.client("InstancesClient").get(project=PROJECT, zone=zone, instance=name)
        limit = found.scheduling.max_run_duration
        return {
            "instance_type": found.machine_type.rpartition("/")[2],
            "zone": zone.rpartition("-")[0],
            "disk_bytes": found.disks[0].disk_size_gb << 30,
            "labels": dict(found.labels),
            "max_seconds": float(limit.seconds) if limit else None,
        }


class TestComputeKit(ProvisionerTests, PurchaseTests, OfferTests):
    deviations = MappingProxyType(
        {
            "test_a_machine_bears_the_labels_of_its_job": "labels are carried on Kubernetes alone",
            **dict.fromkeys(
                (
                    "test_all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else",
                    "test_a_machine_is_offered_at_the_price_that_the_cloud_takes_for_an_hour",
                ),
                "the cloud sells processors and memory, not machines: test_sold.py and test_offers.py add up",
            ),
        }
    )

    @pytest.fixture
    def account(self, cloud):
        return PlainComputeAccount(cloud)


class TestComputeImages(EmulatedImageTests):
    create, remove = "compute.images.insert", "compute.images.delete"
    create_right, remove_right = "compute.images.create", "compute.images.delete"
    other_image = BARE_IMAGE

    @pytest.fixture
    def account(self, cloud):
        return ComputeAccount(cloud)

    @pytest.mark.full
    def test_an_image_is_one_of_the_machine_as_it_runs_with_its_labels(self, account):
        made = self._make(account)
        found = account.cloud.client("ImagesClient").get(project=PROJECT, image=made.id)
        assert dict(found.labels) == {
            "cloudspot-setup": KEY,
            "cloudspot-base": made.id.rpartition("-")[2],
            "cloudspot-name": "kit-job",
        }
        (insert,) = [one for one in account.cloud.faults.calls if one.action == self.create]
        assert insert.parameters["forceCreate"] is True
        assert found.source_disk.endswith(f"/disks/{account.host_id(account.listed()[0].id)}")
        assert (made.size_gib, made.where) == (100.0, "")

    @pytest.mark.full
    def test_whoever_may_not_list_images_starts_from_the_base(self, account):
        before = self._rendered(account, KEY)
        self._make(account)
        account.cloud.faults.denied = {"compute.images.list"}
        assert self._rendered(account, KEY) == before

    @pytest.mark.parametrize("right", ["compute.disks.useReadOnly", "compute.images.setLabels"])
    def test_each_right_that_an_image_takes_is_named(self, account, right):
        machine = self._machine(account)
        account.cloud.faults.denied = {right}
        with pytest.raises(AuthError, match=f"Required '{right}' permission"):
            account.provider().image_host().save(machine, key=KEY, job_name="kit-job")

    @pytest.mark.parametrize(
        ("action", "code", "status", "kind"),
        [
            ("compute.images.insert", "quotaExceeded", 403, QuotaError),
            ("compute.images.insert", "invalid", 400, CloudspotError),
            ("operation compute.images.insert", "QUOTA_EXCEEDED", 200, QuotaError),
            ("operation compute.images.insert", "UNSUPPORTED_OPERATION", 200, CloudspotError),
        ],
    )
    def test_an_image_that_is_refused_is_none(self, account, action, code, status, kind):
        machine = self._machine(account)
        account.cloud.faults.inject(action, code, message="it may not be", status=status)
        host = account.provider().image_host()
        with pytest.raises(kind, match=r"making an image of .*: it may not be"):
            host.save(machine, key=KEY, job_name="kit-job")
        assert list(host.images()) == []

    def test_only_a_machine_of_cloudspots_is_copied(self, account):
        stranger = msgspec.structs.replace(self._machine(account), id="web-1")
        with pytest.raises(CloudspotError, match="this is not one of cloudspot's machines"):
            account.provider().image_host().save(stranger, key=KEY, job_name="kit-job")

    @pytest.mark.parametrize("name", ["train-v1", "gone"])
    def test_only_an_image_of_cloudspots_making_is_removed(self, account, name):
        account.cloud.compute.site.images = [Image(PROJECT, "train-v1", "train", 20)]
        host = account.provider().image_host()
        if name == "gone":
            host.remove(name)
        else:
            with pytest.raises(CloudspotError, match="image train-v1 was not made by cloudspot"):
                host.remove(name)
        assert account.cloud.faults.count(self.remove) == 0

    @pytest.mark.full
    def test_the_boot_disk_is_as_large_as_the_image_and_its_price_counts_that(self, account):
        self._make(account)
        (size, price), (grown, dearer) = (
            self._disk_and_price(account.provider_with(setup_key=KEY, disk=disk)) for disk in (0, 60 << 30)
        )
        assert (size, grown) == ("100", "100")
        assert price == dearer

    def _disk_and_price(self, provider):
        provisioner = provider.provisioner()
        offer = next(one for one in plaincalls.offers(provisioner, Resources()) if one.market is Market.SPOT)
        request = provisioner.render(group_of(offer, num_nodes=1, store_url=STORE))
        (disk,) = request.body["bulk_insert"]["instanceProperties"]["disks"]
        return disk["initializeParams"]["diskSizeGb"], offer.price_per_hour

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("invalid", "'projects/x/global/images/y'. The referenced image resource cannot be found."),
            ("resourceNotReady", "The resource 'projects/x/global/images/y' is not ready"),
        ],
    )
    def test_a_launch_refused_for_the_image_asks_for_another_offer(self, account, code, message):
        self._make(account)
        provider = self.provider(account, key=KEY)
        request = provider.provisioner().render(self._group(account, provider, launch=2))
        account.cloud.faults.inject(BULK_INSERT, code, message=message, status=400)
        with pytest.raises(CapacityError, match="the image with the job's setup was removed"):
            plaincalls.create(provider.provisioner(), request, token="kit-2")

    @pytest.mark.full
    def test_a_launch_whose_operation_misses_the_image_asks_for_another_offer(self, account):
        self._make(account)
        provider = self.provider(account, key=KEY)
        request = provider.provisioner().render(self._group(account, provider, launch=2))
        message = "The resource 'projects/x/global/images/y' was not found"
        account.cloud.faults.inject(f"operation {BULK_INSERT}", "RESOURCE_NOT_FOUND", message=message)
        with pytest.raises(CapacityError, match="the image with the job's setup was removed"):
            plaincalls.create(provider.provisioner(), request, token="kit-2")

    @pytest.mark.full
    def test_an_image_that_is_being_removed_is_listed_no_more_and_its_name_is_waited_for(self, account):
        made = self._make(account)
        account.cloud.compute.operation_seconds = 10.0
        host = account.provider().image_host()
        with pytest.raises(TransientError, match="not done after"):
            host.remove(made.id)
        assert (host.find(KEY), list(host.images())) == (None, [])
        account.cloud.compute.operation_seconds = 0.0
        with pytest.raises(TransientError, match="is not listed yet"):
            host.save(self._machine(account, launch=2), key=KEY, job_name="kit-job")
        account.pass_time(10.0)
        assert self._wait_for(account, self._machine(account, launch=3)).is_ready


class TestComputePromises(CloudProvisionerTests):
    name = "Google"
    console_right = "compute.instances.getSerialPortOutput"
    launch_call, list_call = BULK_INSERT, "compute.instances.aggregatedList"
    num_list_tries = 4
    throttled = ("rateLimitExceeded", 403)
    broken = ("internalError", 500)
    zone, type = IN_A, "n2-standard-4"
    image_gib = 50
    made_state = InstanceState.RUNNING
    no_capacity = (
        r"launching 2 spot n2-standard-4 in us-central1: .* does not have enough resources available"
        r".*\(ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS\)$"
    )
    strangers = ("us-central1-b/cs-digits-1-60e73611-1-0/71", "machine-1", "us-central1-a/web-1/72")
    not_visible = r"announcing to the machines: .* was not found"
    unreached = r"no answer from 127\.0\.0\.1:1"
    garbled_status = "502 Bad Gateway"
    garbled_launch = r"launching 1 spot n2-standard-4 in us-central1: Google failed"
    garbled_listing = "listing the machines: Google failed"
    going_reason = EndReason.TERMINATED

    @pytest.fixture
    def door(self, compute_door):
        return compute_door

    def give_role(self, body, name):
        put(body, (*PROPERTIES, "serviceAccounts", 0, "email"), name)

    def disk_gib(self, request):
        (disk,) = request.body["bulk_insert"]["instanceProperties"]["disks"]
        return disk["initializeParams"]["diskSizeGb"]

    def launch_stranger(self, kit):
        from google.cloud import compute_v1

        stranger = json.dumps(kit.request(job_id="stranger").body["bulk_insert"])
        resource = compute_v1.BulkInsertInstanceResource.from_json(stranger)
        resource.instance_properties.labels = {}
        kit.cloud.client("RegionInstancesClient").bulk_insert_unary(
            project="my-project-123", region="us-central1", bulk_insert_instance_resource_resource=resource
        )

    def tamper(self, kit, instance):
        set_label(kit.cloud, NAMES[0], "cloudspot-launch", "7")

    def without_api(self, monkeypatch):
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "http://127.0.0.1:1")
        provider = GcpProvider(GcpOptions(project="my-project-123"))
        provider._clients = GcpClients(project="my-project-123")
        return provider.provisioner()

    def check_facts(self, kit, rank, instance, machine):
        assert instance.id == f"{IN_A}/{NAMES[rank]}/{FIRST_NUMBER + rank}"
        assert machine.host_name == NAMES[rank]
        assert machine.tags["MASTER_ADDR"] == NAMES[0]
        assert (machine.metadata["name"], machine.metadata["zone"]) == (NAMES[rank], IN_A)

    @pytest.mark.parametrize(
        ("code", "status", "kind"),
        [
            ("quotaExceeded", 403, QuotaError),
            ("limitExceeded", 403, QuotaError),
            ("resourceNotReady", 400, ProvisionError),
            ("invalid", 400, ProvisionError),
            ("conditionNotMet", 412, ProvisionError),
            ("backendError", 503, TransientError),
            ("internalError", 500, TransientError),
            ("forbidden", 403, AuthError),
            ("accessNotConfigured", 403, AuthError),
            ("authError", 401, AuthError),
        ],
    )
    def test_each_refusal_says_what_to_do_next(self, kit, code, status, kind):
        self.check_refusal(kit, code, status, kind, num_calls=1 if status != 401 else 3)  # by fresh tokens

    @pytest.mark.parametrize("action", [BULK_INSERT, "compute.regionOperations.wait"])
    def test_an_operation_whose_end_is_not_heard_of_is_found_by_a_replay(self, kit, action):
        request = kit.request()
        kit.cloud.compute.operation_seconds = 1.0
        kit.cloud.faults.inject(action, "internalError", happens=True, times=4)
        with pytest.raises(TransientError):
            plaincalls.create(kit.provisioner, request, token="t")
        kit.cloud.now += 1
        kit.cloud.faults.withdraw()
        (instance,) = plaincalls.create(kit.provisioner, request, token="t")
        assert kit.cloud.alive == [instance.id.split("/")[1]]


# --- the request ----------------------------------------------------------------------------------


def test_the_request_holds_all_that_compute_engine_is_asked_for(cloud):
    kit = Kit(
        cloud,
        zones=(IN_A, "us-central1-b"),
        disk=200 * 2**30,
        disk_type="pd-ssd",
        public_ip=False,
        network_tags=("training",),
        labels={"team": "vision"},
    )
    body = kit.request(num_nodes=2).body
    assert (body["project"], body["region"]) == ("my-project-123", "us-central1")
    asked = dict(body["bulk_insert"])
    properties = dict(asked.pop("instanceProperties"))
    assert asked == {
        "count": "2",
        "minCount": "2",
        "perInstanceProperties": {NAMES[0]: {}, NAMES[1]: {}},
        "locationPolicy": {
            "targetShape": "ANY_SINGLE_ZONE",
            "locations": {
                "zones/us-central1-a": {"preference": "ALLOW"},
                "zones/us-central1-b": {"preference": "ALLOW"},
                "zones/us-central1-c": {"preference": "DENY"},
                "zones/us-central1-f": {"preference": "DENY"},
            },
        },
    }
    labels = {
        "team": "vision",
        "cloudspot-job": "digits-1",
        "cloudspot-launch": "1",
        "cloudspot-store": "60e73611",
    }
    found = {one["key"]: one["value"] for one in properties.pop("metadata")["items"]}
    assert found.pop("shutdown-script").startswith("#!/bin/bash\n")
    assert found == {
        "cloudspot-job": "digits-1",
        "cloudspot-launch": "1",
        "cloudspot-store": STORE,
        "cloudspot-max-seconds": "3600",
        "cloudspot-notice-seconds": "120",
        "NUM_NODES": "2",
        "MASTER_ADDR": NAMES[0],
        "MASTER_PORT": "29500",
        "startup-script": SCRIPT,
    }
    (disk,) = properties.pop("disks")
    assert disk == {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": "projects/deeplearning-platform-release/global/images/"
            "pytorch-2-7-cu128-ubuntu-2204-nvidia-570-v20261001",
            "diskSizeGb": "200",
            "diskType": "pd-ssd",
            "labels": labels,
        },
    }
    assert properties == {
        "description": "cloudspot: job digits-1, launch 1",
        "machineType": "n2-standard-4",
        "labels": labels,
        "networkInterfaces": [{"network": "global/networks/default"}],
        "serviceAccounts": [
            {
                "email": "cloudspot-node@my-project-123.iam.gserviceaccount.com",
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
        ],
        "scheduling": {
            "provisioningModel": "SPOT",
            "automaticRestart": False,
            "instanceTerminationAction": "DELETE",
            "onHostMaintenance": "TERMINATE",
            "maxRunDuration": {"seconds": "4200"},
            "preemptionNoticeDuration": {"seconds": "120"},
        },
        "tags": {"items": ["training"]},
    }


def test_a_machine_on_demand_is_asked_for_without_a_word_of_spot_and_with_the_same_limit(kit):
    properties = kit.request(market="on-demand").body["bulk_insert"]["instanceProperties"]
    assert properties["scheduling"] == {
        "provisioningModel": "STANDARD",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "MIGRATE",
        "maxRunDuration": {"seconds": "4200"},
    }
    keys = {one["key"] for one in properties["metadata"]["items"]}
    assert "cloudspot-notice-seconds" not in keys


def test_without_a_notice_none_is_asked_for(cloud):
    properties = Kit(cloud, preemption_notice=0.0).request().body["bulk_insert"]["instanceProperties"]
    assert "preemptionNoticeDuration" not in properties["scheduling"]
    assert {"key": "cloudspot-notice-seconds", "value": "0"} in properties["metadata"]["items"]


def test_what_is_sent_is_what_was_rendered_and_stored(kit):
    request = kit.request(num_nodes=2)
    stored = msgspec.json.decode(msgspec.json.encode(request), type=LaunchRequest)
    assert stored == request
    plaincalls.create(kit.provisioner, stored, token="token-1")
    (call,) = [call for call in kit.cloud.faults.calls if call.action == BULK_INSERT]
    assert call.parameters["body"] == request.body["bulk_insert"]
    assert call.parameters["requestId"] == request_id("token-1")


@pytest.mark.full
def test_a_boot_script_of_256_kib_goes_and_a_longer_one_is_refused(kit):
    script = SCRIPT + "x" * (262144 - len(SCRIPT))
    kit.launch(script=script)
    assert kit.cloud.host.machines[NAMES[0]].user_data == script.encode()
    with pytest.raises(
        SpecError, match="the boot script has 262145 bytes, but Compute Engine accepts only 262144"
    ):
        kit.request(script=script + "x")


def test_a_job_of_the_longest_id_has_machines_with_names_that_say_their_rank(kit):
    job_id = "d" + 61 * "i" + "g"
    made = kit.launch(num_nodes=2, job_id=job_id, launch=9999)
    assert [(one.job_id, one.launch, one.rank) for one in made] == [(job_id, 9999, 0), (job_id, 9999, 1)]
    assert all(len(one.id.split("/")[1]) <= 63 for one in made)
    kit.cloud.host.end(made[0].id.split("/")[1], EndReason.RECLAIMED)
    assert kit.listed(job_id)[made[0].id].end_reason is EndReason.RECLAIMED


# --- create ---------------------------------------------------------------------------------------


@pytest.mark.full
def test_an_operation_that_takes_long_leaves_the_outcome_open_and_is_found_again(kit):
    kit.cloud.compute.operation_seconds = 60.0
    with pytest.raises(TransientError, match=r"not done after \d+ s; asking again"):
        kit.launch()
    kit.cloud.now += 60.0
    (instance,) = kit.launch()
    assert kit.cloud.alive == [instance.id.split("/")[1]]


def test_a_token_whose_machines_are_gone_makes_no_others_and_tells_why(kit):
    kit.launch()
    kit.cloud.host.end(NAMES[0], EndReason.RECLAIMED)
    (instance,) = kit.launch()
    assert (instance.state, instance.end_reason) == (InstanceState.ENDED, EndReason.RECLAIMED)
    assert kit.cloud.alive == []


@pytest.mark.full
def test_a_machine_of_a_name_that_was_used_before_is_another_machine(kit):
    """As when a controller sleeps between its intent and the request until nobody remembers the request."""
    (first,) = kit.launch()
    plaincalls.terminate(kit.provisioner, [first.id])
    kit.cloud.now += 3600
    kit.cloud.faults.describe_lag_seconds = 10.0
    (second,) = kit.launch()
    assert kit.cloud.alive == [str(FIRST_NUMBER + 1)]
    assert second.id.rpartition("/")[0] == first.id.rpartition("/")[0]
    assert (second.id != first.id, second.state) == (True, InstanceState.PENDING)
    assert [one.id for one in kit.listed().values()] == [first.id]
    kit.cloud.now += 10
    states = {one.id: one.state for one in kit.listed().values()}
    assert states == {first.id: InstanceState.ENDED, second.id: InstanceState.RUNNING}
    plaincalls.terminate(kit.provisioner, [first.id])
    assert kit.cloud.alive == [str(FIRST_NUMBER + 1)]


@pytest.mark.full
def test_a_failed_launch_that_tells_no_group_touches_no_other_jobs_machines(kit, monkeypatch):
    kit.launch(job_id="another", token="t-2")
    request = kit.request()
    add = kit.cloud.compute.operations.add

    def add_without_group(*args, operationGroupId=None, **fields):  # noqa: N803 - the API's word
        return add(*args, **fields)

    monkeypatch.setattr(kit.cloud.compute.operations, "add", add_without_group)
    kit.cloud.client("InstancesClient").insert_unary(
        project="my-project-123", zone=IN_A, instance_resource=as_instance(request, "cs-other-60e73611-1-0")
    )
    kit.cloud.faults.inject(f"operation {BULK_INSERT}", "PERMISSIONS_ERROR", message="no")
    with pytest.raises(AuthError, match=r"no \(PERMISSIONS_ERROR\)"):
        plaincalls.create(kit.provisioner, request, token="t")
    assert kit.cloud.host.terminated == []
    assert len(kit.cloud.alive) == 2


def as_instance(request, name):
    """Return the machine of a request as one that is inserted alone."""
    from google.cloud import compute_v1

    properties = json.loads(json.dumps(request.body["bulk_insert"]["instanceProperties"]))
    properties["machineType"] = f"zones/{IN_A}/machineTypes/{properties['machineType']}"
    return compute_v1.Instance.from_json(json.dumps({**properties, "name": name}))


def test_a_stored_request_that_this_sdk_does_not_know_is_told_in_a_line(kit):
    request = kit.request()
    request.body["bulk_insert"]["sinceNextYear"] = True
    with pytest.raises(
        ProvisionError, match=r"cannot read the stored request: .*sinceNextYear.*; install"
    ) as error:
        plaincalls.create(kit.provisioner, request, token="t")
    assert "\n" not in str(error.value)


def test_machines_that_were_preempted_while_they_were_created_are_told_as_such(kit):
    kit.cloud.faults.inject("preemption", "")
    first, second = kit.launch(num_nodes=2)
    assert (first.state, first.end_reason, first.rank) == (InstanceState.ENDED, EndReason.RECLAIMED, 0)
    assert (second.state, second.end_reason, second.rank) == (InstanceState.RUNNING, None, 1)


def test_a_launch_of_names_that_are_taken_touches_none_of_their_machines(kit):
    """As when a token is sent again so late that nobody remembers it."""
    kit.launch(num_nodes=2)
    with pytest.raises(ProvisionError, match=r"already exists \(RESOURCE_ALREADY_EXISTS\)"):
        kit.launch(num_nodes=2, token="another")
    assert kit.cloud.alive == NAMES[:2]
    assert kit.cloud.host.terminated == []


def test_where_one_zone_has_too_few_another_zone_of_the_region_has_all(kit):
    kit.cloud.faults.capacity[IN_A, "*", "*"] = 1
    kit.cloud.faults.capacity["us-central1-b", "*", "*"] = 0
    assert {one.zone for one in kit.launch(num_nodes=2)} == {"us-central1-c"}


@pytest.mark.full
@pytest.mark.parametrize(("market", "metric"), [("spot", "PREEMPTIBLE_CPUS"), ("on-demand", "CPUS")])
def test_a_quota_is_found_behind_the_minimum_that_was_not_reached(kit, market, metric):
    kit.cloud.faults.vcpu_quota[market] = 4
    kit.launch(market=market)
    with pytest.raises(
        QuotaError,
        match=rf"Quota '{metric}' exceeded\. Limit: 4\.0 in region us-central1\. \(QUOTA_EXCEEDED\); ask for "
        "more under IAM & Admin > Quotas",
    ):
        kit.launch(market=market, token="token-2", launch=2)
    assert kit.cloud.alive == [NAMES[0]]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", CapacityError),
        ("VM_MIN_COUNT_NOT_REACHED", CapacityError),
        ("INTERNAL_ERROR", CapacityError),
        ("QUOTA_EXCEEDED", QuotaError),
        ("PERMISSIONS_ERROR", AuthError),
        ("SOMETHING_NEW", ProvisionError),
    ],
)
@pytest.mark.parametrize("is_made", [False, True])
def test_an_operation_that_is_done_with_an_error_is_no_success_and_leaves_nothing(kit, code, kind, is_made):
    kit.cloud.faults.inject(f"operation {BULK_INSERT}", code, message="so it is", happens=is_made)
    with pytest.raises(kind, match=rf"so it is \({code}\)") as error:
        kit.launch(num_nodes=2)
    assert type(error.value) is kind
    assert len(kit.cloud.host.machines) == (2 if is_made else 0)
    assert kit.cloud.alive == []


@pytest.mark.full
def test_what_a_failed_launch_has_left_and_cannot_be_deleted_leaves_the_outcome_open(kit):
    request = kit.request()
    kit.cloud.faults.inject(f"operation {BULK_INSERT}", "INTERNAL_ERROR", happens=True)
    kit.cloud.faults.inject("compute.instances.delete", "forbidden", status=403)
    with pytest.raises(
        TransientError, match=r"deleting the machines of the failed launch: .*; machines may still be running"
    ):
        plaincalls.create(kit.provisioner, request, token="t")
    with pytest.raises(CapacityError, match="INTERNAL_ERROR"):
        plaincalls.create(kit.provisioner, request, token="t")
    assert kit.cloud.alive == []


def test_an_api_that_is_not_enabled_says_how_to_enable_it(kit):
    request = kit.request()
    message = "Compute Engine API has not been used in project 1 before or it is disabled."
    kit.cloud.faults.inject(BULK_INSERT, "accessNotConfigured", status=403, message=message)
    with pytest.raises(AuthError, match=r"the API is not enabled; run: gcloud services enable compute\.goo"):
        plaincalls.create(kit.provisioner, request, token="t")


def put(request, path, value):
    *steps, last = path
    for step in steps:
        request = request[step]
    request[last] = value


PROPERTIES = ("bulk_insert", "instanceProperties")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (
            ("disks", 0, "initializeParams", "sourceImage"),
            "projects/ubuntu-os-cloud/global/images/gone",
            "image",
        ),
        (("disks", 0, "initializeParams", "diskSizeGb"), "1", "disk"),
        (("disks", 0, "initializeParams", "diskType"), "pd-golden", "disk_type"),
        (("machineType",), "z9-huge-1", "machine_types"),
        (("networkInterfaces", 0, "network"), "global/networks/gone", "network"),
        (
            ("networkInterfaces", 0, "subnetwork"),
            "regions/us-central1/subnetworks/gone",
            "subnetworks",
        ),
        (("serviceAccounts", 0, "email"), "gone@my-project-123.iam.gserviceaccount.com", "service_account"),
        (("resourcePolicies",), ["gone"], "placement_policy"),
        (("labels", "UPPER"), "case", "labels"),
    ],
)
def test_what_was_removed_or_broken_since_the_offers_is_named_by_its_option(
    kit, monkeypatch, path, value, field
):
    monkeypatch.setattr(cloudprovider, "NEW_ROLE_SECONDS", 0.0)
    request = kit.request()
    put(request.body, (*PROPERTIES, *path), value)
    with pytest.raises(
        ProvisionError, match=rf"^providers\.gcp\.{field}: launching 1 spot \S+ in us-central1: "
    ):
        plaincalls.create(kit.provisioner, request, token="t")
    assert kit.cloud.alive == []


@pytest.mark.full
def test_without_a_preemption_notice_machines_are_launched_all_the_same_and_that_is_said_once(kit, caplog):
    kit.cloud.compute.site.has_preemption_notice = False
    for launch in (1, 2):
        request = kit.request(launch=launch)
        assert len(plaincalls.create(kit.provisioner, request, token=f"t{launch}")) == 1
        # Another driver sends the same request again.
        assert len(plaincalls.create(kit.provisioner, request, token=f"t{launch}")) == 1
    assert len(kit.cloud.alive) == 2
    for machine in kit.cloud.listed().values():
        assert machine.scheduling.provisioning_model == "SPOT"
        assert machine.scheduling.preemption_notice_duration.seconds == 0
        told = {one.key: one.value for one in machine.metadata.items}
        assert told["cloudspot-notice-seconds"] == "0"
    (warning,) = caplog.messages
    assert warning.startswith(
        "providers.gcp.preemption_notice: launching 1 spot n2-standard-4 in us-central1: "
    )
    assert "launching without it: machines get a notice of 30 seconds at best" in warning


@pytest.mark.full
def test_an_operation_that_fails_for_the_notice_is_followed_by_one_without(kit, caplog):
    message = "Field preemptionNoticeDuration is not supported by n2-standard-4."
    kit.cloud.faults.inject(f"operation {BULK_INSERT}", "UNSUPPORTED_OPERATION", message=message)
    assert len(plaincalls.create(kit.provisioner, kit.request(), token="t")) == 1
    (machine,) = kit.cloud.listed().values()
    assert machine.scheduling.preemption_notice_duration.seconds == 0
    assert message in caplog.text


@pytest.mark.parametrize("right", ["compute.instances.create", "compute.subnetworks.useExternalIp"])
def test_a_right_that_is_missing_is_named(kit, right):
    request = kit.request()
    kit.cloud.faults.denied = {right}
    with pytest.raises(AuthError) as error:
        plaincalls.create(kit.provisioner, request, token="t")
    assert str(error.value) == (
        f"launching 1 spot n2-standard-4 in us-central1: the credentials lack {right}; docs/gcp.md has the role"
    )


def test_a_service_account_that_one_may_not_give_to_machines_is_named(kit):
    request = kit.request()
    kit.cloud.faults.denied = {"iam.serviceAccounts.actAs"}
    with pytest.raises(
        AuthError, match=r"does not have access to service account 'cloudspot-node@.*docs/gcp\.md"
    ):
        plaincalls.create(kit.provisioner, request, token="t")


# --- listing --------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_listing_has_every_page(kit, monkeypatch):
    for launch in range(1, 9):
        kit.launch(launch=launch, token=f"t-{launch}")
    monkeypatch.setattr("cloudspot_gcp.compute.PAGE", 3)
    kit.cloud.faults.calls.clear()
    assert sorted(one.launch for one in kit.listed().values()) == list(range(1, 9))
    assert kit.cloud.faults.count("compute.instances.aggregatedList") == 3


def test_a_machine_with_an_empty_label_is_nobodys_and_spoils_no_list(kit):
    kit.launch(num_nodes=2)
    set_label(kit.cloud, NAMES[0], "cloudspot-job", "")
    assert [kit.host_id(one.id) for one in plaincalls.instances(kit.provisioner)] == [NAMES[1]]


@pytest.mark.parametrize(
    ("reason", "is_listed"),
    [
        (EndReason.RECLAIMED, False),
        (EndReason.SELF, True),
        (EndReason.TERMINATED, False),
        (EndReason.LOST, True),
    ],
)
def test_an_ended_machine_says_why_though_compute_engine_may_not_list_it_any_more(kit, reason, is_listed):
    (instance,) = kit.launch()
    if reason is EndReason.TERMINATED:
        plaincalls.terminate(kit.provisioner, [instance.id])
    else:
        kit.cloud.host.end(NAMES[0], reason)
    assert (NAMES[0] in kit.cloud.listed()) is is_listed
    found = kit.listed()[instance.id]
    assert (found.state, found.end_reason) == (InstanceState.ENDED, reason)
    assert (found.job_id, found.launch, found.rank, found.zone) == ("digits-1", 1, 0, IN_A)
    assert found.store_url == STORE
    assert plaincalls.instances(kit.provisioner)[0].id == instance.id


def test_another_controller_knows_of_a_machine_that_is_gone_all_but_its_store(kit):
    (instance,) = kit.launch()
    kit.cloud.host.end(NAMES[0], EndReason.RECLAIMED)
    (found,) = plaincalls.instances(kit.cloud.provider().provisioner(), job_id="digits-1")
    assert (found.id, found.end_reason, found.store_url) == (instance.id, EndReason.RECLAIMED, "")


@pytest.mark.full
def test_a_machine_that_is_taken_and_then_deleted_was_reclaimed(kit):
    (instance,) = kit.launch()
    kit.cloud.host.end(NAMES[0], EndReason.RECLAIMED, shutting_down=True)
    found = kit.listed()[instance.id]
    assert (found.state, found.end_reason) == (InstanceState.SHUTTING_DOWN, EndReason.RECLAIMED)
    plaincalls.terminate(kit.provisioner, [instance.id])
    found = kit.listed()[instance.id]
    assert (found.state, found.end_reason) == (InstanceState.ENDED, EndReason.RECLAIMED)


@pytest.mark.full
def test_an_ended_machine_is_remembered_for_two_weeks_with_its_end(kit):
    (instance,) = kit.launch()
    kit.cloud.now += 100
    plaincalls.terminate(kit.provisioner, [instance.id])
    found = kit.listed()[instance.id]
    assert found.ended_at.timestamp() == kit.cloud.now
    kit.cloud.now += 14 * 86400 - 1
    assert instance.id in kit.listed()
    kit.cloud.now += 2
    assert kit.listed() == {}


def test_a_listed_machine_says_when_it_was_launched(kit):
    kit.launch()
    (found,) = kit.listed().values()
    assert found.launched_at.timestamp() == kit.cloud.now
    assert (found.instance_type, found.market) == ("n2-standard-4", Market.SPOT)


def test_a_listing_without_the_memory_of_what_ended_tells_nothing_either(kit):
    kit.cloud.faults.inject("compute.globalOperations.aggregatedList", "backendError", status=503, times=4)
    with pytest.raises(TransientError, match="listing what became of the machines"):
        kit.listed()


@pytest.mark.parametrize("zone", [IN_A, "us-central1-f"])
def test_a_listing_that_lacks_one_of_the_jobs_zones_tells_nothing(kit, zone):
    """It is a good answer, with a warning in place of the zone: the machines in it seem to be gone."""
    kit.launch()
    kit.cloud.compute.unreachable.add(zone)
    with pytest.raises(
        TransientError, match=f"listing the machines: {zone} cannot be reached, so the list is not complete"
    ):
        kit.listed()
    with pytest.raises(TransientError, match="cannot be reached"):
        kit.provisioner.release("digits-1", store_url=STORE)
    kit.cloud.compute.unreachable.clear()
    assert len(kit.listed()) == 1


def test_a_zone_in_which_the_job_can_have_no_machine_keeps_nobody_from_listing(kit):
    (instance,) = kit.launch()
    kit.cloud.compute.unreachable.add("us-east1-b")
    assert list(kit.listed()) == [instance.id]


@pytest.mark.full
def test_the_machines_end_after_their_time_without_anybodys_doing(kit):
    (instance,) = kit.launch()
    kit.cloud.now += 3600 + 599
    assert kit.listed()[instance.id].state is InstanceState.RUNNING
    kit.cloud.now += 1
    assert kit.listed()[instance.id].state is InstanceState.ENDED
    assert kit.cloud.alive == []


# --- announce, terminate, release -----------------------------------------------------------------


def test_machines_know_from_their_request_what_would_be_announced(kit):
    made = kit.launch(num_nodes=2)
    kit.cloud.faults.calls.clear()
    kit.provisioner.announce(made, {"MASTER_ADDR": made[0].address, "NUM_NODES": "2"})
    assert "compute.instances.setMetadata" not in kit.cloud.faults.actions()
    assert kit.cloud.host.tags[NAMES[1]]["MASTER_ADDR"] == NAMES[0]


def test_machines_of_a_smaller_launch_are_told_how_many_they_are(kit):
    kit.cloud.faults.capacity["*", "*", "*"] = 2
    made = kit.launch(num_nodes=3, min_nodes=2)
    for _ in range(2):
        kit.provisioner.announce(made, {"MASTER_ADDR": made[0].address, "NUM_NODES": "2"})
    assert [kit.cloud.host.tags[name]["NUM_NODES"] for name in NAMES[:2]] == ["2", "2"]
    assert kit.cloud.host.tags[NAMES[0]]["startup-script"] == SCRIPT
    assert kit.cloud.faults.count("compute.instances.setMetadata") == 2


@pytest.mark.full
def test_where_the_first_machine_is_missing_another_address_is_told(kit):
    kit.launch(num_nodes=2)
    (_, second) = kit.listed().values()
    kit.provisioner.announce([second], {"MASTER_ADDR": second.address, "NUM_NODES": "1"})
    assert kit.cloud.host.tags[NAMES[1]]["MASTER_ADDR"] == second.address
    assert kit.cloud.host.tags[NAMES[0]]["MASTER_ADDR"] == NAMES[0]


@pytest.mark.full
def test_where_a_generation_meets_elsewhere_all_its_machines_are_told(kit):
    """Its first node is of another launch than the second, whose request names its own launch's first."""
    kit.launch(num_nodes=2)
    kit.launch(launch=2, token="token-2")
    second, newcomer = list(kit.listed().values())[1:]
    assert (second.launch, second.rank, newcomer.launch) == (1, 1, 2)
    facts = {"MASTER_ADDR": second.address, "MASTER_PORT": "41000", "NUM_NODES": "2"}
    for _ in range(2):
        kit.provisioner.announce([second, newcomer], facts)
    told = list(kit.cloud.host.tags.values())
    assert [{name: one[name] for name in facts} for one in told[1:]] == [facts] * 2
    assert told[0]["MASTER_PORT"] == "29500"
    assert kit.cloud.faults.count("compute.instances.setMetadata") == 2


def test_attributes_that_somebody_else_has_just_changed_are_not_overwritten(kit):
    made = kit.launch(num_nodes=2)
    kit.cloud.faults.inject("compute.instances.setMetadata", "conditionNotMet", status=412)
    with pytest.raises(TransientError, match="conditionNotMet"):
        kit.provisioner.announce(made, {"NUM_NODES": "1"})


def test_a_machine_that_something_else_is_done_to_is_terminated_later(kit):
    (instance,) = kit.launch()
    kit.cloud.faults.inject("compute.instances.delete", "resourceNotReady", status=400)
    with pytest.raises(TransientError, match="deleting machines: injected"):
        plaincalls.terminate(kit.provisioner, [instance.id])


def test_one_machine_that_cannot_be_terminated_does_not_keep_the_others(kit):
    made = kit.launch(num_nodes=2)
    kit.cloud.faults.inject("compute.instances.delete", "forbidden", status=403)
    request = TerminateRequest(instance_ids=tuple(one.id for one in made))
    (refused,) = kit.provisioner.terminate(request).refused
    assert refused.instance_id == made[0].id
    assert refused.reason.startswith("deleting machines: access denied")
    assert kit.cloud.alive == NAMES[:1]


@pytest.mark.full
def test_stopped_machines_go_with_the_job_and_those_of_another_store_stay(kit):
    """One that shuts itself down stays, stopped, with its disk."""
    kit.launch()
    (other,) = kit.launch(store_url="gs://bucket/another", token="t-2")
    for name in list(kit.cloud.host.machines):
        kit.cloud.host.end(name, EndReason.SELF)
    assert len(kit.cloud.listed()) == 2
    for _ in range(2):
        kit.provisioner.release("digits-1", store_url=STORE)
    assert list(kit.cloud.listed()) == [other.id.split("/")[1]]
    found = kit.listed()[f"{IN_A}/{NAMES[0]}/{FIRST_NUMBER}"]
    assert (found.state, found.end_reason) == (InstanceState.ENDED, EndReason.SELF)


def test_a_machine_that_runs_is_not_released(kit):
    kit.launch()
    kit.provisioner.release("digits-1", store_url=STORE)
    assert kit.cloud.alive == [NAMES[0]]


@pytest.mark.full
def test_a_placement_policy_is_made_used_and_removed_with_the_job(cloud):
    kit = Kit(cloud, placement_policy="auto")
    made = kit.launch(num_nodes=2)
    (policy,) = cloud.listed("ResourcePoliciesClient").values()
    assert policy.name == "cs-digits-1-60e73611"
    assert policy.group_placement_policy.collocation == "COLLOCATED"
    for machine in cloud.listed().values():
        assert [one.rpartition("/")[2] for one in machine.resource_policies] == [policy.name]
        assert machine.scheduling.on_host_maintenance == "TERMINATE"
    with pytest.raises(TransientError, match="is already being used by"):
        kit.provisioner.release("digits-1", store_url=STORE)
    plaincalls.terminate(kit.provisioner, [one.id for one in made])
    kit.provisioner.release("digits-1", store_url="gs://bucket/another")
    assert list(cloud.listed("ResourcePoliciesClient")) == [policy.name]
    for _ in range(2):
        kit.provisioner.release("digits-1", store_url=STORE)
    assert cloud.listed("ResourcePoliciesClient") == {}


@pytest.mark.full
def test_a_node_that_is_replaced_alone_is_placed_by_the_policy_of_its_job(cloud):
    kit = Kit(cloud, placement_policy="auto")
    kit.launch(num_nodes=2)
    kit.launch(num_nodes=1, job_nodes=2, launch=2, token="token-2")
    (policy,) = cloud.listed("ResourcePoliciesClient").values()
    placed = [list(one.resource_policies) for one in cloud.listed("InstancesClient").values()]
    assert placed == [[policy.self_link]] * 3


@pytest.mark.full
def test_a_placement_policy_of_the_job_is_used_again_and_another_stores_job_has_its_own(cloud):
    kit = Kit(cloud, placement_policy="auto")
    kit.launch(num_nodes=2)
    kit.launch(num_nodes=2, launch=2, token="token-2")
    assert len(cloud.listed("ResourcePoliciesClient")) == 1
    kit.launch(num_nodes=2, token="token-3", store_url="gs://bucket/another")
    assert len(cloud.listed("ResourcePoliciesClient")) == 2


def test_a_job_of_one_node_needs_no_placement_policy(cloud):
    Kit(cloud, placement_policy="auto").launch()
    assert cloud.faults.count("compute.resourcePolicies.insert") == 0


@pytest.mark.full
def test_a_placement_policy_of_ones_own_is_used_and_stays(cloud):
    cloud.client("ResourcePoliciesClient").insert_unary(
        project="my-project-123",
        region="us-central1",
        resource_policy_resource={"name": "mine", "group_placement_policy": {"collocation": "COLLOCATED"}},
    )
    kit = Kit(cloud, placement_policy="mine")
    plaincalls.terminate(kit.provisioner, [one.id for one in kit.launch()])
    kit.provisioner.release("digits-1")
    assert list(cloud.listed("ResourcePoliciesClient")) == ["mine"]


def test_a_policy_that_cannot_be_made_is_told_before_any_machine_is_asked_for(cloud):
    kit = Kit(cloud, placement_policy="auto")
    request = kit.request(num_nodes=2)
    cloud.faults.inject("compute.resourcePolicies.insert", "quotaExceeded", status=403)
    with pytest.raises(QuotaError, match="making placement policy cs-digits-1-60e73611"):
        plaincalls.create(kit.provisioner, request, token="t")
    assert cloud.faults.count(BULK_INSERT) == 0
