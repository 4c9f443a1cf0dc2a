"""The store in S3: what is its own beside the promises of every store."""

import io
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSResponse
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import FlexibleChecksumError
from support.clouds.bucketstoretests import one_line, upload

from cloudspot.calls import LinkRequest
from cloudspot.errors import AuthError, ObjectExists, SpecError, StoreMissing, StoreRefused, TransientError
from cloudspot.registry import open_store
from cloudspot.testing import plaincalls
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.s3 import S3Store
from cloudspot_aws.s3bucket import S3Bucket, _is_guarded
from cloudspot_aws.s3reads import S3Reads, verify

MIB = 1 << 20


# --- where the bucket is ------------------------------------------------------------------------------


@pytest.mark.parametrize("configured", ["eu-central-1", "us-east-1", None])
@pytest.mark.parametrize("region", ["us-west-2", "us-east-1", "eu-central-1"])
def test_the_region_of_the_bucket_is_found(make_bucket, monkeypatch, region, configured):
    url = f"s3://{make_bucket(region)}"
    if configured is None:
        monkeypatch.delenv("AWS_REGION")
    else:
        monkeypatch.setenv("AWS_REGION", configured)
    store = open_store(url)
    store.put("k", b"hello", if_absent=True)
    assert store.get("k") == b"hello"
    with urllib.request.urlopen(store.presign_get("k", seconds=60)) as answer:
        assert answer.read() == b"hello"


# --- what goes wrong -----------------------------------------------------------------------------------


def test_only_a_service_that_says_that_there_is_no_such_bucket_makes_a_store_missing(aws, bucket):
    aws.faults.inject("HeadBucket", "404", status=404)
    aws.faults.inject("ListObjectsV2", "404", status=404)  # as anything does at a wrong endpoint
    with pytest.raises(SpecError, match="there is no bucket") as caught:
        S3Store(f"s3://{bucket}").get("k")
    assert not isinstance(caught.value, StoreMissing)


def test_another_accounts_bucket_is_an_auth_error_that_says_so(aws, bucket):
    aws.s3.foreign_buckets.add(bucket)
    with pytest.raises(AuthError, match="if another account owns it"):
        S3Store(f"s3://{bucket}").put("k", b"x", if_absent=True)


def test_who_may_not_ask_where_the_bucket_is_can_still_write(aws, bucket):
    aws.faults.denied.add("s3:ListBucket")
    store = S3Store(f"s3://{bucket}")
    store.put("k", b"x")
    assert store.get("k") == b"x"


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda aws, env: aws.faults.expired_keys.add("AKIAIOSFODNN7EXAMPLE"), "have expired"),
        (
            lambda aws, env: env.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret"),
            "does not match|access denied",
        ),
        (lambda aws, env: env.setenv("AWS_ACCESS_KEY_ID", "AKIAWHOISTHISNOBODY1"), "does not|access denied"),
        (lambda aws, env: env.delenv("AWS_ACCESS_KEY_ID"), "no AWS credentials found"),
    ],
)
def test_credentials_that_do_not_serve_are_an_auth_error(aws, bucket, monkeypatch, prepare, reason):
    prepare(aws, monkeypatch)
    if reason.startswith("no AWS"):
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AuthError, match=reason) as caught:
        S3Store(f"s3://{bucket}").get("k")
    one_line(caught)


# --- whose write it was ---------------------------------------------------------------------------------


def test_a_conflict_is_tried_again_as_s3_asks_to(aws, bucket):
    slept = []
    store = S3Store(f"s3://{bucket}", sleep=slept.append)
    aws.faults.inject("PutObject", "ConditionalRequestConflict", status=409, times=3)
    store.put("first", b"x", if_absent=True)
    assert slept == [0.1, 0.2, 0.4]
    aws.faults.inject("PutObject", "ConditionalRequestConflict", status=409, times=5)
    with pytest.raises(TransientError, match="ConditionalRequestConflict"):
        store.put("k", b"x", if_absent=True)
    store.put("k", b"y", if_absent=True)
    with pytest.raises(ObjectExists):
        store.put("k", b"z", if_absent=True)
    assert store.get("k") == b"y"


def test_a_versioned_bucket_keeps_the_promise_of_create_only(s3, bucket):
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    store = S3Store(f"s3://{bucket}")
    for data in (b"one", b"two"):
        store.put("k", data, if_absent=True)
        with pytest.raises(ObjectExists):
            store.put("k", b"late", if_absent=True)
        assert store.get("k") == data
        store.delete("k")


# --- bytes on the way -----------------------------------------------------------------------------------


def test_bytes_that_changed_on_the_way_are_refused(proxy, store):
    for size in (10, 3 * MIB):
        proxy.change_request = lambda body: body[:-1] + b"!" if body else body
        with pytest.raises(TransientError, match="BadDigest"):
            store.put("k", b"x" * size)
        proxy.change_request = lambda body: body
        assert list(store.list_objects("")) == []


def test_payloads_are_signed_only_where_others_could_change_them(aws, store):
    store.put("k", b"x" * 3 * MIB)
    (call,) = [call for call in aws.faults.calls if call.action == "PutObject"]
    assert call.parameters["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert [
        _is_guarded(url)
        for url in ("https://s3.amazonaws.com", "http://127.0.0.1:5", "http://[::1]:5", "http://localhost")
    ] == [True] * 4
    assert [
        _is_guarded(url) for url in ("http://10.0.0.1:9000", "http://minio.example", "http://127.evil")
    ] == [False] * 3


def test_a_server_without_checksums_is_named_and_served_without(aws, proxy, bucket, monkeypatch):
    proxy.forbids = "x-amz-checksum-"
    with pytest.raises(StoreRefused, match="set AWS_REQUEST_CHECKSUM_CALCULATION=when_required"):
        S3Store(f"s3://{bucket}", clients=AwsClients()).put("k", b"x")
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    proxy.forbids = "x-amz-checksum"
    store = S3Store(f"s3://{bucket}", clients=AwsClients(), part_bytes=5 * MIB)
    store.put("k", b"x" * 3 * MIB)
    upload(store, "large", b"y" * 6 * MIB)
    assert (store.get("k"), len(store.get("large"))) == (b"x" * 3 * MIB, 6 * MIB)
    proxy.change_request = lambda body: body[:-1] + b"!" if body else body
    with pytest.raises(TransientError, match="XAmzContentSHA256Mismatch"):
        store.put("other", b"x" * 10)


# --- streams --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_stream_goes_up_in_parts_and_a_small_one_in_a_single_put(aws, store):
    for key, size in (("small", 100), ("large", 12 * MIB)):
        upload(store, key, b"x" * size)
    actions = [call.action for call in aws.faults.calls if call.action not in {"CreateBucket", "HeadBucket"}]
    assert actions[0] == "PutObject"
    assert sorted(actions[1:]) == sorted(
        ["CreateMultipartUpload", *["UploadPart"] * 3, "CompleteMultipartUpload"]
    )


def test_parts_that_cannot_be_dropped_are_told_of(aws, store, caplog):
    aws.faults.inject("AbortMultipartUpload", "InternalError", status=500, times=100)
    with store.open_upload("k") as upload:
        upload.write(bytes(6 * MIB))
    assert "stay until the bucket's lifecycle removes them" in caplog.text


# --- the rest -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_check_tells_what_a_bucket_keeps_that_is_billed(aws, s3, bucket):
    store = S3Store(f"s3://{bucket}")
    assert [(one.name, one.ok) for one in plaincalls.check(store)] == [
        ("bucket", True),
        ("bucket versioning", True),
        ("bucket lifecycle", True),
    ]
    assert plaincalls.check(store)[1].detail == "off"
    assert "AbortIncompleteMultipartUpload" in plaincalls.check(store)[2].remedy
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    rule = {
        "ID": "x",
        "Status": "Enabled",
        "Filter": {},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
    }
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    assert "expires noncurrent versions" in plaincalls.check(store)[1].remedy
    assert plaincalls.check(store)[2].detail == "unfinished uploads are removed"
    aws.faults.denied.update({"s3:GetBucketVersioning", "s3:GetLifecycleConfiguration"})
    found = plaincalls.check(store)[1:]
    assert [(one.is_known, one.detail) for one in found] == [(False, "the permission to ask is missing")] * 2


# --- reads, which botocore's client has no part in ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("crc32", "y/Q5Jg=="),
        ("crc32c", "4waSgw=="),
        ("sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
        ("sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
    ],
)
def test_whole_objects_are_compared_with_the_checksum_that_s3_tells(name, told):
    header = f"x-amz-checksum-{name}"
    with memoryview(b"123456789") as data, memoryview(b"123456788") as other:
        verify({header: told}, data)
        with pytest.raises(FlexibleChecksumError):
            verify({header: told}, other)
        verify({header: f"{told}-2"}, other)  # of the checksums of two parts
        verify({"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}, data)  # cannot be computed here


@pytest.fixture
def far_away(monkeypatch):
    """Credentials without an endpoint: requests would go to AWS."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "given")


def reads_of(bucket, clients, monkeypatch):
    """Return what reads the bucket, its client, and the requests that both make, none of which is sent."""
    client = S3Bucket(f"s3://{bucket}", clients, time.sleep)._client_in("eu-west-1")
    sent = []

    def send(request):
        sent.append((request.url, {name.lower(): _text(value) for name, value in request.headers.items()}))
        return AWSResponse(request.url, 200, {"Content-Length": "0"}, io.BytesIO())

    monkeypatch.setattr(client._endpoint.http_session, "send", send)
    return S3Reads(client, clients.core, bucket), client, sent


@pytest.mark.parametrize(
    ("bucket", "asked", "url"),
    [
        ("data", None, "https://data.s3.eu-west-1.amazonaws.com/a%20b/%2Bc"),
        ("data.v1", None, "https://s3.eu-west-1.amazonaws.com/data.v1/a%20b/%2Bc"),
        ("data", "AWS_USE_FIPS_ENDPOINT", "https://data.s3-fips.eu-west-1.amazonaws.com/a%20b/%2Bc"),
        ("data", "AWS_USE_DUALSTACK_ENDPOINT", "https://data.s3.dualstack.eu-west-1.amazonaws.com/a%20b/%2Bc"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("far_away")
def test_objects_are_read_where_and_as_the_client_would_read_them(monkeypatch, bucket, asked, url):
    if asked is not None:
        monkeypatch.setenv(asked, "true")
    reads, client, sent = reads_of(bucket, AwsClients(), monkeypatch)
    reads.get("a b/+c", {"Range": "bytes=0-0"})
    client.get_object(Bucket=bucket, Key="a b/+c", Range="bytes=0-0")
    (own_url, own), (their_url, theirs) = sent
    assert own_url == their_url == url
    vary = {"x-amz-date", "authorization", "amz-sdk-invocation-id", "amz-sdk-request"}
    assert {one: own[one] for one in own.keys() - vary} == {one: theirs[one] for one in theirs.keys() - vary}
    assert own["x-amz-security-token"] == "given"
    assert "cloudspot/" in own["user-agent"]
    assert (
        own["authorization"].partition("Signature=")[0] == theirs["authorization"].partition("Signature=")[0]
    )
    assert reads.signed_url("a b/+c", 60).startswith(f"{url}?")


@pytest.mark.usefixtures("far_away")
def test_credentials_are_those_of_the_moment(monkeypatch):
    reads, _, sent = reads_of("data", AwsClients(), monkeypatch)
    for key in ("AKIAFIRST", "AKIASECOND"):
        frozen = ReadOnlyCredentials(key, "secret", f"token of {key}")
        monkeypatch.setattr(reads._credentials, "get_frozen_credentials", lambda frozen=frozen: frozen)
        reads.get("k", {})
        assert f"Credential={key}/" in sent[-1][1]["authorization"]
        assert sent[-1][1]["x-amz-security-token"] == f"token of {key}"
        assert f"Credential={key}%2F" in reads.signed_url("k", 60)


@pytest.mark.usefixtures("far_away")
def test_stores_that_share_a_client_each_read_their_own_bucket(monkeypatch):
    clients, both = AwsClients(), threading.Barrier(2)
    client = S3Bucket("s3://data", clients, time.sleep)._client_in("eu-west-1")

    def meet(**_):
        both.wait(30)

    client.meta.events.register_first("before-send.s3.GetObject", meet)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda bucket: S3Reads(client, clients.core, bucket), ("data-1", "data-2")))
    assert [urlsplit(one.signed_url("k", 60)).hostname.partition(".")[0] for one in found] == [
        "data-1",
        "data-2",
    ]


@pytest.fixture
def tiny_s3(monkeypatch):
    """A server with an empty object, whose failures end in the middle; counts its connections."""
    connections = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            super().setup()
            connections.append(self.client_address)

        def do_HEAD(self):
            self.send_response(200)
            self.send_header("x-amz-bucket-region", "us-east-1")
            self.end_headers()

        def do_GET(self):
            if self.path.endswith("/empty"):
                self.send_response(200)
                self.send_header("ETag", '"x"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(503)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"40\r\n<Error>")
            self.close_connection = True

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        yield S3Store("s3://data", sleep=lambda _: None), connections
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("far_away")
def test_reads_of_empty_objects_share_one_connection(tiny_s3):
    store, connections = tiny_s3
    assert [store.get("empty") for _ in range(5)] == [b""] * 5
    assert len(connections) == 1


@pytest.mark.usefixtures("far_away")
def test_a_failure_whose_text_is_cut_short_is_transient(tiny_s3):
    store, _ = tiny_s3
    with pytest.raises(TransientError):
        store.get("broken")


def _text(value):
    return value.decode() if isinstance(value, bytes) else value


def test_many_objects_go_with_one_request_and_one_that_is_left_is_an_error(make_bucket, monkeypatch):
    store, sent = open_store(f"s3://{make_bucket('us-east-1')}/some/prefix"), []
    for key in ("a", "b", "c~&<>"):
        store.put(key, b"")
    store.bucket._client.meta.events.register("before-call.s3", lambda model, **_: sent.append(model.name))
    store.delete_many(["a", "c~&<>", "none"])
    assert sent == ["DeleteObjects"]
    assert [one.key for one in store.list_objects("")] == ["b"]
    # S3 answers with 200 all the same.
    left = {"Errors": [{"Key": "some/prefix/a", "Code": "AccessDenied", "Message": "not you"}]}
    monkeypatch.setattr(store.bucket._client, "delete_objects", lambda **_: left)
    with pytest.raises(AuthError, match=r"cannot delete 1 objects: .*not you.*; this needs s3:DeleteObject"):
        store.delete_many(["a"])
    # A proxy's page is read as an answer without anything in it.
    monkeypatch.setattr(store.bucket._client, "delete_objects", lambda **_: {})
    with pytest.raises(TransientError, match="an object that was to be deleted"):
        store.delete_many(["a"])


# --- links that a browser shows ------------------------------------------------------------------------


def link(store, key, *, seconds=600):
    return store.link(LinkRequest(key=key, seconds=seconds, media_type="text/html; charset=utf-8"))


def test_a_browser_shows_what_a_link_leads_to_until_it_ends(aws, bucket, monkeypatch):
    store = S3Store(f"s3://{bucket}")
    store.put("a/b c+d.html", "<p>\u00fc".encode())
    before = datetime.now(timezone.utc)
    found = link(store, "a/b c+d.html")
    assert found.note == ""
    assert timedelta(seconds=599) < found.ends_at - before < timedelta(seconds=660)
    with urllib.request.urlopen(found.url) as answer:
        assert answer.read().decode() == "<p>\u00fc"
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.headers["Content-Disposition"] is None
    monkeypatch.setattr(aws.s3, "_now", lambda: found.ends_at + timedelta(seconds=1))
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(found.url)


@pytest.mark.parametrize("ends", [timedelta(seconds=120), None, timedelta(days=1)])
def test_a_link_of_temporary_credentials_ends_with_them(bucket, monkeypatch, ends):
    store = S3Store(f"s3://{bucket}")
    store.put("k", b"x")
    over = None if ends is None else datetime.now(timezone.utc) + ends

    class Temporary:
        _expiry_time = over

        def get_frozen_credentials(self):
            return ReadOnlyCredentials("AKIA", "secret", "token")

    monkeypatch.setattr(store.bucket._reads, "_credentials", Temporary())
    found = link(store, "k")
    if ends == timedelta(days=1):
        assert found.note == ""
        return
    assert "temporary credentials" in found.note
    assert "access key" in found.note
    assert ("has not said when" in found.note) is (ends is None)
    if over is not None:
        assert found.ends_at == over
