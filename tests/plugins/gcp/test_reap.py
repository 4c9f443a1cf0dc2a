"""``cloudspot reap`` on the whole emulated Google Cloud, over HTTP with the real SDK."""

import pytest
from support.clouds.reaptests import LIVE, OVER, REMOVED, STRANGE_OBJECT, Reaping, add_jobs
from support.worlds.listed_host import ListedHost

from cloudspot.controller import account_orphans
from cloudspot.jobstore.layout import keys
from cloudspot.model import EndReason, InstanceGroup, Market, Resources
from cloudspot.plugin.machinetags import JOB, STORE, store_digest
from cloudspot.registry import open_store
from cloudspot.testing import plaincalls
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp.request import policy_name
from cloudspot_gcp_sandbox.cloud import BUCKET, REGION, EmulatedGcp
from cloudspot_gcp_sandbox.strict_compute import PROJECT

pytestmark = pytest.mark.full


GONE = "gs://a-bucket-that-is-gone"
ZONE = f"{REGION}-a"


class Account:
    """The emulated project, and what is planted in it."""

    def __init__(self, host, store):
        self.host = host
        self.store = store
        self.clients = GcpClients(project=PROJECT)
        self.provisioner = GcpProvider(GcpOptions(machine_types=("n2-standard-2",))).provisioner()

    def ask(self, kind, method, **request):
        return self.clients.call(kind, method, {"project": PROJECT, **request})

    def machine(self, job_id, store_url=None, *, market=Market.ON_DEMAND, launch=1):
        """Launch a machine as cloudspot does, and return its id."""
        group = InstanceGroup(
            job_id=job_id, launch=launch, num_nodes=1, min_nodes=1, job_nodes=1,
            offer=next(one for one in plaincalls.offers(self.provisioner, Resources()) if one.market is market),
            resources=Resources(), user_data="#!/bin/sh\n", max_seconds=3600.0,
            store_url=store_url or self.store.url,
        )  # fmt: skip
        request = self.provisioner.render(group)
        (made,) = plaincalls.create(self.provisioner, request, token=f"{job_id}{store_url}{launch}")
        return made.id

    def disk(self, name, **labels):
        from google.cloud import compute_v1

        resource = compute_v1.Disk(name=name, size_gb=100, labels=labels)
        self.ask("DisksClient", "insert_unary", zone=ZONE, disk_resource=resource)
        return name

    def policy(self, name, description):
        resource = {
            "name": name, "description": description,
            "group_placement_policy": {"collocation": "COLLOCATED"},
        }  # fmt: skip
        self.ask("ResourcePoliciesClient", "insert_unary", region=REGION, resource_policy_resource=resource)
        return name

    def policy_of(self, job_id, store_url=None):
        return self.policy(policy_name(job_id, store_url or self.store.url), f"cloudspot: job {job_id}")

    def everything(self):
        """Return the ids of all that the project has, whoever's it is."""
        found = []
        for kind, field in (
            ("InstancesClient", "instances"),
            ("DisksClient", "disks"),
            ("ResourcePoliciesClient", "resource_policies"),
        ):
            for _, scope in self.ask(kind, "aggregated_list"):
                for one in getattr(scope, field):
                    if field == "instances":
                        found.append("/".join((one.zone.rpartition("/")[2], one.name, str(one.id))))
                    elif field != "disks" or not one.users:
                        found.append(one.name)
        return sorted([
            *found,
            *(meta.key for meta in self.store.list_objects("agents/")),
            *(meta.key for meta in self.store.list_objects("code/")),
        ])  # fmt: skip


@pytest.fixture
def account(tmp_path, monkeypatch):
    cloud, host = EmulatedGcp(), ListedHost()
    cloud.start(host, address="127.0.0.1", directory=tmp_path)
    try:
        for name, value in cloud.environment().items():
            monkeypatch.setenv(name, value)
        # What is ended waits for nothing here.
        monkeypatch.setattr(account_orphans, "WAITS_SECONDS", (0.0, 0.0))
        store = open_store(f"gs://{BUCKET}/x")
        add_jobs(store, tmp_path, "gcp")
        yield Account(host, store)
    finally:
        cloud.stop()


def plant(account):
    """Plant every kind of orphan; return the ids of those of this store, and of the one that is gone."""
    stopped = account.machine(OVER, launch=2)
    account.host.end(stopped.split("/")[1], EndReason.SELF)
    account.store.put(keys.agent("a" * 64), b"an agent that nobody needs")
    account.store.put(keys.code("c" * 64), b"code that nobody needs")
    own, theirs = store_digest(account.store.url), store_digest(GONE)
    ours = [
        account.machine(OVER),
        account.machine(REMOVED, market=Market.SPOT),
        stopped,
        account.disk("left", **{JOB: OVER, STORE: own}),
        account.policy_of(OVER),
        account.policy_of(REMOVED),
        keys.agent("a" * 64),
        keys.code("c" * 64),
    ]
    gone = [
        account.machine("theirs-1", GONE),
        account.disk("theirs", **{JOB: "theirs-1", STORE: theirs}),
        account.policy_of("theirs-1", GONE),
    ]
    return sorted(ours), sorted(gone)


def plant_strangers(account):
    """Plant a twin of each that is somebody else's, or a live job's; return the ids that the reaper may see."""
    kept = [
        account.machine(LIVE),
        account.disk("mine", **{JOB: LIVE, STORE: store_digest(account.store.url)}),
        account.policy_of(LIVE),
        *(meta.key for meta in account.store.list_objects("code/")),
    ]
    account.disk("cs-over-1-01234567-1-0")
    account.policy(policy_name(OVER, "gs://twin"), "")
    account.policy("nightly", f"cloudspot: job {OVER}")
    account.store.bucket.clients.storage().bucket(BUCKET).blob("agents/" + "d" * 64).upload_from_string(b"x")
    account.store.put(STRANGE_OBJECT, b"a stranger's")
    machine = {
        "name": "cs-over-1-01234567-1-0",
        "machine_type": f"zones/{ZONE}/machineTypes/n2-standard-2",
        "disks": [{
            "boot": True,
            "initialize_params": {"source_image": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"},
        }],
        "network_interfaces": [{"network": "global/networks/default"}],
    }  # fmt: skip
    account.ask("InstancesClient", "insert_unary", zone=f"{REGION}-b", instance_resource=machine)
    return sorted(kept)


def test_every_kind_of_orphan_is_named_and_ended_and_nothing_of_a_strangers_or_a_live_jobs(account):
    kept = plant_strangers(account)
    before = account.everything()
    ours, theirs = plant(account)
    everything = account.everything()
    assert sorted([*before, *ours, *theirs]) == everything
    reaping = Reaping("gcp", account.store)
    # What has only a digest of its store shows to those who know the store.
    shown = [one for one in theirs if one != policy_name("theirs-1", GONE)]
    assert reaping.found() == (ours, shown, kept)
    assert reaping.priced == {"machine", "disk"}
    assert account.everything() == everything

    said = reaping.run("--yes").stdout
    assert all(f" {one}\n" in said for one in ours)
    assert account.everything() == sorted([*before, *theirs])
    assert reaping.found("--gone-store", GONE) == (theirs, [], kept)
    reaping.run("--yes", "--gone-store", GONE)
    assert account.everything() == before
    assert reaping.found("--gone-store", GONE, "--all-regions") == ([], [], kept)
