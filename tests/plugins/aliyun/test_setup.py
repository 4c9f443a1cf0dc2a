"""``cloudspot setup aliyun`` on an emulated account that has only an administrator, a user and a group."""

from __future__ import annotations

import json
import shlex

import pytest
from support.clouds.aliyun_command_line import run_command
from support.clouds.setuptests import SetUpAccount, SetupTests, bare

from cloudspot.calls import SetupRequest
from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.model import Resources
from cloudspot.registry import open_store
from cloudspot.testing import plaincalls
from cloudspot_aliyun import permissions
from cloudspot_aliyun.api import ask
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.ossbucket import bucket_client
from cloudspot_aliyun.provider import AliyunProvider
from cloudspot_aliyun_sandbox.account import ACCOUNT_ID
from cloudspot_aliyun_sandbox.cloud import REGION, EmulatedAliyun
from cloudspot_aliyun_sandbox.ossbuckets import HeldBucket

pytestmark = pytest.mark.full

BUCKET = f"cloudspot-{ACCOUNT_ID}-{REGION}"
ALL = {"Version": "1", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


class AliyunAccount(SetUpAccount):
    provider = "aliyun"
    request = SetupRequest(grant_to=("user/ada", "group/ml"))

    def __init__(self, cloud):
        self.cloud = cloud
        self._clients = None

    @property
    def ram(self):
        return self.cloud._ecs.account.ram

    @property
    def place(self):
        return self.cloud._ecs.account.place(REGION)

    def provider_with(self, **options):
        found = AliyunProvider(AliyunOptions(**options))
        found._clients = self._clients = self._clients or found.clients
        return found

    def setup(self):
        return self.provider_with().account_setup()

    def ask(self, action, product, parameters):
        return ask(self._clients, action, parameters, product=product)

    def empty(self):
        self.cloud._ecs.account.roles.clear()
        self.ram.policies.clear()
        self.ram.users, self.ram.groups = {"ada"}, {"ml": set()}
        self.place.remove_network()
        self.cloud.oss.buckets.clear()
        self.cloud.oss.foreign_buckets.clear()
        self.cloud.faults.denied.clear()

    def contents(self):
        return {
            "roles": dict(self.cloud._ecs.account.roles),
            "policies": {
                name: (json.loads(one.versions[-1]), set(one.roles), set(one.users), set(one.groups))
                for name, one in self.ram.policies.items()
            },
            "groups": sorted((one.vpc, str(one.tags)) for one in self.place.groups.values()),
            "buckets": {
                name: (one.region, one.acl, one.encryption, b"AbortMultipartUpload" in one.lifecycle)
                for name, one in self.cloud.oss.buckets.items()
            },
        }


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    cloud = EmulatedAliyun()
    with bare(cloud, tmp_path_factory.mktemp("cloud")):
        yield AliyunAccount(cloud)


@pytest.fixture
def account(emulated, tmp_path, monkeypatch):
    emulated.begin(tmp_path / "state", monkeypatch)
    return emulated


class TestSetup(SetupTests):
    pass


def test_the_printed_commands_make_what_the_setup_makes(account):
    account.make()
    whole = account.contents()
    account.begin_anew()
    vpc = ""
    for part in account.setup().parts(account.request):
        if part.kind == "bucket":
            part.make()  # its command line is another
            continue
        for line in part.commands:
            program, *words = shlex.split(line, comments=True)
            assert program == "aliyun"
            answer = run_command(account.ask, [vpc if one == "VPC" else one for one in words], region=REGION)
            vpc = answer.get("VpcId", vpc)
    assert account.contents() == whole
    assert {*account.plans().values()} == {"adopt"}


def test_a_job_finds_the_network_by_itself(account):
    account.make()
    offers = plaincalls.offers(account.provider_with().provisioner(), Resources())
    assert {one.zone for one in offers} == set(account.place.zones)


def test_with_a_vswitch_of_whomever_s_no_vpc_is_made(account):
    account.place.add_vswitch(f"{REGION}-i", "172.16.0.0/24", vpc="vpc-theirs")
    assert account.plans()[f"network default VPC in {REGION}"] == "adopt"


def test_a_bucket_of_the_expected_name_that_a_stranger_has_is_refused(account):
    account.cloud.oss.buckets[BUCKET] = HeldBucket(BUCKET, REGION, account.cloud.oss._now(), owner="9")
    assert account.refusals()["bucket"] == ("it belongs to another account",)
    account.cloud.oss.foreign_buckets.add(BUCKET)
    assert account.refusals()["bucket"] == (
        "it belongs to another account, or you may not look at it: choose another with --store",
    )


def test_a_bucket_that_others_can_read_or_that_has_versions_is_refused(account):
    account.make()
    account.record().path.unlink()
    held = account.cloud.oss.buckets[BUCKET]
    held.acl, held.versioning = "public-read", "Enabled"
    statement = {"Effect": "Allow", "Action": "oss:GetObject", "Resource": "*", "Principal": ["9"]}
    bucket_client(account._clients, BUCKET).put_bucket_policy(
        json.dumps({"Version": "1", "Statement": [statement]})
    )
    access, versions, policy = account.refusals()["bucket"]
    assert access == "its access list is public-read"
    assert versions.startswith("it has versions")
    assert policy.startswith("it allows oss:GetObject on *")


def test_a_policy_and_a_role_that_allow_more_are_refused_and_a_policy_that_allows_less_is_adopted(account):
    account.make()
    account.record().path.unlink()
    node, policies = permissions.policy("node", bucket=BUCKET), account.ram.policies
    policies["cloudspot-node"].versions = [json.dumps(ALL)]
    assert account.refusals()["policy"] == ("it allows * on *",)
    policies["cloudspot-node"].versions = [json.dumps({**node, "Statement": node["Statement"][:1]})]
    found = next(one for one in account.look() if one.part.name == "cloudspot-node")
    assert found.plan.value == "adopt"
    assert f"it does not allow oss:PutObject on acs:oss:*:*:{BUCKET}/*" in found.state.lacks
    policies["cloudspot-reap"].roles.add("cloudspot-node")
    assert account.refusals()["role"] == ("it has the policy cloudspot-reap",)
    account.cloud._ecs.account.roles["cloudspot-node"] = "fc.aliyuncs.com"
    assert "it allows sts:AssumeRole on * to Service fc.aliyuncs.com" in account.refusals()["role"]


def test_what_was_changed_of_its_own_is_mended(account):
    account.make()
    whole = account.contents()
    account.ram.policies["cloudspot-reap"].versions = [json.dumps(ALL)] * 5
    account.cloud.oss.buckets[BUCKET].lifecycle = b""
    assert {one.name for one in account.make()} == {"cloudspot-reap", BUCKET}
    assert account.contents() == whole


def test_a_group_that_lets_others_in_is_refused(account):
    account.make()
    (group,) = account.place.groups.values()
    group.rules.append({"IpProtocol": "TCP", "PortRange": "22/22", "SourceCidrIp": "0.0.0.0/0"})
    assert account.refusals()["security group"] == ("it lets in 0.0.0.0/0 at TCP 22/22",)


def test_a_bucket_with_a_job_is_not_removed_and_nothing_else_is(account):
    account.make()
    whole = account.contents()
    store = open_store(f"oss://{BUCKET}")
    store.put("index/digits-1", b"x")
    with pytest.raises(CloudspotError, match="holds the job digits-1"):
        account.remove()
    assert account.contents() == whole


@pytest.mark.parametrize(
    ("whom", "said"),
    [
        ("root", "cloudspot never gives permissions to a root account"),
        (f"acs:ram::{ACCOUNT_ID}:root", "cloudspot never gives permissions to a root account"),
        ("acs:ram::99:user/ada", f"not in account {ACCOUNT_ID}"),
        ("ada", "write user/NAME, group/NAME or role/NAME"),
        ("user/bob", f"account {ACCOUNT_ID} has no such user"),
    ],
)
def test_rights_are_given_to_nobody_who_cannot_have_them(account, whom, said):
    with pytest.raises(SpecError, match=said):
        account.setup().parts(SetupRequest(grant_to=(whom,)))


def test_a_user_may_do_what_was_granted_and_nothing_else(account, monkeypatch):
    account.make()
    key = account.ask("CreateAccessKey", "Ram", {"UserName": "ada"})["AccessKey"]
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", key["AccessKeySecret"])
    hers = AliyunProvider(AliyunOptions(region=REGION))
    assert all(one.ok for one in plaincalls.check(hers))
    store = open_store(f"oss://{BUCKET}")
    store.put("x", b"1")
    assert store.get("x") == b"1"
    store.delete("x")
    with pytest.raises(AuthError, match=r"making policy cloudspot-node: .* run this as an administrator"):
        list(hers.account_setup().parts(SetupRequest()))[1].make()


def test_each_statement_of_each_policy_has_its_reason():
    for path in permissions.DIRECTORY.glob("policy-*.json"):
        assert permissions.reasons(json.loads(path.read_text())), path.name
