"""The store in Cloud Storage: what is its own beside the promises of every store."""

import re
import urllib.error
import urllib.request
from dataclasses import replace
from datetime import datetime, timezone

import google.auth.credentials
import pytest
from support.clouds.bucketstoretests import one_line, upload

from cloudspot.calls import LinkRequest
from cloudspot.errors import (
    AuthError,
    CloudspotError,
    ObjectExists,
    ObjectMissing,
    StoreRefused,
    TransientError,
)
from cloudspot.testing import plaincalls
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.gcs import GcsStore
from cloudspot_gcp_sandbox import storagemethods
from cloudspot_gcp_sandbox.resumable import Sessions
from cloudspot_gcp_sandbox.storagemethods import StorageMethods
from cloudspot_gcp_sandbox.wsgi import Reply

MIB = 1 << 20


def actions(gcp):
    return [call.action for call in gcp.faults.calls if call.service == "storage"]


# --- requests -----------------------------------------------------------------------------------------


# --- what goes wrong -----------------------------------------------------------------------------------


def test_to_replace_an_object_takes_the_right_to_delete_it(gcp, store):
    gcp.faults.denied.add("storage.objects.delete")
    store.put("k", b"one", if_absent=True)
    with pytest.raises(ObjectExists):
        store.put("k", b"two", if_absent=True)
    with pytest.raises(AuthError, match=r"storage\.objects\.delete to replace one"):
        store.put("k", b"two")


def test_a_refused_condition_without_a_reason_is_one_and_with_another_reason_is_none(gcp, store):
    """Google's storage-testbench and fake-gcs-server answer 412 and give no reason."""
    store.put("k", b"one")
    gcp.faults.inject("storage.objects.insert", "", status=412)
    with pytest.raises(ObjectExists):
        store.put("k", b"two", if_absent=True)
    gcp.faults.inject("storage.objects.insert", "orgPolicyConstraintFailed", status=412)
    with pytest.raises(CloudspotError, match="orgPolicyConstraintFailed") as caught:
        store.put("new", b"two", if_absent=True)
    assert not isinstance(caught.value, ObjectExists)


def test_an_object_without_a_size_is_empty_if_its_checksum_says_so(store, monkeypatch):
    """storage-testbench leaves out the size of an empty object."""
    send = store.bucket.send

    def without_sizes(method, path, **options):
        answer = send(method, path, **options)
        told = re.sub(rb'"size": *"\d+",?', b"", answer.content)
        answer._content = told
        return answer

    store.put("empty", b"")
    monkeypatch.setattr(store.bucket, "send", without_sizes)
    assert [(one.key, one.size) for one in store.list_objects("")] == [("empty", 0)]
    assert store.head("empty").size == 0
    monkeypatch.setattr(store.bucket, "send", send)
    store.put("full", b"x")
    monkeypatch.setattr(store.bucket, "send", without_sizes)
    with pytest.raises(TransientError, match="lacks a size"):
        list(store.list_objects(""))


def test_a_deletion_that_is_answered_by_200_counts_once_the_object_is_gone(store, monkeypatch):
    """storage-testbench and fake-gcs-server answer so; a login page does too, and deletes nothing."""
    send, does_delete = store.bucket.send, [True]

    def answered_by_200(method, path, **options):
        if method == "DELETE" and not does_delete[0]:
            return send("GET", path, **options)
        answer = send(method, path, **options)
        if method == "DELETE":
            answer.status_code = 200
        return answer

    monkeypatch.setattr(store.bucket, "send", answered_by_200)
    store.put("k", b"one")
    store.delete("k")
    with pytest.raises(ObjectMissing):
        store.get("k")
    store.delete("k")  # of what is not there, as ever
    store.put("k", b"two")
    does_delete[0] = False
    with pytest.raises(TransientError, match="lacks status 204"):
        store.delete("k")
    assert store.get("k") == b"two"


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
        with pytest.raises(
            TransientError, match=f"the answer .HTTP status {status}. is not Cloud Storage's"
        ) as caught:
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


# --- whose write it was ---------------------------------------------------------------------------------


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
    monkeypatch.setattr("cloudspot_gcp.gcs.extend_crc32c", lambda checksum, view: 7)
    with pytest.raises(TransientError, match="the bytes were damaged in transit") as caught:
        store.put("k", b"x" * 100)
    one_line(caught)
    with pytest.raises(TransientError, match="the bytes were damaged in transit"):
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


# --- streams --------------------------------------------------------------------------------------------


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


def test_an_aborted_stream_is_cancelled(gcp, bucket, store):
    with store.open_upload("k") as stream:
        stream.write(bytes(3 * MIB))
        assert [session.name for session in gcp.storage.sessions.pending(bucket)] == ["some/prefix/k"]
    assert gcp.storage.sessions.pending(bucket) == []
    assert gcp.faults.count("resumable.cancel") == 1


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
        AuthError, match=r"needs roles/iam\.serviceAccountTokenCreator of the service account on itself"
    ) as caught:
        machine_store.presign_get("k", seconds=60)
    one_line(caught)


def test_a_url_that_cannot_be_signed_says_why(gcp, machine_store):
    gcp.faults.inject("signBlob", "SERVICE_DISABLED", status=403)
    with pytest.raises(AuthError, match="the API is not enabled; run: gcloud services enable") as caught:
        machine_store.presign_get("k", seconds=60)
    assert "TokenCreator" not in one_line(caught)


def test_a_users_own_login_cannot_presign(gcp, machine_store):
    machine_store.bucket.clients._found[0].service_account_email = None
    with pytest.raises(CloudspotError, match="cannot presign a URL with a user's own login") as caught:
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


# --- the rest -------------------------------------------------------------------------------------------


def test_check_tells_what_a_bucket_keeps_that_is_billed(gcp, bucket):
    store = GcsStore(f"gs://{bucket}")
    found = {one.name: one for one in plaincalls.check(store)}
    assert [(one.name, one.ok) for one in found.values()] == [
        ("bucket", True),
        ("bucket location", True),
        ("bucket versioning", True),
        ("bucket soft delete", True),
        ("bucket retention", True),
        ("bucket lifecycle", True),
        ("bucket storage class", True),
    ]
    assert found["bucket"].detail == f"gs://{bucket}"
    assert found["bucket location"].detail == "US"
    assert found["bucket versioning"].detail == "off"
    assert "billed for 7 more days" in found["bucket soft delete"].detail
    assert found["bucket soft delete"].remedy.startswith("turn it off (gcloud storage buckets update ")
    gcp.storage.buckets.change(
        bucket,
        {
            "versioning": {"enabled": True},
            "softDeletePolicy": {"retentionDurationSeconds": "0"},
            "retentionPolicy": {"retentionPeriod": "3600"},
        },
    )
    found = {one.name: one for one in plaincalls.check(store)}
    assert "deletes noncurrent versions" in found["bucket versioning"].remedy
    assert found["bucket soft delete"].detail == "off"
    assert not found["bucket retention"].ok
    gcp.faults.denied.add("storage.buckets.get")
    assert [(one.is_known, one.detail) for one in plaincalls.check(store)[1:]] == [
        (False, "the permission to ask is missing (storage.buckets.get)")
    ]


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
    found = {one.name: one for one in plaincalls.check(store)}
    assert found["bucket lifecycle"].ok is ok
    assert found["bucket storage class"].detail.startswith("NEARLINE: each object is billed")


# --- links that a browser shows ------------------------------------------------------------------------


def link(store, key):
    return store.link(LinkRequest(key=key, seconds=600, media_type="text/html; charset=utf-8"))


def test_a_browser_shows_what_a_link_leads_to(store, machine_store):
    for one in (store, machine_store):
        one.put("a/b c+d.html", b"<p>hello")
        found = link(one, "a/b c+d.html")
        assert found.note == ""
        assert 500 < (found.ends_at - datetime.now(timezone.utc)).total_seconds() <= 600
        with urllib.request.urlopen(found.url) as answer:
            assert (answer.read(), answer.headers["Content-Type"]) == (
                b"<p>hello",
                "text/html; charset=utf-8",
            )
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(found.url.replace("text%2Fhtml", "text%2Fplain"))


def test_a_users_own_login_makes_no_link_and_hears_what_would_help(machine_store):
    machine_store.bucket.clients._found[0].service_account_email = None
    with pytest.raises(CloudspotError, match="a user's own login; set GOOGLE_APPLICATION_CREDENTIALS"):
        link(machine_store, "k")
