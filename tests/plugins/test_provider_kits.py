"""The clouds' providers under the kit that every provider runs; a job can name all of their options, or none."""

from types import MappingProxyType

import pytest

from cloudspot.testing.providerkit import ProviderTests


@pytest.fixture(autouse=True)
def nobodys_account(monkeypatch, tmp_path):
    """No credentials, no configuration, and nobody who answers."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        "ALIBABA_CLOUD_ACCESS_KEY_ID",
        "ALIBABA_CLOUD_ACCESS_KEY_SECRET",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_PROFILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_CLOUD_PROJECT",
        "KUBECONFIG",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("ALIBABA_CLOUD_ECS_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))


class TestAws(ProviderTests):
    name = "aws"
    options = MappingProxyType({"region": "us-east-1"})


class TestGcp(ProviderTests):
    name = "gcp"
    options = MappingProxyType({"project": "my-project-123", "regions": ["us-central1"]})


class TestAliyun(ProviderTests):
    name = "aliyun"
    options = MappingProxyType({"region": "cn-hangzhou"})


class TestKubernetes(ProviderTests):
    name = "kubernetes"
    options = MappingProxyType(
        {"image": "registry.example.com/train:7", "types": {"small": {"cpus": 2, "spot_price": 0.3}}}
    )
