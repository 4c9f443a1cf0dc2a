"""Checkpoints of which chunks are compressed: read, shared, copied and deleted like all others."""

import random
import shutil

import msgspec
import pytest
from support.records.sessions import Everything
from support.stores.memorystore import InMemoryStore

from cloudspot.errors import CloudspotError, CorruptData
from cloudspot.jobstore.checkpoints import fetching, manifests, parts, retention
from cloudspot.jobstore.checkpoints.chunks import read_blocks, read_stored, stored_chunks
from cloudspot.jobstore.checkpoints.compression import Compression
from cloudspot.jobstore.checkpoints.safetensors import write_safetensors
from cloudspot.jobstore.checkpoints.shared_chunks import Sharing, known_chunks
from cloudspot.jobstore.checkpoints.tensors import Piece, StoredTensor
from cloudspot.jobstore.jobs import forking
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import CheckpointId, Origin, Part, SaveId
from cloudspot.train.state.boxes import Box

C = CheckpointId
NOISE = random.Random(1).randbytes(1500)
DATAS = [b"a" * 1500 + NOISE + b"b" * 700, b"", NOISE + b"c"]
TENSORS = [StoredTensor("all", "uint8", (3700,), (Piece(Box((0,), (3700,)), 0, 0, 3700),))]
"""What the first rank has."""
replace = msgspec.structs.replace


pytestmark = pytest.mark.usefixtures("small_chunks")


def put(store, checkpoints, checkpoint, datas=DATAS, *, compresses=True, **options):
    compression = Compression() if compresses else None
    return checkpoints.session(
        store, checkpoint, datas, compression=compression, in_background=True, **options
    )


def names(store, prefix="jobs/x/checkpoints/"):
    return [
        meta.key.rpartition("/chunks/")[2] for meta in store.list_objects(prefix) if "/chunks/" in meta.key
    ]


def fetched(store, manifest, directory, job_id="x"):
    fetching.verify(store, job_id, manifest)
    fetching.fetch(store, job_id, manifest, directory)
    return [(directory / f"part-{part.rank}.bin").read_bytes() for part in manifest.parts]


def test_what_becomes_shorter_is_stored_compressed_and_the_rest_as_it_is(store, checkpoints, tmp_path):
    manifest = put(store, checkpoints, C(1, 10))
    assert names(store) == ["0000/000000.z", "0000/000001", "0000/000002.z", "0002/000000", "0002/000001"]
    plain = put(store, checkpoints, C(1, 20), compresses=False)
    for part, other in zip(manifest.parts, plain.parts, strict=True):
        assert [replace(chunk, stored=None) for chunk in part.chunks] == list(other.chunks)
    assert fetched(store, manifest, tmp_path / "r") == DATAS
    assert (manifest.size, plain.sent) == (plain.size, plain.size)
    listed = [meta.size for meta in store.list_objects(keys.save_prefix("x", manifest.save) + "chunks/")]
    assert manifest.sent == sum(listed) < 3700


@pytest.mark.full
def test_a_few_bytes_that_many_chunks_share_write_no_more_than_there_is_room_for(
    store, checkpoints, tmp_path, monkeypatch
):
    """A small bucket may claim a checkpoint of any size, each chunk of which verifies."""
    first = put(store, checkpoints, C(1, 10), [b"a" * 1500])
    shared = known_chunks(first)[1500, first.parts[0].chunks[0].xxh3_128]
    size, save = 1500 * 2000, SaveId(1, 20, 0)
    seal = checkpoints.seals(save, [bytes(size)])[0].decode()
    part = replace(first.parts[0], step=20, chunks=(shared,) * 2000, size=size, seal=seal)
    claim = replace(first, step=20, parts=(part,), size=size)
    assert sum(meta.size for meta in store.list_objects("jobs/x/")) < 10_000
    free = size - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, free))
    tensor = StoredTensor("all", "uint8", (size,), (Piece(Box((0,), (size,)), 0, 0, size),))
    whole = {"part-0.bin": [(0, size)]}
    for write in (
        lambda: fetching.fetch(store, "x", claim, tmp_path / "r"),
        lambda: write_safetensors(store, "x", claim, [tensor], tmp_path / "f.safetensors", metadata={}),
        lambda: (
            fetching.lay_out(store, "x", claim, tmp_path / "late"),
            fetching.fetch_ranges(store, "x", claim, tmp_path / "late", whole),
        ),
    ):
        with pytest.raises(CloudspotError, match=r"no space left on the disk .* 0\.0 GiB are needed"):
            write()
        assert sum(path.stat().st_blocks for path in tmp_path.rglob("*.bin")) == 0
        assert not list(tmp_path.rglob("*.safetensors"))
    free = size
    fetching.fetch(store, "x", claim, tmp_path / "r")
    assert (tmp_path / "r/part-0.bin").read_bytes() == b"a" * size
    # What is there already needs no room.
    free = 0
    fetching.fetch(store, "x", claim, tmp_path / "r", present={0})


def test_the_records_of_what_is_not_compressed_are_as_they_were(store, checkpoints):
    put(store, checkpoints, C(1, 10), compresses=False)
    key = keys.part("x", SaveId(1, 10, 0), 0)
    assert b"stored" not in store.get(key)
    put(store, checkpoints, C(1, 20), [NOISE])
    assert b"stored" not in store.get(keys.part("x", SaveId(1, 20, 0), 0))
    assert codec.encode(codec.decode(store.get(key), Part)) == store.get(key)


def test_a_save_with_a_deadline_is_sent_as_it_is_until_compression_was_seen_to_pay(store, checkpoints):
    checkpoints.session(store, C(1, 10), DATAS, compression=Compression())
    assert not any(name.endswith(".z") for name in names(store))


def test_what_was_measured_beside_the_training_decides_for_a_drain(store, checkpoints, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(parts.time, "monotonic", lambda: now[0])
    known, data = Compression(), b"a" * 1000

    class Slow(InMemoryStore):
        def put(self, key, data, *, if_absent=False):
            if "/chunks/" in key:
                now[0] += len(data) * self.seconds_per_byte
            super().put(key, data, if_absent=if_absent)

    def compress(data, may_continue, inner=parts.compress):
        now[0] += 1.0
        return inner(data, may_continue)

    monkeypatch.setattr(parts, "compress", compress)
    slow = Slow()
    for step, seconds_per_byte, is_compressed in ((10, 0.1, True), (20, 0.0001, False), (30, 0.1, True)):
        slow.seconds_per_byte = seconds_per_byte
        checkpoints.session(slow, C(1, step), [data], compression=known, in_background=True)
        drain = checkpoints.session(slow, C(1, step + 1), [data], compression=known)
        assert [chunk.stored is not None for chunk in drain.parts[0].chunks] == [is_compressed]


def test_an_upload_that_gets_no_processor_time_compresses_no_more(store, checkpoints, monkeypatch):
    monkeypatch.setattr(parts, "MIN_BACKGROUND_BYTES", 0)
    monkeypatch.setattr(parts, "is_starved", lambda: True)
    manifest = put(store, checkpoints, C(1, 10), [b"a" * 4500], num_threads=1)
    assert [chunk.stored is not None for chunk in manifest.parts[0].chunks] == [False, False, False]
    fetching.verify(store, "x", manifest)


def test_an_upload_gives_way_to_another_also_while_it_compresses(store, checkpoints, monkeypatch):
    is_urgent = []

    def compress(data, may_continue, inner=parts.compress):
        is_urgent.append(True)
        return inner(data, may_continue)

    monkeypatch.setattr(parts, "compress", compress)
    with pytest.raises(parts.GaveWay):
        put(store, checkpoints, C(1, 10), DATAS[:1], must_yield=lambda: bool(is_urgent), num_threads=1)
    assert names(store) == []


@pytest.mark.parametrize("first_compresses", [True, False])
def test_a_part_is_the_same_whether_it_was_compressed_or_not(store, checkpoints, first_compresses, tmp_path):
    """An agent that is started again decides anew; what the standing record names is not touched."""
    put(store, checkpoints, C(1, 10), compresses=first_compresses, commit=False)
    before = {meta.key: store.get(meta.key) for meta in store.list_objects("jobs/x/checkpoints/")}
    manifest = put(store, checkpoints, C(1, 10), compresses=not first_compresses)
    assert before.items() <= {meta.key: store.get(meta.key) for meta in store.list_objects("jobs/x/")}.items()
    assert any(chunk.stored for part in manifest.parts for chunk in part.chunks) is first_compresses
    assert fetched(store, manifest, tmp_path / "r") == DATAS


def test_an_upload_that_died_leaves_chunks_of_the_other_kind_that_go_with_the_save(store, checkpoints):
    checkpoints.generation(store, 1)
    for number, size in ((0, 1500), (1, 1500), (2, 700)):
        store.put(keys.chunk("x", SaveId(1, 10, 0), 0, number), b"x" * size)
    store.put(keys.compressed_chunk("x", SaveId(1, 10, 0), 0, 1), b"left over")
    manifest = put(store, checkpoints, C(1, 10))
    fetching.verify(store, "x", manifest)
    put(store, checkpoints, C(1, 20))
    assert retention.collect(store, Journal(store, "x"), "x", 1) == (C(1, 10),)
    assert names(store, keys.save_prefix("x", SaveId(1, 10, 0))) == []


def test_other_bytes_that_hold_the_same_chunk_are_as_good(store, checkpoints, monkeypatch, tmp_path):
    """As of another version of the library, put by an agent before or after the one whose record stands."""
    manifest = put(store, checkpoints, C(1, 10))
    key = keys.compressed_chunk("x", SaveId(1, 10, 0), 0, 0)
    with monkeypatch.context() as patched:
        patched.setattr("cloudspot.jobstore.checkpoints.compression.BLOCK_BYTES", 400)
        other = parts.compress(b"a" * 1500)
    assert len(other) != len(store.get(key))
    store.put(key, other)
    assert fetched(store, manifest, tmp_path / "r") == DATAS


@pytest.mark.parametrize("base_compresses", [True, False])
@pytest.mark.parametrize("next_compresses", [True, False])
def test_a_chunk_is_shared_by_what_it_holds_however_it_is_stored(
    store, checkpoints, base_compresses, next_compresses, tmp_path
):
    checkpoints.generation(store, 1)
    put(store, checkpoints, C(1, 10), DATAS[:1], compresses=base_compresses)
    made = []
    for step, compresses in ((20, next_compresses), (30, not next_compresses)):
        sharing = Sharing(store, Journal(store, "x"), "x", SaveId(1, step, 0), 0, likely=Everything())
        data = DATAS[0] + bytes([step]) * 1500
        made.append(put(store, checkpoints, C(1, step), [data], compresses=compresses, sharing=sharing))
        chunks = made[-1].parts[0].chunks
        assert [chunk.home and chunk.home.step for chunk in chunks[:2]] == [10, 10]
        assert [chunk.stored is not None for chunk in chunks[:2]] == [base_compresses, False]
        assert chunks[3].home is None
        assert fetched(store, made[-1], tmp_path / str(step)) == [data]
    retention.collect(store, Journal(store, "x"), "x", 1, orphan_grace_seconds=-60.0)
    fetching.verify(store, "x", made[-1])


def test_a_fork_has_the_compressed_chunks_as_they_are(store, checkpoints, tmp_path):
    manifest = put(store, checkpoints, C(1, 10))
    copied = forking.bring_checkpoint(store, Origin(job_id="x", checkpoint=C(1, 10)), manifest, "new")
    fork = manifests.read_manifest(store, "new", copied)
    assert fetched(store, fork, tmp_path / "r", "new") == DATAS
    assert names(store, "jobs/new/") == names(store)
    for one, other in zip(stored_chunks("x", manifest), stored_chunks("new", fork), strict=True):
        assert store.get(one.key) == store.get(other.key)


def test_files_of_a_script_are_compressed_too(store, checkpoints, tmp_path):
    root = tmp_path / "checkpoint-10"
    root.mkdir()
    (root / "model.bin").write_bytes(DATAS[0])
    (root / "state.json").write_bytes(b"{}")
    manifest = checkpoints.directory(
        store, C(1, 10), root, root.name, compression=Compression(), in_background=True
    )
    assert manifest.sent < manifest.size - 1500
    (tmp_path / "work").mkdir()
    fetching.fetch(store, "x", manifest, tmp_path / "work")
    assert (tmp_path / "work/checkpoint-10/model.bin").read_bytes() == DATAS[0]
    assert (tmp_path / "work/checkpoint-10/state.json").read_bytes() == b"{}"


def test_tensors_are_exported_from_compressed_chunks(store, checkpoints, tmp_path):
    exported = []
    for step, compresses in ((10, True), (20, False)):
        manifest = put(store, checkpoints, C(1, step), compresses=compresses)
        target = tmp_path / f"{step}.safetensors"
        told = []
        write_safetensors(store, "x", manifest, TENSORS, target, metadata={}, progress=told.append)
        assert sum(told) == 3700
        exported.append(target.read_bytes())
    assert exported[0] == exported[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data + bytes(5000),
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"a" * 1500,
        lambda data: b"a" * 1499,
        lambda data: bytes(parts.compress(b"c" * 1500)),
        lambda data: bytes(parts.compress(b"a" * 1499)),
        lambda data: None,
    ],
)
def test_every_reader_finds_what_is_wrong_with_a_compressed_chunk(store, checkpoints, change, tmp_path):
    manifest = put(store, checkpoints, C(1, 10))
    chunk = stored_chunks("x", manifest)[0]
    changed = change(store.get(chunk.key))
    store.delete(chunk.key) if changed is None else store.put(chunk.key, changed)
    readers = (
        lambda: fetching.verify(store, "x", manifest),
        lambda: fetching.fetch(store, "x", manifest, tmp_path / "r"),
        lambda: list(read_blocks(store, chunk)),
        lambda: list(read_stored(store, chunk)),
        lambda: write_safetensors(
            store, "x", manifest, TENSORS, tmp_path / "f", metadata={}
        ),
        lambda: forking.bring_checkpoint(
            store, Origin(job_id="x", checkpoint=C(1, 10)), manifest, "new"
        ),
    )  # fmt: skip
    for read in readers:
        with pytest.raises(CorruptData, match=chunk.key):
            read()
    assert not (tmp_path / "r/restore.json").exists()
    assert not (tmp_path / "f").exists()


@pytest.mark.full
def test_the_bytes_of_an_object_are_read_as_they_are_in_pieces(store, checkpoints, monkeypatch):
    manifest = put(store, checkpoints, C(1, 10), [b"ab" * 700 + NOISE * 2], chunk_bytes=5000)
    (chunk,) = stored_chunks("x", manifest)
    assert chunk.is_compressed is (chunk.chunk.stored is not None)
    for block_bytes in (1, 10, 4096, 1 << 20):
        monkeypatch.setattr("cloudspot.jobstore.checkpoints.chunks.BLOCK_BYTES", block_bytes)
        assert b"".join(read_stored(store, chunk)) == store.get(chunk.key)
        assert b"".join(bytes(block) for _, block in read_blocks(store, chunk)) == b"ab" * 700 + NOISE * 2


@pytest.mark.parametrize("stored", [0, 5, 6])
def test_a_chunk_that_is_not_shorter_when_compressed_is_refused(store, checkpoints, stored):
    manifest = checkpoints.session(store, C(1, 10), [b"abcde"])
    (part,) = manifest.parts
    wrong = replace(part, chunks=(replace(part.chunks[0], stored=stored),))
    with pytest.raises(CorruptData, match=f"chunk 0 of size 5 claims to be compressed to {stored}"):
        parts.check_part(wrong)
