"""The emulated S3 refuses what S3 refuses: asked by boto3 as strangers use it, and by hand."""

import base64
import urllib.error
import urllib.request
import zlib
from datetime import datetime, timedelta, timezone

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

MIB = 1 << 20


def crc32(data):
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def client(region="eu-central-1", **options):
    config = Config(retries={"total_max_attempts": 1}, signature_version="s3v4", **options)
    return boto3.session.Session().client("s3", region_name=region, config=config)


@pytest.fixture
def s3(aws):
    return client()


@pytest.fixture
def bucket(s3, request):
    name = f"strict-{zlib.crc32(request.node.name.encode())}"
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    return name


def refused(call, *args, **options):
    """Make the call, which must be refused; return code and status."""
    with pytest.raises(ClientError) as caught:
        call(*args, **options)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def status_of(request):
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


# --- who asks --------------------------------------------------------------------------------------------


def test_a_wrong_secret_an_unknown_key_and_no_signature_are_refused(aws, bucket, monkeypatch):
    assert status_of(f"{aws.url}/{bucket}/k") == 403
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert refused(client().get_object, Bucket=bucket, Key="k") == ("SignatureDoesNotMatch", 403)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOBODY0000000000")
    assert refused(client().get_object, Bucket=bucket, Key="k") == ("InvalidAccessKeyId", 403)


def test_a_request_changed_after_it_was_signed_is_refused(s3, bucket):
    def change(request, **_):
        request.url = request.url.replace("/k", "/other")

    s3.meta.events.register("before-send.s3.PutObject", change)
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"x") == ("SignatureDoesNotMatch", 403)


def test_a_header_that_was_not_signed_is_refused(s3, bucket):
    def add(request, **_):
        request.headers["x-amz-acl"] = "public-read"

    s3.meta.events.register("before-send.s3.PutObject", add)
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"x") == ("AccessDenied", 403)


def test_a_payload_changed_after_it_was_signed_is_refused(s3, bucket):
    def change(request, **_):
        request.body = b"y"

    s3.meta.events.register("before-send.s3.PutObject", change)
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"x")[0] == "XAmzContentSHA256Mismatch"


def test_a_clock_that_is_off_is_refused(aws, s3, bucket, monkeypatch):
    late = datetime.now(timezone.utc) + timedelta(minutes=16)
    monkeypatch.setattr(aws.s3, "_now", lambda: late)
    assert refused(s3.get_object, Bucket=bucket, Key="k") == ("RequestTimeTooSkewed", 403)


@pytest.mark.full
def test_a_presigned_url_reads_one_object_until_it_expires(aws, s3, bucket, monkeypatch):
    for key in ("a b+c", "other"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"hello")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a b+c"}, ExpiresIn=60)
    assert status_of(url) == 200
    assert status_of(url.replace("a%20b%2Bc", "other")) == 403
    assert status_of(url.replace("Expires=60", "Expires=6000")) == 403
    assert status_of(urllib.request.Request(url, method="DELETE")) == 403
    late = datetime.now(timezone.utc) + timedelta(seconds=61)
    monkeypatch.setattr(aws.s3, "_now", lambda: late)
    assert status_of(url) == 403
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "other"}, ExpiresIn=604801)
    assert status_of(url) == 400


def test_a_request_for_another_region_is_told_the_right_one(bucket):
    stranger = client("us-west-2")
    seen = []

    def note(response, **_):
        # Before botocore follows, which it does by itself.
        seen.append((response[0].status_code, response[1].get("Error"), dict(response[0].headers)))

    stranger.meta.events.register_first("needs-retry.s3", note)
    assert stranger.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    status, error, headers = seen[0]
    assert (status, error["Code"], error["Region"]) == (400, "AuthorizationHeaderMalformed", "eu-central-1")
    assert headers["x-amz-bucket-region"] == "eu-central-1"


def test_rights_that_are_denied_are(aws, s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    aws.faults.denied.update({"s3:ListBucket", "s3:PutObject"})
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"x") == ("AccessDenied", 403)
    assert refused(s3.create_multipart_upload, Bucket=bucket, Key="k") == ("AccessDenied", 403)
    assert refused(s3.head_bucket, Bucket=bucket) == ("403", 403)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
    # Who may not list does not learn that an object is missing.
    assert refused(s3.get_object, Bucket=bucket, Key="none") == ("AccessDenied", 403)


@pytest.mark.parametrize(
    ("operation", "options"),
    [
        ("put_object", {"Key": "k", "Body": b"x"}),
        ("get_object", {"Key": "k"}),
        ("list_objects_v2", {}),
        ("delete_object", {"Key": "k"}),
        ("create_multipart_upload", {"Key": "k"}),
        ("get_bucket_versioning", {}),
    ],
)
def test_a_missing_bucket_is_said_to_be_missing(s3, operation, options):
    assert refused(getattr(s3, operation), Bucket="nobodys-bucket", **options) == ("NoSuchBucket", 404)


# --- what is sent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_a_wrong_checksum_is_refused(s3, bucket, name):
    size = {"CRC32": 4, "CRC32C": 4, "CRC64NVME": 8, "SHA1": 20, "SHA256": 32}[name]
    wrong = {f"Checksum{name}": base64.b64encode(bytes(size)).decode()}
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"x", **wrong) == ("BadDigest", 400)
    malformed = {f"Checksum{name}": "AAA="}
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"x", **malformed)[0] == "InvalidRequest"
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_a_right_checksum_is_taken_and_two_are_not(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ChecksumCRC32=crc32(b"x"))
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
    two = {"ChecksumCRC32": crc32(b"x"), "ChecksumSHA1": base64.b64encode(bytes(20)).decode()}
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"x", **two)[0] == "InvalidRequest"


@pytest.mark.parametrize("calculation", ["when_required", "when_supported"])
def test_the_checksum_of_an_object_is_told_to_who_asks_for_it_and_reads_it_whole(aws, bucket, calculation):
    s3 = client(request_checksum_calculation=calculation, response_checksum_validation="when_required")
    for body in (b"first", b"second"):  # By default boto3 sends it behind the body.
        sums = {"ChecksumCRC32": crc32(body)} if calculation == "when_required" else {}
        s3.put_object(Bucket=bucket, Key="k", Body=body, **sums)
    asked = {"Bucket": bucket, "Key": "k", "ChecksumMode": "ENABLED"}
    found = s3.get_object(**asked)
    assert (found["ChecksumCRC32"], found["ChecksumType"]) == (crc32(b"second"), "FULL_OBJECT")
    assert "ChecksumCRC32" not in s3.get_object(**asked, Range="bytes=1-2")
    assert "ChecksumCRC32" not in s3.get_object(Bucket=bucket, Key="k")


@pytest.mark.full
def test_what_boto3_sends_by_default_is_taken(s3, bucket, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 9 * MIB)
    plain = boto3.session.Session().client("s3", region_name="eu-central-1")
    plain.upload_file(str(tmp_path / "file"), bucket, "k")
    plain.download_file(bucket, "k", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == b"x" * 9 * MIB


def test_a_condition_other_than_star_is_not_implemented(s3, bucket):
    options = {"Bucket": bucket, "Key": "k", "Body": b"x"}
    assert refused(s3.put_object, **options, IfNoneMatch='"etag"') == ("NotImplemented", 501)
    s3.put_object(**options, IfNoneMatch="*")
    assert refused(s3.put_object, **options, IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert refused(s3.put_object, **options, IfMatch='"stale"') == ("PreconditionFailed", 412)
    s3.put_object(**options, IfMatch=s3.head_object(Bucket=bucket, Key="k")["ETag"])
    assert refused(s3.put_object, Bucket=bucket, Key="none", Body=b"", IfMatch='"x"') == ("NoSuchKey", 404)


def test_a_key_that_is_too_long_is_refused(s3, bucket):
    s3.put_object(Bucket=bucket, Key="x" * 1024, Body=b"")
    assert refused(s3.put_object, Bucket=bucket, Key="x" * 1025, Body=b"")[0] == "KeyTooLongError"


# --- multipart uploads -----------------------------------------------------------------------------------


class Multipart:
    def __init__(self, s3, bucket, sizes, **options):
        self.s3 = s3
        self.at = {"Bucket": bucket, "Key": "k"}
        self.at["UploadId"] = s3.create_multipart_upload(**self.at, **options)["UploadId"]
        self.parts = []
        for number, size in enumerate(sizes, start=1):
            body = bytes([number]) * size
            sums = {"ChecksumCRC32": crc32(body)} if options else {}
            answer = s3.upload_part(**self.at, PartNumber=number, Body=body, **sums)
            self.parts.append({"PartNumber": number, "ETag": answer["ETag"], **sums})

    def complete(self, parts=None, **options):
        return self.s3.complete_multipart_upload(
            **self.at, MultipartUpload={"Parts": self.parts if parts is None else parts}, **options
        )


@pytest.fixture
def lean(aws):
    """A client that computes no checksum by itself."""
    return client(request_checksum_calculation="when_required")


@pytest.mark.full
def test_a_small_part_is_refused_unless_it_is_the_last(lean, bucket):
    assert refused(Multipart(lean, bucket, [5 * MIB - 1, 1]).complete) == ("EntityTooSmall", 400)
    Multipart(lean, bucket, [5 * MIB, 1]).complete()
    assert lean.head_object(Bucket=bucket, Key="k")["ContentLength"] == 5 * MIB + 1


@pytest.mark.full
def test_parts_must_be_named_in_order_by_their_own_tags(lean, bucket):
    upload = Multipart(lean, bucket, [5 * MIB, 5 * MIB])
    assert refused(upload.complete, upload.parts[::-1])[0] == "InvalidPartOrder"
    assert refused(upload.complete, [*upload.parts, {"PartNumber": 3, "ETag": '"x"'}])[0] == "InvalidPart"
    wrong = [upload.parts[0], upload.parts[1] | {"ETag": upload.parts[0]["ETag"]}]
    assert refused(upload.complete, wrong)[0] == "InvalidPart"
    upload.complete()
    assert refused(upload.complete)[0] == "NoSuchUpload"


@pytest.mark.full
def test_checksums_of_parts_are_held_to_the_uploads_kind(lean, bucket):
    plain = Multipart(lean, bucket, [])
    part = {**plain.at, "PartNumber": 1, "Body": b"x"}
    assert refused(lean.upload_part, **part, ChecksumCRC32=crc32(b"x"))[0] == "InvalidRequest"
    kept = Multipart(lean, bucket, [5 * MIB, 1], ChecksumAlgorithm="CRC32")
    bare = [{"PartNumber": one["PartNumber"], "ETag": one["ETag"]} for one in kept.parts]
    assert refused(kept.complete, bare)[0] == "InvalidRequest"
    wrong = [kept.parts[0], kept.parts[1] | {"ChecksumCRC32": crc32(b"?")}]
    assert refused(kept.complete, wrong)[0] == "InvalidPart"
    kept.complete()


@pytest.mark.full
def test_the_end_of_an_upload_honours_its_conditions(lean, bucket):
    lean.put_object(Bucket=bucket, Key="k", Body=b"first")
    upload = Multipart(lean, bucket, [1])
    assert refused(upload.complete, IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert refused(upload.complete, IfMatch='"stale"') == ("PreconditionFailed", 412)
    assert lean.get_object(Bucket=bucket, Key="k")["Body"].read() == b"first"
    upload.complete(IfMatch=lean.head_object(Bucket=bucket, Key="k")["ETag"])
    assert lean.get_object(Bucket=bucket, Key="k")["Body"].read() == b"\x01"


# --- faults ----------------------------------------------------------------------------------------------


def test_injected_errors_come_before_or_after_the_effect(aws, s3, bucket):
    put = {"Bucket": bucket, "Key": "k", "Body": b"x"}
    aws.faults.inject("PutObject", "ConditionalRequestConflict", status=409)
    assert refused(s3.put_object, **put) == ("ConditionalRequestConflict", 409)
    aws.faults.inject("PutObject", "SlowDown", status=503)
    assert refused(s3.put_object, **put) == ("SlowDown", 503)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    aws.faults.inject("PutObject", "InternalError", happens=True)
    assert refused(s3.put_object, **put) == ("InternalError", 500)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 1


def test_every_request_is_recorded_with_what_came_of_it(aws, s3, bucket):
    aws.reset_faults()
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    refused(s3.get_object, Bucket=bucket, Key="none")
    assert [(call.service, call.action, call.error) for call in aws.faults.calls] == [
        ("s3", "PutObject", None),
        ("s3", "GetObject", "NoSuchKey"),
    ]
    assert aws.faults.calls[1].parameters["Key"] == "none"
    assert aws.faults.calls[1].region == "eu-central-1"


def test_other_services_go_through(aws):
    answer = boto3.session.Session().client("sts", region_name="eu-central-1").get_caller_identity()
    assert answer["Account"] == "123456789012"
