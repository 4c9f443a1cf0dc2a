"""What makes a manifest unsafe or contradictory."""

import json
import random
from datetime import datetime, timezone

import msgspec
import pytest

from cloudspot.errors import CorruptData
from cloudspot.jobstore.checkpoints import integrity
from cloudspot.jobstore.checkpoints.integrity import check_manifest
from cloudspot.jobstore.layout import codec
from cloudspot.jobstore.layout.records import CheckpointId, Chunk, File, Manifest, Part
from cloudspot.jobstore.layout.seals import parse_seal, plan_digest

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)
HASH = "0" * 32
replace = msgspec.structs.replace


def part(rank=0, **changes):
    values = {
        "generation": 1, "step": 10, "round": 0, "rank": rank, "num_parts": 1, "kind": "directory", "size": 5,
        "chunks": (Chunk(size=5, xxh3_128=HASH),), "directory": "out/checkpoint-10",
        "files": (File(path="a", size=2, mode=0o644), File(path="b/c", size=3, mode=0o600)), "sealed_at": AT,
        "writer": "w",
    }  # fmt: skip
    return Part(**values | changes)


def commit(*parts, **changes):
    values = {
        "generation": 1,
        "step": 10,
        "round": 0,
        "kind": "directory",
        "size": sum(p.size for p in parts),
        "parts": parts,
    }
    return Manifest(**values | changes, at=AT, writer="w")


def session(seals, **changes):
    parts = [
        part(
            rank, kind="session", num_parts=len(seals), directory=None, files=(), seal=json.dumps(seal),
            size=seal["nbytes"], chunks=(Chunk(size=seal["nbytes"], xxh3_128=HASH),) if seal["nbytes"] else (),
        )
        for rank, seal in enumerate(seals)
    ]  # fmt: skip
    return commit(*parts, kind="session", **changes)


def seals(checkpoints, *sizes):
    made = checkpoints.seals(CheckpointId(1, 10), [b"x" * size for size in sizes])
    return [json.loads(seal) for seal in made]


def redigested(seals):
    digest = plan_digest([parse_seal(json.dumps(seal), "") for seal in seals])
    return [seal | {"plan": digest} for seal in seals]


def test_a_sound_manifest_passes(checkpoints):
    check_manifest(commit(part()))
    check_manifest(session(seals(checkpoints, 2500, 0, 1)))
    check_manifest(commit(part(size=0, chunks=(), files=())))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 1}, r"parts of ranks \(1,\), but part 1 names ranks \(0,\)"),
        ({"rank": -1}, r"parts of ranks \(-1,\)"),
        ({"num_parts": 2}, r"parts of ranks \(0,\), but part 0 names ranks \(0, 1\)"),
        ({"relieved": (0,)}, r"parts of ranks \(0,\), but part 0 names ranks \(1,\)"),
        ({"relieved": (7,)}, r"rank 0 of 1 without \(7,\) is impossible|names ranks \(0, 1\)"),
        ({"generation": 2}, "save 2-10-0"),
        ({"step": 11}, "save 1-11-0"),
        ({"round": 1}, "save 1-10-1"),
        ({"kind": "pickle"}, "pickle"),
        ({"size": 6}, "its size is 6, but its chunks have 5"),
        ({"size": -5}, "its size is -5"),
        ({"chunks": (Chunk(size=6, xxh3_128=HASH), Chunk(size=-1, xxh3_128=HASH))}, "chunk 1 has size -1"),
        ({"chunks": (Chunk(size=0, xxh3_128=HASH), Chunk(size=5, xxh3_128=HASH))}, "chunk 0 has size 0"),
        ({"chunks": (Chunk(size=1 << 60, xxh3_128=HASH),), "size": 1 << 60}, "chunk 0 has size"),
        ({"chunks": (Chunk(size=5, xxh3_128="0" * 31 + "G"),)}, "checksum"),
        ({"chunks": (Chunk(size=5, xxh3_128="../../x"),)}, "checksum"),
        ({"files": (File(path="a", size=5, mode=-1),)}, "mode"),
        ({"files": (File(path="a", size=7, mode=0), File(path="b", size=-2, mode=0))}, "size -2"),
        ({"files": (File(path="a", size=4, mode=0),)}, "its files have 4 bytes"),
        ({"files": (File(path="a", size=2, mode=0), File(path="a", size=3, mode=0))}, "a file twice"),
        ({"files": (File(path="a", size=2, mode=0), File(path="a/b", size=3, mode=0))}, "a file and as a directory"),
        ({"files": (File(path="/etc/passwd", size=5, mode=0),)}, "/etc/passwd' is not a safe relative path"),
        ({"files": (File(path="a/../../b", size=5, mode=0),)}, "not a safe relative path"),
        ({"directory": "../x"}, "not a safe relative path"),
        ({"directory": "/root"}, "not a safe relative path"),
        ({"directory": None}, "not a safe relative path"),
        ({"seal": "{}"}, "has no seal"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_unsafe_or_contradicts_itself_is_corrupt(changes, message):
    broken = part(**changes)
    with pytest.raises(CorruptData, match=message) as caught:
        check_manifest(commit(broken, size=broken.size))
    assert str(caught.value).startswith("checkpoint 1-10: ")


def test_parts_must_be_there_and_add_up():
    with pytest.raises(CorruptData, match="no parts"):
        check_manifest(commit())
    with pytest.raises(CorruptData, match="its size is 9, but its parts have 5"):
        check_manifest(commit(part(), size=9))
    twice = part(num_parts=2)
    with pytest.raises(CorruptData, match=r"parts of ranks \(0, 0\)"):
        check_manifest(commit(twice, twice))
    nested = commit(part(num_parts=2), part(1, num_parts=2, directory="out/checkpoint-10/b"))
    with pytest.raises(CorruptData, match="is inside another"):
        check_manifest(nested)
    check_manifest(commit(part(num_parts=2), part(1, num_parts=2)))  # each node has a file of that path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generation": 2}, "its seal's generation is 2, not 1"),
        ({"step": "10"}, r"got `str` - at `\$\.step`"),
        ({"step": 11}, "step is 11, not 10"),
        ({"round": 1}, "round is 1, not 0"),
        ({"relieved": [1]}, r"relieved is \(1,\), not \(\)"),
        ({"rank_states": {}}, r"state of each of 1 ranks once: \[\]"),
        ({"rank_states": {"0": {}, "1": {}}}, "state of each of 1 ranks once"),
        ({"rank": 1}, "rank is 1"),
        ({"world_size": 9}, "world_size is 9"),
        ({"items": None}, r"seal of part 0 is malformed: .* got `null` - at `\$\.items`"),
        ({"items": [{"name": "a"}]}, r"missing required field `dtype` - at `\$\.items\[0\]`"),
        ({"items": [{"name": "a", "dtype": "uint8", "shape": [5], "offset": 0, "nbytes": True}]}, r"got `bool` - at `\$\.items\[0\]\.nbytes`"),
        ({"plan": 7}, r"got `int` - at `\$\.plan`"),
        ({"plan": "f" * 64}, "not those of the plan"),
    ],
)  # fmt: skip
def test_a_seal_that_does_not_fit_its_part_is_corrupt(checkpoints, changes, message):
    [seal] = seals(checkpoints, 5)
    with pytest.raises(CorruptData, match=message):
        check_manifest(session([seal | changes]))


def relieved(checkpoints, states):
    """The parts of ranks 0 and 2 of three, of which 0 holds what rank 1 had."""
    zero, two = seals(checkpoints, 5, 5)
    extra = {"world_size": 3, "relieved": [1]}
    zero |= extra | {"rank_states": states}
    two |= extra | {"rank": 2, "rank_states": {"2": {}}}
    made = session(redigested([zero, two]))
    zero, two = (replace(each, relieved=(1,)) for each in made.parts)
    return replace(made, parts=(zero, replace(two, rank=2)))


def test_the_parts_of_a_drain_hold_what_a_relieved_rank_had(checkpoints):
    half = relieved(checkpoints, {"0": {}, "1": {}})
    check_manifest(half)
    with pytest.raises(CorruptData, match="state of each of 3 ranks once"):
        check_manifest(relieved(checkpoints, {"0": {}}))
    with pytest.raises(CorruptData, match=r"parts of ranks \(0,\), but part 0 names ranks \(0, 2\)"):
        check_manifest(replace(half, parts=half.parts[:1]))


def test_survivors_need_not_hold_the_state_of_those_that_were_lost(checkpoints):
    said = {"cause": "lost", "lost": [1], "is_exact": False}
    zero, two = seals(checkpoints, 5, 5)
    extra = {"world_size": 3, "relieved": [1], "rescue": said}
    zero |= extra
    two |= extra | {"rank": 2, "rank_states": {"2": {}}}

    def rescued(first, second):
        made = session(redigested([first, second]))
        parts = (replace(each, relieved=(1,), rescue=each.parsed_seal.rescue) for each in made.parts)
        one, other = parts
        return replace(made, parts=(one, replace(other, rank=2)))

    check_manifest(rescued(zero, two))
    with pytest.raises(CorruptData, match="state of each of 3 ranks once"):
        check_manifest(rescued(zero | {"rank_states": {}}, two))
    with pytest.raises(CorruptData, match="disagree on which ranks were lost"):
        check_manifest(rescued(zero, two | {"rescue": said | {"is_exact": True}}))
    kept = said | {"kept": [1]}
    check_manifest(
        rescued(zero | {"rescue": kept, "rank_states": {"0": {}, "1": {}}}, two | {"rescue": kept})
    )
    with pytest.raises(CorruptData, match="state of each of 3 ranks once"):
        check_manifest(rescued(zero | {"rescue": kept}, two | {"rescue": kept}))
    never_lost = said | {"kept": [1, 2]}
    with pytest.raises(CorruptData, match="disagree on which ranks were lost"):
        check_manifest(rescued(zero | {"rescue": never_lost}, two | {"rescue": never_lost}))
    not_relieved = said | {"lost": [0]}
    with pytest.raises(CorruptData, match="disagree on which ranks were lost"):
        check_manifest(rescued(zero | {"rescue": not_relieved}, two | {"rescue": not_relieved}))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([("a", [3], 0, 3), ("b", [3], 2, 3)], "item 'b' overlaps another"),
        ([("a", [6], 0, 6)], "end at byte 6 of 5"),
        ([("a", [5], -1, 5)], r"items\[0\]\.offset"),
        ([("a", [-5], 0, 5)], "shape"),
        ([("a", [5], 0, -5)], r"items\[0\]\.nbytes"),
        ([("a", [3], 0, 5)], "5 bytes at 0"),
        ([("a", [2], 0, 2), ("a", [3], 2, 3)], "item 'a' twice"),
        ([("a", [1 << 58], 1 << 59, 1 << 58)], "end at byte"),
    ],
)
def test_items_must_lie_in_their_part_apart_from_each_other(checkpoints, items, message):
    [seal] = seals(checkpoints, 5)
    names = ("name", "shape", "offset", "nbytes")
    seal["items"] = [{"dtype": "uint8", **dict(zip(names, item, strict=True))} for item in items]
    with pytest.raises(CorruptData, match=message):
        check_manifest(session(redigested([seal])))


def test_an_item_that_two_ranks_hold_or_none_is_corrupt(checkpoints):
    one, two = seals(checkpoints, 5, 5)
    shared = two | {"items": one["items"]}
    with pytest.raises(CorruptData, match="twice"):
        check_manifest(session(redigested([one, shared])))
    with pytest.raises(CorruptData, match="come from different plans"):
        check_manifest(session([one, two | {"plan": "f" * 64}]))
    with pytest.raises(CorruptData, match="not those of the plan"):
        check_manifest(session([one, two | {"items": []}]))


def sharded(checkpoints, *shards, shape=(5,), **changes):
    """The seals of ranks that hold one shard each: its name, where it begins, and its bytes."""
    made = seals(checkpoints, *(length for _, _, length in shards))
    for seal, (name, start, length) in zip(made, shards, strict=True):
        seal["items"] = [
            {"name": name, "dtype": "uint8", "shape": [length], "offset": 0, "nbytes": length,
             "global_shape": list(shape), "global_offset": [start]} | changes
        ]  # fmt: skip
    return made


def test_shards_that_make_up_their_tensor_pass(checkpoints):
    check_manifest(session(redigested(sharded(checkpoints, ("a", 3, 2), ("a", 0, 3)))))
    mixed = sharded(checkpoints, ("a", 3, 2), ("a", 0, 3))
    mixed[0]["items"].append({"name": "b", "dtype": "uint8", "shape": [0], "offset": 2, "nbytes": 0})
    check_manifest(session(redigested(mixed)))


@pytest.mark.parametrize(
    ("shards", "changes", "message"),
    [
        ([("a", 0, 3), ("a", 4, 1)], {}, "shards of 'a' have a hole of 1 elements"),
        ([("a", 0, 3), ("a", 2, 3)], {}, r"shards of 'a' have two boxes that overlap at \[2\]"),
        ([("a", 0, 3), ("a", 0, 3)], {}, "two boxes that overlap"),
        ([("a", 0, 3), ("a", 3, 3)], {}, r"a box of shape \[3\] at \[3\], in a tensor of \[5\]"),
        ([("a", 0, 3), ("b", 3, 2)], {}, "shards of 'a' have a hole of 2 elements"),
        ([("a", 0, 3), ("a", 3, 2)], {"global_offset": None}, "lack a global_shape or a global_offset"),
        ([("a", 0, 3), ("a", 3, 2)], {"global_shape": None}, "lack a global_shape or a global_offset"),
        ([("a", 0, 3), ("a", 3, 2)], {"global_shape": [5, 1]}, "a box of 1 and 1 dimensions"),
        ([("a", 0, 3), ("a", 3, 2)], {"global_offset": [-1]}, "global_offset"),
    ],
)
def test_shards_that_do_not_make_up_their_tensor_are_corrupt(checkpoints, shards, changes, message):
    with pytest.raises(CorruptData, match=message):
        check_manifest(session(redigested(sharded(checkpoints, *shards, **changes))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int8"}, "shards of 'a' are of different tensors"),
        ({"global_shape": [6]}, "shards of 'a' are of different tensors"),
        ({"shape": [1], "global_offset": [3]}, "hole of 1"),
        ({"global_shape": None, "global_offset": None}, "holds item 'a' twice"),
    ],
)
def test_a_shard_that_differs_from_the_others_is_corrupt(checkpoints, change, message):
    made = sharded(checkpoints, ("a", 0, 3), ("a", 3, 2))
    made[1]["items"][0] |= change
    with pytest.raises(CorruptData, match=message):
        check_manifest(session(redigested(made)))


def test_shards_whose_elements_differ_in_size_are_corrupt(checkpoints):
    made = sharded(checkpoints, ("a", 0, 3), ("a", 3, 2))
    made[1]["items"][0] |= {"shape": [2], "nbytes": 2}
    made[0]["items"][0] |= {"nbytes": 0, "shape": [3]}
    with pytest.raises(CorruptData, match=r"elements of \[0, 1\] bytes"):
        check_manifest(session(redigested(made)))


@pytest.mark.full
def test_of_ten_thousand_damaged_manifests_each_passes_or_is_corrupt(checkpoints):
    """No damage ends in another error: what reads a manifest catches CorruptData alone."""
    whole = codec.encode(session(seals(checkpoints, 1200, 3)))
    split = codec.encode(session(redigested(sharded(checkpoints, ("a", 0, 3), ("a", 3, 2)))))
    plain = codec.encode(commit(part()))
    generator = random.Random(7)
    tokens = [
        b"-1",
        b"null",
        b'"',
        b"{}",
        b"[]",
        b"1e999",
        b"99999999999999999999",
        b"true",
        b"\xff",
        b"../",
        b"",
    ]
    outcomes = {True: 0, False: 0}
    for _ in range(10_000):
        data = bytearray(generator.choice((whole, plain, split)))
        for _ in range(generator.randint(1, 3)):
            start = generator.randrange(len(data))
            data[start : start + generator.randint(0, 6)] = generator.choice(tokens)
        try:
            check_manifest(codec.decode(bytes(data), Manifest))
            outcomes[True] += 1
        except CorruptData:
            outcomes[False] += 1
    assert outcomes[False] > 5000
    assert integrity.MAX_CHUNK_BYTES < 1 << 30
