"""Records as bytes."""

import math
from datetime import datetime, timezone

import pytest

from cloudspot.errors import CorruptData
from cloudspot.jobstore.codec import decode, decode_journal, encode
from cloudspot.jobstore.records import CheckpointId, Closed, Final, Finished, Heartbeat, Part, Slot

AT = datetime(2026, 11, 20, 6, 30, tzinfo=timezone.utc)


def test_a_record_comes_back_equal_and_its_bytes_are_stable():
    slot = Slot(instance_id="i-1", address="127.0.0.2", at=AT, writer="w")
    assert decode(encode(slot), Slot) == slot
    assert encode(slot) == encode(decode(encode(slot), Slot))


def test_journal_records_come_back_as_their_own_kind():
    closed = Closed(launch=1, outcome="voided", detail="", machines=(), at=AT, writer="w")
    finished = Finished(outcome="succeeded", detail="", exit_code=0, at=AT, writer="w")
    assert decode_journal(encode(closed)) == closed
    assert decode_journal(encode(finished)) == finished


def test_a_seal_is_kept_byte_for_byte():
    seal = '{"best" : Infinity,  "name":"\\u00e9 \u00e9"}'
    part = Part(
        generation=1, step=2, rank=0, num_parts=1, kind="session", size=0, chunks=(), seal=seal,
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
