"""Whatever names, numbers and paths records, archives, listings and tags hold: taken within bounds, or refused."""

import hashlib
import io
import json
import tarfile
import tempfile
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import strategies as st
from support.records.odd_answers import texts
from support.records.odd_values import nested, odd_bytes, odd_values, wrong
from support.records.outside import (
    CI,
    SOAK_SECONDS,
    Entry,
    bounded,
    check,
    check_refusal,
    listed_for_pytest,
    soak,
)
from support.records.record_kinds import KINDS
from support.stores.memorystore import InMemoryStore

from cloudspot.decoding import MAX_NODES, MAX_TALLY, whole_number
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import is_key
from cloudspot.jobstore.checkpoints import fetching
from cloudspot.jobstore.code.extraction import extract_bundle, read_bundle
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import JournalRecord, Manifest, SaveId
from cloudspot.jobstore.layout.seals import parse_seal
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.nodes.launches import read_slots
from cloudspot.model import ObjectMeta, ObjectPage
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import moment, moment_of, price
from cloudspot.plugin.logorder import Joiner
from cloudspot.story.node_names import parse_seat
from cloudspot_aliyun import osslogformat
from cloudspot_aliyun.names import rank_of
from cloudspot_aws import cloudwatch
from cloudspot_aws.listing import to_instance
from cloudspot_gcp.attributes import launch_and_rank
from cloudspot_gcp.cloudloggingentries import EntryReader
from cloudspot_gcp.listing import place_of_id
from cloudspot_kubernetes.notice import PodApi, PodNoticeSource

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore:Generating overly large repr")]
"""Some values are large on purpose."""

JOB = "x"
AT = datetime(2026, 11, 20, tzinfo=timezone.utc)
RECORDS = [JournalRecord, *dict.fromkeys(kind for _, kind in KINDS if kind is not JournalRecord)]


class OddListing(InMemoryStore):
    """Lists what it is told, whatever it was asked for."""

    def __init__(self, page):
        super().__init__()
        self._page = page

    def list_page(self, prefix, *, after=None, limit=1000):
        return self._page


def list_a_job(page):
    found = [meta.key for meta in OddListing(page).list_objects(keys.job_prefix(JOB))]
    assert all(key.startswith(keys.job_prefix(JOB)) for key in found)


def store_with(names):
    store = InMemoryStore()
    for name in names:
        if is_key(name):
            store.put(name, b"{}")
    return store


def fetch(value, directory, *, is_whole=False):
    """Fetch what a manifest claims, from a store that has its one chunk."""
    manifest = codec.decode(value, Manifest)
    store = InMemoryStore()
    store.put(keys.chunk(JOB, SaveId(1, 1, 0), 0, 0), CHUNK)
    with tempfile.TemporaryDirectory(dir=directory) as root:
        try:
            fetching.fetch(store, JOB, manifest, Path(root) / "work", num_threads=1)
        except CloudspotError as error:
            check_refusal(error)
        assert {path.name for path in Path(root).iterdir()} <= {"work"}
        assert not is_whole or (Path(root) / "work" / "d" / "a").read_bytes() == CHUNK
        assert sum(path.lstat().st_size for path in Path(root).rglob("*")) <= 1 << 20


def fetch_whole(value, directory):
    """Fetch it as it was: so the odd ones come as far as to the disk."""
    fetch(value, directory, is_whole=True)


def extract(data, directory):
    digest = hashlib.sha256(data).hexdigest()
    with tempfile.TemporaryDirectory(dir=directory) as root:
        extract_bundle(data, Path(root) / "code", sha256=digest, max_bytes=1 << 20)
        assert {path.name for path in Path(root).iterdir()} == {"code"}
    assert sum(len(one.content) for one in read_bundle(data, sha256=digest, max_bytes=1 << 20)) <= 1 << 20


@st.composite
def archives(draw):
    """Return a tar archive with odd members, or whose bytes were changed."""
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode=draw(st.sampled_from(["w:gz", "w"])), format=tarfile.PAX_FORMAT
    ) as made:
        for name in draw(st.lists(texts, max_size=3)):
            info = tarfile.TarInfo(name)
            info.size = draw(st.integers(0, 2048))
            info.mode = draw(st.integers(0, 0o7777))
            info.mtime = draw(st.sampled_from([0, 2**33, 1e17, -1]))
            info.type = draw(
                st.sampled_from([tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.LNKTYPE])
            )
            info.linkname = draw(texts)
            info.pax_headers = draw(
                st.dictionaries(
                    st.sampled_from(
                        ["size", "path", "linkpath", "mtime", "uid", "GNU.sparse.map", "GNU.sparse.size"]
                    ),
                    texts.filter(lambda text: "\n" not in text),
                    max_size=2,
                )
            )
            try:
                made.addfile(info, io.BytesIO(bytes(info.size)))
            except (UnicodeError, ValueError):
                continue
    data = bytearray(buffer.getvalue())
    for place in draw(st.lists(st.integers(0, len(data) - 1), max_size=3)):
        data[place] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 4)) == 0 else data)


def check_seat(name):
    with suppress(ValueError):  # as it promises
        seat = parse_seat(name)
        assert 1 <= seat.launch < 10**9
        assert 0 <= seat.rank < MAX_NODES


def in_bounds(number, most):
    assert number is None or 0 <= number <= most


def moments_in_bounds(value):
    for found in (moment(value), moment_of(value)):
        assert found is None or found + timedelta(days=36_500) > found


def names_in_bounds(text):
    for found in (launch_and_rank(text), launch_and_rank(f"cs-x-0123abcd-{text}")):
        assert found is None or (0 <= found[0] < 10**9 and 0 <= found[1] < MAX_NODES)
    in_bounds(rank_of(text), MAX_NODES - 1)
    in_bounds(machinetags.launch_of({machinetags.LAUNCH: text}), 10**9 - 1)
    in_bounds(whole_number(text), MAX_TALLY)
    place_of_id(f"zone/{text}/{text}")


def an_entry(seq, time, labels):
    own = {"job": JOB, "stream": "1-0", "seq": seq, "source": "train", **labels}
    return {"labels": own, "timestamp": time, "textPayload": "x", "receiveTimestamp": time}


def read_entry(entry):
    for arrival in EntryReader("1-0", {"job": JOB}).add(entry):
        in_bounds(arrival.record.seq, MAX_TALLY)


class OddApi(PodApi):
    """Says what it is told of a pod."""

    def __init__(self, value):
        self._value = value

    def read(self, path):
        return self._value


def notice_of_pod(value, directory, monkeypatch=None):
    (directory / "pod-terminating").touch()
    source = PodNoticeSource(
        grace=30.0, shutdown_grace=15.0, watch_taints=False, api=OddApi(value), directory=directory
    )
    found = source.poll()
    assert found is not None
    assert found.deadline.year < 2200


def described(value):
    found = to_instance(
        {
            "InstanceId": "i-1",
            "State": {"Name": "terminated"},
            "Tags": [{"Key": machinetags.JOB, "Value": JOB}],
            **value,
        }
    )
    assert found.ended_at is None or 1970 <= found.ended_at.year < 2200


MOMENTS = st.datetimes(timezones=st.just(timezone.utc)) | st.sampled_from(
    [datetime.min, datetime.max, datetime.max.replace(tzinfo=timezone(-timedelta(hours=23)))]  # noqa: DTZ901
)
job_names = texts.map(lambda text: f"{keys.job_prefix(JOB)}{text}")
pages = st.builds(
    ObjectPage,
    objects=st.lists(
        st.builds(
            ObjectMeta,
            key=texts | job_names | st.just("jobs/other/a"),
            size=st.integers() | st.just(10**4000),
            modified_at=MOMENTS,
        ),
        max_size=3,
    ).map(tuple),
    next_after=st.none() | texts,
)
CHUNK = b"the bytes"
LINE = b"2026-11-20T06:25:01.123456Z 41 train: step 100\n"
PART = {
    "generation": 1, "step": 1, "round": 0, "rank": 0, "num_parts": 1, "kind": "directory", "size": 9, "directory": "d",
    "sealed_at": "2026-11-20T06:00:00Z", "writer": "w", "files": [{"path": "a", "size": 9, "mode": 0o644}],
    "chunks": [{"size": 9, "xxh3_128": xxhash.xxh3_128_hexdigest(CHUNK)}],
}  # fmt: skip
MANIFEST = {"generation": 1, "step": 1, "round": 0, "kind": "directory", "size": 9, "parts": [PART],
            "at": "2026-11-20T06:00:00Z", "writer": "w"}  # fmt: skip
node_keys = st.tuples(
    texts | st.sampled_from(["000001", "1"]), texts | st.sampled_from(["0000", "0"]), texts
).map(lambda parts: f"jobs/{JOB}/nodes/{'/'.join(parts)}")

ENTRIES = (
    Entry("manifest as it was", st.just(json.dumps(MANIFEST).encode()), fetch_whole),
    *(
        Entry(f"record {getattr(kind, '__name__', 'of the journal')}", odd_bytes(b"", kind),
              lambda data, _, kind=kind: codec.decode(data, kind))
        for kind in RECORDS
    ),
    Entry("manifest", odd_values(MANIFEST, Manifest).map(lambda value: json.dumps(value).encode()), fetch),
    Entry("seal", odd_bytes(b'{"rank": 0, "items": []}', Any), lambda data, _: parse_seal(data, "the seal")),
    Entry("archive", archives(), extract),
    Entry("listing", pages, lambda page, _: list_a_job(page)),
    Entry("slots", st.lists(texts.map(lambda text: f"jobs/{JOB}/launches/000001/nodes/{text}"), max_size=4),
          lambda names, _: read_slots(store_with(names), JOB, 1)),
    Entry("names in a log", st.lists(texts.map(lambda text: f"jobs/{JOB}/logs/1-0/{text}"), max_size=4),
          lambda names, _: list(ObjectStoreLogSink(store_with(names), JOB).read("1-0"))),
    Entry("names of nodes", texts, lambda text, _: check_seat(text)),
    Entry("names of machines", texts, lambda text, _: names_in_bounds(text)),
    Entry("times", texts | MOMENTS | nested | wrong | st.floats() | st.integers(), lambda value, _: moments_in_bounds(value)),
    Entry("prices", texts | nested | wrong | st.floats() | st.integers(), lambda value, _: in_bounds(price(value), 1e9)),
    Entry("instance of AWS", st.fixed_dictionaries({
        "LaunchTime": MOMENTS, "StateTransitionReason": texts.map(lambda text: f"User ({text} GMT)") | st.none(),
        "AmiLaunchIndex": st.integers(), "Placement": st.none()}), lambda value, _: described(value)),
    Entry("pod", nested | st.fixed_dictionaries({"metadata": st.fixed_dictionaries({
        "deletionTimestamp": texts, "deletionGracePeriodSeconds": wrong | st.floats() | st.integers()})}), notice_of_pod),
    Entry("line in OSS", st.binary(max_size=80) | texts.map(lambda text: LINE.replace(b"41", text.encode("utf-8", "replace"))),
          lambda data, _: list(osslogformat.decode(data, "1-0"))),
    Entry("event of CloudWatch", texts | odd_bytes(b'{"seq": 1, "time": "2026-11-20T06:00:00Z", "source": "x", "text": "y"}', Any),
          lambda text, _: list(cloudwatch._lines(Joiner(), "1-0", {"message": text, "timestamp": 1, "ingestionTime": 1}))),
    Entry("entry of Cloud Logging", st.builds(an_entry, texts | nested, texts | nested,
          st.dictionaries(st.sampled_from(["time", "part", "parts"]), texts, max_size=2)), lambda entry, _: read_entry(entry)),
)  # fmt: skip
"""Where values enter that no server sends by itself."""


@pytest.mark.parametrize("entry", listed_for_pytest(ENTRIES))
def test_an_odd_value_is_taken_within_bounds_or_refused_in_a_line(entry, tmp_path):
    with bounded():
        check(entry, tmp_path, CI)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_no_odd_value_of_very_many_is_more_than_refused(tmp_path):
    soak(
        ENTRIES,
        lambda: tmp_path,
        seconds=SOAK_SECONDS / 2,
    )
