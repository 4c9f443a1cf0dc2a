"""What counts as a checkpoint's files on a real disk, and who writes to them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudspot.agent.delivery.checkpoint_files import (
    CheckpointFiles,
    file_step_of,
    is_pointer,
    may_replace,
    root_of,
    writers,
)
from cloudspot.agent.delivery.checkpoint_states import Look, State
from cloudspot.agent.delivery.set_aside import SetAside, set_aside


def files(
    work: Path, *patterns: str, exclude: tuple[str, ...] = (), beside: tuple[str, ...] = ()
) -> CheckpointFiles:
    return CheckpointFiles(work, patterns, exclude, beside)


def write(work: Path, path: str, data: bytes = b"weights") -> Path:
    (work / path).parent.mkdir(parents=True, exist_ok=True)
    (work / path).write_bytes(data)
    return work / path


def look(found: CheckpointFiles) -> Look:
    looks = found.looks()
    assert looks is not None
    (one,) = looks
    return one


def paths(found: CheckpointFiles) -> list[list[str]]:
    return [sorted(one.files) for one in found.looks() or ()]


def test_a_file_is_a_checkpoint(tmp_path: Path) -> None:
    """As the ImageNet example writes it: nothing was saved, and no word was said."""
    write(tmp_path, "checkpoint.pth.tar")
    assert paths(files(tmp_path, "checkpoint.pth.tar")) == [["checkpoint.pth.tar"]]


def test_files_of_one_step_belong_together_and_those_without_one_to_each(tmp_path: Path) -> None:
    for name in ("model-10.pt", "optimizer-10.pt", "model-20.pt", "best.pt"):
        write(tmp_path, f"out/{name}")
    looks = files(tmp_path, "out/*.pt").looks() or []
    assert {one.step: sorted(one.files) for one in looks} == {
        10: ["out/best.pt", "out/model-10.pt", "out/optimizer-10.pt"],
        20: ["out/best.pt", "out/model-20.pt"],
    }


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("a/model-10.pt", 10),
        ("checkpoint.pth.tar", None),
        ("epoch=3-step=120.ckpt", 120),
        ("models/ppo_replay_buffer_2400_steps.pkl", 2400),
        ("m_0.53", 53),
        ("x7", 7),
        ("ckpt-1795975749387264455", None),  # nanoseconds: more than a step can be
    ],
)
def test_a_files_step_is_the_number_before_its_suffixes(name: str, step: int | None) -> None:
    assert file_step_of(name) == step


def test_the_working_directory_is_a_checkpoint_without_the_code_and_what_is_excluded(tmp_path: Path) -> None:
    """It was an IndexError in the agent, and minutes of restarts while `show` said that the job was running."""
    for path in ("train.py", "data/images.bin", "__pycache__/train.pyc", "state.pt"):
        write(tmp_path, path)
    found = files(tmp_path, ".", exclude=("data",))
    before = look(found)
    assert sorted(before.files) == ["state.pt", "train.py"]
    found.ignored = before.files
    assert look(found).files == {}
    write(tmp_path, "checkpoint.pth.tar")
    write(tmp_path, "state.pt", b"longer weights")
    assert look(found).roots == ("checkpoint.pth.tar", "state.pt")


def test_several_patterns_find_what_each_of_them_does(tmp_path: Path) -> None:
    write(tmp_path, "out/checkpoint-10/model")
    write(tmp_path, "final/model")
    found = files(tmp_path, "out/checkpoint-*", "./final/")
    assert sorted(one.name for one in found.looks() or ()) == ["final", "out/checkpoint-10"]


@pytest.mark.parametrize("text", ["global_step10", "10\n", "out/global_step10", "./global_step10"])
def test_a_small_file_that_names_a_checkpoint_belongs_to_it(tmp_path: Path, text: str) -> None:
    """DeepSpeed's `latest` was not restored: "resumes at step 5", while the script began from scratch."""
    for step in (5, 10):
        write(tmp_path, f"out/global_step{step}/model")
    write(tmp_path, "out/latest", text.encode())
    write(tmp_path, "out/notes", b"global_step10 is the best so far")
    found = {one.step: one for one in files(tmp_path, "out/global_step*").looks() or ()}
    assert (found[5].pointers, found[10].pointers) == (frozenset(), {"out/latest"})
    assert sorted(found[10].files) == ["out/global_step10/model", "out/latest"]


def test_a_link_that_selects_a_checkpoint_belongs_to_it_unless_it_may_be_code(tmp_path: Path) -> None:
    write(tmp_path, "out/step-10/model")
    for name in ("latest", "torch"):
        (tmp_path / "out" / name).symlink_to("step-10")
    found = files(tmp_path, "out/step-*")
    assert look(found).pointers == {"out/latest"}
    assert is_pointer(tmp_path, "out/latest", ["out/step-10"])
    assert not is_pointer(tmp_path, "out/torch", ["out/step-10"])
    assert not is_pointer(tmp_path, "out/latest", ["out/step-20"])


def test_a_pointer_replaces_nothing_but_a_pointer(tmp_path: Path) -> None:
    write(tmp_path, "latest", b"step-5")
    write(tmp_path, "train.py", b"import torch")
    assert may_replace(tmp_path, "latest", ["step-*"])
    assert may_replace(tmp_path, "new", ["step-*"])
    assert not may_replace(tmp_path, "train.py", ["step-*"])


def test_a_name_that_is_not_utf_8_is_a_name(tmp_path: Path) -> None:
    name = os.fsdecode(b"class-caf\xe9.txt")
    write(tmp_path, f"out/{name}")
    assert paths(files(tmp_path, "out")) == [[f"out/{name}"]]


def test_what_grew_is_told_from_what_was_written_anew(tmp_path: Path) -> None:
    path = write(tmp_path, "out/model", b"0123456789" * 100)
    found = files(tmp_path, "out")
    assert look(found).appended == frozenset()
    with path.open("ab") as file:
        file.write(b"more")
    assert look(found).appended == {"out/model"}
    path.write_bytes(b"9876543210" * 101)
    assert look(found).appended == frozenset()


def test_a_file_whose_table_of_contents_is_whole_is_finished(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"weights" * 100)
    found = files(tmp_path, "model.pt")
    assert look(found).finished == "own"
    data = (tmp_path / "model.pt").read_bytes()
    (tmp_path / "model.pt").write_bytes(data[: len(data) // 2])
    assert look(found).finished is None


@pytest.mark.parametrize(("size", "is_whole"), [(16, True), (12, False)])
def test_a_safetensors_file_is_finished_when_it_is_as_long_as_its_table_says(
    tmp_path: Path, size: int, is_whole: bool
) -> None:
    table = b'{"__metadata__": {}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'
    write(tmp_path, "model.safetensors", len(table).to_bytes(8, "little") + table + bytes(size))
    assert look(files(tmp_path, "model.safetensors")).finished == ("own" if is_whole else None)


def test_a_pattern_covers_what_it_finds_and_what_is_below() -> None:
    assert root_of("out/step-10/a/b", ["out/step-*"]) == "out/step-10"
    assert root_of("out/other/a", ["out/step-*"]) is None
    assert root_of("anything", ["."]) == "."


# --- who writes ---------------------------------------------------------------------------------------


HOLD = "import mmap, sys, time; f = open(sys.argv[1], sys.argv[2]); {}; print(flush=True); time.sleep(600)"
MAPPED = "m = mmap.mmap(f.fileno(), 0); f.close()"


@pytest.fixture
def hold() -> Iterator[object]:
    """Start a process that has a file open, or mapped."""
    held: list[subprocess.Popen[bytes]] = []

    def start(path: Path, mode: str, then: str = "pass") -> None:
        command = [sys.executable, "-c", HOLD.format(then), str(path), mode]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        held.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"

    yield start
    for process in held:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what processes have open")
@pytest.mark.parametrize(
    ("mode", "then", "writes"), [("ab", "pass", True), ("rb", "pass", False), ("r+b", MAPPED, True)]
)
def test_a_process_that_can_write_to_a_file_is_seen(tmp_path, hold, mode, then, writes) -> None:
    path = write(tmp_path, "model")
    hold(path, mode, then)
    status = path.stat()
    assert writers({status.st_ino}, status.st_dev) == ({status.st_ino} if writes else frozenset())


# --- setting aside ------------------------------------------------------------------------------------


def taken(
    work: Path,
    one: Look,
    *,
    must_copy: bool,
    writing: frozenset[int] = frozenset(),
    gives_up: bool = False,
    num_linked: Counter[int] | None = None,
    as_number: int = 1,
) -> SetAside | None:
    (work.parent / "staging").mkdir(exist_ok=True)
    state = State(one.name, one.step, tuple(sorted(one.files.items())))
    links = {path for path in one.pointers if (work / path).is_symlink()}
    return set_aside(
        state,
        work,
        work.parent / "staging" / str(as_number),
        logs={},
        links=links,
        num_linked=Counter() if num_linked is None else num_linked,
        must_copy=must_copy,
        writers=lambda _: writing,
        gives_up=lambda: gives_up,
    )


@pytest.mark.parametrize("must_copy", [True, False])
def test_only_a_copy_survives_a_file_that_is_written_to_in_place(
    tmp_path: Path, monkeypatch, must_copy: bool
) -> None:
    monkeypatch.setattr("cloudspot.agent.delivery.set_aside._clone", lambda *_: False)
    path = write(tmp_path / "work", "model.pt")
    kept = taken(tmp_path / "work", look(files(tmp_path / "work", "model.pt")), must_copy=must_copy)
    assert kept is not None
    assert kept.ways == {"copy" if must_copy else "link"}
    path.write_bytes(b"torn")
    assert kept.holds(lambda _: frozenset()) == must_copy
    assert (kept.root / "model.pt").read_bytes() == (b"weights" if must_copy else b"torn")


def test_a_link_survives_a_file_that_is_replaced_or_deleted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("cloudspot.agent.delivery.set_aside._clone", lambda *_: False)
    path = write(tmp_path / "work", "model.pt")
    kept = taken(tmp_path / "work", look(files(tmp_path / "work", "model.pt")), must_copy=False)
    assert kept is not None
    write(tmp_path / "work", "new", b"other weights").replace(path)
    assert kept.holds(lambda _: frozenset())
    assert (kept.root / "model.pt").read_bytes() == b"weights"
    assert not kept.holds(lambda inodes: inodes)  # somebody writes to it


def await_tick(work: Path) -> None:
    """Wait for the clock of the file system, which may count in steps of some milliseconds."""
    now = write(work, "probe").stat().st_ctime_ns
    while write(work, "probe").stat().st_ctime_ns == now:
        pass


def test_a_link_of_another_state_to_the_same_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that stays from save to save cost each upload, and had everything copied from then on."""
    monkeypatch.setattr("cloudspot.agent.delivery.set_aside._clone", lambda *_: False)
    work, num_linked = tmp_path / "work", Counter[int]()
    kept = []
    for number in range(3):
        write(work, "out/new", f"weights {number}".encode()).replace(work / "out/model.pt")
        if number == 0:
            write(work, "out/config", b"constant")
        one = taken(work, look(files(work, "out")), must_copy=False, num_linked=num_linked, as_number=number)
        assert one is not None
        assert one.ways == {"link"}
        kept.append(one)
        if number == 1:
            await_tick(work)
            kept[0].drop()
    assert [one.holds(lambda _: frozenset()) for one in kept[1:]] == [True, True]
    await_tick(work)
    os.utime(write(work, "out/config", b"Constant"), ns=(0, one.state.version[0][1].written_at))
    assert not kept[2].holds(lambda _: frozenset()), "it was written to, and the time set back"


def test_a_disk_without_room_for_a_copy_is_left_to_the_training(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("cloudspot.agent.delivery.set_aside._clone", lambda *_: False)
    monkeypatch.setattr("cloudspot.agent.delivery.set_aside.ROOM", 1 << 60)
    path = write(tmp_path / "work", "model.pt")
    kept = taken(tmp_path / "work", look(files(tmp_path / "work", "model.pt")), must_copy=True)
    assert kept is not None
    assert kept.ways == {"direct"}
    assert kept.holds(lambda _: frozenset())
    path.write_bytes(b"other weights")
    assert not kept.holds(lambda _: frozenset())


def test_a_link_that_leads_somewhere_else_by_now_is_not_set_aside(tmp_path: Path) -> None:
    """The checkpoint before was committed with a link to the one after it, and could not be restored."""
    work = tmp_path / "work"
    write(work, "out/ckpt-1/model.pt")
    (work / "out/latest").symlink_to("ckpt-1")
    one = look(files(work, "out/ckpt-*"))
    assert one.pointers == {"out/latest"}
    (work / "out/latest").unlink()
    (work / "out/latest").symlink_to("ckpt-2")
    assert taken(work, one, must_copy=False) is None


def test_a_copy_is_given_up_when_somebody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script heard of its notice only when ten gigabytes had been copied."""
    monkeypatch.setattr("cloudspot.agent.delivery.set_aside._clone", lambda *_: False)
    work = tmp_path / "work"
    write(work, "model.pt")
    one = look(files(work, "model.pt"))
    assert taken(work, one, must_copy=True, gives_up=True) is None
    assert list((tmp_path / "staging").iterdir()) == []
    assert taken(work, one, must_copy=True) is not None


def test_what_somebody_writes_to_is_not_set_aside(tmp_path: Path) -> None:
    write(tmp_path / "work", "model.pt")
    one = look(files(tmp_path / "work", "model.pt"))
    inodes = frozenset(stamp.inode for stamp in one.files.values())
    assert taken(tmp_path / "work", one, must_copy=False, writing=inodes) is None
    assert list((tmp_path / "staging").iterdir()) == []


def test_on_a_full_disk_a_checkpoint_is_read_where_it_is_and_never_removed(
    tmp_path: Path, monkeypatch
) -> None:
    def full(*_args: object, **_ways: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    path = write(tmp_path / "work", "model.pt")
    (tmp_path / "work" / "latest").symlink_to("model.pt")
    monkeypatch.setattr("cloudspot.agent.delivery.set_aside._take", full)
    kept = taken(tmp_path / "work", look(files(tmp_path / "work", "model.pt")), must_copy=True)
    assert kept is not None
    assert (kept.ways, kept.root) == ({"direct"}, tmp_path / "work")
    assert [file.path for file in kept.files] == [
        "model.pt"
    ]  # the text of a link cannot be read in its place
    kept.drop()
    assert path.read_bytes() == b"weights"
