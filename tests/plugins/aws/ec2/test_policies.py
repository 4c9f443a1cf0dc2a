"""The policies in docs/aws grant what the plugin asks for, and nothing else."""

import fnmatch
import json
from pathlib import Path

import pytest
from support.worlds.groups import group_of

from cloudspot.emulation.policies import is_allowed
from cloudspot.errors import AuthError
from cloudspot.model import Market, Resources
from cloudspot.testing import plaincalls
from cloudspot.testing.imagekit import KEY
from cloudspot_aws_sandbox.rights import rights_of

ROOT = Path(__file__).parents[4]
POLICIES = ROOT / "docs" / "aws"
PLUGIN = ROOT / "plugins" / "aws" / "cloudspot_aws"
ROLE = "arn:aws:iam::123456789012:role/cloudspot-limit"
ELSEWHERE = ("s3:*", "logs:*")
"""Compared where whole jobs run: tests/e2e/test_sandboxes.py."""


def granted(name):
    policy = json.loads((POLICIES / name).read_text())
    assert policy["Version"] == "2012-10-17"
    actions = set()
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        action = statement["Action"]
        actions |= {action} if isinstance(action, str) else set(action)
    return actions


def test_a_bucket_with_a_key_of_ones_own_takes_what_s3_documents_and_only_its_own_policy_grants_it():
    assert granted("policy-kms.json") == {"kms:Decrypt", "kms:GenerateDataKey"}
    assert not any(right.startswith("kms:") for right in granted("policy-node.json"))


def test_pulling_from_ecr_takes_a_policy_of_its_own_which_reads_one_repository():
    login, pull = json.loads((POLICIES / "policy-ecr.json").read_text())["Statement"]
    assert (login["Action"], login["Resource"]) == ("ecr:GetAuthorizationToken", "*")
    assert pull["Action"] == ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    assert pull["Resource"] == "arn:*:ecr:*:*:repository/REPOSITORY"


def needed(calls):
    """Return the rights that the recorded calls took."""
    return set().union(*map(rights_of, calls))


def session(cloud):
    """Use everything that the provider can do."""
    client = cloud.client()
    client.create_key_pair(KeyName="mine")
    client.create_placement_group(GroupName="mine", Strategy="cluster")
    group = client.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    cloud.faults.calls.clear()
    options = {
        "instance_types": ("g5.xlarge",),
        "security_groups": (group,),
        "key_name": "mine",
        "limit_role": ROLE,
    }
    plaincalls.offers(cloud.provider(**options, placement_group="mine").provisioner(), Resources())
    plaincalls.offers(cloud.provider().provisioner(), Resources(cpus=4))
    provider = cloud.provider(**options, placement_group="auto", account="123456789012")
    provisioner = provider.provisioner()
    for market in ("spot", "on-demand"):
        request = provisioner.render(
            group_of(cloud.offer(provisioner, market=market, zone="us-east-1a"), num_nodes=2)
        )
        plaincalls.create(provisioner, request, token=market)
    cloud.faults.inject(
        "RunInstances",
        "UnauthorizedOperation",
        status=403,
        message="Encoded authorization failure message: AAAA",
    )
    with pytest.raises(Exception, match="ec2:RunInstances"):
        plaincalls.create(provisioner, request, token="denied")
    machines = plaincalls.instances(provisioner, job_id="digits-1")
    provisioner.announce(machines, {"MASTER_ADDR": "172.31.0.4"})
    host = provider.image_host()
    host.save(machines[0], key=KEY, job_name="digits")
    cloud.now += 60.0
    host.remove(host.images()[0].id)
    assert [one.name for one in plaincalls.check(provider, resources=Resources()) if not one.ok] == []
    spot = next(one for one in machines if one.market is Market.SPOT)
    cloud.client("iam").create_role(RoleName="cloudspot-drill", AssumeRolePolicyDocument="{}")
    cloud.faults.calls.pop()
    plaincalls.preempt(provider, spot.id)
    assert cloud.host.reclaimed == [(spot.id, 120.0)]
    plaincalls.terminate(provisioner, [one.id for one in machines])
    provisioner.release("digits-1")
    return cloud.faults.calls


@pytest.mark.full
def test_a_submitter_needs_no_right_that_the_policy_lacks_and_the_policy_has_none_to_spare(cloud):
    allowed = granted("policy-submitter.json")
    rights = needed(session(cloud))
    assert sorted(rights - allowed) == []
    others = {one for one in allowed for pattern in ELSEWHERE if fnmatch.fnmatchcase(one, pattern)}
    # EC2 makes the account's first spot request with a role that it makes in the caller's name.
    assert sorted(allowed - rights - others) == ["iam:CreateServiceLinkedRole"]


@pytest.mark.full
def test_the_session_would_be_refused_without_any_one_of_the_rights(cloud):
    """The comparison can fail: a right that is taken away is missed by it."""
    rights = needed(session(cloud))
    assert {"ec2:RunInstances", "ec2:CreateTags", "iam:PassRole", "scheduler:CreateSchedule"} <= rights


def test_images_are_made_of_cloudspots_machines_and_removed_only_if_they_are_its_own():
    statements = json.loads((POLICIES / "policy-submitter.json").read_text())["Statement"]
    found = {one["Sid"]: one for one in statements if "Image" in one["Sid"]}
    own_machines, new, own = (found[sid] for sid in ("ImagesOfOwnMachines", "NewImages", "OwnImages"))
    assert own_machines["Resource"] == "arn:*:ec2:*:*:instance/*"
    assert own_machines["Condition"] == {"Null": {"ec2:ResourceTag/cloudspot-job": "false"}}
    assert new["Action"] == own_machines["Action"] == "ec2:CreateImage"
    assert own["Action"] == ["ec2:DeleteSnapshot", "ec2:DeregisterImage"]
    assert own["Condition"] == {"Null": {"ec2:ResourceTag/cloudspot-setup": "false"}}


def test_a_node_has_no_right_of_ec2s():
    actions = granted("policy-node.json")
    assert {action.partition(":")[0] for action in actions} == {"s3", "logs"}
    assert "*" not in "".join(actions)


def test_a_node_may_use_all_objects_of_the_one_bucket_and_cloudspots_logs():
    statements = json.loads((POLICIES / "policy-node.json").read_text())["Statement"]
    assert {one["Sid"]: one["Resource"] for one in statements} == {
        "Bucket": "arn:*:s3:::BUCKET",
        "Objects": "arn:*:s3:::BUCKET/*",
        "Logs": "arn:*:logs:*:*:log-group:/cloudspot/*",
    }


def test_each_role_is_assumed_by_the_one_service_that_acts_in_it():
    services = {"node": "ec2", "limit": "scheduler", "drill": "fis"}
    for name, service in services.items():
        (statement,) = json.loads((POLICIES / f"trust-{name}.json").read_text())["Statement"]
        assert statement["Principal"] == {"Service": f"{service}.amazonaws.com"}
        assert statement["Action"] == "sts:AssumeRole"


def test_the_drills_role_can_reclaim_cloudspots_machines_only():
    acting, looking = json.loads((POLICIES / "policy-drill.json").read_text())["Statement"]
    assert acting["Action"] == "ec2:SendSpotInstanceInterruptions"
    assert acting["Condition"] == {"Null": {"ec2:ResourceTag/cloudspot-job": "false"}}
    assert looking["Action"] == "ec2:DescribeInstances"


def test_the_limits_role_can_end_cloudspots_machines_only():
    (statement,) = json.loads((POLICIES / "policy-limit.json").read_text())["Statement"]
    assert statement["Action"] == "ec2:TerminateInstances"
    assert statement["Condition"] == {"Null": {"ec2:ResourceTag/cloudspot-job": "false"}}


def test_a_submitter_ends_and_tags_cloudspots_machines_only():
    for statement in json.loads((POLICIES / "policy-submitter.json").read_text())["Statement"]:
        if "ec2:TerminateInstances" in statement["Action"]:
            assert statement["Condition"] == {"Null": {"ec2:ResourceTag/cloudspot-job": "false"}}
        if statement["Action"] == "iam:PassRole":
            assert "iam:PassedToService" in statement["Condition"]["StringEquals"]
            assert statement["Resource"].startswith("arn:*:iam::*:role/cloudspot-")


def test_every_policy_holds_in_each_of_awss_partitions():
    """China and GovCloud have ARNs of their own."""
    files = [*POLICIES.glob("policy-*.json"), *PLUGIN.glob("policy-*.json")]
    assert len(files) == 8
    for file in files:
        for statement in json.loads(file.read_text())["Statement"]:
            resources = statement["Resource"]
            for one in [resources] if isinstance(resources, str) else resources:
                assert one == "*" or one.startswith("arn:*:"), (file.name, one)
            passed = statement.get("Condition", {}).get("StringEquals", {}).get("iam:PassedToService", "")
            assert passed != "ec2.amazonaws.com", f"{file.name}: in China EC2 is ec2.amazonaws.com.cn"


def test_a_driver_may_make_the_role_that_an_accounts_first_spot_request_needs_as_a_submitter_may(cloud):
    """EC2 makes it in the name of whoever launches first."""
    right = "iam:CreateServiceLinkedRole"
    driver = (PLUGIN / "policy-driver.json").read_text()
    role = (
        "arn:aws-us-gov:iam::123456789012:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
    )
    assert is_allowed([driver], right, role)
    assert is_allowed([(POLICIES / "policy-submitter.json").read_text()], right, role)
    provisioner = cloud.provider(instance_types=("g5.xlarge",)).provisioner()
    request = provisioner.render(group_of(cloud.offer(provisioner), num_nodes=1))
    cloud.faults.denied.add(right)
    with pytest.raises(AuthError, match="lack iam:CreateServiceLinkedRole"):
        plaincalls.create(provisioner, request, token="first")
    cloud.faults.denied.clear()
    assert len(plaincalls.create(provisioner, request, token="second")) == 1
    cloud.faults.denied.add(right)  # of no use any more
    assert len(plaincalls.create(provisioner, request, token="third")) == 1
