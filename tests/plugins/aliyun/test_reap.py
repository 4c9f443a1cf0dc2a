"""``cloudspot reap`` on the whole emulated Alibaba Cloud, over HTTP with the real SDK."""

import oss2
import pytest
from support.clouds.reaptests import (
    LIVE,
    OVER,
    REMOVED,
    STRANGE_OBJECT,
    STRANGE_UPLOADS,
    Reaping,
    add_jobs,
    chunk_of,
)
from support.worlds.listed_host import ListedHost

from cloudspot.controller import account_orphans
from cloudspot.jobstore.layout import keys
from cloudspot.model import InstanceGroup, Market, Resources
from cloudspot.plugin.machinetags import JOB, STORE
from cloudspot.registry import open_store
from cloudspot.testing import plaincalls
from cloudspot_aliyun import deploymentsets
from cloudspot_aliyun.api import ask, items
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.provider import AliyunProvider
from cloudspot_aliyun.request import deployment_set_name
from cloudspot_aliyun_sandbox.cloud import BUCKET, REGION, EmulatedAliyun

pytestmark = pytest.mark.full


GONE = "oss://a-bucket-that-is-gone"


def tag_list(**tags):
    return [{"Key": name, "Value": value} for name, value in tags.items()]


class Account:
    """The emulated account, and what is planted in it."""

    def __init__(self, store):
        self.store = store
        self.clients = AliyunClients(region=REGION)
        self.provisioner = AliyunProvider(AliyunOptions()).provisioner()

    def ask(self, action, **parameters):
        return ask(self.clients, action, parameters)

    def machine(self, job_id, store_url=None, *, market=Market.ON_DEMAND, launch=1):
        """Launch a machine as cloudspot does, and return its id."""
        offers = plaincalls.offers(self.provisioner, Resources(cpus=2, memory_bytes=1 << 30))
        group = InstanceGroup(
            job_id=job_id, launch=launch, num_nodes=1, min_nodes=1, job_nodes=1,
            offer=next(one for one in offers if one.market is market),
            resources=Resources(), user_data="#!/bin/sh\n", max_seconds=3600.0,
            store_url=store_url or self.store.url,
        )  # fmt: skip
        request = self.provisioner.render(group)
        (made,) = plaincalls.create(self.provisioner, request, token=f"{job_id}{store_url}{launch}")
        return made.id

    def disk(self, **tags):
        made = self.ask(
            "CreateDisk", ZoneId=f"{REGION}-h", Size=100, DiskCategory="cloud_essd", Tag=tag_list(**tags)
        )
        return made["DiskId"]

    def set_of(self, job_id, store_url=None):
        name = deployment_set_name(job_id, store_url or self.store.url)
        return deploymentsets.make(self.clients, name, region=REGION)

    def upload(self, key):
        begun = self.store.bucket.connect().init_multipart_upload(key)
        return f"{key.removeprefix('x/')}?{begun.upload_id}"

    def everything(self):
        """Return the ids of all that the account has, whoever's it is."""
        uploads = oss2.MultipartUploadIterator(self.store.bucket.connect())
        sets = self.ask("DescribeDeploymentSets", PageSize=50)
        disks = self.ask("DescribeDisks", Status="Available")
        return sorted([
            *(one["InstanceId"] for one in items(self.ask("DescribeInstances", PageSize=100), "Instances", "Instance")),
            *(one["DiskId"] for one in items(disks, "Disks", "Disk")),
            *(one["DeploymentSetId"] for one in items(sets, "DeploymentSets", "DeploymentSet")),
            *(f"{one.key.removeprefix('x/')}?{one.upload_id}" for one in uploads),
            *(meta.key for meta in self.store.list_objects("agents/")),
            *(meta.key for meta in self.store.list_objects("code/")),
        ])  # fmt: skip


@pytest.fixture
def account(tmp_path, monkeypatch):
    cloud = EmulatedAliyun()
    cloud.start(ListedHost(), address="127.0.0.1", directory=tmp_path)
    try:
        for name, value in cloud.environment().items():
            monkeypatch.setenv(name, value)
        # What is ended waits for nothing here.
        monkeypatch.setattr(account_orphans, "WAITS_SECONDS", (0.0, 0.0))
        store = open_store(f"oss://{BUCKET}/x")
        add_jobs(store, tmp_path, "aliyun")
        yield Account(store)
    finally:
        cloud.stop()


def plant(account):
    """Plant every kind of orphan; return the ids of those of this store, and of the one that is gone."""
    stopped = account.machine(OVER, launch=2)
    account.ask("StopInstance", InstanceId=stopped)
    account.store.put(keys.agent("a" * 64), b"an agent that nobody needs")
    account.store.put(keys.code("c" * 64), b"code that nobody needs")
    ours = [
        account.machine(OVER),
        account.machine(REMOVED, market=Market.SPOT),
        stopped,
        account.disk(**{JOB: OVER, STORE: account.store.url}),
        account.set_of(OVER),
        account.upload(f"x/{chunk_of(OVER)}"),
        account.upload("x/agents/" + "b" * 64),
        keys.agent("a" * 64),
        keys.code("c" * 64),
    ]
    gone = account.machine("theirs-1", GONE)
    return sorted(ours), sorted([gone, account.disk(**{JOB: "theirs-1", STORE: GONE})])


def plant_strangers(account):
    """Plant a twin of each that is somebody else's, or a live job's; return the ids that the reaper may see."""
    kept = [
        account.machine(LIVE),
        account.disk(**{JOB: LIVE, STORE: account.store.url}),
        account.set_of(LIVE),
        account.upload(f"x/{chunk_of(LIVE)}"),
        *(meta.key for meta in account.store.list_objects("code/")),
    ]
    account.disk(Name="cloudspot-job")
    for name in (f"cloudspot-{OVER}", f"cloudspot-{OVER}-01234567", "nightly"):
        account.ask("CreateDeploymentSet", DeploymentSetName=name, ClientToken=name)
    for key in STRANGE_UPLOADS:
        account.upload(key)
    account.store.put(STRANGE_OBJECT, b"a stranger's")
    account.store.bucket.connect().put_object("agents/" + "d" * 64, b"another prefix")
    switch = items(
        ask(account.clients, "DescribeVSwitches", {"PageSize": 50}, product="Vpc"), "VSwitches", "VSwitch"
    )[0]
    group = items(account.ask("DescribeSecurityGroups"), "SecurityGroups", "SecurityGroup")[0]
    account.ask(
        "RunInstances", ImageId=account.ask("DescribeImages")["Images"]["Image"][0]["ImageId"],
        InstanceType="ecs.c7.large", VSwitchId=switch["VSwitchId"],
        SecurityGroupId=group["SecurityGroupId"], InstanceName="cloudspot-over-1", Tag=tag_list(Name="cloudspot"),
    )  # fmt: skip
    return sorted(kept)


def test_every_kind_of_orphan_is_named_and_ended_and_nothing_of_a_strangers_or_a_live_jobs(account):
    kept = plant_strangers(account)
    before = account.everything()
    ours, theirs = plant(account)
    gone_set = account.set_of("theirs-1", GONE)  # which shows only to those who know its store
    everything = account.everything()
    assert sorted([*before, *ours, *theirs, gone_set]) == everything
    reaping = Reaping("aliyun", account.store)
    assert reaping.found() == (ours, theirs, kept)
    assert reaping.priced == {"machine"}
    assert account.everything() == everything

    shown = reaping.run("--yes").stdout
    assert all(f" {one}\n" in shown for one in ours)
    assert account.everything() == sorted([*before, *theirs, gone_set])
    assert reaping.found("--gone-store", GONE) == (sorted([*theirs, gone_set]), [], kept)
    reaping.run("--yes", "--gone-store", GONE)
    assert account.everything() == before
    assert reaping.found("--gone-store", GONE, "--all-regions") == ([], [], kept)
