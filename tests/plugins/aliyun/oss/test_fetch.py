"""What an image without cloudspot fetches its agent by: signed by the machine's role, held by a strict OSS."""

from datetime import timedelta

import pytest

from cloudspot.boot.script import BootPlan, Install, render_boot_script
from cloudspot_aliyun import fetch as fetching
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.oss import OssStore
from cloudspot_aliyun.provider import AliyunProvider
from cloudspot_aliyun.request import MAX_USER_DATA_BYTES

FACTS = {
    "hostname": "digits-1-1-0",
    "http-tokens": "required",
    "image-id": "m-1",
    "instance-id": "i-bp13znx0m0me8cquu001",
    "instance-type": "ecs.g7.large",
    "mac": "00:16:3e:0f:00:09",
    "owner-account-id": "1609000000000001",
    "private-ipv4": "192.168.0.9",
    "region-id": "cn-hangzhou",
    "role": "cloudspot-node",
    "role-seed": "a-seed",
    "serial-number": "1",
    "zone-id": "cn-hangzhou-i",
}


@pytest.fixture
def bucket(oss, serve_metadata, monkeypatch):
    """A bucket, and a machine whose role may read it."""
    monkeypatch.setattr(fetching, "METADATA", serve_metadata(FACTS))
    return oss.make_bucket()


def test_it_writes_the_object_to_the_file(bucket, tmp_path):
    OssStore(f"oss://{bucket}/some/prefix").put("agents/a b+c", b"wheels")
    fetching.fetch(f"oss://{bucket}/some/prefix/", "agents/a b+c", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"wheels"


def test_what_oss_refuses_is_told_in_its_words(bucket, tmp_path):
    with pytest.raises(OSError, match=r"^OSS answered 404 NoSuchKey$"):
        fetching.fetch(f"oss://{bucket}", "agents/none", tmp_path / "file")


def test_the_whole_script_fits_into_the_user_data():
    profile = AliyunProvider(AliyunOptions(region="cn-hangzhou")).boot_profile()
    install = Install(
        key="agents/" + "0" * 64,
        sha256="0" * 64,
        digest="0" * 64,
        requirements=("cloudspot", "cloudspot-aliyun"),
    )
    script = render_boot_script(
        BootPlan(
            job_id="x" * 63,
            submission_sha256="5" * 64,
            launch=999999,
            store_url="oss://" + "b" * 63 + "/" + "p" * 200,
            provider="aliyun",
            profile=profile,
            max_seconds=timedelta(days=7).total_seconds(),
            version="1.2.3",
            install=install,
        )
    )
    assert len(script) < MAX_USER_DATA_BYTES * 2 / 3
