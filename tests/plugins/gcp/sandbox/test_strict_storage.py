"""The emulated Cloud Storage: what Google's own SDK finds there, and what is refused."""

import io
import json
from concurrent.futures import ThreadPoolExecutor

import google.api_core.exceptions
import google.cloud.storage.retry
import pytest

from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp_sandbox.objects import Buckets, check_bucket_name, check_object_name, crc32c_of
from cloudspot_gcp_sandbox.resumable import UNIT_BYTES

from .conftest import reason_of

MIB = 1 << 20


@pytest.fixture
def sdk(gcp):
    """Google's own client."""
    return GcpClients().storage()


# --- what the SDK finds -----------------------------------------------------------------------------------


@pytest.mark.full
def test_the_sdks_ways_of_writing_and_reading_go_round(sdk, bucket):
    place = sdk.bucket(bucket)
    data = bytes(range(256)) * 5000
    place.blob("a/one").upload_from_string(data, checksum="crc32c", if_generation_match=0)
    in_pieces = place.blob("a/b/two", chunk_size=UNIT_BYTES)
    in_pieces.metadata = {"who": "me"}
    in_pieces.upload_from_file(io.BytesIO(data), checksum="crc32c")
    for name in ("a/one", "a/b/two"):
        blob = place.blob(name)
        assert blob.download_as_bytes(checksum="crc32c") == data
        assert blob.download_as_bytes(start=10, end=19) == data[10:20]
        blob.reload()
        assert (blob.size, blob.crc32c) == (len(data), crc32c_of(data))
    assert place.get_blob("a/b/two").metadata == {"who": "me"}
    assert place.get_blob("a/none") is None
    listing = sdk.list_blobs(bucket, prefix="a/", delimiter="/")
    assert [blob.name for blob in listing] == ["a/one"]
    assert listing.prefixes == {"a/b/"}
    place.copy_blob(place.blob("a/one"), place, "copy")
    assert place.blob("copy").download_as_bytes() == data
    place.blob("rewritten").rewrite(place.blob("a/one"))
    place.blob("a/one").delete()
    assert [blob.name for blob in sdk.list_blobs(bucket)] == ["a/b/two", "copy", "rewritten"]


def test_the_sdk_recovers_an_upload_that_breaks_off(gcp, sdk, bucket):
    data = bytes(range(256)) * 8192
    gcp.storage.sessions.breaks += [300_000, 10]
    blob = sdk.bucket(bucket).blob("k", chunk_size=2 * UNIT_BYTES)
    at_once = google.cloud.storage.retry.DEFAULT_RETRY.with_delay(initial=0.001, maximum=0.001)
    blob.upload_from_file(io.BytesIO(data), if_generation_match=0, checksum="crc32c", retry=at_once)
    assert blob.download_as_bytes() == data


@pytest.mark.full
def test_the_sdk_meets_every_condition(sdk, bucket):
    blob = sdk.bucket(bucket).blob("k")
    for conditions in (
        {"if_generation_match": 5},
        {"if_generation_not_match": 5},
        {"if_metageneration_match": 1},
    ):
        with pytest.raises(google.api_core.exceptions.PreconditionFailed):
            blob.upload_from_string("x", **conditions)
    blob.upload_from_string("x", if_generation_match=0)
    first = blob.generation
    for conditions in (
        {"if_generation_match": 0},
        {"if_generation_match": first + 1},
        {"if_generation_not_match": first},
        {"if_metageneration_match": 2},
    ):
        for write in (blob.upload_from_string, lambda _, **options: blob.delete(**options)):
            with pytest.raises(google.api_core.exceptions.PreconditionFailed):
                write("y", **conditions)
    with pytest.raises(google.api_core.exceptions.PreconditionFailed):
        blob.delete(if_metageneration_not_match=1)
    blob.upload_from_string("y", if_generation_match=first)
    assert blob.generation > first
    with pytest.raises(google.api_core.exceptions.PreconditionFailed):
        blob.reload(if_generation_match=first)
    blob.delete(if_generation_match=blob.generation)


def test_pages_have_tokens_and_a_start(sdk, bucket, gcp):
    names = [f"p/{number:02}" for number in range(25)]
    for name in names:
        gcp.storage.buckets.put(bucket, name, b"", fields={}, conditions={})
    listing = sdk.list_blobs(bucket, prefix="p/", page_size=10)
    assert [[blob.name for blob in page] for page in listing.pages] == [names[:10], names[10:20], names[20:]]
    some = sdk.list_blobs(bucket, start_offset="p/05", end_offset="p/08")
    assert [blob.name for blob in some] == names[5:8]


def test_a_versioned_bucket_keeps_what_is_replaced_and_deleted(gcp, sdk, bucket):
    place = sdk.bucket(bucket)
    place.reload()
    place.versioning_enabled = True
    place.patch()
    blob = place.blob("k")
    blob.upload_from_string("one")
    first = blob.generation
    blob.upload_from_string("two")
    place.blob("k").delete()  # Not this generation, as ``blob`` would.
    assert list(sdk.list_blobs(bucket)) == []
    assert len(list(sdk.list_blobs(bucket, versions=True))) == 2
    assert place.blob("k", generation=first).download_as_bytes() == b"one"


def test_buckets_are_made_listed_and_removed(gcp, sdk, bucket):
    project = gcp.account.project
    sdk.create_bucket("made-here", project=project, location="EU")
    assert "made-here" in [found.name for found in sdk.list_buckets(project=project)]
    assert sdk.get_bucket("made-here").location == "EU"
    with pytest.raises(google.api_core.exceptions.Conflict):
        sdk.create_bucket("made-here", project=project)
    rights = sdk.bucket("made-here").test_iam_permissions(["storage.objects.get", "storage.objects.create"])
    assert rights == ["storage.objects.get", "storage.objects.create"]
    sdk.bucket("made-here").delete()
    sdk.bucket(bucket).blob("k").upload_from_string("x")
    with pytest.raises(google.api_core.exceptions.Conflict, match="not empty"):
        sdk.bucket(bucket).delete()


@pytest.mark.full
def test_of_many_raw_creates_one_wins(call, bucket):
    def create(number):
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=k&ifGenerationMatch=0"
        return call("POST", path, data=b"%d" % number).status_code

    with ThreadPoolExecutor(32) as pool:
        assert sorted(pool.map(create, range(32))) == [200] + [412] * 31


# --- who calls --------------------------------------------------------------------------------------------


def test_a_call_without_a_good_token_is_refused(gcp, call, bucket):
    path = f"/storage/v1/b/{bucket}/o"
    assert reason_of(call("GET", path, token=None)) == (401, "required")
    assert reason_of(call("GET", path, token="ya29.made-up")) == (401, "authError")
    assert reason_of(call("GET", path, token=gcp.identities.issue("a@b", seconds=-1))) == (401, "authError")
    assert "invalid_token" in call("GET", path, token=None).headers["WWW-Authenticate"]
    assert call("GET", path, token=gcp.identities.issue("a@b")).status_code == 200


def test_a_right_that_is_denied_hides_what_is_missing(gcp, call, bucket):
    path = f"/storage/v1/b/{bucket}/o/none"
    assert reason_of(call("GET", path)) == (404, "notFound")
    gcp.faults.denied.add("storage.objects.list")
    assert reason_of(call("GET", path)) == (403, "forbidden")


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/storage/v1/b/{}/o?prefx=a", 400, 'Unknown name "prefx"'),
        ("GET", "/storage/v1/b/{}/o?maxResults=many", 400, "maxResults"),
        ("GET", "/storage/v1/b/{}/o?projection=some", 400, "projection"),
        ("GET", "/storage/v1/b/{}/o?fields=items(name", 400, "Invalid field selection"),
        ("GET", "/storage/v1/b/{}/o?pageToken=%ff", 400, ""),
        ("GET", "/storage/v1/b/{}/things", 404, "was not found on this server"),
        ("GET", "/storage/v1/b/no-such-bucket/o", 404, "The specified bucket does not exist."),
        ("GET", "/storage/v1/b/{}/o?matchGlob=*", 501, "matchGlob"),
        ("POST", "/storage/v1/b/{}/o?name=k", 400, "upload URL"),
        ("POST", "/upload/storage/v1/b/{}/o?name=k", 400, "uploadType"),
        ("POST", "/upload/storage/v1/b/{}/o?uploadType=media", 400, "Required"),
        ("POST", "/upload/storage/v1/b/{}/o?uploadType=media&name=..", 400, "reserved name"),
        ("POST", "/upload/storage/v1/b/{}/o?uploadType=media&name=a%0Ab", 400, "Disallowed"),
        ("POST", "/upload/storage/v1/b/{}/o?uploadType=media&name=k&ifGeneration=0", 400, "ifGeneration"),
        ("POST", "/upload/storage/v1/b/{}/o?uploadType=multipart&name=k", 400, "Unsupported content"),
        ("PUT", "/upload/storage/v1/b/{}/o?uploadType=resumable&upload_id=none", 404, "Not Found"),
    ],
)
def test_a_request_that_storage_does_not_know_is_refused(call, bucket, method, path, status, words):
    answer = call(method, path.format(bucket), data=b"" if method != "GET" else None)
    assert reason_of(answer)[0] == status
    assert words in answer.json()["error"]["message"]


def test_a_body_without_a_length_or_a_type_is_refused(call, bucket):
    path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=k"
    assert call("POST", path, data=iter([b"x"])).status_code == 411
    answer = call("PATCH", f"/storage/v1/b/{bucket}", data=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 400


def multipart(described, content=b"content", *, mark="mark"):
    text = described if isinstance(described, str) else json.dumps(described)
    return (
        f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{text}\r\n"
        f"--{mark}\r\nContent-Type: application/octet-stream\r\n\r\n"
    ).encode() + b"%b\r\n--%b--\r\n" % (content, mark.encode())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (multipart({"nam": "k"}), 'Unknown name "nam"'),
        (multipart({"name": "k", "metadata": {"a": 5}}), "metadata.a"),
        (multipart({"name": "k", "crc32c": "AAAAAA=="}), "doesn't match calculated"),
        (multipart({"name": "k", "metadata": {"a": "x" * 9000}}), "metadata headers exceed"),
        (multipart("nothing"), "Invalid JSON payload"),
        (multipart("[1]"), "Parse Error"),
        (b"--mark\r\n\r\n{}\r\n--mark--\r\n", "two parts"),
        (b"no parts", "Malformed multipart body"),
        (multipart({}), "Required"),
    ],
)
def test_an_upload_in_two_parts_is_read_strictly(gcp, call, bucket, body, words):
    answer = call(
        "POST",
        f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart",
        data=body,
        headers={"Content-Type": "multipart/related; boundary=mark"},
    )
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert list(gcp.storage.buckets.names(bucket)) == []


def test_reading_a_part_is_as_http_has_it(call, bucket):
    call("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=k", data=b"0123456789")
    call("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=empty", data=b"")

    def read(span, name="k"):
        answer = call("GET", f"/storage/v1/b/{bucket}/o/{name}?alt=media", headers={"Range": span})
        return answer.status_code, answer.headers.get("Content-Range"), answer.text

    assert read("bytes=2-4") == (206, "bytes 2-4/10", "234")
    assert read("bytes=7-") == (206, "bytes 7-9/10", "789")
    assert read("bytes=-3") == (206, "bytes 7-9/10", "789")
    assert read("bytes=8-100") == (206, "bytes 8-9/10", "89")
    assert read("bytes=10-12")[0] == 416
    assert read("bytes=0-1", "empty")[0] == 416
    assert read("chunks=1") == (200, None, "0123456789")
    whole = call("GET", f"/download/storage/v1/b/{bucket}/o/k?alt=media")
    assert whole.headers["x-goog-hash"].startswith(f"crc32c={crc32c_of(b'0123456789')},md5=")
    assert call("GET", f"/storage/v1/b/{bucket}/o/none?alt=media").text == f"No such object: {bucket}/none"


@pytest.mark.parametrize(
    "name", ["ab", "Abc", "a_", "-ab", "a" * 64, "1.2.3.4", "goog-x", "my-google", "a..b"]
)
def test_illegal_names_of_buckets_are_refused(name):
    with pytest.raises(Exception, match="Invalid bucket name"):
        check_bucket_name(name)


def test_legal_names_are_taken():
    for name in ("abc", "a-b_c.d1", "1bucket", "example.com"):
        check_bucket_name(name)
    for name in ("a", "a/b", "é" * 512, "..a", " "):
        check_object_name(name)


# --- resumable uploads ------------------------------------------------------------------------------------


@pytest.fixture
def begin(call, bucket):
    """``begin(**query)``: the URL of a new upload of the object k."""

    def start(headers=None, body=None, **query):
        answer = call(
            "POST",
            f"/upload/storage/v1/b/{bucket}/o",
            params={"uploadType": "resumable", "name": "k", **query},
            json={} if body is None else body,
            headers=headers,
        )
        assert (answer.status_code, answer.content) == (200, b"")
        return answer.headers["Location"]

    return start


def test_an_upload_goes_on_from_where_it_is(call, begin, gcp, bucket):
    url, data = begin(), bytes(UNIT_BYTES) + b"end"

    def put(span, body=b"", **headers):
        answer = call("PUT", url, data=body, headers={"Content-Range": span, **headers}, token=None)
        return answer.status_code, answer.headers.get("Range")

    assert put("bytes */*") == (308, None)
    assert put(f"bytes 0-{UNIT_BYTES - 1}/*", data[:UNIT_BYTES]) == (308, f"bytes=0-{UNIT_BYTES - 1}")
    assert put(f"bytes */{len(data)}") == (308, f"bytes=0-{UNIT_BYTES - 1}")
    # What is there already is passed over.
    assert put(f"bytes 0-{len(data) - 1}/{len(data)}", data) == (200, None)
    assert put("bytes */*") == (200, None)
    assert gcp.storage.buckets.find(bucket, "k").read() == data


@pytest.mark.parametrize(
    ("span", "size", "words"),
    [
        ("bytes 0-99/*", 100, "multiple of 262144"),
        ("bytes 5-104/105", 100, "the piece begins at 5"),
        ("bytes 0-99/100", 50, "does not match a body of 50"),
        ("bytes 0-99/50", 100, "does not match"),
        ("bytes */*", 5, "must not have a body"),
        ("0-99/100", 100, "Failed to parse Content-Range"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused(call, begin, span, size, words):
    answer = call("PUT", begin(), data=bytes(size), headers={"Content-Range": span})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_what_was_said_of_an_upload_must_be_so(call, begin, bucket, gcp):
    answer = call("PUT", begin(), data=b"abc", headers={"x-goog-hash": "crc32c=AAAAAA=="})
    assert "doesn't match calculated" in answer.json()["error"]["message"]
    answer = call("PUT", begin(body={"crc32c": "AAAAAA=="}), data=b"abc")
    assert "doesn't match calculated" in answer.json()["error"]["message"]
    answer = call("PUT", begin(headers={"X-Upload-Content-Length": "5"}), data=b"abc")
    assert "X-Upload-Content-Length" in answer.json()["error"]["message"]
    assert list(gcp.storage.buckets.names(bucket)) == []


def test_a_condition_is_looked_at_when_the_upload_ends(call, begin, bucket):
    one, other = begin(ifGenerationMatch=0), begin(ifGenerationMatch=0)
    assert call("PUT", one, data=b"one").status_code == 200
    late = begin(ifGenerationMatch=0)  # It begins although the object is there.
    for url in (other, late, other):
        assert reason_of(call("PUT", url, data=b"two")) == (412, "conditionNotMet")
    assert call("GET", f"/storage/v1/b/{bucket}/o/k?alt=media").content == b"one"


def test_an_upload_that_is_cancelled_is_gone(call, begin):
    url = begin()
    assert call("DELETE", url).status_code == 499
    assert reason_of(call("PUT", url, data=b"x")) == (404, "notFound")


def test_large_contents_are_kept_in_files(tmp_path):
    directory = tmp_path / "objects"
    directory.mkdir()
    buckets = Buckets(directory=directory)
    buckets.make("abc", project="p")
    stored = buckets.put("abc", "k", bytes(2 * MIB) + b"end", fields={}, conditions={})
    assert [path.stat().st_size for path in directory.iterdir()] == [2 * MIB + 3]
    assert stored.read(2 * MIB) == b"end"
