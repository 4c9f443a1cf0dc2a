"""Logins for Google's registries: which get one, with whose token."""

import pytest

from cloudspot.errors import AuthError
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.provider import GcpProvider


@pytest.mark.parametrize(
    "registry", ["europe-west4-docker.pkg.dev", "us-docker.pkg.dev", "gcr.io", "eu.gcr.io"]
)
def test_a_registry_of_googles_gets_a_token_that_was_just_issued(gcp, registry):
    provider = GcpProvider(GcpOptions(project="my-project-123"))
    first, second = (provider.registry_login(registry) for _ in range(2))
    assert first.user == "oauth2accesstoken"
    assert first.password != second.password
    assert gcp.identities._holder(second.password) == gcp.account.email
    assert second.password not in repr(second)
    assert "roles/artifactregistry.reader" in first.origin


@pytest.mark.parametrize(
    "registry",
    ["ghcr.io", "gcr.io.example.com", "docker.pkg.dev.example.com", "xgcr.io", "registry-1.docker.io"],
)
def test_no_other_registry_gets_a_token(gcp, registry):
    assert GcpProvider(GcpOptions()).registry_login(registry) is None
    assert gcp.faults.calls == []


def test_credentials_that_are_refused_are_told(gcp):
    gcp.faults.expired_keys.add(gcp.account.email)
    with pytest.raises(AuthError, match=r"^logging in to gcr\.io: the Google credentials have expired"):
        GcpProvider(GcpOptions()).registry_login("gcr.io")
