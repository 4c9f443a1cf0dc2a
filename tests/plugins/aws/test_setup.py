"""``cloudspot setup aws`` on an emulated account that has only an administrator and a user."""

from __future__ import annotations

import json
import shlex

import boto3
import pytest
from moto.budgets.models import budgets_backends
from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends
from support.clouds.aws_command_line import run_command
from support.clouds.setuptests import SetUpAccount, SetupTests, bare

from cloudspot.calls import SetupRequest
from cloudspot.cli.account.record import INTENDED
from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.registry import open_store
from cloudspot_aws import permissions
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider
from cloudspot_aws_sandbox.cloud import EmulatedAws

pytestmark = pytest.mark.full

ACCOUNT = DEFAULT_ACCOUNT_ID
BUCKET = f"cloudspot-{ACCOUNT}-us-east-1"


class AwsAccount(SetUpAccount):
    provider = "aws"
    request = SetupRequest(grant_to=("user/ada", "group/ml"), monthly_limit=50.0, warn="ada@example.com")

    def __init__(self, cloud):
        self.cloud = cloud
        self._clients = None
        self.session = boto3.session.Session()
        self.empty()

    def provider_with(self, **options):
        found = AwsProvider(AwsOptions(**options))
        found._clients = self._clients = self._clients or found.clients
        return found

    def forget_clients(self):
        self._clients = None
        self.session = boto3.session.Session()

    def setup(self):
        return self.provider_with().account_setup()

    def client(self, service):
        return self.session.client(service)

    def empty(self):
        from moto.ec2.models import ec2_backends  # it reads its tables for a second

        for backends in (budgets_backends, iam_backends, s3_backends):
            backends[ACCOUNT].reset()
        ec2_backends[ACCOUNT]["us-east-1"].reset()
        self.cloud.s3.foreign_buckets.clear()
        self.cloud.faults.denied.clear()
        iam = self.client("iam")
        iam.create_user(UserName="ada")
        iam.create_group(GroupName="ml")

    def contents(self):
        iam, s3, ec2 = (self.client(one) for one in ("iam", "s3", "ec2"))
        roles = [one["RoleName"] for one in iam.list_roles()["Roles"]]
        policies = {one["PolicyName"]: one for one in iam.list_policies(Scope="Local")["Policies"]}
        profiles = iam.list_instance_profiles()["InstanceProfiles"]
        buckets = [one["Name"] for one in s3.list_buckets()["Buckets"]]
        budgets = self.client("budgets").describe_budgets(AccountId=ACCOUNT)["Budgets"]
        return {
            "roles": {
                name: (
                    iam.get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"],
                    [
                        iam.get_role_policy(RoleName=name, PolicyName=one)["PolicyDocument"]
                        for one in iam.list_role_policies(RoleName=name)["PolicyNames"]
                    ],
                    iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"],
                )
                for name in roles
            },
            "policies": {
                name: iam.get_policy_version(PolicyArn=one["Arn"], VersionId=one["DefaultVersionId"])[
                    "PolicyVersion"
                ]["Document"]
                for name, one in policies.items()
            },
            "profiles": {
                one["InstanceProfileName"]: [role["RoleName"] for role in one["Roles"]] for one in profiles
            },
            "granted": {
                "ada": iam.list_attached_user_policies(UserName="ada")["AttachedPolicies"],
                "ml": iam.list_attached_group_policies(GroupName="ml")["AttachedPolicies"],
            },
            "buckets": {
                name: (
                    s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"],
                    s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"],
                    s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"],
                )
                for name in buckets
            },
            "groups": {
                one["GroupName"]: [
                    (rule["FromPort"], rule["ToPort"], len(rule["UserIdGroupPairs"]), rule["IpRanges"])
                    for rule in one["IpPermissions"]
                    if "FromPort" in rule
                ]
                for one in ec2.describe_security_groups()["SecurityGroups"]
            },
            "networks": len(ec2.describe_vpcs()["Vpcs"]),
            "subnets": len(ec2.describe_subnets()["Subnets"]),
            "budgets": {one["BudgetName"]: one["BudgetLimit"]["Amount"] for one in budgets},
        }

    def lose_the_default_network(self):
        ec2 = self.client("ec2")
        (vpc,) = ec2.describe_vpcs()["Vpcs"]
        for one in ec2.describe_subnets()["Subnets"]:
            ec2.delete_subnet(SubnetId=one["SubnetId"])
        for one in ec2.describe_internet_gateways()["InternetGateways"]:
            ec2.detach_internet_gateway(InternetGatewayId=one["InternetGatewayId"], VpcId=vpc["VpcId"])
            ec2.delete_internet_gateway(InternetGatewayId=one["InternetGatewayId"])
        ec2.delete_vpc(VpcId=vpc["VpcId"])


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    cloud = EmulatedAws()
    with bare(cloud, tmp_path_factory.mktemp("cloud")):
        yield AwsAccount(cloud)


@pytest.fixture
def account(emulated, tmp_path, monkeypatch):
    emulated.begin(tmp_path / "state", monkeypatch)
    return emulated


class TestSetup(SetupTests):
    pass


def test_the_printed_commands_make_what_the_setup_makes(account):
    account.make()
    whole = account.contents()
    account.remove()
    for part in account.setup().parts(account.request):
        if part.kind == "network":
            continue  # it is there
        for line in part.commands:
            program, *words = shlex.split(line)
            assert program == "aws"
            run_command(account.client, words)
    assert account.contents() == whole
    assert {*account.plans().values()} == {"adopt"}


def test_a_bucket_of_the_expected_name_that_a_stranger_has_is_refused(account):
    account.cloud.s3.foreign_buckets.add(BUCKET)
    (why,) = account.refusals()["bucket"]
    assert why == (
        "it belongs to another account, or you may not look at it: choose another name with --store"
    )


@pytest.mark.parametrize(
    ("widen", "said"),
    [
        (lambda s3: s3.delete_public_access_block(Bucket=BUCKET), "BlockPublicAcls is off"),
        (
            lambda s3: s3.put_bucket_policy(
                Bucket=BUCKET,
                Policy=json.dumps(
                    {
                        "Statement": [
                            {
                                "Effect": "Allow",
                                "Principal": {"AWS": "arn:aws:iam::999999999999:root"},
                                "Action": "s3:GetObject",
                                "Resource": f"arn:aws:s3:::{BUCKET}/*",
                            }
                        ]
                    }
                ),
            ),
            f"it allows s3:GetObject on arn:aws:s3:::{BUCKET}/* to AWS arn:aws:iam::999999999999:root",
        ),
    ],
)
def test_a_bucket_that_others_can_read_is_refused(account, widen, said):
    account.make()
    account.record().path.unlink()
    widen(account.client("s3"))
    assert said in account.refusals()["bucket"]


def test_a_bucket_in_another_region_is_refused(account):
    account.client("s3").create_bucket(
        Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
    )
    assert account.refusals()["bucket"] == ("it is in eu-west-1, not in us-east-1",)
    account.forget_clients()  # botocore remembers where a bucket is


ADMINISTRATOR = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}


def test_a_role_that_may_do_more_is_refused_and_one_that_may_do_less_is_adopted(account):
    iam, name = account.client("iam"), "cloudspot-node"
    trust = permissions.trust("node", partition="aws")
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
    found = next(one for one in account.look() if one.part.name == name and one.part.kind == "role")
    assert found.plan.value == "adopt"
    assert f"it does not allow s3:ListBucket on arn:aws:s3:::{BUCKET}" in found.state.lacks
    iam.put_role_policy(RoleName=name, PolicyName="theirs", PolicyDocument=json.dumps(ADMINISTRATOR))
    assert account.refusals()["role"] == ("it allows * on *",)
    iam.delete_role_policy(RoleName=name, PolicyName="theirs")
    trust = json.loads(json.dumps(trust))
    trust["Statement"][0]["Principal"]["AWS"] = "arn:aws:iam::999999999999:root"
    iam.update_assume_role_policy(RoleName=name, PolicyDocument=json.dumps(trust))
    assert account.refusals()["role"] == (
        "it allows sts:AssumeRole on * to AWS arn:aws:iam::999999999999:root",
    )


def test_a_policy_and_a_group_that_allow_more_are_refused(account):
    iam, ec2 = account.client("iam"), account.client("ec2")
    iam.create_policy(PolicyName="cloudspot-submitter", PolicyDocument=json.dumps(ADMINISTRATOR))
    ec2.create_security_group(GroupName="cloudspot-nodes", Description="theirs")
    ec2.authorize_security_group_ingress(
        GroupName="cloudspot-nodes",
        IpPermissions=[
            {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        ],
    )
    assert account.refusals() == {
        "policy": ("it allows * on *",),
        "security group": ("it lets in 0.0.0.0/0 at tcp 22-22",),
    }


def test_what_was_changed_of_its_own_is_mended_and_what_others_added_to_it_is_refused(account):
    account.make()
    whole = account.contents()
    iam, s3 = account.client("iam"), account.client("s3")
    iam.put_role_policy(
        RoleName="cloudspot-limit", PolicyName="cloudspot-limit", PolicyDocument=json.dumps(ADMINISTRATOR)
    )
    s3.delete_bucket_lifecycle(Bucket=BUCKET)
    arn = f"arn:aws:iam::{ACCOUNT}:policy/cloudspot-reap"
    for _ in range(4):
        iam.create_policy_version(PolicyArn=arn, PolicyDocument=json.dumps(ADMINISTRATOR), SetAsDefault=True)
    mended = {one.name for one in account.make()}
    assert mended == {"cloudspot-limit", BUCKET, "cloudspot-reap"}
    assert account.contents() == whole
    iam.put_role_policy(
        RoleName="cloudspot-limit", PolicyName="theirs", PolicyDocument=json.dumps(ADMINISTRATOR)
    )
    assert account.refusals() == {"role": ("it allows * on *",)}


def test_an_account_without_a_default_network_gets_one_and_loses_it_again(account):
    account.lose_the_default_network()
    before = account.contents()
    assert before["networks"] == 0
    assert "network default VPC in us-east-1" in {f"{one.kind} {one.name}" for one in account.make()}
    assert account.contents()["networks"] == 1
    account.remove()
    assert account.contents() == before


def test_with_subnets_of_ones_own_no_network_is_made(account):
    setup = account.provider_with(
        subnets=("subnet-0123456789abcdef0",), security_groups=("sg-0123456789abcdef0",)
    ).account_setup()
    kinds = {one.kind for one in setup.parts(account.request)}
    assert not kinds & {"network", "security group"}
    assert "security_groups" not in setup.settings(account.request).options


@pytest.mark.parametrize(
    ("whom", "said"),
    [
        ("root", "cloudspot never gives permissions to a root account"),
        (f"arn:aws:iam::{ACCOUNT}:root", "cloudspot never gives permissions to a root account"),
        ("arn:aws:iam::999999999999:user/ada", f"not in account {ACCOUNT}"),
        ("ada", "write user/NAME, group/NAME, role/NAME, or its ARN"),
        ("user/bob", f"account {ACCOUNT} has no such user"),
        (f"arn:aws:sts::{ACCOUNT}:assumed-role/none/ada", f"account {ACCOUNT} has no such role"),
        (
            f"arn:aws:sts::{ACCOUNT}:assumed-role/AWSReservedSSO_Train_0123456789abcdef/ada",
            "add the customer managed policies .*cloudspot-reap to the permission set Train there",
        ),
    ],
)
def test_rights_are_given_to_nobody_who_cannot_have_them(account, whom, said):
    with pytest.raises(SpecError, match=said):
        account.setup().parts(SetupRequest(grant_to=(whom,)))


def test_an_assumed_role_means_the_role(account):
    account.client("iam").create_role(RoleName="trainer", Path="/teams/", AssumeRolePolicyDocument="{}")
    for whom in ("role/teams/trainer", f"arn:aws:sts::{ACCOUNT}:assumed-role/trainer/ada"):
        parts = account.setup().parts(SetupRequest(grant_to=(whom,)))
        first = next(one.name for one in parts if one.kind == "grant")
        assert first == "cloudspot-submitter to role/trainer"


def test_a_bucket_with_a_job_or_with_somebodys_object_is_not_removed_and_nothing_else_is(account):
    account.make()
    whole = account.contents()
    store = open_store(f"s3://{BUCKET}")
    for key, said in (("index/digits-1", "holds the job digits-1"), ("mine/data.csv", "mine/data.csv")):
        store.put(key, b"x")
        with pytest.raises(CloudspotError, match=said):
            account.remove()
        assert account.contents() == whole
        store.delete(key)
    store.put("market/aws/0000000000001-a", b"x")
    account.remove()
    assert account.contents()["buckets"] == {}


def test_a_missing_right_says_who_can_make_it_and_an_organisations_policy_that_it_does(account):
    account.cloud.faults.denied.add("iam:CreateRole")
    with pytest.raises(AuthError, match=r"making role cloudspot-node: .* run this as an administrator"):
        account.make()
    account.cloud.faults.denied.clear()
    account.cloud.faults.inject(
        "CreateRole",
        "AccessDenied",
        status=403,
        message="... with an explicit deny in a service control policy",
    )
    with pytest.raises(AuthError, match="a policy of your organisation forbids it"):
        account.make()


def test_a_name_that_was_taken_between_the_look_and_the_call_is_an_error_that_names_it(account):
    account.cloud.faults.inject("CreateBucket", "BucketAlreadyExists", status=409)
    with pytest.raises(CloudspotError, match=f"making bucket {BUCKET}"):
        account.make()
    assert account.record().parts == [("bucket", BUCKET)]
    assert INTENDED in account.record().path.read_text()


def test_quotas_of_0_are_told_with_the_page_the_words_and_the_command(account):
    account.cloud.faults.vcpu_quota = {"spot": 0}
    notes = account.setup().settings(account.request).notes
    account.cloud.faults.vcpu_quota = {}
    assert [one.split()[2] for one in notes] == ["L-3819A6DF", "L-7212CCBC"]
    assert (
        "https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-3819A6DF"
        in notes[0]
    )
    assert "--quota-code L-3819A6DF --desired-value 8" in notes[0]


@pytest.mark.parametrize(
    ("region", "partition", "service"),
    [
        ("cn-north-1", "aws-cn", "ec2.amazonaws.com.cn"),
        ("us-gov-west-1", "aws-us-gov", "ec2.amazonaws.com"),
    ],
)
def test_in_china_and_govcloud_the_policies_have_the_partition(account, region, partition, service):
    provider = AwsProvider(AwsOptions(region=region))
    setup = provider.account_setup()
    setup._account = ACCOUNT  # asked of the service, which is not emulated there
    parts = {(one.kind, one.name): one for one in setup.parts(SetupRequest())}
    (trust,) = [
        word for word in shlex.split(parts["role", "cloudspot-node"].commands[0]) if "Principal" in word
    ]
    assert json.loads(trust)["Statement"][0]["Principal"] == {"Service": service}
    for (kind, _), part in parts.items():
        for line in part.commands if kind in {"role", "policy"} else ():
            assert "arn:*" not in line
            assert f"arn:{partition}:" in line or "Principal" in line


def test_each_statement_of_each_policy_has_its_reason():
    for path in permissions.DIRECTORY.glob("policy-*.json"):
        for statement in json.loads(path.read_text())["Statement"]:
            assert permissions.REASONS[statement["Sid"]], (path.name, statement["Sid"])
