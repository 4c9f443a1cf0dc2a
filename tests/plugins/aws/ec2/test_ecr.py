"""Logins for ECR: which registries get one, and what is told of a right that is missing."""

import pytest

from cloudspot.errors import AuthError, TransientError

REGISTRY = "210987654321.dkr.ecr.us-east-1.amazonaws.com"


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_a_registry_of_ecr_is_logged_in_to_in_its_own_region_anew_each_time(cloud, region):
    provider = cloud.provider()
    for _ in range(2):
        login = provider.registry_login(REGISTRY.replace("us-east-1", region))
        assert (login.user, login.password) == ("AWS", "123456789012-auth-token")
    assert [(one.action, one.region) for one in cloud.faults.calls] == [("GetAuthorizationToken", region)] * 2
    assert "auth-token" not in repr(login)


@pytest.mark.parametrize(
    "registry",
    [
        "public.ecr.aws",
        "registry-1.docker.io",
        f"{REGISTRY}.example.com",
        f"x{REGISTRY}",
        REGISTRY.replace(".amazonaws.com", ".amazonaws.com.example"),
        "us-docker.pkg.dev",
    ],
)
def test_no_other_registry_gets_a_log_in(cloud, registry):
    assert cloud.provider().registry_login(registry) is None
    assert cloud.faults.calls == []


def test_a_missing_right_is_named(cloud):
    cloud.faults.denied = {"ecr:GetAuthorizationToken"}
    with pytest.raises(
        AuthError, match=f"^logging in to {REGISTRY}.*access denied.*ecr:GetAuthorizationToken"
    ):
        cloud.provider().registry_login(REGISTRY)
    cloud.faults.denied = set()
    login = cloud.provider().registry_login(REGISTRY)
    assert login.origin == "the AWS credentials, which need ecr:BatchGetImage and ecr:GetDownloadUrlForLayer"


def test_a_service_that_fails_is_asked_again_by_the_caller(cloud):
    cloud.faults.inject("GetAuthorizationToken", "ServerException", times=9)
    with pytest.raises(TransientError, match="AWS failed"):
        cloud.provider().registry_login(REGISTRY)
