"""Records as bytes."""

import json
import math
from datetime import datetime, timezone

import msgspec
import pytest
from msgspec import inspect
from support.records.made_records import Records
from support.records.record_kinds import KINDS

from cloudspot.decoding import Dated, Metrics
from cloudspot.errors import CorruptData
from cloudspot.jobstore.layout.codec import decode, decode_journal, encode
from cloudspot.jobstore.layout.records import (
    Certificate,
    CheckpointId,
    Final,
    Finished,
    Heartbeat,
    ObservedDuration,
    Part,
    Removal,
    Seat,
    Slot,
    StopRequest,
    Suspended,
)
from cloudspot.model import EndReason, LogRecord, Offer, OpenEnum

AT = datetime(2026, 11, 20, 6, 30, tzinfo=timezone.utc)


def test_a_record_comes_back_equal_and_its_bytes_are_stable():
    slot = Slot(instance_id="i-1", address="127.0.0.2", at=AT, writer="w")
    assert decode(encode(slot), Slot) == slot
    assert encode(slot) == encode(decode(encode(slot), Slot))


def test_journal_records_come_back_as_their_own_kind():
    suspended = Suspended(detail="no capacity", at=AT, writer="w")
    finished = Finished(outcome="succeeded", detail="", exit_code=0, at=AT, writer="w")
    assert decode_journal(encode(suspended)) == suspended
    assert decode_journal(encode(finished)) == finished


@pytest.mark.parametrize("loss", [0.5, math.inf])
def test_seats_come_back_as_such(loss):
    """A number that is not finite takes another way through the encoder and the decoder."""
    request = msgspec.structs.replace(INTENT.request, body={"loss": loss})
    record = msgspec.structs.replace(INTENT, request=request)
    found = decode_journal(encode(record))
    assert found.stands_in_for == record.stands_in_for
    (stand_in,) = found.principals
    assert (stand_in, found.principals[stand_in]) == (Seat(found.launch, 1), Seat(3, 1))
    assert str(found.principals[stand_in]) == "3.1"


def test_a_seal_is_kept_byte_for_byte():
    seal = '{"best" : Infinity,  "name":"\\u00e9 \u00e9"}'
    part = Part(
        generation=1, step=2, round=0, rank=0, num_parts=1, kind="session", size=0, chunks=(), seal=seal,
        sealed_at=AT, writer="w",
    )  # fmt: skip
    assert decode(encode(part), Part).seal == seal


def test_the_loss_of_a_diverged_training_is_kept():
    final = Final(step=3, weights_sha256="null", metrics={"loss": math.nan, "norm": -math.inf, "lr": 0.5})
    found = decode(encode(final), Final)
    assert math.isnan(found.metrics["loss"])
    assert found.metrics["norm"] == -math.inf
    assert found.metrics["lr"] == 0.5
    assert found.weights_sha256 == "null"


def test_a_field_of_a_newer_version_is_passed_over():
    data = encode(CheckpointId(1, 2)).replace(b"{", b'{"newer":[1],', 1)
    assert decode(data, CheckpointId) == CheckpointId(1, 2)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b'{"generation":1}', b'{"generation":"x","step":1}', b"\xff\xfe", b'{"x":' + b"[" * 100_000],
)  # fmt: skip
def test_bytes_that_are_no_such_record_are_corrupt_and_name_the_key(data):
    with pytest.raises(CorruptData, match="jobs/x/k is malformed"):
        decode(data, CheckpointId, key="jobs/x/k")
    with pytest.raises(CorruptData, match="the record"):
        decode_journal(data)


def test_a_heartbeat_cut_short_is_corrupt():
    heartbeat = Heartbeat(
        counter=1, instance_id="i", address="a", port=1, state="running", generation=1, restored_step=0, step=1,
        steps_total=None, metrics={}, committed=None, stall_seconds=None, upload_seconds=None, at=AT,
    )  # fmt: skip
    data = encode(heartbeat)
    for length in range(len(data)):
        with pytest.raises(CorruptData):
            decode(data[:length], Heartbeat)


PROOF = Certificate(
    launch=1, rank=0, instance_id="i-1", started_at=AT, ended_at=AT, end_reason=EndReason.SELF, at=AT, writer="w"
)  # fmt: skip
INTENT = Records().intent(1, num_nodes=2, stands_in_for=[None, (3, 1)])
FINISHED = Finished(outcome="succeeded", detail="", exit_code=0, at=AT, writer="w")
BEAT = Heartbeat(
    counter=1, instance_id="i", address="a", port=1, state="running", generation=1, restored_step=0, step=1,
    steps_total=None, metrics=Metrics(loss=math.nan), committed=None, stall_seconds=None, upload_seconds=None, at=AT,
)  # fmt: skip
LINE = LogRecord(stream="1-0", seq=0, time=AT, text="")


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (PROOF, "launch", 0),
        (PROOF, "instance_id", ""),
        (PROOF, "launch", -1),
        (PROOF, "launch", 10**9),
        (PROOF, "rank", -1),
        (PROOF, "rank", 10**4),
        (PROOF, "end_reason", "won\nand more"),
        (PROOF, "ended_at", "2026-11-20T06:30:00"),
        (INTENT, "num_nodes", 0),
        (INTENT, "num_nodes", 10**5),
        (INTENT, "stands_in_for", [[0, 1]]),
        (INTENT, "stands_in_for", [[1, -1]]),
        (INTENT, "stands_in_for", [[1]]),
        (INTENT, "stands_in_for", ["1.0"]),
        (FINISHED, "outcome", "reclaimed"),
        (FINISHED, "exit_code", 256),
        (FINISHED, "at", "2026-11-20T06:30:00"),
        (FINISHED, "at", "0001-01-01T00:00:00Z"),
        (FINISHED, "at", "1969-12-31T23:59:59Z"),
        (FINISHED, "at", "9999-12-31T23:59:59-23:59"),
        (StopRequest(reason="user", at=AT, writer="w"), "reason", "boredom"),
        (CheckpointId(1, 2), "generation", -1),
        (CheckpointId(1, 2), "step", -1),
        (CheckpointId(1, 2), "step", 10**30),
        (CheckpointId(1, 2), "step", "2"),
        (CheckpointId(1, 2), "step", 2.5),
        (FINISHED, "exit_code", "0"),
        (FINISHED, "at", AT.timestamp()),
        (FINISHED, "detail", 7),
        (INTENT, "stands_in_for", [["3", 1]]),
        (INTENT, "num_nodes", True),
        (BEAT, "step", "7"),
        (BEAT, "has_session", "true"),
        (BEAT, "has_session", 1),
        (BEAT, "stall_seconds", "nan"),
        (BEAT, "metrics", {"loss": "0.5"}),
        (BEAT, "metrics", {"loss": "NaN"}),
        (BEAT, "metrics", {"loss": "infinity"}),
        (BEAT, "metrics", {"loss": None}),
        (BEAT, "metrics", {"loss": True}),
        (BEAT, "metrics", [["loss", 0.5]]),
        (ObservedDuration(seconds=1.0, until=None), "seconds", "nan"),
        (ObservedDuration(seconds=1.0, until=None), "seconds", "inf"),
        (ObservedDuration(seconds=1.0, until=None), "seconds", -1),
        (ObservedDuration(seconds=1.0, until=None), "until", "2026-11-20T06:30:00"),
        (Removal(shared=()), "shared", ["jobs/another/spec"]),
        (Removal(shared=()), "shared", [""]),
        (LINE, "time", "2026-11-20T06:30:00"),
        (LINE, "stream", "../1-0"),
        (LINE, "seq", -1),
    ],
)
def test_what_no_writer_of_ours_writes_is_corrupt_and_names_the_key(record, field, value):
    data = json.dumps({**json.loads(encode(record)), field: value}).encode()
    with pytest.raises(CorruptData, match="jobs/x/k is malformed"):
        decode(data, type(record), key="jobs/x/k")


def test_our_own_writers_cannot_write_a_moment_without_a_zone():
    with pytest.raises(ValueError, match=r"`at` must have a time zone: got 2026-11-20T06:30:00"):
        Slot(instance_id=None, at=AT.replace(tzinfo=None), writer="w")


def structs_in(info):
    """Every struct that a type holds, itself included."""
    for inner in getattr(info, "types", ()):
        yield from structs_in(inner)
    for name in ("item_type", "value_type"):
        if hasattr(info, name):
            yield from structs_in(getattr(info, name))
    if isinstance(info, (inspect.StructType, inspect.NamedTupleType)):
        yield info
        for field in info.fields:
            yield from structs_in(field.type)


def is_of(info, kind):
    return isinstance(info, kind) or any(isinstance(one, kind) for one in getattr(info, "types", ()))


ALL_STRUCTS = {info.cls: info for _, kind in KINDS for info in structs_in(inspect.type_info(kind))}


@pytest.mark.parametrize("struct", sorted(ALL_STRUCTS, key=lambda one: one.__name__))
def test_no_number_and_no_truth_of_any_record_is_read_out_of_a_string(struct):
    """With a record that holds a loss that is not finite, all strings were read as numbers."""
    for field in ALL_STRUCTS[struct].fields:
        kinds = getattr(field.type, "types", (field.type,))
        if any(isinstance(one, (inspect.AnyType, inspect.BytesType, inspect.StrType)) for one in kinds):
            continue
        if any(isinstance(one, inspect.EnumType) and issubclass(one.cls, OpenEnum) for one in kinds):
            continue  # a later version may write any text there
        place = ALL_STRUCTS[struct].fields.index(field)
        for text in ("7", "0.5", "nan", "true", "null"):
            value = [1] * place + [text] if struct is Seat else {field.encode_name: text}
            with pytest.raises(CorruptData, match=r"Expected|Invalid"):
                decode(json.dumps(value).encode(), struct)


@pytest.mark.parametrize("struct", sorted(ALL_STRUCTS, key=lambda one: one.__name__))
def test_every_number_of_every_record_has_bounds_and_every_moment_is_checked(struct):
    assert len(ALL_STRUCTS) > 25
    fields = ALL_STRUCTS[struct].fields
    for field in fields:
        for one in getattr(field.type, "types", (field.type,)):
            if isinstance(one, (inspect.IntType, inspect.FloatType)):
                assert (one.ge, one.gt) != (None, None), field.name
                assert (one.le, one.lt) != (None, None), field.name
    if any(is_of(field.type, inspect.DateTimeType) for field in fields):
        assert issubclass(struct, Dated)
    assert issubclass(struct, msgspec.Struct) or struct is Seat


def test_a_reason_and_a_market_that_a_later_version_has_written_are_read_and_written_as_they_are():
    """Such a record was malformed, and with it the whole job."""
    proof = msgspec.structs.replace(PROOF, end_reason=EndReason("evicted-for-maintenance"))
    assert decode(encode(proof), Certificate) == proof
    offer = Records.offer(market="capacity-block")
    assert decode(encode(offer), Offer) == offer
