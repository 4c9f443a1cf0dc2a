"""The plugin's policies grant what the plugin asks for, and nothing else."""

import json

import pytest
from support.worlds.groups import group_of

from cloudspot.model import Resources
from cloudspot.testing import plaincalls
from cloudspot.testing.imagekit import KEY
from cloudspot_aliyun import permissions
from cloudspot_aliyun_sandbox.rights import rights_of

POLICIES = permissions.DIRECTORY
ELSEWHERE = "oss:"
"""Compared where whole jobs run."""
TYPE = "ecs.g7.large"


def statements(name):
    policy = json.loads((POLICIES / name).read_text())
    assert policy["Version"] == "1"
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        action = statement["Action"]
        yield ({action} if isinstance(action, str) else set(action)), statement


def granted(name):
    return set().union(*(actions for actions, _ in statements(name)))


def test_pulling_from_container_registry_takes_a_policy_of_its_own_which_reads_one_repository():
    (login, anywhere), (pull, one) = statements("policy-acr.json")
    assert (login, anywhere["Resource"]) == ({"cr:GetAuthorizationToken", "cr:ListInstance"}, "*")
    assert (pull, one["Resource"]) == (
        {"cr:PullRepository"}, "acs:cr:*:*:repository/INSTANCE/NAMESPACE/REPOSITORY"
    )  # fmt: skip


def needed(calls):
    """Return the rights that the recorded calls took."""
    return set().union(*map(rights_of, calls))


def session(cloud):
    """Use everything that the provider can do."""
    cloud.place.key_pairs.add("mine")
    mine = cloud.ask("CreateDeploymentSet", DeploymentSetName="mine")["DeploymentSetId"]
    image = next(iter(cloud.account.images))
    (group,) = cloud.place.groups
    vswitches = tuple(cloud.place.vswitches)
    cloud.faults.calls.clear()
    options = {
        "instance_types": (TYPE, "ecs.t6-c1m4.large"),
        "security_groups": (group,),
        "vswitches": vswitches,
        "image": image,
        "key_pair": "mine",
    }
    plaincalls.offers(cloud.provider(**options, deployment_set=mine).provisioner(), Resources())
    plaincalls.offers(cloud.provider().provisioner(), Resources(cpus=4))
    provider = cloud.provider(**options, deployment_set="auto", account="1234567890123456")
    provisioner = provider.provisioner()
    for market in ("spot", "on-demand"):
        request = provisioner.render(group_of(cloud.offer(provisioner, market=market), num_nodes=2))
        plaincalls.create(provisioner, request, token=market)
    machines = plaincalls.instances(provisioner, job_id="digits-1")
    assert len(machines) == 4
    provisioner.announce(machines, {"MASTER_ADDR": "10.77.0.11"})
    assert provider.pinned_options()["account"] == "1234567890123456"
    assert [one.name for one in plaincalls.check(provider, resources=Resources()) if not one.ok] == []
    host = provider.image_host()
    host.save(plaincalls.instances(provisioner, job_id="digits-1")[0], key=KEY, job_name="digits")
    cloud.now += 600.0
    host.remove(host.images()[0].id)
    plaincalls.terminate(provisioner, [one.id for one in machines])
    provisioner.release("digits-1")
    return cloud.faults.calls


@pytest.mark.full
def test_a_submitter_needs_no_right_that_the_policy_lacks_and_the_policy_has_none_to_spare(cloud):
    allowed = granted("policy-submitter.json")
    rights = needed(session(cloud))
    assert sorted(rights - allowed) == []
    others = {one for one in allowed if one.startswith(ELSEWHERE)}
    # Some pages name the right to delete several machines as that to delete one.
    assert sorted(allowed - rights - others) == ["ecs:DeleteInstance"]


@pytest.mark.full
def test_the_comparison_can_fail(cloud):
    rights = needed(session(cloud))
    assert {"ecs:RunInstances", "ecs:TagResources", "ram:PassRole", "vpc:DescribeVSwitches"} <= rights


@pytest.mark.full
def test_a_session_without_one_of_the_rights_is_refused(cloud):
    for right in ("ecs:RunInstances", "ram:PassRole", "ecs:CreateImage", "ecs:DeleteInstances"):
        cloud.faults.denied = {right}
        with pytest.raises(Exception, match=r"denied|lack|Forbidden"):
            session(cloud)


def test_a_node_may_use_its_bucket_and_release_machines_of_cloudspots():
    actions = granted("policy-node.json")
    assert {action for action in actions if not action.startswith("oss:")} == {"ecs:DeleteInstance"}
    assert "*" not in "".join(actions)


def test_a_node_may_use_all_objects_of_the_one_bucket():
    of_oss = [one for actions, one in statements("policy-node.json") if min(actions).startswith("oss:")]
    assert [one["Resource"] for one in of_oss] == ["acs:oss:*:*:BUCKET", "acs:oss:*:*:BUCKET/*"]


def test_machines_are_ended_and_changed_only_if_they_are_cloudspots():
    for name in ("policy-submitter.json", "policy-node.json"):
        for actions, statement in statements(name):
            if actions & {
                "ecs:DeleteInstance",
                "ecs:DeleteInstances",
                "ecs:GetInstanceConsoleOutput",
                "ecs:ModifyInstanceMetadataOptions",
            }:
                assert statement["Condition"] == {"StringLike": {"acs:ResourceTag/cloudspot-job": "*"}}


def test_images_are_made_of_cloudspots_machines_and_removed_only_if_they_are_its_own():
    found = {
        (action, statement["Resource"]): statement.get("Condition")
        for actions, statement in statements("policy-submitter.json")
        for action in actions & {"ecs:CreateImage", "ecs:DeleteImage"}
    }
    assert found == {
        ("ecs:CreateImage", "acs:ecs:*:*:instance/*"): {"StringLike": {"acs:ResourceTag/cloudspot-job": "*"}},
        ("ecs:CreateImage", "acs:ecs:*:*:image/*"): None,
        ("ecs:DeleteImage", "acs:ecs:*:*:image/*"): {"StringLike": {"acs:ResourceTag/cloudspot-setup": "*"}},
    }


def test_only_the_nodes_role_is_passed_on_and_to_ecs():
    ((_, statement),) = [one for one in statements("policy-submitter.json") if "ram:PassRole" in one[0]]
    assert statement["Resource"] == "acs:ram:*:*:role/cloudspot-node"
    assert statement["Condition"] == {"StringEquals": {"acs:Service": "ecs.aliyuncs.com"}}
    (trust,) = json.loads((POLICIES / "trust-node.json").read_text())["Statement"]
    assert trust["Principal"] == {"Service": ["ecs.aliyuncs.com"]}
