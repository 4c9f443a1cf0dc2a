"""The emulated OSS refuses what the real one refuses, asked by the real SDK."""

import base64
import time
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone
from email.utils import formatdate

import oss2
import pytest

from cloudspot_aliyun.errors import ERRORS

LATER = datetime.now(timezone.utc) + timedelta(hours=1)


def client(oss, name, auth=None, region="cn-hangzhou"):
    auth = auth or oss2.AuthV4("LTAI5tEXAMPLEexample0001", "example0secret1example2secret3")
    one = oss2.Bucket(auth, oss.url, name, region=region, enable_crc=False)
    # oss2 leaves the connection of an answer without a body to the garbage collector, which warns.
    one.session.session.hooks["response"].append(lambda answer, **_: drain(answer))
    return one


def drain(answer):
    if answer.request.method == "HEAD" or answer.status_code in {204, 304}:
        assert answer.content == b""


def refusal(call, *args, **options):
    with pytest.raises(oss2.exceptions.OssError) as caught:
        call(*args, **options)
    return caught.value.status, ERRORS.code_of(caught.value)


@pytest.fixture(params=["v1", "v4"])
def signed(request, oss, bucket):
    """A client that signs by each version."""
    auth = oss2.make_auth("LTAI5tEXAMPLEexample0001", "example0secret1example2secret3", request.param)
    return client(oss, bucket, auth)


def test_signatures_of_both_versions_are_taken_for_every_kind_of_request(signed):
    key = "a b/ü+%?&#=~.txt"
    signed.put_object(key, b"hello", headers={"Content-Type": "text/plain", "x-oss-meta-a": "b"})
    assert signed.get_object(key, byte_range=(1, 2)).read() == b"el"
    assert signed.head_object(key).headers["x-oss-meta-a"] == "b"
    assert [entry.key for entry in signed.list_objects_v2(prefix="a b").object_list] == [key]
    assert signed.append_object("log", 0, b"x").next_position == 1
    upload = signed.init_multipart_upload("big").upload_id
    part = signed.upload_part("big", upload, 1, b"part")
    signed.complete_multipart_upload("big", upload, [oss2.models.PartInfo(1, part.etag)]).resp.read()
    assert signed.get_object("big").read() == b"part"
    assert signed.get_bucket_info().location == "oss-cn-hangzhou"
    with urllib.request.urlopen(signed.sign_url("GET", key, 60, slash_safe=True)) as answer:
        assert answer.read() == b"hello"
    signed.delete_object(key)
    assert refusal(signed.get_object, key) == (404, "NoSuchKey")


def test_a_signature_by_another_secret_is_refused(oss, bucket):
    for version in ("v1", "v4"):
        auth = oss2.make_auth("LTAI5tEXAMPLEexample0001", "another", version)
        assert refusal(client(oss, bucket, auth).get_object, "k") == (403, "SignatureDoesNotMatch")
    assert refusal(client(oss, bucket, oss2.AnonymousAuth()).get_object, "k") == (403, "AccessDenied")
    unknown = oss2.AuthV4("LTAInobody", "another")
    assert refusal(client(oss, bucket, unknown).get_object, "k") == (403, "InvalidAccessKeyId")


def test_what_is_signed_cannot_be_changed(oss, bucket, monkeypatch):
    one = client(oss, bucket)
    for change in (
        lambda request: request.headers.update({"x-oss-forbid-overwrite": "true"}),
        lambda request: request.headers.update({"Content-Type": "text/other"}),
        lambda request: request.params.update({"uploadId": "x"}),
        lambda request: setattr(request, "url", request.url + "x"),
        lambda request: setattr(request, "method", "DELETE"),
    ):
        original = oss2.http.Session.do_request

        def send(self, request, timeout, change=change, original=original):
            change(request)
            return original(self, request, timeout)

        with monkeypatch.context() as patch:
            patch.setattr(oss2.http.Session, "do_request", send)
            assert refusal(one.put_object, "k", b"x") == (403, "SignatureDoesNotMatch")


def test_a_signature_that_is_too_old_is_refused(oss, bucket):
    shifted = oss.app._now
    for minutes, code in ((-16, "RequestTimeTooSkewed"), (16, "RequestTimeTooSkewed"), (14, "NoSuchKey")):
        oss.app._now = lambda minutes=minutes: datetime.now(timezone.utc) + timedelta(minutes=minutes)
        try:
            for version in ("v1", "v4"):
                auth = oss2.make_auth("LTAI5tEXAMPLEexample0001", "example0secret1example2secret3", version)
                assert refusal(client(oss, bucket, auth).get_object, "k")[1] == code
        finally:
            oss.app._now = shifted


def test_a_signed_url_ends(oss, signed):
    signed.put_object("k", b"hello")
    url = signed.sign_url("GET", "k", 60, slash_safe=True)
    real = oss.app._now
    oss.app._now = lambda: datetime.now(timezone.utc) + timedelta(seconds=61)
    try:
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url)
    finally:
        oss.app._now = real
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url.replace("/k?", "/other?"))


def test_a_roles_key_needs_its_token_and_ends(oss, bucket):
    held = oss.roles.issue("i-1", expires_at=LATER)
    over = oss.roles.issue("i-1", expires_at=datetime.now(timezone.utc) - timedelta(seconds=1))
    for version in ("v1", "v4"):

        def auth(key, token, version=version):
            return oss2.StsAuth(key.access_key, key.secret_key, token, auth_version=version)

        assert refusal(client(oss, bucket, auth(held, held.token)).get_object, "k") == (404, "NoSuchKey")
        for token in ("", over.token):
            one = client(oss, bucket, auth(held, token))
            assert refusal(one.get_object, "k") == (403, "InvalidSecurityToken")
        one = client(oss, bucket, auth(over, over.token))
        assert refusal(one.get_object, "k") == (403, "SecurityTokenExpired")
        with urllib.request.urlopen(url_of(client(oss, bucket, auth(held, held.token)))) as answer:
            assert answer.read() == b"x"


def url_of(one):
    one.put_object("signed", b"x")
    return one.sign_url("GET", "signed", 60, slash_safe=True)


def test_a_bucket_is_found_at_its_own_endpoint_only(oss):
    name = oss.make_bucket(region="cn-beijing")
    with pytest.raises(oss2.exceptions.AccessDenied) as caught:
        client(oss, name).get_object("k")
    assert caught.value.details["Endpoint"] == "oss-cn-beijing.aliyuncs.com"
    assert refusal(client(oss, name, region="cn-beijing").get_object, "k") == (404, "NoSuchKey")


def test_a_create_only_write_finds_what_is_there_unless_the_bucket_has_versions(oss):
    for versioning, outcome in (("", "first"), ("Enabled", "second"), ("Suspended", "second")):
        one = client(oss, oss.make_bucket(versioning=versioning))
        headers = {"x-oss-forbid-overwrite": "true"}
        answer = one.put_object("k", b"first", headers=headers)
        assert ("x-oss-version-id" in answer.headers) is bool(versioning)
        upload = one.init_multipart_upload("k").upload_id
        parts = [oss2.models.PartInfo(1, one.upload_part("k", upload, 1, b"second").etag)]
        if versioning:
            one.put_object("k", b"x", headers=headers)
            one.complete_multipart_upload("k", upload, parts, headers=headers).resp.read()
        else:
            assert refusal(one.put_object, "k", b"x", headers=headers) == (409, "FileAlreadyExists")
            found = refusal(one.complete_multipart_upload, "k", upload, parts, headers=headers)
            assert found == (409, "FileAlreadyExists")
        assert one.get_object("k").read() == outcome.encode()


def test_a_condition_on_a_put_is_not_implemented(oss, bucket):
    for name in ("If-Match", "If-None-Match"):
        found = refusal(client(oss, bucket).put_object, "k", b"", headers={name: "*"})
        assert found == (501, "NotImplemented")


def test_a_range_past_the_end_is_the_whole_object_unless_asked_by_the_standard(oss, bucket):
    one, standard = client(oss, bucket), {"x-oss-range-behavior": "standard"}
    one.put_object("k", b"0123456789")
    for span in ((8, 20), (10, 12), (99, 100)):
        answer = one.get_object("k", byte_range=span)
        assert (answer.status, answer.read()) == (200, b"0123456789")
    answer = one.get_object("k", byte_range=(8, 20), headers=standard)
    assert (answer.status, answer.read(), answer.content_range) == (206, b"89", "bytes 8-9/10")
    for span in ((10, 12), (99, 100)):
        assert refusal(one.get_object, "k", byte_range=span, headers=standard) == (416, "InvalidRange")
    assert one.get_object("k", byte_range=(None, 3), headers=standard).read() == b"789"
    assert one.get_object("k", byte_range=(7, None)).read() == b"789"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If-Match": "{etag}"}, 200),
        ({"If-Match": '"00"'}, 412),
        ({"If-None-Match": '"00"'}, 200),
        ({"If-None-Match": "{etag}"}, 304),
        ({"If-Modified-Since": "{before}"}, 200),
        ({"If-Modified-Since": "{then}"}, 304),
        ({"If-Modified-Since": "yesterday"}, 200),
        ({"If-Unmodified-Since": "{then}"}, 200),
        ({"If-Unmodified-Since": "{before}"}, 412),
        ({"If-Match": "{etag}", "If-None-Match": "{etag}"}, 304),
    ],
)
def test_a_read_keeps_its_conditions_and_a_write_may_have_none(signed, headers, status):
    etag = f'"{signed.put_object("k", b"hello").etag}"'
    then = signed.head_object("k").last_modified
    known = {"etag": etag, "then": formatdate(then, usegmt=True), "before": formatdate(then - 1, usegmt=True)}
    asked = {name: value.format(**known) for name, value in headers.items()}
    if status == 200:
        assert signed.get_object("k", headers=asked).read() == b"hello"
        assert signed.head_object("k", headers=asked).etag == etag.strip('"')
    else:
        code = "PreconditionFailed" if status == 412 else ""
        assert refusal(signed.get_object, "k", headers=asked) == (status, code)
        assert refusal(signed.head_object, "k", headers=asked)[0] == status
        assert signed.get_object("k").read() == b"hello"
    assert refusal(signed.put_object, "k", b"", headers=asked) == (501, "NotImplemented")


def test_an_object_is_copied_with_its_metadata_or_with_new(oss, signed):
    signed.put_object("a ü", b"hello", headers={"x-oss-meta-a": "b", "Content-Type": "text/plain"})
    name = signed.bucket_name
    signed.copy_object(name, "a ü", "same").resp.read()
    assert signed.get_object("same").read() == b"hello"
    assert signed.head_object("same").headers["x-oss-meta-a"] == "b"
    headers = {"x-oss-metadata-directive": "REPLACE", "x-oss-meta-c": "d"}
    signed.copy_object(name, "a ü", "other", headers=headers).resp.read()
    found = signed.head_object("other").headers
    assert (found.get("x-oss-meta-a"), found["x-oss-meta-c"]) == (None, "d")
    forbidden = {"x-oss-forbid-overwrite": "true"}
    assert refusal(signed.copy_object, name, "same", "other", headers=forbidden) == (409, "FileAlreadyExists")
    assert refusal(signed.copy_object, name, "none", "x") == (404, "NoSuchKey")
    assert refusal(signed.copy_object, "elsewhere", "same", "x") == (403, "AccessDenied")
    oss.faults.denied.add("oss:GetObject")
    assert refusal(signed.copy_object, name, "same", "x") == (403, "AccessDenied")


def test_many_objects_are_deleted_at_once(oss, signed):
    for key in ("a", "b ü", "c"):
        signed.put_object(key, b"")
    assert signed.batch_delete_objects(["a", "b ü", "none"]).deleted_keys == ["a", "b ü", "none"]
    assert list(oss.app.buckets[signed.bucket_name].objects) == ["c"]
    assert refusal(signed.batch_delete_objects, ["k"] * 1001) == (400, "MalformedXML")
    oss.faults.denied.add("oss:DeleteObject")
    assert refusal(signed.batch_delete_objects, ["c"]) == (403, "AccessDenied")


def test_an_objects_size_is_told_alone(signed):
    etag = signed.put_object("k", b"hello", headers={"x-oss-meta-a": "b"}).etag
    found = signed.get_object_meta("k")
    assert (found.content_length, found.etag, found.headers.get("x-oss-meta-a")) == (5, etag, None)
    assert refusal(signed.get_object_meta, "none") == (404, "NoSuchKey")


def test_a_body_may_come_in_pieces_of_no_announced_length(signed):
    signed.put_object("k", iter([b"one", b" ", b"two"]))
    assert signed.get_object("k").read() == b"one two"
    upload = signed.init_multipart_upload("big").upload_id
    etag = signed.upload_part("big", upload, 1, iter([b"part", b"s"])).etag
    signed.complete_multipart_upload("big", upload, [oss2.models.PartInfo(1, etag)]).resp.read()
    assert signed.get_object("big").read() == b"parts"


def test_the_parts_of_an_upload_are_listed_in_pages_and_keys_are_encoded_on_request(signed):
    key = "a &/ü"
    upload = signed.init_multipart_upload(key, params={"encoding-type": "url"}).upload_id
    etags = [signed.upload_part(key, upload, n, bytes(size)).etag for n, size in ((1, 102_400), (3, 7))]
    page = signed.list_parts(key, upload, max_parts=1)
    assert [(part.part_number, part.size, part.etag) for part in page.parts] == [(1, 102_400, etags[0])]
    assert (page.is_truncated, page.next_marker) == (True, "1")
    page = signed.list_parts(key, upload, marker=page.next_marker, max_parts=1)
    assert [(part.part_number, part.size) for part in page.parts] == [(3, 7)]
    assert page.is_truncated is False
    assert refusal(signed.list_parts, "other", upload) == (404, "NoSuchUpload")
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        for number, etag in zip((1, 3), etags, strict=True)
    )
    url = signed.sign_url("POST", key, 60, params={"uploadId": upload, "encoding-type": "url"})
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data=body, headers={"Content-Type": ""})
    ) as answer:
        assert b"<Key>a%20%26%2F%C3%BC</Key>" in answer.read()
    assert signed.head_object(key).content_length == 102_407


def test_an_append_must_know_the_length_and_the_object_be_made_by_appends(oss, bucket):
    one = client(oss, bucket)
    assert one.append_object("log", 0, b"one").next_position == 3
    with pytest.raises(oss2.exceptions.PositionNotEqualToLength) as caught:
        one.append_object("log", 0, b"again")
    assert caught.value.next_position == 3
    assert one.append_object("log", 3, b" two").next_position == 7
    assert one.head_object("log").object_type == "Appendable"
    assert one.get_object("log").read() == b"one two"
    one.put_object("log", b"put")
    assert refusal(one.append_object, "log", 3, b"x") == (409, "ObjectNotAppendable")


def test_parts_must_be_large_enough_in_order_and_as_they_were_sent(oss, bucket):
    one = client(oss, bucket)
    upload = one.init_multipart_upload("k").upload_id
    etags = [one.upload_part("k", upload, n, bytes(size)).etag for n, size in ((1, 102_400), (2, 99), (3, 1))]
    info = oss2.models.PartInfo

    def complete(*parts):
        return refusal(one.complete_multipart_upload, "k", upload, list(parts))[1]

    assert complete(info(1, etags[0]), info(2, etags[1]), info(3, etags[2])) == "EntityTooSmall"
    assert complete(info(1, etags[1])) == "InvalidPart"
    assert complete(info(4, etags[1])) == "InvalidPart"
    assert complete(info(1, etags[0]), info(1, etags[0])) == "InvalidPartOrder"
    assert refusal(one.upload_part, "k", upload, 10_001, b"")[1] == "InvalidArgument"
    assert refusal(one.upload_part, "other", upload, 1, b"")[1] == "NoSuchUpload"
    one.complete_multipart_upload("k", upload, [info(1, etags[0]), info(3, etags[2])]).resp.read()
    assert one.head_object("k").content_length == 102_401
    assert refusal(one.abort_multipart_upload, "k", upload)[1] == "NoSuchUpload"


def test_sums_are_told_and_compared(oss, bucket):
    one = client(oss, bucket)
    assert one.put_object("k", b"123456789").crc == 0x995DC9BBDF1939FA  # CRC-64/XZ's check value.
    assert one.append_object("log", 0, b"12345").crc != one.append_object("log", 5, b"6789").crc
    assert one.head_object("log").server_crc == 0x995DC9BBDF1939FA
    wrong = base64.b64encode(bytes(16)).decode()
    assert refusal(one.put_object, "k", b"x", headers={"Content-MD5": wrong}) == (400, "InvalidDigest")


def test_what_it_does_not_know_is_refused(oss, bucket):
    one = client(oss, bucket)
    one.put_object("k", b"")
    assert refusal(one.get_object, "k", params={"response-x": "1"})[1] == "InvalidArgument"
    assert refusal(one.get_object, "k", headers={"x-oss-forbid-overwrite": "true"})[1] == "InvalidArgument"
    assert refusal(one.put_object, "k", b"", headers={"x-oss-nonsense": "1"})[1] == "InvalidArgument"
    assert refusal(one.put_object, "k", b"", headers={"x-oss-forbid-overwrite": "1"})[1] == "InvalidArgument"
    assert refusal(one.list_objects_v2, max_keys=1001)[1] == "InvalidArgument"
    assert refusal(one.put_object, "\\k", b"")[1] == "InvalidObjectName"
    assert refusal(one.put_object, "k" * 1024, b"")[1] == "InvalidObjectName"
    assert refusal(one.get_bucket_acl)[0] == 405
    assert refusal(client(oss, "no-such-bucket").get_object, "k") == (404, "NoSuchBucket")
    assert refusal(client(oss, "no-such-bucket").head_object, "k") == (404, "NoSuchBucket")


def test_a_listing_comes_in_pages_and_folders(oss, bucket):
    one = client(oss, bucket)
    for key in ("a/1", "a/2", "b", "c/1", "d"):
        one.put_object(key, b"x")
    page = one.list_objects_v2(max_keys=2)
    assert ([each.key for each in page.object_list], page.is_truncated) == (["a/1", "a/2"], True)
    page = one.list_objects_v2(max_keys=1000, continuation_token=page.next_continuation_token)
    assert ([each.key for each in page.object_list], page.is_truncated) == (["b", "c/1", "d"], False)
    for delimiter, keys, folders in (
        ("", ["a/1", "a/2", "b", "c/1", "d"], []),
        ("/", ["b", "d"], ["a/", "c/"]),
    ):
        found, marker = ([], []), ""
        for _ in range(5):
            page = one.list_objects(delimiter=delimiter, marker=marker, max_keys=1)
            found[0].extend(each.key for each in page.object_list)
            found[1].extend(page.prefix_list)
            marker = page.next_marker
            if not page.is_truncated:
                break
        assert found == (keys, folders)
    page = one.list_objects_v2(delimiter="/")
    assert ([each.key for each in page.object_list], page.prefix_list) == (["b", "d"], ["a/", "c/"])
    assert [each.key for each in one.list_objects_v2(start_after="b").object_list] == ["c/1", "d"]
    assert abs(page.object_list[0].last_modified - time.time()) < 3600


def test_rights_that_are_denied_and_faults_that_are_injected_show(oss, bucket):
    one = client(oss, bucket)
    oss.faults.denied.add("oss:GetObject")
    assert refusal(one.get_object, "k") == (403, "AccessDenied")
    oss.faults.inject("PutObject", "InternalError", status=500)
    oss.faults.inject("PutObject", "InternalError", status=500, happens=True)
    assert refusal(one.put_object, "k", b"") == (500, "InternalError")
    assert "k" not in oss.app.buckets[bucket].objects
    assert refusal(one.put_object, "k", b"") == (500, "InternalError")
    assert "k" in oss.app.buckets[bucket].objects
    assert [(call.action, call.error) for call in oss.faults.calls] == [
        ("GetObject", "AccessDenied"),
        ("PutObject", "InternalError"),
        ("PutObject", "InternalError"),
    ]
