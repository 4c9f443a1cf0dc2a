"""Log lines in OSS's appendable objects, over HTTP against a strict server."""

import itertools
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from support.clouds.elsewhere import elsewhere
from support.clouds.emulated_logs import EmulatedLogs

from cloudspot.errors import AuthError, TransientError
from cloudspot.model import LogRecord
from cloudspot.testing.logfaultkit import LogFaultTests
from cloudspot.testing.logkit import LogSinkTests
from cloudspot_aliyun import osslogformat, osslogs
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.osslogs import OssLogSink

_numbers = itertools.count()


@pytest.fixture
def job(oss):
    return f"job-{next(_numbers)}"


@pytest.fixture
def make_sink(store, job):
    """``make_sink(**options)``: a sink of the test's own job, as an agent of one machine opens it."""
    clients = AliyunClients()
    common = {"clients": clients, "instance_id": "i-one", "sleep": lambda seconds: None}
    return lambda **options: OssLogSink(store, job, **{**common, **options})


class TestPromises(LogSinkTests):
    """As any sink."""


@pytest.mark.full
class TestFaults(LogFaultTests):
    """As any sink whose service fails."""

    deviations = {  # noqa: RUF012 - as a plugin might write it
        "test_a_machine_that_may_not_read_can_write": (
            "to append, a machine first looks how long the object is; the nodes' policy has the right to"
        ),
    }

    @pytest.fixture
    def logs(self, oss, store, job):
        def make(job_id):
            return OssLogSink(
                store, job_id, clients=AliyunClients(), instance_id="i-one", sleep=lambda seconds: None
            )

        service = SimpleNamespace(
            faults=oss.faults,
            read_rights=("oss:GetObject", "oss:ListObjects"),
            write_right="oss:PutObject",
            write_action="AppendObject",
            failed=("InternalError", 500),
        )
        return EmulatedLogs(service, make, prefix=f"{job}-", throttled=("SlowDown", 503))


@pytest.mark.full
class TestPromisesInSmallBlocks(LogSinkTests):
    """As any sink, where little is read at once and an object holds little."""

    @pytest.fixture(autouse=True)
    def small_blocks(self, monkeypatch):
        monkeypatch.setattr(osslogs, "BLOCK_BYTES", 100)
        monkeypatch.setattr(osslogs, "END_BYTES", 90)
        monkeypatch.setattr(osslogs, "MAX_OBJECT_BYTES", 700)

    left_out = elsewhere(
        "test_many_lines_at_once_are_no_matter",
        "test_a_line_may_be_very_long",
    )


START = datetime(2026, 11, 20, 6, 25, 1, 123456, tzinfo=timezone.utc)


def line(seq, text=None, at=START, stream="1-0", source="train"):
    return LogRecord(stream=stream, seq=seq, time=at, text=text or f"line {seq}", source=source)


def objects(oss, store):
    prefix = "some/prefix/"
    held = oss.app.buckets[store.bucket.name].objects
    return {key.removeprefix(prefix): one for key, one in held.items() if "/logs/i-" in "/" + key}


def seqs(records):
    return [record.seq for record in records]


def test_people_find_the_log_by_machine_and_day_and_can_read_it(oss, store, job, make_sink):
    make_sink().write([line(0, "hello"), line(1, "two\nlines"), line(2, "x", START + timedelta(days=1))])
    found = objects(oss, store)
    assert {key: (one.kind, one.data.decode()) for key, one in found.items()} == {
        f"logs/i-one/2026-11-20/{job}.1-0.000000000000.log": (
            "Appendable",
            "2026-11-20T06:25:01.123456Z 0 train: hello\n2026-11-20T06:25:01.123456Z 1 train: two\n\tlines\n",
        ),
        f"logs/i-one/2026-11-21/{job}.1-0.000000000002.log": (
            "Appendable",
            "2026-11-21T06:25:01.123456Z 2 train: x\n",
        ),
    }
    assert {one.content_type for one in found.values()} == {"text/plain; charset=utf-8"}


def test_a_day_is_one_object_however_often_lines_come(oss, store, make_sink):
    sink = make_sink()
    for seq in range(5):
        sink.write([line(seq)])
    assert len(objects(oss, store)) == 1
    assert [call.parameters["position"] for call in oss.faults.calls if call.action == "AppendObject"] == [
        str(44 * seq) for seq in range(5)
    ]


@pytest.mark.parametrize("happens", [True, False])
def test_an_append_whose_answer_is_lost_is_settled_by_looking(oss, store, make_sink, happens):
    sink = make_sink()
    sink.write([line(0)])
    oss.faults.inject("AppendObject", "InternalError", status=500, happens=happens)
    sink.write([line(1), line(2)])
    sink.write([line(3)])
    (held,) = objects(oss, store).values()
    assert seqs(osslogformat.decode(held.data, "1-0")) == [0, 1, 2, 3]


def test_while_oss_is_away_the_lines_stay_with_the_caller_and_come_once_after(oss, store, make_sink):
    sink = make_sink()
    sink.write([line(0)])
    oss.faults.inject("*", "ServiceUnavailable", status=503, times=200)
    with pytest.raises(TransientError, match="ServiceUnavailable"):
        sink.write([line(1)])
    oss.faults.__init__()
    sink.write([line(1)])
    (held,) = objects(oss, store).values()
    assert seqs(osslogformat.decode(held.data, "1-0")) == [0, 1]


def test_an_agent_that_begins_anew_appends_only_what_is_not_there(oss, store, make_sink):
    make_sink().write([line(0), line(1)])
    make_sink().write([line(0), line(1), line(2)])
    (held,) = objects(oss, store).values()
    assert seqs(osslogformat.decode(held.data, "1-0")) == [0, 1, 2]


def test_of_two_writers_each_finds_what_the_other_has_appended(oss, store, make_sink):
    one, other = make_sink(), make_sink()
    one.write([line(0)])
    other.write([line(0), line(1)])
    one.write([line(1), line(2)])
    other.write([line(2), line(3)])
    (held,) = objects(oss, store).values()
    assert seqs(osslogformat.decode(held.data, "1-0")) == [0, 1, 2, 3]
    assert [call.error for call in oss.faults.calls].count("PositionNotEqualToLength") == 2


def test_a_copy_that_somebody_put_in_its_place_is_left_alone(oss, store, make_sink):
    sink = make_sink()
    sink.write([line(0)])
    (key,) = objects(oss, store)
    store.put(key, store.get(key))
    sink.write([line(1)])
    assert len(objects(oss, store)) == 2
    assert seqs(make_sink().read("1-0")) == [0, 1]
    make_sink().write([line(2)])
    assert seqs(make_sink().read("1-0")) == [0, 1, 2]


def test_what_was_removed_under_a_writer_does_not_hold_it_up(oss, store, make_sink):
    sink = make_sink()
    sink.write([line(0)])
    sink.remove(sink.pieces())
    sink.write([line(1)])
    assert seqs(make_sink().read("1-0")) == [1]


def test_lines_that_others_have_appended_are_passed_over(oss, store, make_sink):
    make_sink().write([line(0)])
    (key,) = objects(oss, store)
    held = oss.app.buckets[store.bucket.name].objects[f"some/prefix/{key}"]
    held.data += b"# looked at by me\n"
    make_sink().write([line(1)])
    assert [record.text for record in make_sink().read("1-0")] == ["line 0", "line 1"]
    assert seqs(make_sink().read_back("1-0")) == [1, 0]


def test_machines_of_a_job_and_jobs_of_a_machine_do_not_mix(oss, store, job, make_sink):
    make_sink().write([line(0)])
    make_sink(instance_id="i-two").write([line(0, stream="1-1")])
    OssLogSink(store, f"{job}-b", instance_id="i-one").write([line(7)])
    reader = make_sink(instance_id=None)
    assert reader.streams() == ("1-0", "1-1")
    assert (seqs(reader.read("1-0")), seqs(reader.read("1-1"))) == ([0], [0])
    assert sorted(piece.name.split("/")[1] for piece in reader.pieces()) == ["i-one", "i-two"]


def test_one_who_follows_fetches_only_what_has_come_since(oss, store, make_sink):
    writer, reader = make_sink(), make_sink()
    writer.write([line(seq) for seq in range(1000)])
    assert len(list(reader.read("1-0"))) == 1000
    oss.faults.calls.clear()
    writer.write([line(1000)])
    assert seqs(reader.read("1-0", after=999)) == [1000]
    (span,) = [call.parameters["range"] for call in oss.faults.calls if call.action == "GetObject"]
    first, last = map(int, span.removeprefix("bytes=").split("-"))
    assert last - first < 100
    oss.faults.calls.clear()
    assert seqs(reader.read("1-0", after=1000)) == []
    assert oss.faults.count("GetObject") == 0


def test_the_last_lines_cost_one_request_of_a_long_log(oss, store, make_sink):
    make_sink().write([line(seq, "x" * 100) for seq in range(5000)])
    oss.faults.calls.clear()
    back = make_sink().read_back("1-0")
    assert [next(back).seq for _ in range(200)] == list(range(4999, 4799, -1))
    assert oss.faults.count("GetObject") == 1


def test_a_right_that_is_missing_is_said_with_what_it_takes(oss, make_sink):
    oss.faults.denied.add("oss:PutObject")
    with pytest.raises(AuthError, match="oss:PutObject"):
        make_sink().write([line(0)])


def test_lines_of_any_text_come_back_from_the_file():
    texts = [
        "",
        "\n",
        "\n\n\t",
        "\t",
        "a\nb\n",
        "\r\n",
        "2026-11-20T06:25:01.123456Z 7 train: no",
        "\x00é\u2028",
    ]
    written = [line(seq, at=START, source=source) for seq, source in enumerate(("train", "", "a b", "é:"))]
    written += [
        LogRecord(stream="1-0", seq=seq, time=START, text=text) for seq, text in enumerate(texts, start=4)
    ]
    assert list(osslogformat.decode(osslogformat.encode(written), "1-0")) == written


@pytest.mark.parametrize("copy", [b"", b"no lines"])
def test_a_file_that_somebody_has_emptied_does_not_hold_up_an_agent_that_begins_anew(
    oss, store, make_sink, copy
):
    make_sink().write([line(0), line(1)])
    (key,) = objects(oss, store)
    store.put(key, copy)
    make_sink().write([line(0), line(1), line(2)])
    make_sink().write([line(2), line(3)])
    assert seqs(make_sink().read("1-0")) == [0, 1, 2, 3]
    assert seqs(make_sink().read("1-0", after=0)) == [1, 2, 3]
    assert len(objects(oss, store)) == 2


def test_a_copy_in_its_place_gets_no_line_twice_from_an_agent_that_begins_anew(oss, store, make_sink):
    make_sink().write([line(0), line(1)])
    (key,) = objects(oss, store)
    store.put(key, store.get(key))
    make_sink().write([line(0), line(1), line(2)])
    assert [seqs(osslogformat.decode(one.data, "1-0")) for _, one in sorted(objects(oss, store).items())] == [
        [0, 1],
        [2],
    ]


@pytest.mark.parametrize(
    "garbage",
    [
        b"2026-11-20T06:25:01.123456Z 7 train: \xff\xfe\n",
        b"2026-13-40T06:25:01.123456Z 7 train: no day\n",
    ],
)
def test_what_only_looks_like_a_line_is_passed_over(oss, store, make_sink, garbage):
    make_sink().write([line(0)])
    (key,) = objects(oss, store)
    oss.app.buckets[store.bucket.name].objects[f"some/prefix/{key}"].data += garbage
    store.put(key.replace("2026-11-20", "2026-13-40"), b"")
    make_sink().write([line(1)])
    assert seqs(make_sink().read("1-0")) == [0, 1]
    assert seqs(make_sink().read_back("1-0")) == [1, 0]


def fetched(oss):
    spans = [call.parameters["range"] for call in oss.faults.calls if call.action == "GetObject"]
    return sum(int(last) - int(first) + 1 for first, last in (span[6:].split("-") for span in spans))


@pytest.mark.full
def test_whoever_wants_the_end_of_a_long_log_fetches_little_more(oss, store, make_sink, monkeypatch):
    monkeypatch.setattr(osslogs, "BLOCK_BYTES", 16 << 10)
    monkeypatch.setattr(osslogs, "END_BYTES", 1 << 10)
    sink = make_sink()
    for number in range(3):
        at = START + timedelta(days=number)
        sink.write([line(seq, "x" * 100, at) for seq in range(5000 * number, 5000 * (number + 1))])
    for after in (14_990, 12_345, 9_999, 9_998, 5_000):
        oss.faults.calls.clear()
        assert seqs(make_sink().read("1-0", after=after)) == list(range(after + 1, 15_000))
        assert fetched(oss) < 150 * (14_999 - after) + (40 << 10)


def test_a_log_whose_end_could_not_be_read_is_read_from_its_beginning_all_the_same(oss, make_sink):
    make_sink().write([line(0), line(1)])
    reader = make_sink()
    oss.faults.inject("GetObject", "InternalError", status=500, times=5)
    with pytest.raises(TransientError):
        next(reader.read_back("1-0"))
    assert seqs(reader.read("1-0")) == [0, 1]


def test_a_file_that_was_removed_and_begun_anew_is_read_from_its_beginning(oss, store, make_sink):
    writer, reader = make_sink(), make_sink()
    writer.write([line(0, "x" * 100)])
    assert seqs(reader.read("1-0")) == [0]
    writer.remove(writer.pieces())
    make_sink().write([line(0), line(1)])
    assert seqs(reader.read("1-0", after=0)) == [1]


def test_an_append_carries_a_digest_however_large_it_is(oss, make_sink):
    make_sink().write([line(0, "x" * (2 << 20))])
    (call,) = [call for call in oss.faults.calls if call.action == "AppendObject"]
    assert "content-md5" in call.parameters
