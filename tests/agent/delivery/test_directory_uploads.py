"""Checkpoints of scripts without a session, from their disk to the store and back."""

from __future__ import annotations

import os
import shutil
import time
from types import SimpleNamespace

import pytest
from support.records import made_journal

from cloudspot.agent.delivery.checkpoint_restore import Restored, restore_newest, restore_own
from cloudspot.agent.leaving import LeavingError
from cloudspot.errors import CorruptData
from cloudspot.jobstore.checkpoints import manifests
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import SaveId

ODD = os.fsdecode(b"class-caf\xe9.txt")


class Clock:
    """The time of the agent, which each look moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    times = SimpleNamespace(monotonic=made, thread_time=lambda: 0.0, sleep=time.sleep)
    monkeypatch.setattr("cloudspot.agent.delivery.directory_uploads.time", times)
    # What other processes of this machine have open is none of these tests'.
    monkeypatch.setattr("cloudspot.agent.delivery.checkpoint_files.writers", lambda *_, **__: frozenset())
    return made


class Script:
    """A life whose script has begun, with its clock."""

    def __init__(self, bench, clock, *, data=None, **checkpoint) -> None:
        self.bench, self.clock = bench, clock
        self.life = bench.life(checkpoint={"directory": "out", **checkpoint}, data=data or {})
        bench.start()
        status = self.life.context.status
        status.generation = self.life.context.memory.generation = 1
        status.ranks = (0,)
        self.work = self.life.context.node.work
        self.uploads = self.life.courier._directories
        self.uploads.begin(Restored(None))

    def write(self, path: str, text: str) -> None:
        (self.work / path).parent.mkdir(parents=True, exist_ok=True)
        (self.work / path).write_text(text)

    def wait(self, seconds: float) -> None:
        """Let time pass, with a look every half second."""
        for _ in range(round(2 * seconds)):
            self.clock.now += 0.5
            self.uploads.unsent()

    def carry(self) -> None:
        self.uploads.carry(self.life.courier._commit)

    def kept(self) -> list[str]:
        """Return what each commit holds of the model."""
        found = []
        for checkpoint in self.bench.commits():
            save = SaveId(checkpoint.generation, checkpoint.step, 0)
            found.append(self.bench.store.get(keys.chunk("digits-1", save, 0, 0)).decode())
        return found

    def evidence(self) -> str | None:
        return (
            manifests.read_manifest(self.bench.store, "digits-1", self.bench.commits()[-1]).parts[0].evidence
        )


@pytest.fixture
def script(bench, clock, monkeypatch):
    monkeypatch.setattr("cloudspot.agent.delivery.set_aside._clone", lambda *_: False)
    return lambda **checkpoint: Script(bench, clock, **checkpoint)


def test_a_file_that_is_rewritten_every_few_seconds_is_committed(script):
    """All progress was lost at a reclaim, without a word."""
    one = script()
    for number in range(4):
        one.write("out/model", f"weights {number}")
        one.wait(4.0)
        one.carry()
        if number == 2:
            # The first was only linked when it was overwritten; from then on, copies are made.
            assert one.kept() == ["weights 1"]
            assert one.evidence() == "taken for complete since the next save had begun (not proven)"
    one.wait(2.0)
    one.carry()
    assert one.kept() == ["weights 1", "weights 3"]
    assert one.evidence() == "taken for complete since nothing wrote to it for 2 s (not proven)"


def test_a_log_in_the_directory_does_no_harm(script):
    one = script()
    for number in range(3):
        one.write("out/model", f"weights {number}")
        for line in range(12):
            with (one.work / "out" / "train.txt").open("a") as log:
                log.write(f"step {12 * number + line}\n")
            one.wait(1.0)
    one.carry()
    part = manifests.read_manifest(one.bench.store, "digits-1", one.bench.commits()[-1]).parts[0]
    assert {file.path for file in part.files} == {"out/model", "out/train.txt"}


def test_an_upload_that_takes_longer_than_the_time_between_two_saves_is_committed(script, monkeypatch):
    """Nothing ever was, and the message blamed the store."""
    one = script()
    for number in range(3):
        one.write("out/model", f"weights {number}")
        one.wait(4.0)
    put = one.bench.store.put

    def slow_put(key, data, *, if_absent=False):
        put(key, data, if_absent=if_absent)
        if "/chunks/" in key:
            one.write("out/model", "torn")
            one.wait(4.0)

    monkeypatch.setattr(one.bench.store, "put", slow_put)
    one.carry()
    assert one.kept() == ["weights 1"]


def test_a_checkpoint_that_is_its_own_complete_file_is_not_committed_while_it_grows(script):
    """It was, once a second, and pushed out the good ones."""
    one = script(directory="model", complete_file="model")
    one.write("model", "")
    with (one.work / "model").open("a") as file:
        for piece in range(10):
            file.write(f"piece {piece} ")
            file.flush()
            one.wait(1.5)
            one.carry()
    assert one.kept() == []
    one.wait(11.0)
    one.carry()
    assert one.kept() == ["".join(f"piece {piece} " for piece in range(10))]
    assert one.evidence() == "taken for complete since nothing wrote to it for 10 s (not proven)"


def test_a_declared_marker_is_called_a_proof(script):
    one = script(complete_file="done")
    one.write("out/model", "weights")
    one.write("out/done", "")
    one.wait(1.0)
    one.carry()
    assert one.evidence() == "proven complete by done"


@pytest.mark.parametrize("before", ["nothing", "a save a moment ago"])
def test_what_a_script_saves_because_of_a_notice_counts_if_it_leaves_with_status_0(script, before):
    """Its directory was empty before, or had not been quiet for 10 s when the notice came."""
    one = script(on_notice="SIGTERM")
    (one.work / "out").mkdir()
    if before != "nothing":
        one.write("out/model", "weights 1")
        one.wait(1.0)
    one.uploads.ask()
    one.write("out/model", "weights of the notice")
    one.uploads.end_of_script(exited_0=True)
    one.carry()
    assert one.kept() == ["weights of the notice"]
    assert one.uploads.has_answer()


def test_a_notice_in_the_middle_of_a_save_leaves_the_newest_state_that_was_complete(script):
    one = script(on_notice="SIGTERM")
    for number in range(3):
        one.write("out/model", f"weights {number}")
        one.wait(4.0)
    one.write("out/model", "half of the wei")
    one.wait(0.5)
    one.uploads.ask()
    one.uploads.end_of_script(exited_0=False)
    one.carry()
    assert one.kept() == ["weights 2"]


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("checkpoint.pth.tar", ["checkpoint.pth.tar"]),
        (".", ["checkpoint.pth.tar"]),
        (["out/step-*"], ["out/step-10/model", "out/latest", "out/newest"]),
        ("out", [f"out/{ODD}"]),
    ],
)
def test_what_was_saved_is_restored_as_it_was(script, bench, pattern, paths):
    one = script(directory=pattern)
    one.write("train.py", "import torch")
    for path in paths:
        if path == "out/newest":
            (one.work / path).symlink_to("step-10")
        else:
            one.write(path, "step-10" if path == "out/latest" else "weights")
    one.uploads.end_of_script(exited_0=True, is_leaving=False)
    one.carry()
    other = bench.life(machine="another", checkpoint={"directory": pattern})
    work = other.context.node.work
    (work / "out").mkdir(parents=True)
    if "out/latest" in paths:
        (work / "out" / "latest").write_text("step-5")
    restored = restore_newest(other.context)
    assert restored.files >= {*paths}
    for path in paths:
        assert os.path.lexists(work / path)
    if "out/newest" in paths:
        assert str((work / "out" / "newest").readlink()) == "step-10"
        assert (work / "out" / "latest").read_text() == "step-10"
    found = restore_newest(other.context)
    assert found.checkpoint == restored.checkpoint


@pytest.mark.parametrize("path", [{}, {"path": "corpus"}])
def test_an_input_is_no_checkpoint_where_everything_is(script, bench, path):
    one = script(directory=".", data={"corpus": {"url": "s3://bucket/corpus/", "wait": False, **path}})
    one.write(f"{path.get('path', 'data/corpus')}/books.txt", "so many")
    one.write("model.pt", "weights")
    one.uploads.end_of_script(exited_0=True, is_leaving=False)
    one.carry()
    (part,) = manifests.read_manifest(bench.store, "digits-1", bench.commits()[-1]).parts
    assert [file.path for file in part.files] == ["model.pt"]


def test_a_pointer_in_the_store_never_replaces_code(script, bench):
    one = script(directory="step-*")
    one.write("step-10/model", "weights")
    one.write("latest", "step-10")
    one.uploads.end_of_script(exited_0=True, is_leaving=False)
    one.carry()
    other = bench.life(machine="another", checkpoint={"directory": "step-*"})
    (other.context.node.work / "latest").write_text("#!/bin/sh\npython train.py")
    with pytest.raises(LeavingError, match="holds 'latest', which is not part of a checkpoint"):
        restore_newest(other.context)
    assert (other.context.node.work / "latest").read_text() == "#!/bin/sh\npython train.py"


def test_what_may_be_torn_takes_no_good_ones_place(script):
    one = script()
    one.write("out/model", "weights 0")
    one.wait(12.0)
    one.carry()
    assert one.uploads.num_doubtful() == 1
    one.write("out/model", "weights 1")
    one.wait(1.0)
    assert one.uploads.num_doubtful() == 0


def test_a_save_that_begins_with_a_file_of_a_new_name_is_the_next_one(script):
    """As a file more of the save before, it made the time between the two a pause within one, and hid that one."""
    one = script()
    for save in range(4):
        for piece in range(4):
            one.write("out/tmp.pth.tar", f"weights {save}"[: 2 * piece + 3])  # growing, as it is seen
            one.wait(0.5)
        (one.work / "out" / "tmp.pth.tar").replace(one.work / "out" / "last.pth.tar")
        one.wait(1.0)
        one.carry()
        one.wait(6.0)
    assert one.kept() == ["weights 0", "weights 1", "weights 2"]
    assert one.uploads._watch.memory.pause < 2.0


def test_a_file_of_a_new_name_alone_tells_nothing_of_the_files_beside_it(script):
    """It may belong to the same save, even if it is written to and fro."""
    one = script()
    one.write("out/model", "weights 0")
    one.wait(3.0)
    for piece in range(4):
        one.write("out/optimizer", f"{piece} state")
        one.wait(0.5)
    one.carry()
    assert one.kept() == []


def test_a_file_that_is_written_anew_for_ever_keeps_one_state_more_and_no_more(script):
    one = script(directory="model", keep=2)
    for save in range(8):
        one.write("model", f"weights {save}")
        one.wait(30.0)
        one.carry()
        assert one.uploads.num_doubtful() == 1


def test_a_later_agent_knows_odd_names_too(script, bench):
    one = script()
    one.write(f"out/{ODD}", "weights")
    one.wait(12.0)
    later = bench.life(checkpoint={"directory": "out"}).courier._directories
    assert list(later._watch.memory.settled) == ["out"]
    ((path, _),) = later._watch.memory.settled["out"].version
    assert path == f"out/{ODD}"


def test_a_disk_without_room_is_said(script, monkeypatch):
    monkeypatch.setattr("cloudspot.agent.delivery.set_aside.ROOM", 1 << 60)
    one = script()
    for number in range(2):
        one.write("out/model", f"weights {number}")
        one.wait(12.0)
    (warning,) = one.life.context.status.warnings
    assert warning.startswith("there is no room to set out aside")
    one.carry()
    assert one.kept() == ["weights 1"]


def test_an_older_checkpoint_is_not_committed_after_a_newer_one_that_is_gone(script):
    one = script(directory="out/step-*", complete_file="done")
    for step in (10, 20):
        one.write(f"out/step-{step}/model", f"weights {step}")
        one.write(f"out/step-{step}/done", "")
    one.wait(1.0)
    one.carry()
    shutil.rmtree(one.work / "out" / "step-20")
    one.wait(20.0)
    one.carry()
    assert one.kept() == ["weights 20"]


def test_a_complete_checkpoint_that_came_with_the_code_is_not_committed(bench, clock):
    life = bench.life(checkpoint={"directory": "out/step-*", "complete_file": "done"})
    (life.context.node.work / "out" / "step-10").mkdir(parents=True)
    for name in ("model", "done"):
        (life.context.node.work / "out" / "step-10" / name).write_text("of the code")
    one = Script(bench, clock, directory="out/step-*", complete_file="done")
    one.wait(20.0)
    one.carry()
    assert one.kept() == []


@pytest.mark.parametrize(("exited_0", "kept"), [(True, ["weights 20"]), (False, ["weights 10"])])
def test_what_was_complete_before_a_notice_takes_no_time_from_what_is_saved_because_of_it(
    script, exited_0, kept
):
    one = script(directory="out/step-*", on_notice="SIGTERM")
    one.write("out/step-10/model", "weights 10")
    one.wait(2.0)
    one.uploads.ask()
    one.write("out/step-20/model", "weights 20")
    one.wait(0.5)
    one.carry()
    assert one.kept() == []
    one.uploads.end_of_script(exited_0=exited_0)
    one.carry()
    assert one.kept() == kept


@pytest.mark.parametrize(("is_first_whole", "left"), [(True, {"config", "model-10.pt"}), (False, set())])
def test_a_file_without_a_step_is_set_aside_once_and_only_if_no_whole_checkpoint_has_it(
    script, is_first_whole, left
):
    one = script(directory=["model-*.pt", "config"])
    one.write("config", "layers = 2")
    one.write("model-10.pt", "weights 10")
    if is_first_whole:
        one.wait(12.0)
    one.write("model-20.pt", "half of the wei")
    one.wait(0.5)
    one.uploads.end_of_script(exited_0=False)
    one.uploads.set_aside_torn()
    assert {path.name for path in one.work.iterdir() if path.is_file()} == left


class Node(Script):
    """A node of a generation of two whose script writes shards."""

    def __init__(self, bench, clock, rank, **checkpoint) -> None:
        self.bench, self.clock, self.rank = bench, clock, rank
        self.life = bench.life(
            machine=f"machine-{rank}",
            rank=rank,
            nodes=2,
            run={"command": ["python", "train.py"]},
            checkpoint={
                "directory": "out/checkpoint-*",
                "nodes": "all",
                "complete_file": "done",
                **checkpoint,
            },
        )
        if not bench.generations():
            made_journal.start_generation(bench.store, 1, job_id="digits-1", ranks=(0, 1))
        context = self.life.context
        context.status.generation = context.memory.generation = 1
        context.status.ranks = (rank,)
        context.journal.read()
        self.work = context.node.work
        self.uploads = self.life.courier._directories
        self.uploads.begin(Restored(None))

    def save(self, step: int, text: str | None = None) -> None:
        self.write(f"out/checkpoint-{step}/shard-{self.rank}", text or f"{step} of {self.rank}")
        self.write(f"out/checkpoint-{step}/config", f"node {self.rank}")
        self.write(f"out/checkpoint-{step}/done", "")
        self.wait(1.0)

    def carry(self) -> None:
        self.clock.now += 6.0  # the time between two commits
        super().carry()

    def restore(self, *, place=None, num_nodes=2):
        found = restore_newest(self.life.context)
        return restore_own(
            self.life.context, found, place=self.rank if place is None else place, num_nodes=num_nodes
        )

    def files(self) -> dict[str, str]:
        return {
            path.relative_to(self.work).as_posix(): path.read_text()
            for path in sorted(self.work.glob("out/*/*"))
        }

    def warning(self) -> str | None:
        return self.life.context.status._warnings.get("nodes")


@pytest.fixture
def nodes(bench, clock, monkeypatch):
    monkeypatch.setattr("cloudspot.agent.delivery.set_aside._clone", lambda *_: False)
    return lambda **checkpoint: [Node(bench, clock, rank, **checkpoint) for rank in (0, 1)]


def files_of(rank, *steps):
    return {
        f"out/checkpoint-{step}/{name}": text
        for step in steps
        for name, text in (("config", f"node {rank}"), ("done", ""), (f"shard-{rank}", f"{step} of {rank}"))
    }


def test_what_each_node_has_saved_becomes_one_checkpoint_once_all_have_brought_their_parts(nodes):
    """Only the first node's files were uploaded, and yet commits were reported."""
    first, second = nodes()
    first.save(6)
    first.carry()
    assert first.bench.commits() == ()
    second.carry()
    assert first.bench.commits() == (), "it has saved nothing"
    second.save(6)
    second.carry()
    assert first.bench.commits() == (first.bench.id(1, 6),)
    manifest = manifests.read_manifest(first.bench.store, "digits-1", first.bench.id(1, 6))
    assert [sorted(file.name for file in part.files) for part in manifest.parts] == [
        [f"out/checkpoint-6/{name}" for name in ("config", "done", f"shard-{rank}")] for rank in (0, 1)
    ]


def test_the_nodes_upload_the_state_that_the_first_has_chosen_however_often_they_save(nodes):
    """Each by itself would choose its own newest: no two of them would ever belong together."""
    first, second = nodes()
    second.save(6)
    second.carry()
    first.save(6)
    first.save(12)
    second.save(12)
    first.carry()
    for step in (18, 24):
        first.save(step)
        second.save(step)
    second.carry()
    assert first.bench.commits() == (first.bench.id(1, 12),)
    first.carry()
    second.carry()
    assert first.bench.commits()[-1] == first.bench.id(1, 24)


def test_each_node_uploads_the_last_state_once_its_script_has_ended(nodes):
    first, second = nodes()
    for one in (second, first):
        one.save(6)
        one.uploads.end_of_script(exited_0=True, is_leaving=False)
    second.carry()
    first.carry()
    assert first.bench.commits() == (first.bench.id(1, 6),)


def test_a_node_that_is_lost_before_its_upload_leaves_the_checkpoint_before(nodes, bench):
    first, second = nodes()
    for step in (6, 12):
        first.save(step)
        second.save(step)
        first.carry()
        if step == 6:
            second.carry()
    first.uploads.end_of_script()
    assert restore_newest(first.life.context).checkpoint == bench.id(1, 6)
    first.uploads.set_aside_torn()
    restored = first.restore()
    first.life.context.status.restored_step = 6
    first.uploads.begin(restored)
    assert first.files() == files_of(0, 6), "it would go on from step 12, and the other node from step 6"
    assert (first.life.context.node.torn / "out" / "checkpoint-12" / "shard-0").exists()


def test_each_node_gets_its_own_files_back(nodes):
    first, second = nodes()
    for one in (first, second):
        one.save(6)
        one.carry()
    for one in (first, second):
        one.uploads.end_of_script()
        shutil.rmtree(one.work / "out")
        restored = one.restore()
        assert restored.on_demand is None
        assert one.files() == files_of(one.rank, 6)


def test_a_node_in_another_place_gets_the_files_of_that_place(nodes):
    first, second = nodes()
    for one in (first, second):
        one.save(6)
        one.carry()
    second.restore(place=0)
    assert second.files() == files_of(0, 6)


def test_another_number_of_nodes_gets_the_files_of_all(nodes):
    first, second = nodes()
    for one in (first, second):
        one.save(6)
        one.carry()
    for one, place, config in ((first, 0, "node 0"), (second, 1, "node 1"), (first, 2, "node 0")):
        one.uploads.end_of_script()
        one.restore(place=place, num_nodes=3)
        assert one.files() == {**files_of(0, 6), **files_of(1, 6), "out/checkpoint-6/config": config}


def test_files_that_lie_there_unchanged_are_not_fetched_again(nodes, monkeypatch):
    first, second = nodes()
    for one in (first, second):
        one.save(6)
        one.carry()
    monkeypatch.setattr("cloudspot.jobstore.checkpoints.fetching.fetch", None)
    assert first.restore().checkpoint == first.bench.id(1, 6)
    first.write("out/checkpoint-6/shard-0", "5 of 0")
    with pytest.raises(TypeError):
        first.restore()


def test_a_part_that_does_not_verify_is_known_to_all_nodes(nodes, bench):
    first, second = nodes()
    for step in (6, 12):
        for one in (first, second):
            one.save(step)
            one.carry()
    bench.spoil(bench.id(1, 12))
    shutil.rmtree(first.work / "out")
    with pytest.raises(CorruptData):
        first.restore()
    assert second.restore().checkpoint == bench.id(1, 6)


def test_states_without_a_step_are_not_put_together(nodes):
    """Nothing says which of them belong together."""
    first, second = nodes(directory="out/last")
    for one in (first, second):
        one.write("out/last/model", "weights")
        one.write("out/last/done", "")
        one.wait(1.0)
        one.carry()
        assert one.uploads.unsent() == []
        assert "its name does not end with its step" in one.warning()
    assert first.bench.commits() == ()


def test_a_number_that_stands_for_two_states_is_not_put_together(nodes):
    """A script that rewrites epoch-3 every minute: one node's part would be older than another's."""
    first, second = nodes()
    second.save(3, "half of the epoch")
    second.save(3, "all of the epoch")
    first.save(3)
    for one in (first, second):
        one.carry()
    assert "it was written more than once under the same number" in second.warning()
    assert first.bench.commits() == ()


def test_it_is_said_that_a_node_brings_no_part(nodes, clock):
    first, second = nodes()
    first.save(6)
    second.save(7)
    first.carry()
    second.carry()
    clock.now += 301.0
    first.wait(1.0)
    assert first.warning().startswith("no checkpoint was committed since step 6 because not every node")
    second.save(18)
    first.save(18)
    for one in (first, second):
        one.carry()
    first.life.context.journal.read()
    first.wait(1.0)
    assert first.warning() is None


def test_files_of_a_node_that_are_in_no_checkpoint_are_told(nodes):
    """The job could never resume, and bought machines again and again."""
    first, second = nodes(nodes="first")
    first.save(6)
    first.carry()
    second.life.context.journal.read()
    second.uploads._suggest_all()
    assert second.warning() is None
    second.save(6)
    second.clock.now += 6.0
    second.uploads._suggest_all()
    assert second.warning() == (
        "out/checkpoint-6/shard-1 of this node is in no checkpoint: only the first node's files are. If the "
        'script resumes from them, set checkpoint.nodes = "all"'
    )


def test_what_all_nodes_write_alike_is_not_told(nodes):
    first, second = nodes(nodes="first")
    for one in (first, second):
        one.write("out/checkpoint-6/model", "weights")
        one.write("out/checkpoint-6/done", "")
        one.wait(1.0)
    first.carry()
    second.life.context.journal.read()
    second.uploads._suggest_all()
    assert second.warning() is None
