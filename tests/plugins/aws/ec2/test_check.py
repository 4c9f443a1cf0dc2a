from datetime import datetime, timedelta, timezone

import pytest
from support.worlds.groups import group_of

from cloudspot.model import Resources
from cloudspot.testing import plaincalls


def lines(provider, **resources):
    found = plaincalls.check(provider, resources=Resources(**resources))
    return {one.name: one for one in found}


def failed(provider, **resources):
    return {
        name: (one.detail, one.remedy) for name, one in lines(provider, **resources).items() if not one.ok
    }


@pytest.mark.full
def test_an_account_that_is_ready_passes_every_line(cloud):
    found = lines(cloud.provider(instance_types=("g5.xlarge",), placement_group="auto"))
    assert [name for name, one in found.items() if not one.ok] == []
    assert [name for name, one in found.items() if not one.is_known] == ["tagging", "ending", "console"]
    assert {name: one.detail for name, one in found.items() if name not in {"clock", "offers"}} == {
        "region": "us-east-1",
        "credentials": "arn:aws:sts::123456789012:user/moto",
        "listing": "0 machines of cloudspot's",
        "image": "ami-0c10d5b07ca5e0001, 0 days old",
        "instance profile": "cloudspot-node",
        "launch, spot": "g5.xlarge in us-east-1b may be launched",
        "quota, spot": "256 vCPUs, enough for 64 g5.xlarge",
        "launch, on-demand": "g5.xlarge in us-east-1a may be launched",
        "quota, on-demand": "256 vCPUs, enough for 64 g5.xlarge",
        "tagging": "not checked: cloudspot has no machine now on which to try ec2:CreateTags",
        "ending": "not checked: cloudspot has no machine now on which to try ec2:TerminateInstances",
        "console": "not checked: cloudspot has no machine now on which to try ec2:GetConsoleOutput",
        "placement group": "may be made",
    }
    assert found["clock"].detail.startswith("within ")
    assert "g5.xlarge" in found["offers"].detail
    assert cloud.alive == []
    assert cloud.client().describe_placement_groups()["PlacementGroups"] == []


@pytest.mark.full
def test_rights_on_machines_are_tried_where_there_is_one(cloud):
    provider = cloud.provider(instance_types=("m5.large",))
    provisioner = provider.provisioner()
    request = provisioner.render(group_of(cloud.offer(provisioner)))
    plaincalls.create(provisioner, request, token="t")
    assert lines(provider)["ending"].detail == "ec2:TerminateInstances is granted"
    assert lines(provider)["console"].detail == "ec2:GetConsoleOutput is granted"
    cloud.faults.denied = {"ec2:GetConsoleOutput"}
    assert failed(provider)["console"][0] == "access denied: the credentials lack ec2:GetConsoleOutput"
    cloud.faults.denied = {"ec2:TerminateInstances"}
    assert failed(provider) == {
        "ending": (
            "access denied: the credentials lack ec2:TerminateInstances",
            "an administrator runs: cloudspot setup aws --grant-to user/moto",
        )
    }
    assert len(cloud.alive) == 1


@pytest.mark.full
def test_a_log_group_of_ones_own_is_read_and_said_to_need_a_right_of_the_machines(cloud):
    own = {"instance_types": ("m5.large",), "log_group": "/teams/vision"}
    doubt = "(not checked: the machines' role; cloudspot-node covers only /cloudspot/*)"
    found = lines(cloud.provider(**own))["logs"]
    assert found.ok
    assert found.detail == f"/teams/vision does not exist yet, and the first node makes it {doubt}"
    cloud.client("logs").create_log_group(logGroupName="/teams/vision")
    assert lines(cloud.provider(**own))["logs"].detail == f"/teams/vision may be read {doubt}"
    shared = cloud.provider(**{**own, "log_group": "/cloudspot/shared"})
    assert lines(shared)["logs"].detail.endswith("the first node makes it")
    assert "logs" not in lines(cloud.provider(**{**own, "log_group": None}))
    assert "logs" not in lines(cloud.provider(**own, logs="bucket"))
    cloud.faults.denied = {"logs:DescribeLogStreams"}
    (detail, remedy) = failed(cloud.provider(**own))["logs"]
    assert "logs:DescribeLogStreams" in detail
    assert remedy == (
        'add "arn:*:logs:*:*:log-group:/teams/vision*" to the statement "Logs" of the policy '
        "cloudspot-submitter and of the role cloudspot-node"
    )


@pytest.mark.full
@pytest.mark.parametrize("right", ["ec2:RunInstances", "iam:PassRole"])
def test_each_right_that_a_launch_needs_is_named(cloud, right):
    cloud.faults.denied = {right}
    found = failed(cloud.provider(instance_types=("m5.large",)))
    assert set(found) == {"launch, spot", "launch, on-demand"}
    assert found["launch, spot"][0] == f"access denied: the credentials lack {right}"


@pytest.mark.parametrize(
    ("right", "line"),
    [
        ("ec2:DescribeInstances", "listing"),
        ("ec2:DescribeImages", "offers"),
        ("ssm:GetParameter", "offers"),
        ("pricing:GetProducts", "offers"),
        ("ec2:DescribeSpotPriceHistory", "offers"),
        ("ec2:DescribeInstanceTypes", "offers"),
        ("ec2:DescribeInstanceTypeOfferings", "offers"),
        ("ec2:DescribeSubnets", "offers"),
        ("ec2:CreatePlacementGroup", "placement group"),
        ("scheduler:ListSchedules", "limit"),
    ],
)
def test_each_right_that_is_missing_fails_its_line_with_the_policy(cloud, right, line):
    cloud.faults.denied = {right}
    role = "arn:aws:iam::123456789012:role/cloudspot-limit"
    provider = cloud.provider(instance_types=("m5.large",), placement_group="auto", limit_role=role)
    found = failed(provider)
    assert line in found
    assert "access denied" in found[line][0]
    assert found[line][1] == "an administrator runs: cloudspot setup aws --grant-to user/moto"


def test_a_profile_that_is_missing_is_one_line(cloud):
    found = failed(cloud.provider(instance_types=("m5.large",), instance_profile="nobody"))
    message = 'providers.aws.instance_profile: there is no "nobody"; cloudspot setup aws makes it'
    assert found["instance profile"] == (message, "an administrator runs: cloudspot setup aws")


def test_how_old_the_image_is_and_that_its_owner_advises_against_it_is_told(cloud):
    """AWS no longer patched the image of PyTorch 2.9, and nobody was told that it grew old."""
    from moto.ec2.models import ec2_backends  # it reads its tables for a second

    provider = cloud.provider(instance_types=("m5.large",))
    plaincalls.check(provider, resources=Resources())  # the account has its images from its first call on
    image = ec2_backends["123456789012"]["us-east-1"].amis["ami-0c10d5b07ca5e0001"]
    today = datetime.now(timezone.utc)
    image.creation_date = today - timedelta(days=51)
    assert lines(provider)["image"].detail == "ami-0c10d5b07ca5e0001, 51 days old"
    image.deprecation_time = datetime(2026, 10, 15, tzinfo=timezone.utc)
    assert lines(provider)["image"].detail.endswith("; deprecated since 2026-10-15: name another image")


def test_a_quota_that_is_too_small_names_its_code(cloud):
    cloud.faults.vcpu_quota["spot"] = 2
    found = failed(cloud.provider(instance_types=("g5.xlarge",)))
    assert found["quota, spot"][0] == (
        "2 vCPUs, but one g5.xlarge needs 4; ask for more at https://us-east-1.console.aws.amazon.com/servicequotas/"
        'home/services/ec2/quotas/L-3819A6DF with the words "We train models with PyTorch on 8 vCPUs at a time, on '
        'spot machines that save their work.", or run: aws service-quotas request-service-quota-increase '
        "--region us-east-1 --service-code ec2 --quota-code L-3819A6DF --desired-value 8"
    )
    assert "quota, on-demand" not in found


def test_a_quota_that_may_not_be_read_is_no_fault(cloud):
    cloud.faults.denied = {"servicequotas:GetServiceQuota"}
    found = lines(cloud.provider(instance_types=("m5.large",)))
    assert found["quota, spot"].detail == "the permission servicequotas:GetServiceQuota is missing"


def test_without_accepted_credentials_nothing_else_is_tried(cloud):
    cloud.faults.rejected_keys.add("AKIAIOSFODNN7EXAMPLE")
    found = plaincalls.check(cloud.provider())
    assert [(one.name, one.ok) for one in found] == [("region", True), ("credentials", False)]
    assert "AWS does not accept the credentials" in found[1].detail
    assert {call.action for call in cloud.faults.calls} == {"GetCallerIdentity"}


def test_a_clock_that_is_off_is_told(cloud, monkeypatch):
    class Late:
        @staticmethod
        def now(zone):
            return real.now(zone) + timedelta(seconds=900)

    from datetime import datetime as real
    from datetime import timedelta

    monkeypatch.setattr("cloudspot.plugin.checklist.datetime", Late)
    found = failed(cloud.provider(instance_types=("m5.large",)))
    assert found["clock"][0].endswith("s ahead of AWS's")
    assert found["clock"][1] == "set this machine's clock, by NTP"


@pytest.mark.full
def test_a_job_that_no_type_fits_is_told(cloud):
    found = failed(cloud.provider(), accelerator="B9000", accelerator_count=1)
    assert found["offers"][0] == "no machine type fits; ask for less in resources, or try another region"
