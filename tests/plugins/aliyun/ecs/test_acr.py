"""Logins for Container Registry: which registries get one, and what is told of a refusal."""

import pytest
from aliyunsdkcore.acs_exception.exceptions import ServerException

from cloudspot.errors import AuthError, TransientError

REGISTRY = "sandbox-registry.cn-hangzhou.cr.aliyuncs.com"


@pytest.mark.parametrize("registry", [REGISTRY, "sandbox-registry-vpc.cn-hangzhou.cr.aliyuncs.com"])
def test_an_instance_is_logged_in_to_anew_each_time_from_inside_its_vpc_and_outside(cloud, registry):
    provider = cloud.provider()
    first, second = (provider.registry_login(registry) for _ in range(2))
    assert first.user == second.user == "cr_temp_user"
    assert first.password != second.password
    assert first.password not in repr(first)
    assert first.origin == "the Alibaba Cloud credentials, which need cr:PullRepository"
    assert [one.action for one in cloud.faults.calls] == ["ListInstance", "GetAuthorizationToken"] * 2


def test_it_is_the_instance_of_that_region_and_that_name(cloud):
    cloud.account.registries = {
        ("cn-hangzhou", "a-sandbox"): "cri-1",
        ("cn-shanghai", "sandbox"): "cri-2",
        ("cn-hangzhou", "sandbox"): "cri-3",
        ("cn-hangzhou", "sandbox-b"): "cri-4",
    }
    for region, name in (("cn-hangzhou", "cri-3"), ("cn-shanghai", "cri-2")):
        assert cloud.provider().registry_login(REGISTRY.replace("cn-hangzhou", region)) is not None
        call = cloud.faults.calls[-1]
        assert (call.parameters["InstanceId"], call.region) == (name, region)
    assert cloud.provider().registry_login(REGISTRY.replace("sandbox", "anothers")) is None


@pytest.mark.parametrize(
    "registry",
    [
        "registry.cn-hangzhou.aliyuncs.com",
        "crpi-1a2b.cn-hangzhou.personal.cr.aliyuncs.com",
        f"{REGISTRY}.example.com",
        "-registry.cn-hangzhou.cr.aliyuncs.com",
        "registry-1.docker.io",
    ],
)
def test_no_other_registry_gets_a_log_in(cloud, registry):
    assert cloud.provider().registry_login(registry) is None
    assert cloud.faults.calls == []


@pytest.mark.parametrize("right", ["cr:ListInstance", "cr:GetAuthorizationToken"])
def test_a_missing_right_is_named(cloud, right):
    cloud.faults.denied = {right}
    with pytest.raises(AuthError, match=rf"^logging in to {REGISTRY} \(.*{right}.*: access denied"):
        cloud.provider().registry_login(REGISTRY)


def test_a_service_that_fails_is_asked_again_by_the_caller(cloud):
    cloud.faults.inject("GetAuthorizationToken", "ServiceUnavailable", status=503, times=9)
    with pytest.raises(TransientError, match="Alibaba Cloud failed"):
        cloud.provider().registry_login(REGISTRY)


@pytest.mark.parametrize("action", ["ListInstance", "GetAuthorizationToken"])
def test_a_refusal_that_looks_like_a_success_is_told(cloud, monkeypatch, action):
    said = {"Code": "INSTANCE_STATUS_INVALID", "IsSuccess": False}
    monkeypatch.setitem(cloud.ecs._handlers, action, lambda *_: said)
    with pytest.raises(AuthError, match=r"Alibaba Cloud refuses: INSTANCE_STATUS_INVALID$"):
        cloud.provider().registry_login(REGISTRY)


def test_an_action_of_another_product_is_not_known(cloud):
    with pytest.raises(ServerException, match=r"InvalidAction\.NotFound"):
        cloud.ask("ListInstance", product="Ram")
