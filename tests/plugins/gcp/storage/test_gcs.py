"""The store in Cloud Storage: what is its own beside the promises of every store."""

import mmap
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import google.auth.credentials
import google_crc32c
import pytest

from cloudspot.errors import (
    AuthError,
    CloudspotError,
    ObjectExists,
    ObjectMissing,
    SpecError,
    StoreRefused,
    TransientError,
)
from cloudspot.jobstore.creation import create
from cloudspot.jobstore.patience import patient
from cloudspot.jobstore.probe import probe
from cloudspot.registry import open_store
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.gcs import GcsStore
from cloudspot_gcp_sandbox import storagemethods
from cloudspot_gcp_sandbox.resumable import Sessions
from cloudspot_gcp_sandbox.storagemethods import StorageMethods
from cloudspot_gcp_sandbox.wsgi import Reply

MIB = 1 << 20


def actions(gcp):
    return [call.action for call in gcp.faults.calls if call.service == "storage"]


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    for secret in ("ya29.", "PRIVATE KEY", "upload_id=", "X-Goog-Signature", "Bearer "):
        assert secret not in text
    return text


# --- requests -----------------------------------------------------------------------------------------


def test_each_call_is_one_request(gcp, store):
    store.put("k", b"x", if_absent=True)
    store.put("k", b"y")
    store.get("k")
    store.get_range("k", 0, 1)
    store.head("k")
    store.list_page("")
    store.presign_get("k", seconds=60)
    store.delete("k")
    assert actions(gcp) == [
        "storage.objects.insert",
        "storage.objects.insert",
        "storage.objects.get",
        "storage.objects.get",
        "storage.objects.get",
        "storage.objects.list",
        "storage.objects.delete",
    ]
    assert gcp.faults.count("token") == 1
    assert gcp.faults.count("signBlob") == 0


def test_opening_asks_nothing_and_a_prefix_may_end_with_a_slash(gcp, bucket):
    one, other = open_store(f"gs://{bucket}/p/q/"), open_store(f"GS://{bucket}/p/q")
    assert gcp.faults.calls == []
    one.put("k", b"x")
    assert other.get("k") == b"x"
    assert [stored.name for stored in gcp.storage.buckets.names(bucket)] == ["p/q/k"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("gs://", "is not a bucket name"),
        ("gs://B", "is not a bucket name"),
        ("gs://google-1", "is not a bucket name"),
        ("gs://bucket/a//b", "its prefix is not a key"),
        ("gs://bucket/../x", "its prefix is not a key"),
        ("gs://key:secret@bucket/x", "another form"),
    ],
)
def test_a_url_that_names_no_store_is_a_spec_error(url, reason):
    with pytest.raises(SpecError, match=reason) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


# --- what goes wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("k"),
        lambda store: store.head("k"),
        lambda store: store.put("k", b""),
        lambda store: store.delete("k"),
        lambda store: store.list_page(""),
        lambda store: upload(store, "k", b"x" * 3 * MIB),
    ],
)
def test_a_missing_bucket_is_named_with_the_remedy(gcp, call):
    with pytest.raises(SpecError) as caught:
        call(GcsStore("gs://nobodys-bucket/p"))
    assert one_line(caught) == (
        "store gs://nobodys-bucket/p: there is no bucket 'nobodys-bucket'; create it (gcloud storage buckets "
        "create gs://nobodys-bucket) or correct the name"
    )


@pytest.mark.parametrize(
    ("right", "call", "verb"),
    [
        ("storage.objects.create", lambda s: s.put("k", b""), "write k"),
        ("storage.objects.get", lambda s: s.get("k"), "read k"),
        ("storage.objects.get", lambda s: s.head("k"), "read k"),
        ("storage.objects.delete", lambda s: s.delete("k"), "delete k"),
        ("storage.objects.list", lambda s: s.list_page("x/"), "list x/"),
    ],
)
def test_a_right_that_is_missing_is_named(gcp, store, right, call, verb):
    store.put("k", b"")
    gcp.faults.denied.add(right)
    with pytest.raises(AuthError) as caught:
        call(store)
    text = one_line(caught)
    assert text.startswith(f"{store.url}: cannot {verb}: access denied: ")
    assert f"; it takes {right}" in text


def test_to_replace_an_object_takes_the_right_to_delete_it(gcp, store):
    gcp.faults.denied.add("storage.objects.delete")
    store.put("k", b"one", if_absent=True)
    with pytest.raises(ObjectExists):
        store.put("k", b"two", if_absent=True)
    with pytest.raises(AuthError, match=r"storage\.objects\.delete to replace one"):
        store.put("k", b"two")


def test_credentials_that_do_not_serve_are_an_auth_error(gcp, bucket, monkeypatch, tmp_path):
    gcp.faults.rejected_keys.add(gcp.account.email)
    with pytest.raises(AuthError, match="does not accept the credentials") as caught:
        GcsStore(f"gs://{bucket}").get("k")
    one_line(caught)
    gcp.reset_faults()
    gcp.faults.expired_keys.add(gcp.account.email)
    with pytest.raises(AuthError, match="have expired or were revoked; run `gcloud auth") as caught:
        GcsStore(f"gs://{bucket}").get("k")
    one_line(caught)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(AuthError, match="cannot be read") as caught:
        GcsStore(f"gs://{bucket}").get("k")
    one_line(caught)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    with pytest.raises(AuthError, match="no Google credentials found") as caught:
        GcsStore(f"gs://{bucket}").get("k")
    one_line(caught)


def test_a_token_that_was_revoked_is_replaced_also_in_the_middle_of_a_put(gcp, store):
    store.put("warm", b"x")
    gcp.identities.revoke_all()
    store.put("k", b"y" * 3 * MIB, if_absent=True)
    assert store.get("k") == b"y" * 3 * MIB


def test_a_service_that_does_not_answer_is_a_transient_error(gcp, store, monkeypatch):
    store.put("k", b"x")
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "http://127.0.0.1:1")
    for call in (lambda s: s.get("k"), lambda s: s.head("k"), lambda s: s.put("k", b"", if_absent=True)):
        other = GcsStore(store.url, sleep=lambda seconds: None)
        with pytest.raises(TransientError, match=r"no answer from 127\.0\.0\.1:1: .*refused") as caught:
            call(other)
        one_line(caught)


def test_a_service_that_fails_is_a_transient_error(gcp, store):
    store.put("k", b"x")
    gcp.faults.inject("storage.objects.get", "backendError", status=503)
    with pytest.raises(TransientError, match=r"Google failed: injected"):
        store.get("k")
    assert store.get("k") == b"x"


@pytest.mark.parametrize("status", [302, 307, 304])
def test_an_answer_that_leads_elsewhere_is_no_success(gcp, bucket, store, monkeypatch, status):
    store.put("k", b"x")
    refuse = StorageMethods.answer
    monkeypatch.setattr(
        StorageMethods,
        "answer",
        lambda self, asked: (
            Reply(status, {"Location": "http://127.0.0.1:1/login"})
            if asked.method_id in {"storage.objects.insert", "storage.objects.get"}
            and "bucket" in asked.path
            and (asked.matched.is_upload or asked.query.get("alt") == "media")
            else refuse(self, asked)
        ),
    )
    for call in (
        lambda: store.put("k", b"y"),
        lambda: store.put("new", b"y", if_absent=True),
        lambda: upload(store, "new", b"y" * 3 * MIB),
        lambda: store.get("k"),
    ):
        with pytest.raises(TransientError, match=f"leads elsewhere .HTTP status {status}") as caught:
            call()
        one_line(caught)
    assert [one.name for one in gcp.storage.buckets.names(bucket)] == ["some/prefix/k"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}"])
def test_an_upload_that_ended_with_an_answer_that_cannot_be_read_is_looked_up(gcp, store, monkeypatch, body):
    real = Sessions.take

    def take(self, request, session, finish):
        reply = real(self, request, session, finish)
        return replace(reply, body=body) if reply.status == 200 else reply

    monkeypatch.setattr(Sessions, "take", take)
    upload(store, "k", b"y" * 3 * MIB, if_absent=True)
    assert store.head("k").size == 3 * MIB
    with pytest.raises(ObjectExists):
        upload(store, "k", b"z" * 3 * MIB, if_absent=True)


def test_an_answer_without_its_length_is_refused_in_one_line(store, monkeypatch):
    store.put("k", b"x")
    monkeypatch.setattr(Reply, "send", send_without_length)
    for call in (lambda: store.get("k"), lambda: store.get_range_into("k", 0, bytearray(1))):
        with pytest.raises(StoreRefused, match="does not say how long it is") as caught:
            call()
        one_line(caught)


def send_without_length(self, start_response):
    start_response(f"{self.status} OK", list(self.headers.items()))
    return iter([bytes(self.body)])


def test_a_failed_put_lets_go_of_the_callers_mapping(gcp, store):
    mapped = mmap.mmap(-1, 4 * MIB)
    for status, kind in ((503, TransientError), (412, ObjectExists)):
        gcp.faults.inject("storage.objects.insert", "x", status=status, times=9)
        with memoryview(mapped) as view, pytest.raises(kind) as caught:
            store.put("k", view, if_absent=True)
        gcp.reset_faults()
    mapped.close()
    assert caught.value.__traceback__ is not None


# --- whose write it was ---------------------------------------------------------------------------------


def test_of_32_that_create_a_key_one_wins(bucket):
    clients = GcpClients()
    stores = [GcsStore(f"gs://{bucket}", clients=clients) for _ in range(32)]

    def attempt(number):
        try:
            stores[number].put("k", b"%d" % number, if_absent=True)
        except ObjectExists:
            return None
        return number

    with ThreadPoolExecutor(32) as pool:
        (winner,) = [one for one in pool.map(attempt, range(32)) if one is not None]
    assert stores[0].get("k") == b"%d" % winner


@pytest.mark.parametrize("size", [1, 3 * MIB])
def test_a_create_whose_answer_is_lost_is_known_for_ours(gcp, store, size):
    gcp.faults.inject("storage.objects.insert", "backendError", status=503, happens=True)
    store.put("k", b"a" * size, if_absent=True)
    assert gcp.faults.count("storage.objects.insert") == 1
    with pytest.raises(ObjectExists):
        store.put("k", b"b" * size, if_absent=True)
    assert store.get("k") == b"a" * size


def test_a_second_try_that_meets_the_first_knows_it_for_ours(gcp, store):
    gcp.faults.inject("storage.objects.insert", "backendError", status=503, happens=True)
    gcp.faults.inject("storage.objects.get", "backendError", status=503)  # Nobody can tell yet.
    store.put("k", b"nonce", if_absent=True)
    codes = [call.error for call in gcp.faults.calls if call.action == "storage.objects.insert"]
    assert codes == ["backendError", "conditionNotMet"]
    assert create(store, "k", b"other", sleep=lambda seconds: None) == b"nonce"


def test_a_create_that_lost_to_another_while_its_answer_was_lost_says_so(gcp, store):
    store.put("k", b"another's", if_absent=True)
    gcp.faults.inject("storage.objects.insert", "backendError", status=503)
    with pytest.raises(ObjectExists, match="k exists"):
        store.put("k", b"mine", if_absent=True)


def test_a_throttled_put_is_made_again(gcp, bucket):
    slept = []
    store = GcsStore(f"gs://{bucket}", sleep=slept.append)
    for if_absent in (True, False):
        slept.clear()
        gcp.faults.inject("storage.objects.insert", "rateLimitExceeded", status=429, times=4)
        store.put(f"k{if_absent}", b"x", if_absent=if_absent)
        assert slept == [0.1, 0.2, 0.4, 0.8]
    gcp.faults.inject("storage.objects.insert", "rateLimitExceeded", status=429, times=5)
    with pytest.raises(TransientError, match="throttles"):
        store.put("k", b"x")


def test_a_replacing_put_whose_answer_is_lost_is_made_once(gcp, store):
    gcp.faults.inject("storage.objects.insert", "backendError", status=503, happens=True)
    with pytest.raises(TransientError):
        store.put("k", b"x")
    assert gcp.faults.count("storage.objects.insert") == 1
    gcp.faults.inject("storage.objects.insert", "backendError", status=503)
    patient(store, sleep=lambda seconds: None).put("k", b"y")
    assert store.get("k") == b"y"


def test_a_server_that_takes_any_create_is_refused_by_the_probe(store, monkeypatch):
    probe(store, sleep=lambda seconds: None)
    monkeypatch.setattr("cloudspot_gcp_sandbox.objects.check_conditions", lambda *_: None)
    with pytest.raises(StoreRefused, match="second create of the same key was accepted"):
        probe(store, sleep=lambda seconds: None)


def test_a_versioned_bucket_keeps_the_promise_of_create_only(gcp, bucket):
    gcp.storage.buckets.change(bucket, {"versioning": {"enabled": True}})
    store = GcsStore(f"gs://{bucket}")
    for data in (b"one", b"two"):
        store.put("k", data, if_absent=True)
        with pytest.raises(ObjectExists):
            store.put("k", b"late", if_absent=True)
        assert store.get("k") == data
        store.delete("k")
    assert len(list(gcp.storage.buckets.names(bucket, versions=True))) == 2


# --- bytes on the way -----------------------------------------------------------------------------------


def test_bytes_that_changed_on_their_way_up_are_refused(store, monkeypatch):
    monkeypatch.setattr("cloudspot_gcp.gcsupload.extend_crc32c", lambda checksum, view: 7)
    with pytest.raises(TransientError, match="the bytes changed on the way") as caught:
        store.put("k", b"x" * 100)
    one_line(caught)
    with pytest.raises(TransientError, match="the bytes changed on the way"):
        upload(store, "k", b"x" * 3 * MIB)
    assert list(store.list_objects("")) == []


def change_answers(monkeypatch, change):
    real = storagemethods.media
    monkeypatch.setattr(
        storagemethods,
        "media",
        lambda request, found: replace(reply := real(request, found), body=change(bytes(reply.body))),
    )


def test_bytes_that_changed_on_their_way_down_are_no_object(store, monkeypatch):
    store.put("k", b"x" * MIB)
    change_answers(monkeypatch, lambda body: body[:-1] + b"!")
    for call in (lambda: store.get("k"), lambda: store.get_range("k", 0, 2 * MIB)):
        with pytest.raises(TransientError, match="arrived damaged"):
            call()


def test_an_answer_that_breaks_off_is_no_object(gcp, store, monkeypatch):
    store.put("k", b"x" * MIB)
    real = storagemethods.media

    def cut(request, found):
        reply = real(request, found)
        request.environ["werkzeug.socket"].settimeout(5)
        return Cut(reply.status, reply.headers, reply.body)

    class Cut(type(real(FakeRequest(), found_of(gcp, store)))):
        def send(self, start_response):
            full = list(super().send(start_response))
            return [bytes(full[0])[: MIB // 2]]

    monkeypatch.setattr(storagemethods, "media", cut)
    for call in (lambda: store.get("k"), lambda: store.get_range("k", 10, 600_000)):
        with pytest.raises(TransientError, match="the connection broke"):
            call()


class FakeRequest:
    """A request without a range."""

    def header(self, name):
        return None


def found_of(gcp, store):
    bucket, _, prefix = store.url.removeprefix("gs://").partition("/")
    return gcp.storage.buckets.find(bucket, f"{prefix}/k")


# --- streams --------------------------------------------------------------------------------------------


def upload(store, key, data, *, if_absent=False):
    with store.open_upload(key, if_absent=if_absent) as stream:
        stream.write(data)
        stream.commit()


def noise(size):
    return bytes((number * 31 + number // 255) % 251 for number in range(size // 64)) * 64


def test_a_stream_goes_up_in_pieces_and_a_small_one_in_a_single_put(gcp, store):
    upload(store, "small", b"x" * 100)
    upload(store, "large", b"x" * (2 * MIB + 300_000))
    assert actions(gcp) == ["storage.objects.insert"] * 2 + ["resumable.put"] * 4
    spans = [call.parameters["content-range"] for call in gcp.faults.calls if call.action == "resumable.put"]
    assert spans == [
        "bytes 0-1048575/*",
        "bytes 1048576-2097151/*",
        "bytes 2097152-2359295/*",
        "bytes 2359296-2397151/2397152",
    ]


@pytest.mark.parametrize("if_absent", [True, False])
@pytest.mark.parametrize("size", [3 * MIB, 3 * MIB + 17])
def test_a_broken_connection_in_mid_upload_is_gone_on_from(gcp, bucket, store, size, if_absent):
    data = noise(size)[:size]
    gcp.storage.sessions.breaks += [700_000, 0, 100]
    upload(store, "k", data, if_absent=if_absent)
    assert store.get("k") == data
    spans = [
        call.parameters["content-range"]
        for call in gcp.faults.calls
        if call.action == "resumable.put" and call.error is None
    ]
    assert spans[:3] == ["bytes */*", "bytes */*", "bytes */*"]
    assert spans[3] == "bytes 524288-1048575/*"  # Two units of 256 KiB had arrived.
    assert gcp.storage.sessions.pending(bucket) == []


def test_the_last_piece_may_break_off_too(gcp, store):
    data = noise(MIB + 4000)
    with store.open_upload("k") as stream:
        stream.write(data[:MIB])
        stream.write(data[MIB:])
        gcp.storage.sessions.breaks += [10**9, 10]
        stream.commit()
    assert store.get("k") == data


@pytest.mark.parametrize("if_absent", [True, False])
def test_a_stream_whose_last_answer_is_lost_is_known_for_ours(gcp, store, if_absent):
    for key, action in (("small", "storage.objects.insert"), ("large", "resumable.put")):
        with store.open_upload(key, if_absent=if_absent) as stream:
            stream.write(b"x" * (100 if key == "small" else 2 * MIB))
            stream.write(b"y")
            gcp.faults.inject(action, "backendError", status=503, happens=True, times=2)
            stream.commit()
        gcp.reset_faults()
        assert store.head(key).size == (101 if key == "small" else 2 * MIB + 1)


def test_a_stream_that_lost_to_another_while_its_answer_was_lost_says_so(gcp, store):
    stream = store.open_upload("k", if_absent=True)
    stream.write(bytes(3 * MIB))
    store.put("k", b"another's", if_absent=True)
    gcp.faults.inject("resumable.put", "backendError", status=503)
    with pytest.raises(ObjectExists, match="k exists"):
        stream.commit()
    assert store.get("k") == b"another's"


def test_an_aborted_stream_is_cancelled(gcp, bucket, store):
    with store.open_upload("k") as stream:
        stream.write(bytes(3 * MIB))
        assert [session.name for session in gcp.storage.sessions.pending(bucket)] == ["some/prefix/k"]
    assert gcp.storage.sessions.pending(bucket) == []
    assert gcp.faults.count("resumable.cancel") == 1


def test_pieces_that_fail_in_passing_are_sent_again(gcp, store):
    gcp.faults.inject("storage.objects.insert", "backendError", status=503)
    gcp.faults.inject("resumable.put", "backendError", status=503, times=3)
    data = noise(3 * MIB)
    upload(store, "k", data)
    assert store.get("k") == data


def test_a_piece_that_fails_for_good_ends_the_stream(gcp, store):
    gcp.faults.inject("resumable.put", "backendError", status=503, times=10_000)
    with pytest.raises(TransientError), store.open_upload("k") as stream:
        for _ in range(100):
            stream.write(bytes(MIB))
        pytest.fail("a stream goes on although no piece arrives")
    assert list(store.list_objects("")) == []


def test_an_upload_that_storage_has_forgotten_says_what_to_do(gcp, bucket, store):
    stream = store.open_upload("k")
    stream.write(bytes(3 * MIB))
    for session in gcp.storage.sessions.pending(bucket):
        gcp.storage.sessions.cancel(session.id)
    with pytest.raises(CloudspotError, match="its resumable upload is gone") as caught:
        stream.commit()
    assert not isinstance(caught.value, TransientError)
    one_line(caught)


# --- presigned URLs ------------------------------------------------------------------------------------


class Machine(google.auth.credentials.Credentials):
    """Credentials as a machine's: tokens, and no key."""

    service_account_email = "default"

    def __init__(self, gcp):
        super().__init__()
        self._gcp = gcp

    def refresh(self, request):
        self.service_account_email = self._gcp.account.email
        self.token = self._gcp.identities.issue(self._gcp.account.email)


@pytest.fixture
def machine_store(gcp, store):
    clients = GcpClients()
    clients._found = (Machine(gcp), gcp.account.project)
    return GcsStore(store.url, clients=clients)


def test_on_a_machine_iam_signs(gcp, machine_store):
    machine_store.put("a/b c+d", b"hello")
    with urllib.request.urlopen(machine_store.presign_get("a/b c+d", seconds=60)) as answer:
        assert answer.read() == b"hello"
    assert gcp.faults.count("signBlob") == 1
    gcp.faults.denied.add("iam.serviceAccounts.signBlob")
    with pytest.raises(
        AuthError, match=r"takes roles/iam\.serviceAccountTokenCreator of the service account on itself"
    ) as caught:
        machine_store.presign_get("k", seconds=60)
    one_line(caught)


def test_a_url_that_cannot_be_signed_says_why(gcp, machine_store):
    gcp.faults.inject("signBlob", "SERVICE_DISABLED", status=403)
    with pytest.raises(AuthError, match="the API is not enabled; run: gcloud services enable") as caught:
        machine_store.presign_get("k", seconds=60)
    assert "TokenCreator" not in one_line(caught)


def test_a_users_own_login_cannot_presign(gcp, machine_store):
    machine_store._clients._found[0].service_account_email = None
    with pytest.raises(CloudspotError, match="cannot presign a URL by a user's own login") as caught:
        machine_store.presign_get("k", seconds=60)
    one_line(caught)


def test_a_presigned_url_that_was_changed_or_is_over_is_refused(store):
    store.put("k", b"x")
    url = store.presign_get("k", seconds=60)
    for wrong, code in (
        (url.replace("Expires=60", "Expires=600"), 403),
        (url.replace("prefix/k", "prefix/j"), 403),
        (url[:-4] + "0000", 403),
        (url.replace("X-Goog-Date=2", "X-Goog-Date=1"), 400),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(wrong):
            pytest.fail("it was read")
        assert caught.value.code == code
        caught.value.close()


@pytest.mark.parametrize("seconds", [0, -1, 604801])
def test_a_url_that_storage_would_not_sign_for_is_refused(store, seconds):
    with pytest.raises(ValueError, match="604800"):
        store.presign_get("k", seconds=seconds)


# --- the rest -------------------------------------------------------------------------------------------


def test_what_others_keep_in_the_bucket_is_passed_over(gcp, bucket, store):
    for name in ("some/prefix/", "some/prefix/folder/", "some/prefix/ü", "some/prefixed", "other"):
        gcp.storage.buckets.put(bucket, name, b"", fields={}, conditions={})
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


def test_check_tells_what_a_bucket_keeps_that_is_billed(gcp, bucket):
    store = GcsStore(f"gs://{bucket}")
    found = {one.name: one for one in store.check()}
    assert [(one.name, one.ok) for one in found.values()] == [
        ("bucket", True),
        ("bucket versioning", True),
        ("bucket soft delete", True),
        ("bucket retention", True),
        ("bucket lifecycle", True),
        ("bucket storage class", True),
    ]
    assert found["bucket"].detail == f"gs://{bucket}, in US"
    assert found["bucket versioning"].detail == "off"
    assert "billed for 7 more days; turn it off" in found["bucket soft delete"].detail
    gcp.storage.buckets.change(
        bucket,
        {
            "versioning": {"enabled": True},
            "softDeletePolicy": {"retentionDurationSeconds": "0"},
            "retentionPolicy": {"retentionPeriod": "3600"},
        },
    )
    found = {one.name: one for one in store.check()}
    assert "deletes noncurrent versions" in found["bucket versioning"].detail
    assert found["bucket soft delete"].detail == "off"
    assert not found["bucket retention"].ok
    gcp.faults.denied.add("storage.buckets.get")
    assert [one.detail for one in store.check()[1:]] == [
        "unknown: the right to ask is missing (storage.buckets.get)"
    ]
    missing = GcsStore("gs://nobodys-bucket").check()
    assert [(one.name, one.ok) for one in missing] == [("bucket", False)]


@pytest.mark.parametrize(
    ("condition", "ok"),
    [
        ({"age": 30}, False),
        ({"age": 30, "matchesPrefix": ["some/"]}, False),
        ({"age": 30, "matchesPrefix": ["some/prefix/jobs/"]}, False),
        ({"age": 30, "matchesPrefix": ["other/"]}, True),
        ({"age": 30, "isLive": False}, True),
        ({"numNewerVersions": 1}, True),
    ],
)
def test_check_refuses_a_rule_that_would_delete_checkpoints(gcp, bucket, store, condition, ok):
    rule = {"action": {"type": "Delete"}, "condition": condition}
    gcp.storage.buckets.change(bucket, {"lifecycle": {"rule": [rule]}, "storageClass": "NEARLINE"})
    found = {one.name: one for one in store.check()}
    assert found["bucket lifecycle"].ok is ok
    assert found["bucket storage class"].detail.startswith("NEARLINE: each object is billed")


def test_a_checksum_library_without_its_compiled_part_is_told_of(monkeypatch, caplog):
    GcsStore("gs://bucket")
    assert caplog.text == ""
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    GcsStore("gs://bucket")
    assert "checksums take longer than the network" in caplog.text


def test_nothing_that_is_missing_is_read(store):
    for call in (
        lambda: store.get("k"),
        lambda: store.get_range("k", 0, 0),
        lambda: store.head("k"),
    ):
        with pytest.raises(ObjectMissing, match="no object k"):
            call()
