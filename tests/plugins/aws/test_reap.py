"""``cloudspot reap`` on the whole emulated AWS, over HTTP with the real SDK."""

import contextlib
import hashlib
import io
import json
import zipfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

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
from cloudspot.model import Instance, InstanceGroup, InstanceState, Market, Resources
from cloudspot.plugin.machinetags import JOB, STORE
from cloudspot.registry import open_store
from cloudspot.testing import plaincalls
from cloudspot_aws import functionhost, limit
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider
from cloudspot_aws_sandbox.cloud import BUCKET, LIMIT_ROLE, REGION, EmulatedAws

pytestmark = pytest.mark.full


GONE = "s3://a-bucket-that-is-gone"
ROLE_ARN = f"arn:aws:iam::123456789012:role/{LIMIT_ROLE}"
MACHINE = "i-0123456789abcdef0"
"""One that has ended long ago."""
AT = datetime(2030, 1, 1, tzinfo=timezone.utc)


def tag_list(**tags):
    return [{"Key": name, "Value": value} for name, value in tags.items()]


class Account:
    """The emulated account, and what is planted in it."""

    def __init__(self, cloud, host, store):
        self.cloud = cloud
        self.host = host
        self.store = store
        self.clients = AwsClients(region=REGION)
        self.provider = AwsProvider(AwsOptions(limit_role=ROLE_ARN))
        self.provisioner = self.provider.provisioner()

    def client(self, service):
        return self.clients.client(service)

    def machine(self, job_id, store_url=None, *, market=Market.ON_DEMAND, launch=1):
        """Launch a machine as cloudspot does, with the schedule of its end; return both ids."""
        offers = plaincalls.offers(self.provisioner, Resources(cpus=2, memory_bytes=1 << 30))
        group = InstanceGroup(
            job_id=job_id, launch=launch, num_nodes=1, min_nodes=1, job_nodes=1,
            offer=next(one for one in offers if one.market is market),
            resources=Resources(), user_data="#!/bin/sh\n", max_seconds=3600.0,
            store_url=store_url or self.store.url,
        )  # fmt: skip
        request = self.provisioner.render(group)
        (made,) = plaincalls.create(self.provisioner, request, token=f"{job_id}{store_url}{launch}")
        return made.id, limit.prefix_of(job_id, group.store_url) + made.id

    def group(self, name, **tags):
        specifications = [{"ResourceType": "placement-group", "Tags": tag_list(**tags)}] if tags else []
        self.client("ec2").create_placement_group(
            GroupName=name, Strategy="cluster", TagSpecifications=specifications
        )
        return name

    def volume(self, **tags):
        made = self.client("ec2").create_volume(
            AvailabilityZone=f"{REGION}a", Size=100, VolumeType="gp3",
            TagSpecifications=[{"ResourceType": "volume", "Tags": tag_list(Name="cloudspot", **tags)}],
        )  # fmt: skip
        return made["VolumeId"]

    def schedule(self, job_id):
        """Leave the schedule of a machine that is long gone."""
        machine = Instance(
            id=MACHINE, state=InstanceState.ENDED, job_id=job_id, launch=1, store_url=self.store.url
        )
        limit.keep(self.clients, ROLE_ARN, {machine: AT})
        return limit.prefix_of(job_id, self.store.url) + MACHINE

    def driver(self, name, **tags):
        """Make what `driver deploy` makes; return the ids of its pieces."""
        role, log = f"{name}-{REGION}", f"/aws/lambda/{name}"
        trust = json.dumps({"Statement": [{"Principal": {"Service": "lambda.amazonaws.com"}}]})
        made = self.client("iam").create_role(
            RoleName=role, AssumeRolePolicyDocument=trust, Tags=tag_list(**tags)
        )
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("driving.py", "")
        arn = made["Role"]["Arn"]
        self.cloud._functions._known_roles[arn] = AT - timedelta(days=9999)
        function = self.client("lambda").create_function(
            FunctionName=name, Role=arn, Handler="driving.handle", Runtime="python3.12",
            Code={"ZipFile": code.getvalue()}, Tags=tags,
        )["FunctionArn"]  # fmt: skip
        self.client("events").put_rule(
            Name=name, ScheduleExpression="rate(2 minutes)", State="DISABLED", Tags=tag_list(**tags)
        )
        self.client("events").put_targets(Rule=name, Targets=[{"Id": "driver", "Arn": function}])
        self.client("logs").create_log_group(logGroupName=log, **({"tags": tags} if tags else {}))
        return [name, name, role, log]

    @contextlib.contextmanager
    def as_function(self):
        """Act by the role of a driver, with the two policies that it has."""
        iam = self.client("iam")
        iam.create_role(RoleName="a-function", AssumeRolePolicyDocument="{}")
        for name in ("policy-driver.json", "policy-reap.json"):
            policy = (
                Path(functionhost.__file__)
                .with_name("policies")
                .joinpath(name)
                .read_text()
                .replace("BUCKET", BUCKET)
            )
            iam.put_role_policy(RoleName="a-function", PolicyName=name, PolicyDocument=policy)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.cloud._function_environment("a-function").items():
                patch.setenv(name, value)
            yield

    def upload(self, key):
        begun = self.client("s3").create_multipart_upload(Bucket=BUCKET, Key=key)
        return f"{key.removeprefix('x/')}?{begun['UploadId']}"

    def everything(self):
        """Return the ids of all that the account has, whoever's it is."""
        ec2, iam = self.client("ec2"), self.client("iam")
        machines = [
            one["InstanceId"]
            for reservation in ec2.describe_instances()["Reservations"]
            for one in reservation["Instances"]
            if one["State"]["Name"] != "terminated"
        ]
        uploads = self.client("s3").list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())
        return sorted([
            *machines,
            *(one["VolumeId"] for one in ec2.describe_volumes()["Volumes"] if one["State"] == "available"),
            *(one["GroupName"] for one in ec2.describe_placement_groups()["PlacementGroups"]),
            *(one["Name"] for one in self.client("scheduler").list_schedules()["Schedules"]),
            *(one["FunctionName"] for one in self.client("lambda").list_functions()["Functions"]),
            *(one["Name"] for one in self.client("events").list_rules()["Rules"]),
            *(one["RoleName"] for one in iam.list_roles()["Roles"] if "driver" in one["RoleName"]),
            *(one["logGroupName"] for one in self.client("logs").describe_log_groups()["logGroups"]),
            *(f"{one['Key'].removeprefix('x/')}?{one['UploadId']}" for one in uploads),
            *(meta.key for meta in self.store.list_objects("agents/")),
            *(meta.key for meta in self.store.list_objects("code/")),
        ])  # fmt: skip


@pytest.fixture
def account(tmp_path, monkeypatch):
    cloud, host = EmulatedAws(), ListedHost()
    cloud.start(host, address="127.0.0.1", directory=tmp_path)
    try:
        for name, value in cloud.environment().items():
            monkeypatch.setenv(name, value)
        # What is ended waits for nothing here.
        monkeypatch.setattr(account_orphans, "WAITS_SECONDS", (0.0, 0.0))
        store = open_store(f"s3://{BUCKET}/x")
        add_jobs(store, tmp_path, "aws")
        yield Account(cloud, host, store)
    finally:
        cloud.stop()


def plant(account):
    """Plant every kind of orphan; return the ids of those of this store, and of the one that is gone."""
    own = {JOB: OVER, STORE: account.store.url}
    over, over_limit = account.machine(OVER)
    removed, removed_limit = account.machine(REMOVED, market=Market.SPOT)
    stopped, stopped_limit = account.machine(OVER, launch=2)
    account.client("ec2").stop_instances(InstanceIds=[stopped])
    gone, gone_limit = account.machine("theirs-1", GONE)
    account.store.put(keys.agent("a" * 64), b"an agent that nobody needs")
    account.store.put(keys.code("c" * 64), b"code that nobody needs")
    ours = [
        over, over_limit, removed, removed_limit, stopped, stopped_limit,
        account.volume(**own),
        account.group(f"cloudspot-{OVER}", **own),
        account.schedule(REMOVED),
        account.upload(f"x/{chunk_of(OVER)}"),
        account.upload("x/agents/" + "b" * 64),
        keys.agent("a" * 64),
        keys.code("c" * 64),
    ]  # fmt: skip
    name = f"cloudspot-driver-{hashlib.sha256(GONE.encode()).hexdigest()[:12]}"
    theirs = [gone, gone_limit, account.volume(**{JOB: "theirs-1", STORE: GONE}), *account.driver(name, **{STORE: GONE})]  # fmt: skip
    return sorted(ours), sorted(theirs)


def plant_strangers(account):
    """Plant a twin of each that is somebody else's, or a live job's; return the ids that the reaper may see."""
    live, live_limit = account.machine(LIVE)
    mine = {JOB: LIVE, STORE: account.store.url}
    kept = [
        live, live_limit, account.volume(**mine), account.group("cloudspot-x", **mine),
        account.upload(f"x/{chunk_of(LIVE)}"),
    ]  # fmt: skip
    kept += [meta.key for meta in account.store.list_objects("code/")]
    kept += account.driver(
        f"cloudspot-driver-{hashlib.sha256(account.store.url.encode()).hexdigest()[:12]}",
        **{STORE: account.store.url},
    )
    ec2 = account.client("ec2")
    subnet = ec2.describe_subnets()["Subnets"][0]
    ec2.run_instances(
        ImageId=ec2.describe_images()["Images"][0]["ImageId"], InstanceType="t3.micro", MinCount=1, MaxCount=1,
        NetworkInterfaces=[{"DeviceIndex": 0, "SubnetId": subnet["SubnetId"]}],
        Placement={"AvailabilityZone": subnet["AvailabilityZone"]},
        TagSpecifications=[{"ResourceType": "instance", "Tags": tag_list(Name="cloudspot-job")}],
    )  # fmt: skip
    account.volume()
    account.group(f"cloudspot-{OVER}-twin")
    account.driver("cloudspot-driver-0123456789ab")
    for key in STRANGE_UPLOADS:
        account.upload(key)
    account.store.put(STRANGE_OBJECT, b"a stranger's")
    account.client("s3").put_object(Bucket=BUCKET, Key="agents/" + "d" * 64, Body=b"another prefix")
    target = {"Arn": limit.TARGET, "RoleArn": ROLE_ARN, "Input": json.dumps({"InstanceIds": [live]})}
    for name in ("cloudspot-nightly", f"cloudspot-{'0' * 20}-{MACHINE}"):
        account.client("scheduler").create_schedule(
            Name=name, ScheduleExpression="at(2030-01-01T00:00:00)", ScheduleExpressionTimezone="UTC",
            FlexibleTimeWindow={"Mode": "OFF"}, Target=target, Description=f"ends {MACHINE}",
        )  # fmt: skip
    return sorted(kept)


def test_every_kind_of_orphan_is_named_and_ended_and_nothing_of_a_strangers_or_a_live_jobs(account):
    kept = plant_strangers(account)
    before = account.everything()
    ours, theirs = plant(account)
    everything = account.everything()
    assert sorted([*before, *ours, *theirs]) == everything
    reaping = Reaping("aws", account.store)
    assert reaping.found() == (ours, theirs, kept)
    assert reaping.priced == {"machine", "volume"}
    assert account.everything() == everything

    # What another store has made is left alone, unless the user names that store as gone. This run has the
    # rights of a function that was deployed with --reap.
    with account.as_function():
        reaping.run("--yes")
    assert account.everything() == sorted([*before, *theirs])
    assert reaping.found("--gone-store", GONE) == (theirs, [], kept)
    said = reaping.run("--yes", "--gone-store", GONE)
    assert said.stdout.count("\nended ") == len(theirs)
    assert account.everything() == before
    assert reaping.found("--gone-store", GONE) == ([], [], kept)
    account.client("s3").head_object(Bucket=BUCKET, Key="agents/" + "d" * 64)
    titles = [one.title for one in account.provider.inventories(all_regions=True)]
    assert {"machines in us-east-1", "drivers in eu-central-1", "volumes in ap-south-1"} <= set(titles)
    assert len(titles) == 5 * len(ec2_regions(account))


def ec2_regions(account):
    return account.client("ec2").describe_regions()["Regions"]
