"""What every store in a bucket does when its cloud fails, against the emulated clouds.

A subclass brings the fixtures ``cloud`` (a BucketCloud), ``bucket`` (an empty bucket's name) and ``store`` (in
that bucket, below ``some/prefix``, whose streams go up in small parts and whose retries do not sleep).
"""

from __future__ import annotations

import mmap
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.stores.lossyproxy import LossyProxy

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.errors import (
    AuthError,
    CloudspotError,
    ObjectExists,
    ObjectMissing,
    SpecError,
    StoreMissing,
    StoreRefused,
    TransientError,
)
from cloudspot.host import paced_http
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.creation import create
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.store_probe import probe
from cloudspot.registry import open_store
from cloudspot.testing import plaincalls

MIB = 1 << 20
OBJECT_NAMES = ("Key", "Prefix", "name", "object", "prefix")
"""What the clouds call the parameter of a request that names an object, or those to list."""
DOCS = Path(__file__).parents[3] / "docs"


def rights_named(file: str | Path, service: str) -> frozenset[str]:
    """Return the rights of a service that a policy or role grants; its path is below docs/ or absolute."""
    found = re.findall(rf"(?:^- |\")({service}[:.][\w.]+)", (DOCS / file).read_text(), re.MULTILINE)
    assert found, file
    return frozenset(found)


class BucketCloud(ABC):
    """An emulated cloud's buckets, as the tests see them."""

    scheme: ClassVar[str]
    lists_uploads: ClassVar[bool] = True
    """It keeps unfinished uploads for good, and charges for them."""
    store_type: ClassVar[type[ObjectStore]]
    endpoint_variable: ClassVar[str]
    actions: ClassVar[dict[str, str]]
    """The cloud's names for put, get, head, list, delete, begin, part and complete; several may share one."""
    abort_action: ClassVar[str] = "AbortMultipartUpload"
    first_actions: ClassVar[tuple[str, ...]] = ()
    """What a store asks before its first request, to find the bucket."""
    rights: ClassVar[dict[str, str]]
    """The right that a put, get, list and delete takes."""
    failed: ClassVar[tuple[str, int]]
    """The code and status of an error after which the outcome is unknown."""
    throttled: ClassVar[tuple[str, int]]
    taken: ClassVar[tuple[str, int]]
    """The code and status of the refusal of a create-only put."""
    how_to_create: ClassVar[str]
    other_wrong_urls: ClassVar[Sequence[tuple[str, str]]] = ()
    large_bytes: ClassVar[int]
    """The size of a stream of three parts."""
    granted_to_nodes: ClassVar[frozenset[str]]
    """The rights on the bucket that the docs' policy gives a machine."""
    granted_to_submitters: ClassVar[frozenset[str]]
    """The same, to whoever runs ``cloudspot``."""
    needed_by_the_check_alone: ClassVar[frozenset[str]]
    """Rights of both policies that only ``providers check`` takes; on a cloud that has one role for both."""
    rights_of: ClassVar[Callable[[Call], frozenset[str]]]
    """The right that a request took."""
    faults: Faults
    url: str
    server: Any
    """The emulated service, whose ``_now`` is its clock."""

    @abstractmethod
    def put_raw(self, bucket: str, name: str) -> None:
        """Put an empty object of any name into the bucket, past the store."""

    @abstractmethod
    def pending(self, bucket: str) -> list[str]:
        """Return the names of the uploads that are under way."""

    @abstractmethod
    def forget_uploads(self, bucket: str) -> None:
        """Drop all uploads that are under way, as the bucket's rules do."""

    @abstractmethod
    def ignore_conditions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the cloud take every create-only put."""

    def fail(self, request: str, *, times: int = 1, happens: bool = False) -> None:
        code, status = self.failed
        self.faults.inject(self.actions[request], code, status=status, times=times, happens=happens)

    def throttle(self, request: str, *, times: int) -> None:
        code, status = self.throttled
        self.faults.inject(self.actions[request], code, status=status, times=times)

    def count(self, request: str) -> int:
        return self.faults.count(self.actions[request])

    def open(self, url: str, **options: Any) -> ObjectStore:
        return self.store_type(url, **options)


def upload(store: ObjectStore, key: str, data: bytes, *, if_absent: bool = False) -> None:
    with store.open_upload(key, if_absent=if_absent) as stream:
        stream.write(data)
        stream.commit()


def one_line(caught: pytest.ExceptionInfo[BaseException]) -> str:
    """Return the error's message, which is one line without secrets."""
    text = str(caught.value)
    assert "\n" not in text
    for secret in (
        "AKIA",
        "wJalrX",
        "wrong-secret",
        "LTAI",
        "ya29.",
        "PRIVATE KEY",
        "upload_id=",
        "-Signature",
        "Bearer ",
    ):
        assert secret not in text
    return text


class BucketStoreTests:
    """What a store promises beyond ObjectStoreTests, a test for each."""

    @pytest.fixture
    def proxy(self, cloud: BucketCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[LossyProxy]:
        """A proxy before the cloud; stores that are made after it ask there."""
        proxy = LossyProxy(cloud.url)
        monkeypatch.setenv(cloud.endpoint_variable, proxy.url)
        yield proxy
        proxy.close()

    # --- the URL and the requests -----------------------------------------------------------------

    def test_each_call_is_one_request(self, cloud, store):
        cloud.faults.calls.clear()
        store.put("warm", b"")
        assert cloud.faults.actions()[: len(cloud.first_actions)] == list(cloud.first_actions)
        cloud.faults.calls.clear()
        store.put("k", b"x", if_absent=True)
        store.put("k", b"y")
        store.get("k")
        store.get_range("k", 0, 1)
        store.get_range_into("k", 0, bytearray(1))
        store.head("k")
        store.list_page("")
        store.presign_get("k", seconds=60)
        store.delete("k")
        wanted = ("put", "put", "get", "get", "get", "head", "list", "delete")
        assert cloud.faults.actions() == [cloud.actions[request] for request in wanted]

    @pytest.mark.full
    def test_a_store_takes_each_right_that_the_policies_grant_and_stays_below_its_prefix(self, cloud, store):
        cloud.faults.calls.clear()
        store.put("k", b"x", if_absent=True)
        upload(store, "large", bytes(cloud.large_bytes))
        with pytest.raises(ZeroDivisionError), store.open_upload("left") as stream:
            stream.write(bytes(cloud.large_bytes))
            raise ZeroDivisionError
        assert (store.get("k"), store.head("k").size) == (b"x", 1)
        assert [meta.key for meta in store.list_objects("")] == ["k", "large"]
        store.delete("k")
        taken = frozenset().union(*(cloud.rights_of(call) for call in cloud.faults.calls))
        assert taken == cloud.granted_to_nodes - cloud.needed_by_the_check_alone
        names = {call.parameters.get(name) for call in cloud.faults.calls for name in OBJECT_NAMES}
        objects = {"some/prefix/k", "some/prefix/large", "some/prefix/left"}
        assert objects <= set(filter(None, names)) <= {*objects, "some/prefix/"}
        cloud.faults.calls.clear()
        plaincalls.check(store)
        checked = frozenset().union(*(cloud.rights_of(call) for call in cloud.faults.calls))
        assert cloud.needed_by_the_check_alone <= checked
        assert taken | checked == cloud.granted_to_submitters

    def test_opening_asks_nothing_and_a_prefix_may_end_with_a_slash(self, cloud, bucket):
        cloud.faults.calls.clear()
        one = open_store(f"{cloud.scheme}://{bucket}/p/q/")
        other = open_store(f"{cloud.scheme.upper()}://{bucket}/p/q")
        assert cloud.faults.calls == []
        assert type(one) is cloud.store_type
        one.put("k", b"x")
        assert other.get("k") == b"x"
        whole_bucket = open_store(f"{cloud.scheme}://{bucket}")
        assert [meta.key for meta in whole_bucket.list_objects("")] == ["p/q/k"]

    def test_a_url_that_names_no_store_is_a_spec_error(self, cloud):
        wrong = [
            (f"{cloud.scheme}:/x", "another form"),
            (f"{cloud.scheme}://", "is not a bucket name"),
            (f"{cloud.scheme}://B", "is not a bucket name"),
            (f"{cloud.scheme}://A_b", "is not a bucket name"),
            (f"{cloud.scheme}://ab", "is not a bucket name"),
            (f"{cloud.scheme}://bucket/a//b", "its prefix is not a key"),
            (f"{cloud.scheme}://bucket/../x", "its prefix is not a key"),
            (f"{cloud.scheme}://key:secret@bucket/x", "another form"),
            *cloud.other_wrong_urls,
        ]
        for url, reason in wrong:
            with pytest.raises(SpecError, match=f"store.*{reason}") as caught:
                cloud.open(url)
            assert "secret" not in str(caught.value)

    def test_neither_store_nor_error_shows_credentials(self, cloud, store):
        assert repr(store) == f"{cloud.store_type.__name__}('{store.url}')"
        with pytest.raises(CloudspotError) as caught:
            store.get("none")
        one_line(caught)

    # --- what goes wrong --------------------------------------------------------------------------

    def test_a_missing_bucket_is_named_with_the_remedy(self, cloud):
        store = cloud.open(f"{cloud.scheme}://nobodys-bucket/p", part_bytes=cloud.large_bytes // 3)
        for call in (
            lambda: store.get("k"),
            lambda: store.head("k"),
            lambda: store.put("k", b""),
            lambda: store.put("k", b"", if_absent=True),
            lambda: store.delete("k"),
            lambda: store.list_page(""),
            lambda: upload(store, "k", bytes(cloud.large_bytes)),
        ):
            with pytest.raises(StoreMissing) as caught:
                call()
            assert one_line(caught) == (
                f"store {cloud.scheme}://nobodys-bucket/p: there is no bucket 'nobodys-bucket'; create it "
                f"({cloud.how_to_create}nobodys-bucket) or correct the name"
            )
        (only,) = plaincalls.check(store)
        assert (only.name, only.ok, only.detail) == ("bucket", False, str(caught.value))

    def test_a_missing_object_is_named(self, store):
        for call in (
            lambda: store.get("a/k"),
            lambda: store.get_range("a/k", 0, 0),
            lambda: store.get_range_into("a/k", 0, bytearray(1)),
            lambda: store.head("a/k"),
        ):
            with pytest.raises(ObjectMissing) as caught:
                call()
            assert one_line(caught) == f"{store.url}: no object a/k"

    @pytest.mark.parametrize(
        ("request_name", "call", "verb"),
        [
            ("put", lambda store: store.put("k", b""), "write k"),
            ("get", lambda store: store.get("k"), "read k"),
            ("get", lambda store: store.head("k"), "read k"),
            ("delete", lambda store: store.delete("k"), "delete k"),
            ("list", lambda store: store.list_page("x/"), "list x/"),
        ],
    )
    def test_a_right_that_is_missing_is_named(self, cloud, store, request_name, call, verb):
        store.put("k", b"")
        right = cloud.rights[request_name]
        cloud.faults.denied.add(right)
        with pytest.raises(AuthError) as caught:
            call(store)
        text = one_line(caught)
        assert text.startswith(f"{store.url}: cannot {verb}: access denied: ")
        assert f"; this needs {right}" in text

    def test_a_service_that_does_not_answer_is_a_transient_error(self, cloud, store, monkeypatch):
        store.put("k", b"x")
        monkeypatch.setenv(cloud.endpoint_variable, "http://127.0.0.1:1")
        other = cloud.open(store.url, sleep=lambda seconds: None)
        for call in (
            lambda: other.get("k"),
            lambda: other.head("k"),
            lambda: other.put("k", b""),
            lambda: other.put("k", b"", if_absent=True),
        ):
            with pytest.raises(TransientError, match=r"no answer from .*refused") as caught:
                call()
            one_line(caught)

    def test_a_service_that_fails_is_a_transient_error(self, cloud, store):
        store.put("k", b"x")
        cloud.fail("get")
        with pytest.raises(TransientError, match="failed: injected"):
            store.get("k")
        assert store.get("k") == b"x"

    def test_a_function_that_the_server_lacks_is_refused_by_name(self, cloud, store):
        cloud.faults.inject(cloud.actions["put"], "NotImplemented", status=501)
        with pytest.raises(StoreRefused, match="the server lacks a feature that cloudspot needs") as caught:
            store.put("k", b"x", if_absent=True)
        one_line(caught)

    def test_a_failed_put_lets_go_of_the_callers_mapping(self, cloud, store):
        mapped = mmap.mmap(-1, 4 * MIB)
        for (code, status), kind in ((cloud.failed, TransientError), (cloud.taken, ObjectExists)):
            cloud.faults.inject(cloud.actions["put"], code, status=status, times=5)
            with memoryview(mapped) as view, pytest.raises(kind) as caught:
                store.put("k", view, if_absent=True)
        mapped.close()
        assert caught.value.__traceback__ is not None

    # --- repeated requests ------------------------------------------------------------------------

    @pytest.mark.parametrize("if_absent", [True, False])
    def test_a_throttled_put_is_made_again(self, cloud, bucket, if_absent):
        slept: list[float] = []
        store = cloud.open(f"{cloud.scheme}://{bucket}", sleep=slept.append)
        cloud.throttle("put", times=4)
        store.put("k", b"x", if_absent=if_absent)
        assert slept == [0.1, 0.2, 0.4, 0.8]
        cloud.throttle("put", times=5)
        with pytest.raises(TransientError, match="throttles"):
            store.put("other", b"x", if_absent=if_absent)
        store.put("other", b"y", if_absent=True)
        assert store.get("other") == b"y"

    @pytest.mark.full
    def test_other_throttled_requests_are_made_again_too(self, cloud, store):
        store.put("k", b"x")
        for request, call in (
            ("get", lambda: store.get("k")),
            ("get", lambda: store.get_range_into("k", 0, bytearray(1))),
            ("list", lambda: store.list_page("")),
            ("delete", lambda: store.delete("k")),
        ):
            cloud.throttle(request, times=4)
            call()
            cloud.throttle(request, times=5)
            with pytest.raises(TransientError, match="throttles"):
                call()

    @pytest.mark.parametrize("size", [1, 3 * MIB])
    def test_a_create_whose_answer_is_lost_is_known_for_ours(self, cloud, store, size):
        cloud.fail("put", happens=True)
        store.put("k", b"a" * size, if_absent=True)
        assert cloud.count("put") == 1
        for data in (b"a" * size, b"b"):
            with pytest.raises(ObjectExists, match="k already exists"):
                store.put("k", data, if_absent=True)
        assert store.get("k") == b"a" * size

    @pytest.mark.full
    @pytest.mark.parametrize("size", [1, 3 * MIB])
    def test_a_create_whose_connection_breaks_is_known_for_ours(self, cloud, proxy, bucket, size):
        store = cloud.open(f"{cloud.scheme}://{bucket}", sleep=lambda seconds: None)
        store.put("warm", b"")
        proxy.drop = lambda method, path: method in {"PUT", "POST"} and proxy.num_dropped == 0
        assert create(store, "k", b"nonce" * size, sleep=lambda seconds: None) is None
        assert create(store, "k", b"other", sleep=lambda seconds: None) == b"nonce" * size
        assert proxy.num_dropped == 1
        assert cloud.count("put") == 3  # With the warm one, and the other's.

    def test_a_second_try_that_meets_the_first_knows_it_for_ours(self, cloud, store):
        cloud.fail("put", happens=True)
        cloud.fail("head")  # Nobody can tell yet.
        store.put("k", b"nonce", if_absent=True)
        codes = [call.error for call in cloud.faults.calls if call.action == cloud.actions["put"]]
        assert codes == [cloud.failed[0], cloud.taken[0]]
        assert create(store, "k", b"other", sleep=lambda seconds: None) == b"nonce"

    def test_a_create_that_lost_to_another_while_its_answer_was_lost_says_so(self, cloud, store):
        store.put("k", b"another's", if_absent=True)
        cloud.fail("put")
        with pytest.raises(ObjectExists, match="k already exists"):
            store.put("k", b"mine", if_absent=True)
        assert store.get("k") == b"another's"

    def test_a_replacing_put_whose_answer_is_lost_is_made_once(self, cloud, store):
        cloud.fail("put", happens=True)
        with pytest.raises(TransientError):
            store.put("k", b"x")
        assert cloud.count("put") == 1
        cloud.fail("put")
        with_retries(store, sleep=lambda seconds: None).put("k", b"y")
        assert store.get("k") == b"y"

    def test_a_server_that_takes_any_create_is_refused_by_the_probe(self, cloud, store, monkeypatch):
        probe(with_retries(store, sleep=lambda seconds: None))
        cloud.ignore_conditions(monkeypatch)
        with pytest.raises(StoreRefused, match="second create of the same key was accepted"):
            probe(with_retries(store, sleep=lambda seconds: None))

    @pytest.mark.full
    @pytest.mark.parametrize("request_name", ["put", "complete"])
    def test_a_condition_that_is_not_ours_is_no_sign_of_an_object(self, cloud, store, request_name):
        """Such as an organisation's policy: a checkpoint would count as written that is not there."""
        data = bytes(5 if request_name == "put" else cloud.large_bytes)
        for code, if_absent in (("somebodysPolicy", True), (cloud.taken[0], False)):
            cloud.faults.inject(cloud.actions[request_name], code, status=cloud.taken[1])
            with pytest.raises(CloudspotError, match=code) as caught:
                upload(store, "k", data, if_absent=if_absent)
            assert type(caught.value) is CloudspotError
            one_line(caught)
        upload(store, "k", data, if_absent=True)
        assert store.head("k").size == len(data)

    # --- answers that are somebody else's ---------------------------------------------------------

    @pytest.mark.full
    @pytest.mark.parametrize("page", [b"", b"<html><p>Log in<br></html>", b"<html><p>Log in</p></html>"])
    def test_a_login_page_is_no_success(self, cloud, proxy, store, page):
        other = cloud.open(store.url, part_bytes=cloud.large_bytes // 3, sleep=lambda seconds: None)
        other.put("k", b"0123456789" * 10)
        calls = (
            lambda: other.put("k", b"x"),
            lambda: other.put("new", b"x", if_absent=True),
            lambda: other.get("k"),
            lambda: other.get_range("k", 1, 2),
            lambda: other.get_range_into("k", 1, bytearray(2)),
            lambda: other.head("k"),
            lambda: other.list_page(""),
            lambda: other.delete("k"),
            lambda: upload(other, "new", bytes(cloud.large_bytes)),
        )
        proxy.page = page
        for call in calls:
            with pytest.raises(TransientError) as caught:
                call()
            one_line(caught)
        proxy.page = None
        assert other.get("k") == b"0123456789" * 10
        assert [meta.key for meta in store.list_objects("")] == ["k"]

    @pytest.mark.full
    @pytest.mark.parametrize("if_absent", [True, False])
    def test_a_login_page_in_place_of_a_streams_last_answer_is_no_success(
        self, cloud, proxy, store, if_absent
    ):
        other = cloud.open(store.url, part_bytes=cloud.large_bytes // 3, sleep=lambda seconds: None)
        proxy.page = b""
        proxy.takes = lambda method, path: False
        with pytest.raises(TransientError), other.open_upload("k", if_absent=if_absent) as stream:
            stream.write(bytes(cloud.large_bytes))
            proxy.takes = lambda method, path: method in {"PUT", "POST"}
            stream.commit()
        assert list(store.list_objects("")) == []

    # --- listings ---------------------------------------------------------------------------------

    def test_a_listing_that_shows_the_same_page_again_is_refused(self, cloud, proxy, store):
        for number in range(5):
            store.put(f"k/{number}", b"")
        other, pages = cloud.open(store.url, sleep=lambda seconds: None), []
        proxy.change_answer = lambda body: pages.append(body) or pages[0] if b"prefix" in body else body
        page = other.list_page("k/", limit=2)
        assert page.next_after == "k/1"
        with pytest.raises(StoreRefused, match="the listing of k/ does not move forward") as caught:
            other.list_page("k/", after=page.next_after, limit=2)
        one_line(caught)
        assert len(pages) == 2

    def test_the_token_of_a_page_leads_to_the_next(self, store):
        for number in range(5):
            store.put(f"k/{number}", b"")
        found, token = [], None
        for _ in range(3):
            names, token = store.bucket.ask(
                "list",
                "k/",
                lambda client, token=token: store.bucket.list_names(
                    client, "some/prefix/k/", after="some/prefix/k/0", token=token, limit=2
                ),
            )
            found += [one.name for one in names]
            if token is None:
                break
        assert found == [f"some/prefix/k/{number}" for number in range(1, 5)]

    # --- bytes on the way -------------------------------------------------------------------------

    def test_a_bit_that_flips_on_the_way_down_is_no_object(self, cloud, proxy, store):
        other = cloud.open(store.url, sleep=lambda seconds: None)
        for size in (1, 5000):
            other.put("k", b"x" * size, if_absent=size == 1)
            proxy.change_answer = lambda body: body[:-1] + b"y" if body[-1:] == b"x" else body
            with pytest.raises(TransientError, match=r"damaged in transit|arrived damaged") as caught:
                other.get("k")
            one_line(caught)
            proxy.change_answer = lambda body: body
            assert other.get("k") == b"x" * size

    def test_an_answer_that_breaks_off_is_no_object(self, cloud, proxy, store):
        other = cloud.open(store.url, sleep=lambda seconds: None)
        other.put("k", b"x" * MIB)
        proxy.cuts_answers = True
        for call in (
            lambda: other.get("k"),
            lambda: other.get_range("k", 10, 600_000),
            lambda: other.get_range_into("k", 10, bytearray(600_000)),
        ):
            with pytest.raises(TransientError, match="the connection broke") as caught:
                call()
            one_line(caught)
        proxy.cuts_answers = False
        assert other.get("k") == b"x" * MIB

    def test_an_answer_that_trickles_is_given_up(self, cloud, store, monkeypatch):
        now, step = [0.0], [0.0]

        def monotonic():
            now[0] += step[0]
            return now[0]

        monkeypatch.setattr(paced_http.PacedResponse, "monotonic", staticmethod(monotonic))
        monkeypatch.setattr(paced_http, "LEAST_BYTES", 1 << 40)  # so that loopback is too slow
        other = cloud.open(store.url, sleep=lambda seconds: None)
        other.put("k", b"x" * MIB)
        download = other.bucket.download

        def then_slow(*args):
            step[0] = 0.0
            found = download(*args)
            step[0] = 200.0  # each wait for a piece of the body seems to take as long
            return found

        monkeypatch.setattr(other.bucket, "download", then_slow)
        for call in (
            lambda: other.get("k"),
            lambda: other.get_range("k", 10, 600_000),
            lambda: other.get_range_into("k", 10, bytearray(600_000)),
        ):
            with pytest.raises(TransientError) as caught:
                call()
            one_line(caught)
        monkeypatch.setattr(paced_http, "LEAST_BYTES", 0)
        assert other.get("k") == b"x" * MIB

    def test_a_server_that_ignores_ranges_is_refused(self, cloud, proxy, store):
        other = cloud.open(store.url, sleep=lambda seconds: None)
        other.put("k", b"0123456789")
        other.put("empty", b"")
        proxy.hides_ranges = True
        for call in (
            lambda: other.get_range("k", 2, 3),
            lambda: other.get_range_into("k", 2, bytearray(3)),
        ):
            with pytest.raises(StoreRefused, match="the server ignores ranges"):
                call()
        assert other.get("k") == b"0123456789"
        assert other.get_range("empty", 0, 5) == b""

    # --- streams ----------------------------------------------------------------------------------

    @pytest.mark.full
    @pytest.mark.parametrize("if_absent", [True, False])
    def test_a_stream_whose_last_answer_is_lost_is_known_for_ours(self, cloud, bucket, store, if_absent):
        for key, request, size in (("small", "put", 5), ("large", "complete", cloud.large_bytes)):
            with store.open_upload(key, if_absent=if_absent) as stream:
                stream.write(bytes(size))
                cloud.fail(request, happens=True)
                stream.commit()
            assert store.head(key).size == size
            with pytest.raises(ObjectExists, match=f"{re.escape(key)} already exists"):
                upload(store, key, bytes(size), if_absent=True)
        assert cloud.pending(bucket) == []

    @pytest.mark.full
    @pytest.mark.parametrize("is_large", [False, True])
    def test_a_stream_whose_connection_breaks_is_known_for_ours(self, cloud, proxy, bucket, is_large):
        store = cloud.open(
            f"{cloud.scheme}://{bucket}", part_bytes=cloud.large_bytes // 3, sleep=lambda seconds: None
        )
        size = cloud.large_bytes if is_large else 5
        with store.open_upload("k", if_absent=True) as stream:
            stream.write(bytes(size))
            proxy.drop = lambda method, path: method in {"PUT", "POST"} and proxy.num_dropped < 3
            stream.commit()
        assert proxy.num_dropped in range(1, 4)
        assert store.head("k").size == size
        assert cloud.pending(bucket) == []

    @pytest.mark.full
    def test_a_stream_that_lost_to_another_while_its_answer_was_lost_says_so(self, cloud, store):
        stream = store.open_upload("k", if_absent=True)
        stream.write(bytes(cloud.large_bytes))
        store.put("k", b"another's", if_absent=True)
        cloud.fail("complete")
        with pytest.raises(ObjectExists, match="k already exists"):
            stream.commit()
        assert store.get("k") == b"another's"

    def test_an_aborted_stream_leaves_no_parts(self, cloud, bucket, store):
        with store.open_upload("k") as stream:
            stream.write(bytes(cloud.large_bytes))
            assert cloud.pending(bucket) == ["some/prefix/k"]
        assert cloud.pending(bucket) == []

    @pytest.mark.full
    def test_an_unfinished_stream_is_listed_below_the_prefix_only_and_anybody_can_drop_it(
        self, cloud, bucket, store
    ):
        other = cloud.open(
            f"{cloud.scheme}://{bucket}/other", part_bytes=cloud.large_bytes // 3, sleep=lambda seconds: None
        )
        before = datetime.now(timezone.utc) - timedelta(minutes=1)
        with other.open_upload("k") as elsewhere, store.open_upload("k") as stream:
            elsewhere.write(bytes(cloud.large_bytes))
            stream.write(bytes(cloud.large_bytes))
            found = list(with_retries(store).unfinished_uploads())
            assert [one.key for one in found] == ["k"] * cloud.lists_uploads
            for one in found:
                assert one.begun_at > before
                store.abort_upload(one)
                store.abort_upload(one)
                assert cloud.pending(bucket) == ["other/k"]
                with pytest.raises(CloudspotError, match="its upload is gone"):
                    stream.commit()

    @pytest.mark.full
    def test_parts_that_fail_in_passing_are_sent_again(self, cloud, store):
        cloud.fail("begin")
        cloud.fail("part", times=3)
        cloud.fail("complete")
        data = random.Random(7).randbytes(cloud.large_bytes)
        upload(store, "k", data)
        assert store.get("k") == data

    @pytest.mark.full
    def test_a_part_that_fails_for_good_ends_the_stream(self, cloud, bucket, store):
        cloud.fail("part", times=10_000)
        with pytest.raises(TransientError), store.open_upload("k") as stream:
            for _ in range(100):
                stream.write(bytes(cloud.large_bytes // 3))
            pytest.fail("the stream goes on although no part arrives")
        assert cloud.pending(bucket) == []
        assert list(store.list_objects("")) == []

    def test_an_upload_that_the_store_has_forgotten_says_what_to_do(self, cloud, bucket, store):
        stream = store.open_upload("k")
        stream.write(bytes(cloud.large_bytes))
        cloud.forget_uploads(bucket)
        with pytest.raises(
            CloudspotError, match="cannot write k: its upload is gone; upload again"
        ) as caught:
            stream.commit()
        assert not isinstance(caught.value, TransientError)
        one_line(caught)

    # --- the rest ---------------------------------------------------------------------------------

    def test_what_others_keep_in_the_bucket_is_skipped(self, cloud, bucket, store):
        for name in ("some/prefix/", "some/prefix/folder/", "some/prefix/ü", "some/prefixed", "other"):
            cloud.put_raw(bucket, name)
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

    def test_a_url_that_the_cloud_would_not_sign_for_is_refused(self, store):
        for seconds in (0, -1, 604801):
            with pytest.raises(ValueError, match=re.escape("seconds must be in 1 to 604800")):
                store.presign_get("k", seconds=seconds)
