"""The slots: who may write them when, and where they lie."""

import contextlib
import errno
import mmap
import os
import shutil
import threading
import types
from pathlib import Path

import pytest
import torch

from cloudspot.train import SessionError
from cloudspot.train.distributed import World
from cloudspot.train.handoff import seals_directory
from cloudspot.train.state import arena
from cloudspot.train.state.arena import Arena
from cloudspot.train.state.partition import Item, plan


@pytest.fixture
def make_slots(tmp_path):
    """``make_slots(local_world_size=1)``: an arena, closed with the test."""
    made = []
    seals_directory(tmp_path).mkdir()

    def make(*, local_world_size=1):
        slots = Arena(
            directory=tmp_path / "memory",
            spill=tmp_path / "disk",
            handoff=tmp_path,
            generation=3,
            world=World(1, local_world_size, 1, local_world_size),
        )
        made.append(slots)
        return slots

    yield make
    for slots in made:
        slots.close()


@pytest.fixture
def slots(make_slots):
    return make_slots()


def places(tmp_path):
    """Return where the slots lie and how large their files are."""
    found = (path.relative_to(tmp_path) for path in sorted(tmp_path.glob("*/slot-*")))
    return {str(path): (tmp_path / path).stat().st_size for path in found}


def in_memory(nbytes):
    return {"memory/slot-3-1-0": nbytes, "memory/slot-3-1-1": nbytes}


def seal(slots, slot, step):
    slot.seal = slots.seal_path(step, 0)
    slot.seal.write_text("{}")
    return slot.seal


def take(path):
    return path.rename(path.with_name(path.name.replace("seal-", "taken-")))


def test_both_slots_are_claimed_with_their_whole_size(slots, tmp_path):
    slots.claim(100_000)
    for index in range(2):
        status = (tmp_path / "memory" / f"slot-3-1-{index}").stat()
        assert status.st_size == 100_000
        assert status.st_blocks * 512 >= 100_000


def test_slots_lie_in_a_directory_that_is_this_users_alone(slots, tmp_path):
    umask = os.umask(0)
    try:
        slots.claim(10)
    finally:
        os.umask(umask)
    assert (tmp_path / "memory").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "memory").iterdir()} == {0o600}


def test_no_link_that_a_neighbour_has_left_is_followed(slots, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    (tmp_path / "memory").mkdir(0o700)
    (tmp_path / "memory/slot-3-1-0").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        slots.claim(100_000)
    assert victim.read_bytes() == b"kept"


def test_a_directory_that_others_may_write_to_gets_no_slot(slots, tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory").chmod(0o777)
    with pytest.raises(PermissionError, match="memory has mode 777, not 700: it must be private"):
        slots.claim(10)
    (tmp_path / "memory").rmdir()
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "memory").symlink_to("elsewhere")
    with pytest.raises(PermissionError, match="memory is not a directory: it must be private"):
        slots.claim(10)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_slot_is_free_until_sealed_and_again_after_its_upload(slots):
    slots.claim(10)
    first = slots.free_slot()
    taken = take(seal(slots, first, 5))
    assert taken.name == "taken-3-5-0-1.json"
    second = slots.free_slot()
    assert second is not first
    seal(slots, second, 6)
    assert slots.free_slot() is None
    taken.unlink()
    assert slots.free_slot() is first


def test_a_seal_that_is_taken_between_two_looks_is_not_free(slots, monkeypatch):
    slots.claim(10)
    slot = slots.free_slot()
    path = seal(slots, slot, 5)
    exists = type(path).exists

    def taken_after_the_first_look(self):
        answer = exists(self)
        if self == path and answer is True:
            take(path)
            return False  # the look came just after the rename
        return answer

    monkeypatch.setattr(type(path), "exists", taken_after_the_first_look)
    assert not slot.is_free()


def test_a_drain_takes_back_the_newest_upload_that_has_not_started(slots):
    slots.claim(10)
    older = slots.free_slot()
    seal(slots, older, 5)
    newer = slots.free_slot()
    path = seal(slots, newer, 6)
    assert slots.withdraw_slot() is newer
    assert not path.exists()
    assert slots.seal_path(5, 0).exists()


def test_an_upload_that_has_started_is_not_taken_back(slots):
    slots.claim(10)
    older = slots.free_slot()
    seal(slots, older, 5)
    newer = slots.free_slot()
    take(seal(slots, newer, 6))
    assert slots.withdraw_slot() is older
    take(seal(slots, older, 7))
    assert slots.withdraw_slot() is None


def test_what_is_written_is_what_the_file_holds(slots):
    tensors = {
        "a": torch.arange(6, dtype=torch.float64).reshape(2, 3).t(),
        "b": torch.randn(1, 2, 4, 4).to(memory_format=torch.channels_last),
        "c": torch.tensor([True, False, True]),
        "d": torch.tensor(3, dtype=torch.int32),
        "e": torch.zeros(0),
    }
    items = [
        Item(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), t.element_size())
        for name, t in tensors.items()
    ]
    made = plan(items, world_size=1)
    slots.claim(made.part_bytes[0])
    slot = slots.free_slot()
    slot.write(made.parts[0], [tensors[placement.item.name] for placement in made.parts[0]])
    data = bytearray(slot.path.read_bytes())
    for placement in made.parts[0]:
        expected = tensors[placement.item.name]
        if placement.item.nbytes:
            found = torch.frombuffer(
                data, dtype=expected.dtype, count=expected.numel(), offset=placement.offset
            )
            assert torch.equal(found.reshape(expected.shape), expected)


def test_another_table_of_items_is_written_to_its_own_places(slots):
    items = [Item(name, "uint8", (4,), 1) for name in "abc"]
    slots.claim(100)
    slot = slots.free_slot()
    for names in ("ab", "bca"):
        (part,) = plan([item for item in items if item.name in names], world_size=1).parts
        slot.write(part, [torch.full((4,), ord(each.item.name), dtype=torch.uint8) for each in part])
        assert slot.path.read_bytes()[: 4 * len(names)] == b"".join(
            each.item.name.encode() * 4 for each in part
        )


MEMORY = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 5 kB\nSwapFree: 7 kB\n"}
GROUP = "/sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MEMORY, 5 * 1024),
        (MEMORY | {f"{GROUP}.max": "4096\n", f"{GROUP}.current": "1000\n"}, 3096),
        (MEMORY | {f"{GROUP}.max": "1000000\n", f"{GROUP}.current": "1000\n"}, 5 * 1024),
        (MEMORY | {f"{GROUP}.max": "max\n", f"{GROUP}.current": "1000\n"}, 5 * 1024),
        (MEMORY | {f"{GROUP}.max": "what\n"}, 5 * 1024),
        ({"/proc/meminfo": "MemTotal: 9 kB\n"}, None),
        ({}, None),
    ],
)
def test_free_memory_is_what_the_machine_and_its_group_have_left(monkeypatch, files, expected):
    def read(path, **_):
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(type(Path()), "read_text", read)
    assert arena.free_memory_bytes() == expected


def test_without_room_in_memory_the_slots_lie_on_disk(slots, tmp_path, monkeypatch):
    allocate = arena._allocate

    def no_shared_memory(descriptor, start, nbytes):
        files = list((tmp_path / "memory").iterdir())
        if any(os.path.samestat(path.stat(), os.fstat(descriptor)) for path in files):
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, start, nbytes)

    monkeypatch.setattr(arena, "_allocate", no_shared_memory)
    slots.claim(100_000)
    assert sorted(p.name for p in (tmp_path / "disk").iterdir()) == ["slot-3-1-0", "slot-3-1-1"]
    assert list((tmp_path / "memory").iterdir()) == []


@pytest.mark.parametrize("local_world_size", [1, 3])
def test_memory_must_have_room_for_both_slots_of_every_rank_on_the_machine(
    make_slots, tmp_path, monkeypatch, local_world_size
):
    needed = 2 * 100_000 * local_world_size
    monkeypatch.setattr(arena, "free_memory_bytes", lambda: needed - 1)
    make_slots(local_world_size=local_world_size).claim(100_000)
    # Once the first lies on disk, the memory has room for the second.
    assert places(tmp_path) == {"disk/slot-3-1-0": 100_000, "memory/slot-3-1-1": 100_000}


@pytest.mark.parametrize("local_world_size", [1, 3])
def test_memory_with_just_that_room_is_taken(make_slots, tmp_path, monkeypatch, local_world_size):
    monkeypatch.setattr(arena, "free_memory_bytes", lambda: 2 * 100_000 * local_world_size)
    make_slots(local_world_size=local_world_size).claim(100_000)
    assert places(tmp_path) == in_memory(100_000)


def test_no_room_anywhere_names_both_places(slots, tmp_path, monkeypatch):
    def full(descriptor, start, nbytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(arena, "_allocate", full)
    with pytest.raises(SessionError, match="no room for a checkpoint slot of 100000 bytes") as caught:
        slots.claim(100_000)
    assert str(tmp_path / "memory") in str(caught.value)
    assert str(tmp_path / "disk") in str(caught.value)
    assert not list(tmp_path.glob("*/slot-*"))


def test_another_error_of_the_disk_is_not_taken_for_a_lack_of_room(slots, monkeypatch):
    def broken(descriptor, start, nbytes):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(arena, "_allocate", broken)
    with pytest.raises(OSError, match="Input/output error"):
        slots.claim(10)


def test_a_slot_grows_when_the_state_does_and_moves_when_there_is_no_room(slots, tmp_path, monkeypatch):
    slots.claim(10_000)
    slot = slots.free_slot()
    slots.grow(slot, 50_000)
    assert slot.capacity == 50_000
    assert slot.path.stat().st_size == 50_000
    monkeypatch.setattr(arena, "free_memory_bytes", lambda: 10)
    slots.grow(slot, 90_000)
    assert slot.path == tmp_path / "disk" / slot.path.name
    assert not (tmp_path / "memory" / slot.path.name).exists()
    slots.grow(slot, 10)
    assert slot.capacity == 90_000


def test_slots_wait_until_what_was_restored_has_left_memory(slots, tmp_path, monkeypatch):
    """They went to the disk, for all of the generation, since the agent was about to remove it."""
    restored = tmp_path / "memory" / "restore"
    restored.parent.mkdir(mode=0o700, exist_ok=True)
    restored.mkdir()
    monkeypatch.setattr(arena, "free_memory_bytes", lambda: 0 if restored.exists() else 1 << 30)
    threading.Timer(0.1, restored.rmdir).start()
    slots.claim(10_000)
    assert {slot.path.parent for slot in slots._slots} == {tmp_path / "memory"}
    restored.mkdir()
    monkeypatch.setattr(arena, "_REMOVAL_SECONDS", 0.0)  # a rank may take its time
    slots.grow(slots.free_slot(), 20_000)
    slots.claim(20_000)
    assert {slot.path.parent for slot in slots._slots} == {tmp_path / "disk"}


def test_a_claim_that_fails_leaves_the_file_as_it_was(slots, tmp_path, monkeypatch):
    allocate = arena._allocate

    def full_half_way(descriptor, start, nbytes):
        allocate(descriptor, start, nbytes)
        if start > 10_000:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(arena, "_CHUNK_BYTES", 10_000)
    slots.claim(10_000)
    slot = slots.free_slot()
    seal(slots, slot, 5).unlink()
    monkeypatch.setattr(arena, "_allocate", full_half_way)
    with pytest.raises(SessionError, match="no room for a checkpoint slot of 50000 bytes"):
        slots.grow(slot, 50_000)
    assert slot.capacity == 10_000
    assert places(tmp_path) == in_memory(10_000)


@pytest.mark.parametrize("local_world_size", [1, 3])
@pytest.mark.parametrize("short_of", ["nothing", "memory", "its file system"])
def test_slots_get_the_room_they_want_if_that_leaves_as_much_free(
    make_slots, tmp_path, monkeypatch, local_world_size, short_of
):
    needed = 2 * 2 * 50_000 * local_world_size
    monkeypatch.setattr(arena, "free_memory_bytes", lambda: needed - (short_of == "memory"))
    usage = shutil.disk_usage(tmp_path)._replace(free=needed - (short_of == "its file system"))
    monkeypatch.setattr(arena.shutil, "disk_usage", {tmp_path / "memory": usage}.__getitem__)
    slots = make_slots(local_world_size=local_world_size)
    slots.claim(10_000, 50_000)
    expected = 50_000 if short_of == "nothing" else 10_000
    assert slots.room() == expected
    assert places(tmp_path) == in_memory(expected)


def test_a_slot_in_use_is_not_given_the_room_it_wants(slots):
    slots.claim(10_000)
    slot = slots.free_slot()
    seal(slots, slot, 5)
    slots.claim(10_000, 50_000)
    assert slot.capacity == slots.room() == 10_000
    assert slots.free_slot().capacity == 50_000


@pytest.mark.parametrize("refused", [errno.ENOSPC, errno.EIO])
def test_slots_without_the_room_they_want_keep_what_they_have(slots, tmp_path, monkeypatch, refused):
    allocate = arena._allocate

    def full(descriptor, start, nbytes):
        if start + nbytes > 10_000:
            raise OSError(refused, "refused")
        allocate(descriptor, start, nbytes)

    monkeypatch.setattr(arena, "_allocate", full)
    if refused == errno.ENOSPC:
        slots.claim(10_000, 50_000)
    else:
        with pytest.raises(OSError, match="refused"):
            slots.claim(10_000, 50_000)
    assert slots.room() == 10_000
    assert places(tmp_path) == in_memory(10_000)


def test_a_claim_in_a_hurry_makes_do_without_what_it_merely_wants(slots, tmp_path, monkeypatch):
    allocate, ends = arena._allocate, []

    def hurry_at_the_first_extra_byte(descriptor, start, nbytes):
        ends.append(start + nbytes)
        if start + nbytes > 10_000:
            slots.hurry()
        allocate(descriptor, start, nbytes)

    monkeypatch.setattr(arena, "_CHUNK_BYTES", 10_000)
    monkeypatch.setattr(arena, "_allocate", hurry_at_the_first_extra_byte)
    slots.claim(10_000, 50_000)
    assert ends == [10_000, 10_000, 10_000, 20_000]
    assert slots.room() == 10_000
    assert places(tmp_path) == in_memory(10_000)


def test_a_slot_in_use_keeps_its_content_while_the_arena_grows(slots):
    slots.claim(10)
    slot = slots.free_slot()
    capacity, path = slot.capacity, seal(slots, slot, 5)
    slots.claim(1 << 20)
    assert slot.capacity == capacity == mmap.PAGESIZE
    path.unlink()
    slots.claim(1 << 20)
    assert slot.capacity == 1 << 20


def test_without_posix_fallocate_the_space_is_written(slots, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    slots.claim(3_000_001)
    status = slots.free_slot().path.stat()
    assert status.st_size == 3_000_001
    assert status.st_blocks * 512 >= 3_000_001


def test_the_files_outlive_the_arena(slots):
    slots.claim(10)
    path = slots.free_slot().path
    slots.close()
    assert path.exists()


# --- GPUs, played by the CPU ------------------------------------------------------------------------


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    @property
    def device(self):
        return torch.device("cuda", 1)


class Cuda:
    """Stands in for ``torch.cuda``, whose copies are torch's own; ``calls`` is what it was asked for."""

    def __init__(self, calls, *, refuses=False):
        self._calls, self._refuses = calls, refuses

    def cudart(self):
        return self

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802
        self._calls.append(("lock", nbytes))
        return 1 if self._refuses else 0

    def cudaHostUnregister(self, address):  # noqa: N802
        self._calls.append("unlock")

    def device(self, device):
        assert device.index == 1
        return contextlib.nullcontext()

    stream = current_stream = lambda self, *_: contextlib.nullcontext()

    def Stream(self, device):  # noqa: N802
        self._calls.append("stream")
        return types.SimpleNamespace(
            wait_stream=lambda _: None, synchronize=lambda: self._calls.append("done")
        )


@pytest.fixture
def write_from_gpu(slots, monkeypatch):
    """``write_from_gpu(num_bytes)``: a save of so much to the same slot; what was asked of CUDA for it."""
    calls = []

    def stage(copies):
        calls.append(("staged", sum(view.nbytes for view, _ in copies)))
        for view, tensor in copies:
            view.copy_(tensor)

    monkeypatch.setattr(arena, "_copy_through_staging", stage)
    monkeypatch.setattr(arena, "_forget_error", lambda _: calls.append("forgotten"))
    slots.claim(8000)

    def write(*lengths, refuses=False):
        monkeypatch.setattr(torch, "cuda", Cuda(calls, refuses=refuses))
        items = [Item(str(n), "uint8", (length,), 1) for n, length in enumerate(lengths)]
        made = plan(items, world_size=1)
        data = {str(n): torch.full((length,), n + 1, dtype=torch.uint8) for n, length in enumerate(lengths)}
        slot = slots._slots[0]
        tensors = [data[one.item.name].as_subclass(OnGpu) for one in made.parts[0]]
        slot.write(made.parts[0], tensors)
        held = slot.path.read_bytes()
        for one in made.parts[0]:
            assert held[one.offset : one.offset + one.nbytes] == bytes(data[one.item.name].tolist())
        found = tuple(calls)
        calls.clear()
        return found

    return write


def test_what_a_save_needs_is_page_locked_once(write_from_gpu):
    first = write_from_gpu(1000, 1000)
    assert first[0][0] == "lock"
    assert first[0][1] >= 2000
    assert first[1:] == ("stream", "done")
    assert write_from_gpu(1000, 1000) == ("stream", "done")


def test_what_a_later_save_needs_beyond_it_is_not_locked_anew(write_from_gpu):
    """To unlock the rest, CUDA would wait for the GPU, and a drain has no time for that."""
    write_from_gpu(1000, 1000)
    assert write_from_gpu(1000, 1000, 3000) == ("stream", ("staged", 3000), "done")


def test_memory_that_cannot_be_locked_is_tried_once_and_the_error_is_not_left_to_the_training(write_from_gpu):
    refused = write_from_gpu(1000, refuses=True)
    assert refused[0][0] == "lock"
    assert refused[1:] == ("forgotten", ("staged", 1000))
    assert write_from_gpu(1000) == (("staged", 1000),)


def test_a_locked_slot_stays_mapped_and_locked_when_it_is_closed(write_from_gpu, slots):
    write_from_gpu(1000)
    address = slots._slots[0]._bytes.data_ptr()
    slots.close()
    assert [one.data_ptr() for one in arena._locked_for_good[-1:]] == [address]


def test_the_slot_that_was_just_written_is_left_alone_before_it_is_sealed(slots, monkeypatch):
    """It was given more room, and zeros, if it was free a moment before its seal."""
    slots.claim(8000)
    written = slots.free_slot()
    written.put(0, b"x" * 8000)
    slots.claim(9000, 20_000, written=written)
    assert [slot.capacity for slot in slots._slots] == [8000, 20_000]
    assert written.path.read_bytes() == b"x" * 8000
