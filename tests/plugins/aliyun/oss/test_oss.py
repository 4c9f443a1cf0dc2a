"""The store in OSS beyond the promises of every store."""

import json
import urllib.request
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import crcmod
import oss2
import pytest
import urllib3

from cloudspot.calls import LinkRequest
from cloudspot.errors import (
    AuthError,
    CloudspotError,
    ObjectExists,
    SpecError,
    StoreRefused,
    TransientError,
)
from cloudspot.model import LogRecord
from cloudspot.testing import plaincalls
from cloudspot_aliyun import clients
from cloudspot_aliyun.clients import AliyunClients, oss_endpoint
from cloudspot_aliyun.credentials import Credentials, CredentialsSource
from cloudspot_aliyun.metadata import EcsMetadata
from cloudspot_aliyun.oss import OssStore
from cloudspot_aliyun.osslogs import OssLogSink


def quick(bucket, **options):
    return OssStore(f"oss://{bucket}", sleep=lambda seconds: None, **options)


@pytest.mark.parametrize("state", ["Enabled", "Suspended"])
def test_a_bucket_with_versions_is_refused_with_one_line(oss, state):
    store = quick(oss.make_bucket(versioning=state))
    for call in (
        lambda: store.put("k", b"", if_absent=True),
        lambda: store.get("k"),
        lambda: store.list_page(""),
    ):
        with pytest.raises(StoreRefused) as caught:
            call()
        assert f"has versioning {state}" in str(caught.value)
        assert "use a bucket that never had versioning" in str(caught.value)
    assert oss.faults.count("PutObject") == 0
    (found,) = plaincalls.check(store)
    assert not found.ok


def test_versions_that_are_switched_on_in_mid_run_are_noticed_at_the_next_write(oss, bucket):
    store = quick(bucket)
    store.put("k", b"")
    oss.app.buckets[bucket].versioning = "Enabled"
    with pytest.raises(StoreRefused, match="has versions"):
        store.put("other", b"", if_absent=True)
    with pytest.raises(StoreRefused, match="has versions"), store.open_upload("third") as upload:
        upload.write(b"x")
        upload.commit()


def test_a_caller_without_the_right_to_see_settings_works_and_still_notices_versions(oss):
    oss.faults.denied.add("oss:GetBucketInfo")
    store = quick(oss.make_bucket())
    store.put("k", b"x", if_absent=True)
    assert store.get("k") == b"x"
    with pytest.raises(StoreRefused, match="has versions"):
        quick(oss.make_bucket(versioning="Enabled")).put("k", b"", if_absent=True)


def test_a_bucket_of_another_region_is_found(oss, monkeypatch):
    name = oss.make_bucket(region="ap-southeast-1")
    quick(name).put("k", b"x")
    assert [call.region for call in oss.faults.calls] == ["cn-hangzhou", "ap-southeast-1", "ap-southeast-1"]
    monkeypatch.delenv("ALIBABA_CLOUD_REGION_ID")
    assert quick(name).get("k") == b"x"


def test_a_bucket_that_is_missing_and_one_of_another_account_are_said_so(oss, bucket):
    with pytest.raises(SpecError, match="there is no bucket 'no-such-one'; create it"):
        quick("no-such-one").get("k")
    oss.app.foreign_buckets.add(bucket)
    try:
        with pytest.raises(AuthError, match="this needs oss:PutObject, and the bucket policy's consent"):
            quick(bucket).put("k", b"")
    finally:
        oss.app.foreign_buckets.clear()


def test_bytes_that_change_on_their_way_are_noticed(oss, bucket, monkeypatch):
    store = quick(bucket)
    whole = bytes(2 << 20)
    store.put("k", whole)
    monkeypatch.setattr("cloudspot_aliyun_sandbox.ossbuckets.Stored.crc", property(lambda self: 1))
    with pytest.raises(TransientError, match="k: the bytes were damaged in transit"):
        store.put("k", whole)
    with pytest.raises(TransientError, match="k: the bytes were damaged in transit"):
        store.get("k")
    assert store.get_range("k", 0, 5) == bytes(5)  # OSS tells the sum of the whole object only.


def test_small_puts_carry_a_digest_by_which_oss_refuses_what_changed(oss, bucket):
    store = quick(bucket)
    store.put("small", b"x")
    store.put("large", bytes((1 << 20) + 1))
    puts = [call.parameters for call in oss.faults.calls if call.action == "PutObject"]
    assert ["content-md5" in put for put in puts] == [True, False]
    oss.faults.inject("PutObject", "InvalidDigest", status=400)
    with pytest.raises(TransientError, match="InvalidDigest"):
        store.put("small", b"x")


class Rotating(CredentialsSource):
    """Hands out one key after another, as a role's metadata does."""

    def __init__(self, *keys):
        self.keys = list(keys)

    def get(self):
        return self.keys[0]

    def renew(self, refused):
        if len(self.keys) > 1 and self.keys[0].access_key_id == refused:
            self.keys.pop(0)
        return self.keys[0].access_key_id != refused


def sts(oss, number, seconds=3600):
    made = oss.roles.issue(f"i-{number}", expires_at=datetime.now(timezone.utc) + timedelta(seconds=seconds))
    return Credentials(made.access_key, made.secret_key, made.token)


@pytest.mark.full
def test_a_temporary_key_that_expires_in_mid_run_is_renewed_and_no_write_is_lost(oss, bucket):
    first, second, third = sts(oss, 1), sts(oss, 2), sts(oss, 3)
    store = quick(
        bucket, clients=AliyunClients(credentials=Rotating(first, second, third)), part_bytes=1 << 20
    )
    store.put("k", b"x")
    oss.faults.expired_keys.add(first.access_key_id)
    store.put("created", b"y", if_absent=True)
    assert store.get("created") == b"y"
    with store.open_upload("stream", if_absent=True) as upload:
        upload.write(bytes(3 << 20))
        oss.faults.expired_keys.add(second.access_key_id)
        upload.write(bytes(3 << 20))
        upload.commit()
    assert store.head("stream").size == 6 << 20
    oss.faults.expired_keys.add(third.access_key_id)
    with pytest.raises(AuthError, match="the Alibaba Cloud credentials have expired"):
        store.get("k")


def test_a_key_that_has_ended_by_the_clock_is_renewed_at_first_use_too(oss, bucket):
    clients = AliyunClients(credentials=Rotating(sts(oss, 1, seconds=-5), sts(oss, 2)))
    quick(bucket, clients=clients).put("k", b"x", if_absent=True)


def test_check_tells_the_bucket_its_versions_and_what_stays_and_is_billed(oss, bucket):
    found = {each.name: each for each in plaincalls.check(quick(bucket))}
    assert [each.ok for each in found.values()] == [True, True, True]
    assert found["bucket versioning"].detail == "off"
    assert found["bucket lifecycle"].remedy == "add a rule with AbortMultipartUpload"
    oss.app.buckets[bucket].lifecycle = (
        b"<LifecycleConfiguration><Rule><ID>1</ID><Prefix></Prefix><Status>Enabled</Status>"
        b"<AbortMultipartUpload><Days>3</Days></AbortMultipartUpload></Rule></LifecycleConfiguration>"
    )
    found = {each.name: each for each in plaincalls.check(quick(bucket))}
    assert found["bucket lifecycle"].detail == "unfinished uploads are removed"
    oss.faults.denied.update({"oss:GetBucketLifecycle", "oss:GetBucketInfo"})
    found = {each.name: each for each in plaincalls.check(quick(bucket))}
    assert found["bucket lifecycle"].detail == "the permission to ask is missing"
    assert found["bucket versioning"].detail == "the permission to ask is missing"
    oss.faults.denied.add("oss:ListObjects")
    (only,) = plaincalls.check(quick(bucket))
    assert not only.ok


def test_the_internal_endpoint_is_taken_on_a_machine_of_the_buckets_region(oss, monkeypatch, bucket):
    asked = []

    def endpoint(region, *, is_internal=False):
        asked.append((region, is_internal))
        return oss.url

    monkeypatch.setattr("cloudspot_aliyun.ossbucket.oss_endpoint", endpoint)
    monkeypatch.setattr(clients, "is_on_ecs", lambda: True)
    for machine, is_internal in (("cn-hangzhou", True), ("cn-beijing", False), (None, False)):
        monkeypatch.setattr(clients, "region_of_this_machine", lambda machine=machine: machine)
        asked.clear()
        quick(bucket).list_page("")
        # Not once the other, which a machine without a way to the internet does not reach.
        assert asked == [("cn-hangzhou", is_internal)]
    monkeypatch.setattr(clients, "region_of_this_machine", lambda: "ap-southeast-1")
    asked.clear()
    quick(oss.make_bucket(region="ap-southeast-1")).list_page("")
    assert asked == [("cn-hangzhou", False), ("ap-southeast-1", True)]
    oss.faults.denied.add("oss:GetBucketInfo")
    monkeypatch.setattr(clients, "region_of_this_machine", lambda: "cn-hangzhou")
    asked.clear()
    quick(bucket).list_page("")
    assert asked == [("cn-hangzhou", True)]


def test_a_function_of_the_buckets_region_takes_the_internal_endpoint(monkeypatch):
    """It has no metadata service, and the public endpoint is refused to new accounts."""
    monkeypatch.setenv("FC_REGION", "cn-hangzhou")
    assert [clients.is_inside(one) for one in ("cn-hangzhou", "cn-beijing")] == [True, False]
    monkeypatch.delenv("FC_REGION")
    assert not clients.is_inside("cn-hangzhou")


def test_an_account_without_the_public_endpoint_is_told_of_a_domain_of_its_own(domain, bucket):
    store = quick(bucket)
    calls = (lambda: store.put("k", b"v"), lambda: store.get("k"), lambda: store.list_page(""))
    for call in calls:
        with pytest.raises(StoreRefused) as caught:
            call()
        assert f"CLOUDSPOT_OSS_DOMAINS={bucket}=https://..." in str(caught.value)
        assert "docs/aliyun.md" in str(caught.value)


def test_a_bucket_is_used_by_the_domain_that_the_environment_names_for_it(oss, domain, bucket, monkeypatch):
    other = oss.make_bucket()
    monkeypatch.setenv("CLOUDSPOT_OSS_DOMAINS", f"another=https://a.example.com, {bucket}={domain}")
    store = quick(bucket)
    store.put("a/b", b"v", if_absent=True)
    assert store.get("a/b") == b"v"
    assert [one.key for one in store.list_page("").objects] == ["a/b"]
    with pytest.raises(ObjectExists):
        store.put("a/b", b"w", if_absent=True)
    assert store.presign_get("a/b", seconds=60).startswith(f"{domain}/a/b?")
    with pytest.raises(StoreRefused):
        quick(other).get("k")  # the domain is the one bucket's


def link(store):
    return store.link(LinkRequest(key="a/b", seconds=600, media_type="text/html; charset=utf-8"))


def test_a_browser_shows_what_a_link_leads_to_at_a_domain_of_the_buckets_own(domain, bucket, monkeypatch):
    monkeypatch.setenv("CLOUDSPOT_OSS_DOMAINS", f"{bucket}={domain}")
    store = quick(bucket)
    store.put("a/b", b"<p>hello")
    found = link(store)
    assert found.url.startswith(f"{domain}/a/b?")
    with urllib.request.urlopen(found.url) as answer:
        assert (answer.read(), answer.headers["Content-Type"]) == (b"<p>hello", "text/html; charset=utf-8")
        assert "Content-Disposition" not in answer.headers


def test_at_the_default_domain_there_is_no_link_as_browsers_download_pages(oss, bucket):
    store = quick(bucket)
    store.put("a/b", b"<p>hello")
    with pytest.raises(
        CloudspotError,
        match="browsers download pages from OSS's default domain and do not show them; bind a domain",
    ):
        link(store)
    url = store.bucket.ask(
        "sign for",
        "a/b",
        lambda client: client.sign_url(
            "GET",
            store.bucket.full("a/b"),
            60,
            slash_safe=True,
            params={"response-content-type": "text/html"},
        ),
    )
    with urllib.request.urlopen(url) as answer:
        assert answer.headers["x-oss-force-download"] == "true"


def test_a_link_that_a_temporary_key_signs_ends_with_it(domain, bucket, monkeypatch):
    monkeypatch.setenv("CLOUDSPOT_OSS_DOMAINS", f"{bucket}={domain}")
    store = quick(bucket)
    store.put("a/b", b"<p>hello")
    over = datetime.now(timezone.utc) + timedelta(seconds=100)
    for end in (over, None):
        key = Credentials("id", "secret", "token", end)
        monkeypatch.setattr(store.bucket._clients.credentials, "get", lambda key=key: key)
        found = link(store)
        assert "temporary key" in found.note
        assert found.ends_at == over or end is None


@pytest.mark.parametrize("wrong", ["https://x", "b=", "b=ftp://x", "b=https://x/path", "=https://x"])
def test_a_malformed_list_of_domains_is_refused(bucket, monkeypatch, wrong):
    monkeypatch.setenv("CLOUDSPOT_OSS_DOMAINS", wrong)
    with pytest.raises(SpecError, match="CLOUDSPOT_OSS_DOMAINS must be pairs such as"):
        quick(bucket).get("k")


def test_a_machines_region_that_its_metadata_did_not_tell_at_first_is_asked_for_again(monkeypatch):
    answers = iter([TransientError("busy"), "cn-beijing"])

    def ask(_metadata, path):
        assert path == "meta-data/region-id"
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    clients._region_by_metadata.cache_clear()
    monkeypatch.setattr(EcsMetadata, "get", ask)
    monkeypatch.setattr(clients, "is_on_ecs", lambda: True)
    try:
        assert [clients.region_of_this_machine() for _ in range(3)] == [None, "cn-beijing", "cn-beijing"]
    finally:
        clients._region_by_metadata.cache_clear()


def test_endpoints_are_https_of_the_region_unless_the_environment_moves_them(monkeypatch):
    monkeypatch.delenv("OSS_ENDPOINT", raising=False)
    assert oss_endpoint("cn-hangzhou") == "https://oss-cn-hangzhou.aliyuncs.com"
    assert oss_endpoint("cn-hangzhou", is_internal=True) == "https://oss-cn-hangzhou-internal.aliyuncs.com"
    monkeypatch.setenv("OSS_ENDPOINT", "oss-cn-x.aliyuncs.com")
    assert oss_endpoint("cn-hangzhou") == "https://oss-cn-x.aliyuncs.com"
    for wrong in ("ftp://x", "http://", "http://x/path", "http://a@b", "http://x:99999"):
        monkeypatch.setenv("OSS_ENDPOINT", wrong)
        with pytest.raises(SpecError, match="OSS_ENDPOINT must be a URL such as"):
            oss_endpoint("cn-hangzhou")


def test_no_key_at_all_is_said_with_what_to_do(oss, bucket, monkeypatch):
    monkeypatch.delenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET")
    with pytest.raises(AuthError, match="must both be set"):
        quick(bucket).get("k")
    monkeypatch.delenv("ALIBABA_CLOUD_ACCESS_KEY_ID")
    with pytest.raises(CloudspotError, match="no Alibaba Cloud credentials found"):
        quick(bucket).get("k")


def test_the_command_lines_profile_is_used(oss, bucket, monkeypatch, tmp_path):
    for name in ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_REGION_ID"):
        monkeypatch.delenv(name)
    profile = {
        "name": "work",
        "mode": "AK",
        "access_key_id": "LTAI5tEXAMPLEexample0001",
        "access_key_secret": "example0secret1example2secret3",
        "region_id": "cn-hangzhou",
    }
    (tmp_path / ".aliyun").mkdir()
    (tmp_path / ".aliyun/config.json").write_text(json.dumps({"current": "work", "profiles": [profile]}))
    quick(bucket).put("k", b"x")
    assert oss.faults.calls[-1].access_key == "LTAI5tEXAMPLEexample0001"


@pytest.mark.parametrize("is_old", [False, True])
def test_an_answer_that_breaks_off_is_a_transient_error_and_never_a_short_object(
    oss, bucket, monkeypatch, is_old
):
    store = quick(bucket)
    if is_old:
        # As urllib3 1.26, which requests takes too.
        made = urllib3.HTTPResponse.__init__

        def make(self, *arguments, **options):
            made(self, *arguments, **{**options, "enforce_content_length": False})

        monkeypatch.setattr(urllib3.HTTPResponse, "__init__", make)
    store.put("k", bytes(3 << 20))
    whole = oss.app._get

    def cut(request, held):
        status, headers, body = whole(request, held)
        return status, {"Content-Length": str(len(body)), **headers}, body[: len(body) // 2]

    monkeypatch.setattr(oss.app, "_get", cut)
    for call in (
        lambda: store.get("k"),
        lambda: store.get_range("k", 5, 2 << 20),
        lambda: store.get_range_into("k", 5, bytearray(2 << 20)),
    ):
        with pytest.raises(TransientError, match="k: the connection broke"):
            call()


def test_an_empty_object_has_no_range_however_the_server_says_so(oss, bucket, monkeypatch):
    store = quick(bucket)
    store.put("k", b"")
    assert store.get_range("k", 0, 5) == b""
    monkeypatch.setattr("cloudspot_aliyun_sandbox.strict_oss.range_of", lambda *span, **options: None)
    assert store.get_range("k", 0, 5) == b""
    assert store.get_range_into("k", 0, bytearray(5)) == 0


@pytest.mark.full
def test_no_sum_is_computed_by_crcmod_which_may_be_in_pure_python(oss, bucket, monkeypatch):
    def update(self, data):
        raise AssertionError("crcmod is at work")

    monkeypatch.setattr(oss2.utils.Crc64, "update", update)
    monkeypatch.setattr(crcmod.Crc, "update", update)
    with pytest.raises(AssertionError, match="crcmod is at work"):
        oss2.Bucket(oss2.AuthV4("LTAI5t", "x"), oss.url, bucket, region="cn-hangzhou").put_object("k", b"x")
    store = quick(bucket, part_bytes=1 << 20)
    for size in (1, 2 << 20):
        store.put("k", bytes(size))
        assert store.get("k") == bytes(size)
        assert store.get_range("k", 0, size) == bytes(size)
        assert store.get_range_into("k", 0, bytearray(size)) == size
        with store.open_upload("stream") as upload:
            upload.write(bytes(size))
            upload.commit()
    sink = OssLogSink(store, "job-1", instance_id="i-one")
    for seq in range(2):
        sink.write([LogRecord(stream="1-0", seq=seq, time=datetime.now(timezone.utc), text="x")])
    assert [record.seq for record in sink.read("1-0")] == [0, 1]


def test_many_objects_go_with_one_request_and_one_that_is_not_told_may_be_left(bucket, monkeypatch):
    store, asked = quick(bucket), []
    for key in ("a", "b", "c~&<>"):
        store.put(key, b"")
    client = store.bucket._client
    delete = client.batch_delete_objects
    monkeypatch.setattr(client, "batch_delete_objects", lambda names: asked.append(names) or delete(names))
    store.delete_many(["a", "c~&<>", "none"])
    assert asked == [["a", "c~&<>", "none"]]
    assert [one.key for one in store.list_objects("")] == ["b"]
    monkeypatch.setattr(client, "batch_delete_objects", lambda _: SimpleNamespace(deleted_keys=["a"]))
    with pytest.raises(TransientError, match="it lacks an object that was to be deleted"):
        store.delete_many(["a", "b"])
