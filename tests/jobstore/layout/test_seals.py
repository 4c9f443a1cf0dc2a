"""Seals: parsed and typed in one place."""

import json
from datetime import datetime, timezone

import pytest

from cloudspot.errors import CorruptData
from cloudspot.jobstore.layout.records import CheckpointId, Part
from cloudspot.jobstore.layout.seals import parse_seal, plan_digest
from cloudspot.train.state import partition as trainer
from cloudspot.train.state.boxes import Box


def part(seal):
    return Part(
        generation=1, step=10, round=0, rank=0, num_parts=1, kind="session", size=5, chunks=(), seal=seal,
        sealed_at=datetime(2026, 11, 20, tzinfo=timezone.utc), writer="w",
    )  # fmt: skip


@pytest.fixture
def seal(checkpoints):
    (made,) = checkpoints.seals(CheckpointId(1, 10), [b"x" * 5])
    return json.loads(made)


def test_a_seal_is_typed_and_keeps_what_the_trainer_wrote(seal):
    found = part(json.dumps(seal)).parsed_seal
    assert (found.generation, found.step, found.rank, found.world_size, found.nbytes) == (1, 10, 0, 1, 5)
    assert [(item.name, item.shape, item.nbytes) for item in found.items] == [("model/0.0", (5,), 5)]
    assert json.loads(found.text) == seal


def test_a_seal_may_hold_infinity_and_fields_that_are_not_known_yet(seal):
    later = seal | {"objects": {"best": -float("inf")}, "later": 1}
    found = part(json.dumps(later)).parsed_seal
    assert found.objects == {"best": -float("inf")}
    assert json.loads(found.text) == later


@pytest.mark.parametrize("text", [None, "", "[1]", "{", "{}", "[" * 100_000], ids=range(6))
def test_what_is_not_a_seal_is_corrupt(text):
    with pytest.raises(CorruptData, match="the seal of part 0 is malformed"):
        _ = part(text).parsed_seal


def test_the_digest_is_the_one_that_the_trainer_makes(seal):
    items = [
        trainer.Item("model/weight é", "float32", (3, 4), 4),
        trainer.Item("model/scale", "float64", (), 8),
        trainer.Item("model/none", "bool", (0,), 1, pinned=True),
        trainer.Item(
            "model/sharded",
            "float32",
            (3, 4),
            4,
            shards=(
                trainer.Shard(Box((0, 0), (2, 4)), (0,)),
                trainer.Shard(Box((2, 0), (1, 4)), (1,)),
            ),
        ),
    ]
    planned = trainer.plan(items, world_size=2)
    tables = [[placement.to_json() for placement in placements] for placements in planned.parts]
    assert [sum("global_shape" in line for line in table) for table in tables] == [1, 1]
    made = [
        parse_seal(json.dumps(seal | {"rank": rank, "items": table}), "it")
        for rank, table in enumerate(tables)
    ]
    assert plan_digest(made) == planned.digest
