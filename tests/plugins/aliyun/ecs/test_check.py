import pytest
from support.worlds.groups import group_of

from cloudspot.model import Resources
from cloudspot.testing import plaincalls

TYPE = "ecs.gn7i-c8g1.2xlarge"
GRANT = "an administrator runs: cloudspot setup aliyun --grant-to user/sandbox"


def lines(provider, **resources):
    return {one.name: one for one in plaincalls.check(provider, resources=Resources(**resources))}


def failed(provider, **resources):
    return {
        name: (one.detail, one.remedy) for name, one in lines(provider, **resources).items() if not one.ok
    }


def test_an_account_that_is_ready_passes_every_line(cloud):
    found = lines(cloud.provider(instance_types=(TYPE,)))
    assert [name for name, one in found.items() if not one.ok] == []
    assert found.pop("offers").detail == (
        f"4, from 2.53 CNY an hour (spot {TYPE} in cn-hangzhou-i; 5-10% of such machines were reclaimed in the last "
        "30 days)"
    )
    assert {name: one.detail for name, one in found.items()} == {
        "credentials": "acs:ram::1234567890123456:user/sandbox",
        "region": "cn-hangzhou",
        "listing": "0 machines of cloudspot's",
        "role": "cloudspot-node",
        "launch, spot": f"{TYPE} in cn-hangzhou-i may be launched, and is in stock",
        "launch, on-demand": f"{TYPE} in cn-hangzhou-i may be launched, and is in stock",
        "console": "not checked: cloudspot has no machine now on which to try ecs:GetInstanceConsoleOutput",
    }
    assert cloud.alive == []


@pytest.mark.full
def test_the_right_to_read_consoles_is_tried_on_a_machine_where_there_is_one(cloud):
    provider = cloud.provider(instance_types=(TYPE,))
    provisioner = provider.provisioner()
    group = group_of(cloud.offer(provisioner))
    plaincalls.create(provisioner, provisioner.render(group), token="t")
    assert lines(provider)["console"].detail == "ecs:GetInstanceConsoleOutput is granted"
    cloud.faults.denied = {"ecs:GetInstanceConsoleOutput"}
    detail, remedy = failed(provider)["console"]
    assert ("ecs:GetInstanceConsoleOutput" in detail, remedy) == (True, GRANT)


def test_no_credentials_end_the_check_at_once(cloud, monkeypatch):
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "another")
    ((name, (detail, _)),) = failed(cloud.provider()).items()
    assert name == "credentials"
    assert "does not accept the credentials" in detail
    assert "another" not in detail


def test_a_region_that_is_none_is_told_with_a_near_one(cloud):
    provider = cloud.provider(region="cn-hangzho")
    assert failed(provider)["region"][0].endswith('no region "cn-hangzho"; did you mean "cn-hangzhou"?')


def test_a_role_that_is_missing_is_told(cloud):
    cloud.account.roles.clear()
    found = failed(cloud.provider(instance_types=(TYPE,)))
    assert found["role"][0].startswith('providers.aliyun.role: there is no "cloudspot-node"')


def test_a_role_that_cannot_be_looked_at_is_no_failure(cloud):
    cloud.faults.denied = {"ram:GetRole"}
    found = lines(cloud.provider(instance_types=(TYPE,)))
    assert found["role"].detail == "cloudspot-node (not checked: the right ram:GetRole is missing)"
    assert all(one.ok for one in found.values())


@pytest.mark.parametrize("right", ["ecs:RunInstances", "ram:PassRole"])
def test_a_right_to_launch_that_is_missing_is_told_with_the_policy(cloud, right):
    cloud.faults.denied = {right}
    found = failed(cloud.provider(instance_types=(TYPE,)))
    assert sorted(found) == ["launch, on-demand", "launch, spot"]
    for detail, remedy in found.values():
        assert right in detail
        assert remedy == GRANT


def test_a_right_to_look_that_is_missing_is_told_with_the_policy(cloud):
    cloud.faults.denied = {"ecs:DescribeInstances"}
    detail, remedy = failed(cloud.provider(instance_types=(TYPE,)))["listing"]
    assert (detail.startswith("listing the machines: access denied"), remedy) == (True, GRANT)


@pytest.mark.full
def test_no_stock_and_no_money_are_told(cloud):
    cloud.faults.capacity["*", "*", "spot"] = 0
    found = failed(cloud.provider(instance_types=(TYPE,)))
    assert list(found) == ["launch, spot"]
    assert "OperationDenied.NoStock" in found["launch, spot"][0]
    cloud.ecs.is_in_arrears = True
    found = failed(cloud.provider(instance_types=(TYPE,)))
    assert "settle it in the console's Expenses" in found["launch, on-demand"][0]


def test_nothing_fits(cloud):
    assert failed(cloud.provider(), accelerator="B200")["offers"][0] == (
        "no machine type fits; ask for less in resources, or try another region"
    )


def test_what_the_submitters_environment_decides_is_pinned(cloud, monkeypatch):
    assert cloud.provider().pinned_options() == {"region": "cn-hangzhou", "account": "1234567890123456"}
    assert cloud.provider(account="42424242").pinned_options()["account"] == "42424242"
