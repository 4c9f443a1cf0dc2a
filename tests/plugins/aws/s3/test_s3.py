"""The store in S3: what is its own beside the promises of every store."""

import mmap
import urllib.request

import boto3
import pytest

from cloudspot.errors import AuthError, CloudspotError, ObjectExists, SpecError, StoreRefused, TransientError
from cloudspot.jobstore.creation import create
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.probe import probe
from cloudspot.registry import open_store
from cloudspot_aws.s3 import S3Store
from cloudspot_aws.s3bucket import _is_guarded

MIB = 1 << 20


def s3(region="eu-central-1"):
    return boto3.session.Session().client("s3", region_name=region)


def pending_uploads(bucket):
    return [one["Key"] for one in s3().list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


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


def test_the_bucket_is_looked_for_once_and_each_call_is_one_request(aws, store):
    store.put("k", b"x", if_absent=True)
    store.get("k")
    store.get_range("k", 0, 1)
    store.head("k")
    store.list_page("")
    store.presign_get("k", seconds=60)
    store.delete("k")
    assert [call.action for call in aws.faults.calls if call.action != "CreateBucket"] == [
        "HeadBucket",
        "PutObject",
        "GetObject",
        "GetObject",
        "HeadObject",
        "ListObjectsV2",
        "DeleteObject",
    ]


def test_opening_asks_nothing_and_a_prefix_may_end_with_a_slash(aws, bucket):
    aws.reset_faults()
    one, other = open_store(f"s3://{bucket}/p/q/"), open_store(f"S3://{bucket}/p/q")
    assert aws.faults.calls == []
    one.put("k", b"x")
    assert other.get("k") == b"x"
    assert [entry["Key"] for entry in s3().list_objects_v2(Bucket=bucket)["Contents"]] == ["p/q/k"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://", "is not a bucket name"),
        ("s3://B", "is not a bucket name"),
        ("s3://bucket..x", "is not a bucket name"),
        ("s3://bucket/a//b", "its prefix is not a key"),
        ("s3://bucket/../x", "its prefix is not a key"),
        ("s3://fast--use1-az4--x-s3", "a directory bucket lists in no order"),
        ("s3://key:secret@bucket/x", "another form"),
    ],
)
def test_a_url_that_names_no_store_is_a_spec_error(url, reason):
    with pytest.raises(SpecError, match=reason) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


# --- what goes wrong -----------------------------------------------------------------------------------


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    for secret in ("AKIA", "wJalrXUtnFEMI", "X-Amz-Signature", "wrong-secret"):
        assert secret not in text
    return text


def test_a_missing_bucket_is_named_with_the_remedy(aws):
    with pytest.raises(SpecError) as caught:
        S3Store("s3://nobodys-bucket/p").get("k")
    assert one_line(caught) == (
        "store s3://nobodys-bucket/p: there is no bucket 'nobodys-bucket'; create it (aws s3 mb "
        "s3://nobodys-bucket) or correct the name"
    )


@pytest.mark.parametrize(
    ("right", "call", "verb"),
    [
        ("s3:PutObject", lambda s: s.put("k", b""), "write k"),
        ("s3:GetObject", lambda s: s.get("k"), "read k"),
        ("s3:DeleteObject", lambda s: s.delete("k"), "delete k"),
        ("s3:ListBucket", lambda s: s.list_page("x/"), "list x/"),
    ],
)
def test_a_right_that_is_missing_is_named(aws, store, right, call, verb):
    store.put("k", b"")
    aws.faults.denied.add(right)
    with pytest.raises(AuthError) as caught:
        call(store)
    assert one_line(caught) == (
        f"{store.url}: cannot {verb}: access denied: Access Denied (AccessDenied); it takes {right}, "
        "and the bucket policy's consent if another account owns it"
    )


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


def test_a_service_that_does_not_answer_is_a_transient_error(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(TransientError, match=r"no answer from 127\.0\.0\.1:1: .*refused") as caught:
        S3Store(f"s3://{bucket}").get("k")
    one_line(caught)


def test_a_service_that_fails_is_a_transient_error(aws, store):
    store.put("k", b"x")
    aws.faults.inject("GetObject", "InternalError", status=500)
    with pytest.raises(TransientError, match="AWS failed: injected"):
        store.get("k")
    assert store.get("k") == b"x"


def test_a_failed_put_lets_go_of_the_callers_mapping(aws, store):
    mapped = mmap.mmap(-1, 4 * MIB)
    for code, kind in (("InternalError", TransientError), ("PreconditionFailed", ObjectExists)):
        aws.faults.inject("PutObject", code, status=500 if kind is TransientError else 412)
        with memoryview(mapped) as view, pytest.raises(kind) as caught:
            store.put("k", view, if_absent=True)
    mapped.close()
    assert caught.value.__traceback__ is not None


# --- whose write it was ---------------------------------------------------------------------------------


def test_a_conflict_is_tried_again_as_s3_asks_to(aws, bucket):
    slept = []
    store = S3Store(f"s3://{bucket}", sleep=slept.append)
    for code, status in (("ConditionalRequestConflict", 409), ("SlowDown", 503)):
        aws.faults.inject("PutObject", code, status=status, times=3)
        slept.clear()
        store.put(code, b"x", if_absent=True)
        assert slept == [0.1, 0.2, 0.4]
    aws.faults.inject("PutObject", "ConditionalRequestConflict", status=409, times=5)
    with pytest.raises(TransientError, match="ConditionalRequestConflict"):
        store.put("k", b"x", if_absent=True)
    store.put("k", b"y", if_absent=True)
    with pytest.raises(ObjectExists):
        store.put("k", b"z", if_absent=True)
    assert store.get("k") == b"y"


@pytest.mark.parametrize("size", [1, 3 * MIB])
def test_a_create_whose_answer_is_lost_is_made_once_and_then_known_for_ours(aws, proxy, store, size):
    proxy.drop = lambda method, path: method == "PUT" and path.endswith("/k") and proxy.num_dropped == 0
    with pytest.raises(TransientError):
        store.put("k", b"a" * size, if_absent=True)
    assert aws.faults.count("PutObject") == 1
    proxy.num_dropped = 0
    proxy.drop = lambda method, path: method == "PUT" and path.endswith("/n") and proxy.num_dropped == 0
    assert create(store, "n", b"nonce" * size, sleep=lambda seconds: None) is None
    assert create(store, "n", b"other", sleep=lambda seconds: None) == b"nonce" * size
    assert proxy.num_dropped == 1


def test_a_create_that_succeeded_with_an_error_is_known_for_ours(aws, store):
    aws.faults.inject("PutObject", "InternalError", status=500, happens=True)
    assert create(store, "k", b"nonce", sleep=lambda seconds: None) is None
    assert aws.faults.count("PutObject") == 1


def test_a_put_whose_answer_is_lost_may_be_made_again(proxy, store):
    proxy.drop = lambda method, path: method == "PUT" and proxy.num_dropped == 0
    patient(store, sleep=lambda seconds: None).put("k", b"x")
    assert proxy.num_dropped == 1
    assert store.get("k") == b"x"


@pytest.mark.parametrize("size", [3, 12 * MIB])
@pytest.mark.parametrize("if_absent", [True, False])
def test_a_stream_whose_last_answer_is_lost_is_known_for_ours(proxy, bucket, store, size, if_absent):
    is_last = {
        3: lambda method, path: method == "PUT",
        12 * MIB: lambda method, path: method == "POST" and "uploadId" in path,
    }
    proxy.drop = lambda method, path: is_last[size](method, path) and proxy.num_dropped == 0
    with store.open_upload("k", if_absent=if_absent) as upload:
        upload.write(b"x" * size)
        upload.commit()
    assert proxy.num_dropped == 1
    assert store.head("k").size == size
    assert pending_uploads(bucket) == []


def test_a_stream_that_lost_to_another_while_its_answer_was_lost_says_so(aws, store):
    upload = store.open_upload("k", if_absent=True)
    upload.write(bytes(12 * MIB))
    store.put("k", b"another's", if_absent=True)
    aws.faults.inject("CompleteMultipartUpload", "InternalError", status=500)
    with pytest.raises(ObjectExists, match="k exists"):
        upload.commit()
    assert store.get("k") == b"another's"


def test_a_server_that_takes_any_create_is_refused_by_the_probe(aws, store, monkeypatch):
    probe(store, sleep=lambda seconds: None)
    monkeypatch.setattr(
        type(aws.s3),
        "_check_condition",
        lambda self, request: request.environ.pop("HTTP_IF_NONE_MATCH", None),
    )
    with pytest.raises(StoreRefused, match="second create of the same key was accepted"):
        probe(store, sleep=lambda seconds: None)


def test_a_server_without_conditions_is_refused_by_name(aws, store):
    aws.faults.inject("PutObject", "NotImplemented", status=501)
    with pytest.raises(StoreRefused, match="lacks what cloudspot needs"):
        store.put("k", b"x", if_absent=True)


def test_a_versioned_bucket_keeps_the_promise_of_create_only(bucket):
    s3().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
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


def test_an_answer_that_breaks_off_is_no_object(proxy, store):
    store.put("k", b"x" * MIB)
    proxy.cut_answer = True
    for call in (lambda s: s.get("k"), lambda s: s.get_range("k", 10, 5000)):
        with pytest.raises(TransientError, match=r"the connection broke: .* total bytes expected"):
            call(S3Store(store.url))


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


# --- streams --------------------------------------------------------------------------------------------


def test_a_stream_goes_up_in_parts_and_a_small_one_in_a_single_put(aws, store):
    for key, size in (("small", 100), ("large", 12 * MIB)):
        with store.open_upload(key) as upload:
            upload.write(b"x" * size)
            upload.commit()
    actions = [call.action for call in aws.faults.calls if call.action not in {"CreateBucket", "HeadBucket"}]
    assert actions[0] == "PutObject"
    assert sorted(actions[1:]) == sorted(
        ["CreateMultipartUpload", *["UploadPart"] * 3, "CompleteMultipartUpload"]
    )


def test_an_aborted_stream_leaves_no_parts(bucket, store):
    with store.open_upload("k") as upload:
        upload.write(bytes(12 * MIB))
        assert pending_uploads(bucket) == ["some/prefix/k"]
    assert pending_uploads(bucket) == []


def test_a_part_that_fails_in_passing_is_sent_again(aws, store):
    aws.faults.inject("UploadPart", "InternalError", status=500, times=3)
    aws.faults.inject("CreateMultipartUpload", "SlowDown", status=503)
    aws.faults.inject("CompleteMultipartUpload", "InternalError", status=500)
    with store.open_upload("k") as upload:
        upload.write(b"x" * 12 * MIB)
        upload.commit()
    assert store.get("k") == b"x" * 12 * MIB


def test_a_part_that_fails_for_good_ends_the_stream(aws, bucket, store):
    aws.faults.inject("UploadPart", "InternalError", status=500, times=1000)
    with pytest.raises(TransientError), store.open_upload("k") as upload:
        for _ in range(100):
            upload.write(bytes(5 * MIB))
        pytest.fail("a stream goes on although no part arrives")
    assert pending_uploads(bucket) == []
    assert list(store.list_objects("")) == []


def test_parts_that_cannot_be_dropped_are_told_of(aws, store, caplog):
    aws.faults.inject("AbortMultipartUpload", "InternalError", status=500, times=100)
    with store.open_upload("k") as upload:
        upload.write(bytes(6 * MIB))
    assert "stay until the bucket's lifecycle removes them" in caplog.text


# --- the rest -------------------------------------------------------------------------------------------


def test_what_others_keep_in_the_bucket_is_passed_over(bucket, store):
    client = s3()
    for key in ("some/prefix/", "some/prefix/folder/", "some/prefix/ü", "some/prefixed", "other"):
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    store.put("k", b"")
    assert [meta.key for meta in store.list_objects("")] == ["k"]
    found, after = [], None
    for _ in range(10):
        page = store.list_page("", after=after, limit=1)
        found += [meta.key for meta in page.objects]
        after = page.next_after
        if after is None:
            break
    assert found == ["k"]


@pytest.mark.parametrize("seconds", [0, -1, 604801])
def test_a_url_that_s3_would_not_sign_for_is_refused(store, seconds):
    with pytest.raises(ValueError, match="604800"):
        store.presign_get("k", seconds=seconds)


def test_check_tells_what_a_bucket_keeps_that_is_billed(aws, bucket):
    store = S3Store(f"s3://{bucket}")
    assert [(one.name, one.ok) for one in store.check()] == [
        ("bucket", True),
        ("bucket versioning", True),
        ("bucket lifecycle", True),
    ]
    assert store.check()[1].detail == "off"
    assert "AbortIncompleteMultipartUpload" in store.check()[2].detail
    client = s3()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    rule = {
        "ID": "x",
        "Status": "Enabled",
        "Filter": {},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
    }
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    assert "expires noncurrent versions" in store.check()[1].detail
    assert store.check()[2].detail == "unfinished uploads are removed"
    aws.faults.denied.update({"s3:GetBucketVersioning", "s3:GetLifecycleConfiguration"})
    assert [one.detail for one in store.check()[1:]] == ["unknown: the right to ask is missing"] * 2
    missing = S3Store("s3://nobodys-bucket").check()
    assert [one.ok for one in missing] == [False]
    assert "there is no bucket" in missing[0].detail


def test_neither_store_nor_error_shows_credentials(store):
    assert repr(store) == f"S3Store('{store.url}')"
    with pytest.raises(CloudspotError):
        store.get("none")
