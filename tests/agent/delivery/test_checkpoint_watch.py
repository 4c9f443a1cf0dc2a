"""Checkpoint directories of scripts without a session: which are complete, and how they are staged."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest

from cloudspot.agent.delivery.checkpoint_files import CheckpointFiles, links_left_out, step_of
from cloudspot.agent.delivery.checkpoint_states import Look, Memory, State
from cloudspot.agent.delivery.checkpoint_watch import MAX_MISSING, RESTLESS_SECONDS, CheckpointWatch
from cloudspot.agent.delivery.set_aside import SetAside, set_aside


def checkpoint(work: Path, step: int, text: str = "weights") -> Path:
    path = work / "output" / f"checkpoint-{step}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.bin").write_text(text)
    return path


class Watched:
    """The checkpoints below a directory, with the watch of one agent, which begins with what the last one knew."""

    def __init__(
        self,
        work: Path,
        pattern: str = "output/checkpoint-*",
        *,
        complete_file: str | None = None,
        incomplete_file: str | None = None,
    ) -> None:
        self.work, self._memory = work, work / "before.json"
        markers = [name for name in (complete_file, incomplete_file) if name is not None]
        self._files = CheckpointFiles(work, (pattern,), ("before.json",), markers)
        known = json.loads(self._memory.read_bytes()) if self._memory.exists() else {}
        self.watch = CheckpointWatch(complete_file, incomplete_file, msgspec.convert(known, Memory))

    def looks(self) -> list[Look]:
        looks = None
        while looks is None:
            looks = self._files.looks(lambda _: True)  # nobody else writes there
        return looks

    def _keep(self) -> None:
        self._memory.write_text(json.dumps(msgspec.to_builtins(self.watch.memory)))

    def ready(self, now: float, *, alive: bool) -> tuple[State, ...]:
        looks = self.looks()
        if alive:
            self.watch.look(looks, now)
        else:
            self.watch.end(looks, exited_0=False, is_leaving=True)
        self._keep()
        return self.watch.complete(looks)

    def begin_script(self) -> None:
        self.watch.begin(self.looks())
        self._keep()

    def finish_script(self) -> None:
        self.watch.end(self.looks(), exited_0=True, is_leaving=False)
        self._keep()

    def ask(self) -> None:
        self.watch.ask(self.looks())
        self._keep()

    def finish_answer(self, *, exited_0: bool) -> None:
        self.watch.end(self.looks(), exited_0=exited_0, is_leaving=True)

    def torn(self) -> tuple[Look, ...]:
        return self.watch.torn(self.looks())

    def is_answer(self, state: State) -> bool:
        return self.watch.is_answer(state)

    def restless(self, now: float) -> tuple[str, ...]:
        return self.watch.restless(now)

    @property
    def was_asked(self) -> bool:
        return self.watch.was_asked

    @property
    def save_seconds(self) -> float | None:
        return self.watch.save_seconds

    def stage(self, state: State) -> SetAside | None:
        (self.work.parent / "staging").mkdir(exist_ok=True)
        return set_aside(
            state,
            self.work,
            self.work.parent / "staging" / "1",
            logs={},
            links=(),
            num_linked=Counter(),
            must_copy=False,
            writers=self._files.writers,
        )


def watch(work: Path, complete_file: str | None = None, *, incomplete_file: str | None = None) -> Watched:
    return Watched(work, complete_file=complete_file, incomplete_file=incomplete_file)


def test_a_directory_is_complete_when_nothing_touched_it_for_ten_seconds(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    checkpoint(tmp_path, 10)
    assert directories.ready(100.0, alive=True) == ()
    assert directories.ready(109.9, alive=True) == ()
    assert [d.step for d in directories.ready(110.0, alive=True)] == [10]


def test_a_touch_starts_the_ten_seconds_again(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    checkpoint(tmp_path, 10)
    directories.ready(100.0, alive=True)
    checkpoint(tmp_path, 10, "other weights")
    assert directories.ready(111.0, alive=True) == ()
    assert len(directories.ready(121.0, alive=True)) == 1


def test_quiet_after_the_scripts_death_proves_nothing(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    checkpoint(tmp_path, 10)
    directories.ready(100.0, alive=True)
    directories.ready(105.0, alive=True)
    assert directories.ready(500.0, alive=False) == ()


def test_how_long_a_save_takes_is_measured_by_what_it_wrote(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    directories.begin_script()
    assert directories.save_seconds is None
    path = checkpoint(tmp_path, 10)
    (path / "optimizer.bin").write_text("state")
    os.utime(path / "model.bin", ns=(10**9, 10**9))
    os.utime(path / "optimizer.bin", ns=(31 * 10**9, 31 * 10**9))
    directories.ready(100.0, alive=True)
    directories.ready(110.0, alive=True)
    assert directories.save_seconds == 30.0
    # In a directory that is kept, only what is new tells.
    (path / "again.bin").write_text("more")
    (path / "last.bin").write_text("more")
    os.utime(path / "again.bin", ns=(100 * 10**9, 100 * 10**9))
    os.utime(path / "last.bin", ns=(102 * 10**9, 102 * 10**9))
    directories.ready(120.0, alive=True)
    directories.ready(130.0, alive=True)
    assert directories.save_seconds == 2.0


def test_what_is_an_answer_began_after_the_script_was_asked(tmp_path: Path) -> None:
    directories = watch(tmp_path, "done")
    directories.begin_script()
    for step in (10, 20):
        checkpoint(tmp_path, step)
    (tmp_path / "output" / "checkpoint-10" / "done").touch()
    assert not directories.was_asked
    directories.ask()
    add(tmp_path, 20, "the rest of it")
    (tmp_path / "output" / "checkpoint-20" / "done").touch()
    for again in (directories, watch(tmp_path, "done")):  # of the next agent
        again.ask()  # asking again changes nothing
        assert again.was_asked
        found = again.ready(0.0, alive=True)
        assert [(d.step, again.is_answer(d)) for d in found] == [(10, False), (20, False)]
    checkpoint(tmp_path, 10, "rewritten, longer")
    checkpoint(tmp_path, 30)
    for step in (10, 30):
        (tmp_path / "output" / f"checkpoint-{step}" / "done").touch()
    found = directories.ready(0.0, alive=False)
    assert [(d.step, directories.is_answer(d)) for d in found] == [(10, True), (20, False), (30, True)]
    directories.begin_script()
    assert not directories.was_asked


def answer(directories: Watched, *, exited_0: bool) -> list[int | None]:
    """Return the steps of the answers that count as complete when the script has ended."""
    directories.finish_answer(exited_0=exited_0)
    ready = directories.ready(1000.0, alive=False)
    return [each.step for each in ready if directories.is_answer(each)]


def test_a_script_that_left_with_status_0_as_it_was_asked_to_has_completed_its_answer(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    directories.begin_script()
    checkpoint(tmp_path, 10)
    directories.ask()
    add(tmp_path, 10, "and what it was in the middle of")
    checkpoint(tmp_path, 20)
    assert answer(directories, exited_0=False) == []
    assert answer(directories, exited_0=True) == [20]
    assert [each.step for each in directories.torn()] == [10]


def test_an_answer_in_the_one_directory_that_was_restored_is_known(tmp_path: Path) -> None:
    """Lightning keeps all its files in one: from the second reclaim on, what it saved was taken for torn."""
    path = checkpoint(tmp_path, 10)
    directories = watch(tmp_path)  # on a new machine
    directories.begin_script()
    directories.ask()
    assert answer(directories, exited_0=True) == []
    (path / "another.bin").touch()
    assert answer(directories, exited_0=True) == [10]
    assert directories.torn() == ()


def test_an_answer_that_lacks_a_file_of_the_checkpoint_before_is_not_complete(tmp_path: Path) -> None:
    """The thread that saves a Trainer's checkpoint may die with the process, which exits 0."""
    resumed = checkpoint(tmp_path, 10)
    (resumed / "optimizer-10.bin").touch()
    directories = watch(tmp_path)
    directories.begin_script()
    directories.ask()
    torn, whole = checkpoint(tmp_path, 20), checkpoint(tmp_path, 30)
    (whole / "optimizer-30.bin").touch()
    assert answer(directories, exited_0=True) == [30]
    (torn / "optimizer-20.bin").touch()
    assert answer(directories, exited_0=True) == [20, 30]


def add(work: Path, step: int, text: str) -> None:
    """Go on with a file that was being written."""
    with (work / "output" / f"checkpoint-{step}" / "model.bin").open("a") as file:
        file.write(text)


def put_files(path: Path, names: Sequence[str]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (path / name).write_text("{}")
        os.utime(path / name, ns=(number, time.time_ns()))


OF_THE_TRAINER = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
OF_ACCELERATE = ("model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl")


def test_an_answer_into_the_directory_that_was_being_written_is_complete_if_its_content_says_so(
    tmp_path: Path,
):
    """The Trainer saves the same step once more when it is told of the notice."""
    directories = Watched(tmp_path, "checkpoint-*")
    directories.begin_script()
    put_files(tmp_path / "checkpoint-50", OF_THE_TRAINER)
    directories.ready(0, alive=True)
    directories.ready(3, alive=True)
    put_files(tmp_path / "checkpoint-100", OF_THE_TRAINER[:2])
    directories.ready(4, alive=True)
    directories.ask()
    put_files(tmp_path / "checkpoint-100", OF_THE_TRAINER)
    directories.finish_answer(exited_0=True)
    assert "checkpoint-100" in [each.name for each in directories.ready(6, alive=False)]
    assert directories.torn() == ()


WITH_AN_INDEX = ("a.safetensors", "model.safetensors.index.json")
TABLES = (WITH_AN_INDEX, ("__0_0.distcp", ".metadata"), OF_ACCELERATE)


def put_index(path: Path, names: Sequence[str]) -> None:
    """Write files, and say in the index, if one is among them, which shard there is."""
    put_files(path, names)
    for index in path.glob("*.index.json"):
        index.write_text('{"weight_map": {"x": "a.safetensors"}}')


@pytest.mark.parametrize("table", TABLES)
def test_a_table_proves_its_own_files_and_not_that_nothing_follows_in_the_first_save(
    tmp_path: Path, table: tuple[str, ...]
) -> None:
    """While the optimizer's state was gathered, the model alone was committed, and called proven."""
    directories = Watched(tmp_path, "checkpoint-*")
    directories.begin_script()
    for step in (1, 2):
        now = 20.0 * step
        put_index(tmp_path / f"checkpoint-{step}", table)
        directories.ready(now, alive=True)
        found = directories.ready(now + 5, alive=True)
        assert [one.step for one in found] == [1][: step - 1], "the rest is still to come"
        put_files(tmp_path / f"checkpoint-{step}", ["rest"])
        directories.ready(now + 6, alive=True)
        directories.ready(now + 7, alive=True)
    # The first is known as the second has begun; that has what the first has, and a table.
    put_index(tmp_path / "checkpoint-3", ["rest"])
    directories.ready(60, alive=True)
    put_index(tmp_path / "checkpoint-3", table)
    directories.ready(61, alive=True)
    directories.ready(61.5, alive=True)
    found = directories.ready(64, alive=True)
    assert [(one.step, one.evidence) for one in found] == [(1, "next"), (2, "next"), (3, "index")]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_is_written_anew_tells_nothing_of_the_files_beside_it(
    tmp_path: Path, table: tuple[str, ...]
) -> None:
    """The new model was committed with the optimizer's state of the save before."""
    directories = Watched(tmp_path, "last")
    directories.begin_script()
    for now in (0.0, 20.0):
        put_index(tmp_path / "last", table)
        directories.ready(now, alive=True)
        directories.ready(now + 1, alive=True)
        assert directories.ready(now + 5, alive=True) == ()
        put_files(tmp_path / "last", ["rest"])
        directories.ready(now + 6, alive=True)
        directories.ready(now + 7, alive=True)


@pytest.mark.parametrize("table", TABLES)
def test_a_first_answer_of_which_only_the_table_is_there_is_torn(
    tmp_path: Path, table: tuple[str, ...]
) -> None:
    directories = Watched(tmp_path, "checkpoint-*")
    directories.begin_script()
    directories.ask()
    put_index(tmp_path / "checkpoint-1", table)
    directories.finish_answer(exited_0=False)
    assert directories.ready(1, alive=False) == ()
    assert [each.name for each in directories.torn()] == ["checkpoint-1"]


def test_what_lacks_a_file_of_the_checkpoint_before_has_to_be_quiet_for_longer(tmp_path: Path):
    """Accelerate writes objects that the script has registered last, and they may take their time."""
    directories = Watched(tmp_path, "checkpoint_*")
    directories.begin_script()
    put_files(tmp_path / "checkpoint_0", [*OF_ACCELERATE, "custom_checkpoint_0.pkl"])
    directories.ready(0, alive=True)
    directories.ready(3, alive=True)
    put_files(tmp_path / "checkpoint_1", OF_ACCELERATE)
    directories.ready(10, alive=True)
    assert "checkpoint_1" not in [each.name for each in directories.ready(12.5, alive=True)]
    assert "checkpoint_1" in [each.name for each in directories.ready(20.5, alive=True)]


def test_an_answer_whose_content_says_so_is_complete_however_the_script_ended(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    directories.begin_script()
    directories.ask()
    for step in (10, 20):
        path = checkpoint(tmp_path, step)
        (path / "trainer_state.json").write_text("{}" if step == 20 else "{")
        os.utime(path / "model.bin", ns=(10**9, 10**9))
    assert answer(directories, exited_0=False) == [20]


def test_a_directory_is_incomplete_while_its_incomplete_file_is_there(tmp_path: Path) -> None:
    directories = watch(tmp_path, incomplete_file="saving")
    directories.begin_script()
    path = checkpoint(tmp_path, 10)
    (path / "saving").touch()
    assert [directories.ready(now, alive=True) for now in (100.0, 111.0, 200.0)] == [(), (), ()]
    (path / "saving").unlink()
    assert directories.ready(201.0, alive=True) == ()  # it may just have been made
    assert [each.step for each in directories.ready(203.0, alive=True)] == [10]
    (path / "saving").touch()
    assert directories.ready(204.0, alive=True) == ()
    directories.finish_script()
    assert directories.ready(205.0, alive=False) == ()
    assert [each.step for each in directories.torn()] == [10]


def test_the_trainers_own_incomplete_file_needs_no_name(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    path = checkpoint(tmp_path, 10)
    (path / "checkpoint-is-incomplete.txt").touch()
    (path / "trainer_state.json").write_text("{}")
    assert [directories.ready(now, alive=True) for now in (100.0, 120.0)] == [(), ()]
    directories.finish_script()
    assert directories.ready(121.0, alive=False) == ()


def test_a_directory_that_is_known_by_its_content_has_to_be_quiet_for_two_seconds(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    path = checkpoint(tmp_path, 10)
    os.utime(path / "model.bin", ns=(10**9, 10**9))
    (path / "trainer_state.json").write_text("{}")
    assert [directories.ready(now, alive=True) for now in (100.0, 101.9)] == [(), ()]
    assert [each.step for each in directories.ready(102.0, alive=True)] == [10]


def test_a_directory_that_is_never_quiet_is_told_of(tmp_path: Path) -> None:
    """Lightning's `last`: it was never uploaded, and nobody said so."""
    directories = watch(tmp_path)
    directories.begin_script()
    for number in range(100):
        checkpoint(tmp_path, 10, "weights" * number)
        assert directories.ready(100.0 + 5 * number, alive=True) == ()
        late = 5 * number >= RESTLESS_SECONDS
        assert directories.restless(100.0 + 5 * number) == (("output/checkpoint-10",) if late else ())
    assert len(directories.ready(605.0, alive=True)) == 1
    assert directories.restless(605.0) == ()


def test_a_complete_file_needs_no_waiting(tmp_path: Path) -> None:
    directories = watch(tmp_path, "done")
    path = checkpoint(tmp_path, 10)
    assert directories.ready(100.0, alive=True) == ()
    (path / "done").touch()
    assert [d.name for d in directories.ready(100.1, alive=False)] == ["output/checkpoint-10"]


def test_what_is_left_of_a_directory_that_is_being_deleted_is_not_complete(tmp_path: Path) -> None:
    """Its complete file may go last: the remains were committed, and were the answer to a notice."""
    directories = watch(tmp_path, "done")
    directories.begin_script()
    path = checkpoint(tmp_path, 10)
    (path / "optimizer.bin").write_text("state")
    (path / "done").touch()
    whole = directories.ready(100.0, alive=True)
    directories.ask()
    (path / "model.bin").unlink()
    for each in (directories, watch(tmp_path, "done")):
        assert each.ready(101.0, alive=True) == each.ready(120.0, alive=True) == ()
        assert each.restless(101.0 + RESTLESS_SECONDS) == ()
        assert [torn.name for torn in each.torn()] == ["output/checkpoint-10"]
    (checkpoint(tmp_path, 20) / "done").touch()
    assert [each.step for each in directories.ready(130.0, alive=True)] == [20]
    assert directories.torn() == ()
    shutil.rmtree(tmp_path / "output" / "checkpoint-20")
    directories.begin_script()
    (path / "optimizer.bin").unlink()
    assert directories.ready(200.0, alive=False) == ()
    checkpoint(tmp_path, 10, "new weights")
    assert directories.ready(201.0, alive=True) == ()
    (path / "done").touch()
    (again,) = directories.ready(202.0, alive=True)
    assert again.version != whole[0].version


def test_a_directory_that_came_with_the_code_is_no_work_of_the_script(tmp_path: Path) -> None:
    for complete_file in ("done", None):
        work = tmp_path / str(complete_file)
        path = checkpoint(work, 1000)
        (path / "done").touch()
        directories = watch(work, complete_file)
        directories.begin_script()
        checkpoint(work, 10)
        (work / "output" / "checkpoint-10" / "done").touch()
        directories.ready(100.0, alive=True)
        assert [each.step for each in directories.ready(110.0, alive=True)] == [10]


def test_an_earlier_complete_file_does_not_complete_what_is_being_rewritten(tmp_path: Path) -> None:
    """A directory rewritten in place was committed in the middle: new weights beside old ones."""
    directories = watch(tmp_path, "done")
    path = checkpoint(tmp_path, 10)
    (path / "done").touch()
    os.utime(path / "done", ns=(10**9, 10**9))
    os.utime(path / "model.bin", ns=(10**9, 10**9))
    assert [d.step for d in directories.ready(100.0, alive=True)] == [10]
    os.utime(path / "model.bin", ns=(10**9 + 1, 10**9 + 1))
    assert directories.ready(101.0, alive=True) == ()
    os.utime(path / "done", ns=(10**9 + 2, 10**9 + 2))
    assert [d.step for d in directories.ready(102.0, alive=True)] == [10]


def test_what_other_ranks_write_after_the_complete_file_completes_by_being_quiet(tmp_path: Path) -> None:
    directories = watch(tmp_path, "done")
    path = checkpoint(tmp_path, 10)
    (path / "done").touch()
    os.utime(path / "done", ns=(10**9, 10**9))
    assert directories.ready(100.0, alive=True) == ()
    assert directories.ready(109.9, alive=True) == ()
    assert [d.step for d in directories.ready(110.0, alive=True)] == [10]


def test_without_its_complete_file_a_directory_is_never_complete(tmp_path: Path) -> None:
    directories = watch(tmp_path, "done")
    checkpoint(tmp_path, 10)
    directories.ready(100.0, alive=True)
    assert directories.ready(200.0, alive=True) == ()
    directories.finish_script()
    assert directories.ready(201.0, alive=False) == ()


def test_a_link_can_be_the_complete_file(tmp_path: Path) -> None:
    directories = watch(tmp_path, "done")
    path = checkpoint(tmp_path, 10)
    os.utime(path / "model.bin", ns=(10**9, 10**9))
    (path / "done").symlink_to("model.bin")
    assert [d.step for d in directories.ready(100.0, alive=True)] == [10]


def test_the_first_file_of_a_pair_is_no_checkpoint_when_the_other_is_begun(tmp_path: Path) -> None:
    """Their checkpoint was named after the first of them, so that it seemed to be a new one."""
    one = Watched(tmp_path, "*_*.pt")
    one.begin_script()
    (tmp_path / "model_100.pt").write_text("weights")
    told = [one.watch.look(one.looks(), now) for now in (0.0, 0.5, 1.0)]
    (tmp_path / "adam_100.pt").write_text("moments")
    told += [one.watch.look(one.looks(), now) for now in (1.5, 2.0)]
    assert told == [()] * 5
    assert one.watch.memory.num_saves == 0


def test_what_is_remembered_does_not_grow_with_the_checkpoints_that_are_deleted(tmp_path: Path) -> None:
    one = Watched(tmp_path)
    one.begin_script()
    for step in range(100):
        directory = tmp_path / "output" / f"checkpoint-{step}"
        directory.mkdir(parents=True)
        (directory / "model").write_text(f"weights {step}")
        for wait in (0.0, 11.0, 22.0):
            one.ready(100.0 * step + wait, alive=True)
        if step > 0:
            shutil.rmtree(tmp_path / "output" / f"checkpoint-{step - 1}")
    assert len(one.watch.memory.settled) <= MAX_MISSING + 2
    assert len(one.watch._born) <= 2


def test_steps_are_numbers_not_words(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    for step in (9, 100, 20):
        checkpoint(tmp_path, step)
    directories.ready(0.0, alive=True)
    assert [d.step for d in directories.ready(20.0, alive=True)] == [9, 20, 100]
    assert step_of("checkpoint-00120") == 120
    assert step_of("last") is None


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("2026-11-20_15-30-53", None),
        ("run-2026-11-20T15:30:53", None),
        ("run_2026.11.20", None),
        ("20261120-153053", None),
        ("2026-11-20-checkpoint-53", 53),
        ("2026-11-20_15-30-53-step-400", 400),
        ("checkpoint-20261120", 20261120),
        ("epoch-1-20-53", 53),
    ],
)
def test_the_end_of_a_date_is_no_step(name, step):
    """A directory that was named after the time it was made was called "step 53"."""
    assert step_of(name) == step


def test_a_staged_directory_survives_its_deletion_by_the_script(tmp_path: Path) -> None:
    directories = watch(tmp_path / "work")
    path = checkpoint(tmp_path / "work", 10)
    directories.ready(0.0, alive=True)
    (ready,) = directories.ready(20.0, alive=True)
    staged = directories.stage(ready)
    shutil.rmtree(path)
    assert staged is not None
    assert (staged.root / "output/checkpoint-10" / "model.bin").read_text() == "weights"
    assert [(file.path, file.size) for file in staged.files] == [("output/checkpoint-10/model.bin", 7)]


def test_files_are_staged_the_oldest_first(tmp_path: Path) -> None:
    """In that order they are restored, and Lightning goes on from the newest."""
    directories = watch(tmp_path / "work")
    path = checkpoint(tmp_path / "work", 10)
    for name, written_at in (("last.ckpt", 2), ("last-v1.ckpt", 3), ("model.bin", 1)):
        (path / name).touch()
        os.utime(path / name, (written_at, written_at))
    directories.ready(0.0, alive=True)
    (ready,) = directories.ready(20.0, alive=True)
    staged = directories.stage(ready)
    assert staged is not None
    assert [file.path for file in staged.files] == [
        f"output/checkpoint-10/{name}" for name in ("model.bin", "last.ckpt", "last-v1.ckpt")
    ]


def test_a_directory_that_changed_since_it_was_seen_is_not_staged(tmp_path: Path) -> None:
    directories = watch(tmp_path / "work")
    checkpoint(tmp_path / "work", 10)
    directories.ready(0.0, alive=True)
    (ready,) = directories.ready(20.0, alive=True)
    checkpoint(tmp_path / "work", 10, "longer weights")
    assert directories.stage(ready) is None


def test_a_link_is_saved_as_the_file_of_the_directory_that_it_leads_to(tmp_path: Path) -> None:
    """As Lightning's ``last.ckpt`` with ``save_last="link"``; a new machine had none, and began at step 0."""
    work = tmp_path / "work"
    directories = watch(work)
    path = checkpoint(work, 10)
    (path / "last.bin").symlink_to("model.bin")
    for name, target in (("secret", tmp_path / "secret"), ("around", path), ("gone", path / "gone")):
        (path / name).symlink_to(target)
    (tmp_path / "secret").write_text("outside")
    directories.ready(0.0, alive=True)
    (ready,) = directories.ready(20.0, alive=True)
    assert [name.rpartition("/")[2] for name, _ in ready.version] == ["last.bin", "model.bin"]
    assert links_left_out(work, directories.looks()[0]) == ["around", "gone", "secret"]
    root = (directories.stage(ready) or pytest.fail("it was not staged")).root / "output/checkpoint-10"
    assert (root / "last.bin").read_text() == "weights"
    assert not (root / "last.bin").is_symlink()
    (path / "other.bin").write_text("other weights")
    (path / "last.bin").unlink()
    (path / "last.bin").symlink_to("other.bin")
    assert directories.ready(21.0, alive=True) == ()


def test_what_a_dead_script_left_half_written_is_not_complete_because_the_next_one_lives(
    tmp_path: Path,
) -> None:
    directories = watch(tmp_path)
    checkpoint(tmp_path, 10)
    directories.ready(100.0, alive=True)
    directories.ready(110.0, alive=True)
    checkpoint(tmp_path, 20, "half of the wei")
    directories.ready(112.0, alive=True)
    directories.begin_script()
    for now in (200.0, 300.0, 400.0):
        assert [d.step for d in directories.ready(now, alive=True)] == [10]
        directories.begin_script()
    checkpoint(tmp_path, 20, "all of the weights")
    directories.ready(500.0, alive=True)
    assert [d.step for d in directories.ready(510.0, alive=True)] == [10, 20]


def test_a_directory_that_goes_away_under_the_scan_is_no_error(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    (checkpoint(tmp_path, 10) / "shards").mkdir()
    stopped = threading.Event()

    def churn() -> None:
        while not stopped.is_set():
            path = checkpoint(tmp_path, 20) / "deep" / "er"
            path.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(tmp_path / "output" / "checkpoint-20")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for now in range(300):
            directories.ready(float(now), alive=True)
    finally:
        stopped.set()
        thread.join()


def test_what_a_script_wrote_just_before_it_finished_is_complete(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    checkpoint(tmp_path, 10, "half of the wei")
    directories.ready(100.0, alive=True)
    directories.begin_script()
    checkpoint(tmp_path, 600)
    directories.ready(150.0, alive=True)
    directories.finish_script()
    assert [d.step for d in directories.ready(151.0, alive=False)] == [600]


def test_that_a_script_has_finished_proves_nothing_about_the_next_one(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    directories.begin_script()
    directories.finish_script()
    directories.begin_script()
    checkpoint(tmp_path, 10, "half of the wei")
    assert directories.ready(100.0, alive=True) == ()
    assert names(directories.torn()) == ["checkpoint-10"]


def test_a_later_agent_of_the_machine_knows_what_had_settled(tmp_path: Path) -> None:
    """An agent died during an upload; the next one set the complete directory aside."""
    directories = watch(tmp_path)
    directories.begin_script()
    checkpoint(tmp_path, 10)
    directories.ready(100.0, alive=True)
    directories.ready(110.0, alive=True)
    checkpoint(tmp_path, 20, "half of the wei")
    directories.ready(112.0, alive=True)
    later = watch(tmp_path)
    assert [d.step for d in later.ready(5.0, alive=False)] == [10]
    assert names(later.torn()) == ["checkpoint-20"]
    checkpoint(tmp_path, 10, "rewritten by half")
    assert names(later.torn()) == ["checkpoint-10", "checkpoint-20"]


def write_first(tmp_path: Path, save: int) -> None:
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "model").write_text(f"weights {save}")


def write_last(tmp_path: Path, save: int) -> None:
    (tmp_path / "out" / "optimizer").write_text(f"state {save}")


def test_a_later_agent_tells_the_rest_of_a_save_from_the_beginning_of_the_next(tmp_path: Path) -> None:
    directories = Watched(tmp_path, "out")
    directories.begin_script()
    now = 100.0
    for save in range(4):
        for write in (write_first, write_last):
            write(tmp_path, save)
            for _ in range(6):
                now += 1.0
                directories.ready(now, alive=True)
    write_first(tmp_path, 4)
    directories.ready(now, alive=True)
    later = Watched(tmp_path, "out")
    for seconds in range(6):
        later.ready(seconds, alive=True)
    write_last(tmp_path, 4)
    assert later.watch.look(later.looks(), 6.0) == ()  # without it, model 4 beside optimizer 3
    for seconds in range(7, 12):
        later.ready(seconds, alive=True)
    write_first(tmp_path, 5)
    (told,) = later.watch.look(later.looks(), 12.0)
    assert dict(told.version)["out/model"].size == len("weights 4")
    assert told.evidence == "next"


def test_a_later_agent_takes_an_old_checkpoint_that_is_deleted_for_no_next_save(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    directories.begin_script()
    checkpoint(tmp_path, 10)
    directories.ready(100.0, alive=True)
    directories.ready(101.0, alive=True)
    checkpoint(tmp_path, 20)
    directories.ready(103.0, alive=True)
    later = watch(tmp_path)
    later.ready(1.0, alive=True)
    later.ready(2.0, alive=True)
    (tmp_path / "output" / "checkpoint-20" / "optimizer.bin").write_text("state")
    shutil.rmtree(tmp_path / "output" / "checkpoint-10")
    assert later.watch.look(later.looks(), 3.0) == ()


def test_a_later_agent_of_the_machine_knows_what_a_script_that_finished_has_left(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    directories.begin_script()
    checkpoint(tmp_path, 600)
    directories.finish_script()
    assert [d.step for d in watch(tmp_path).ready(5.0, alive=False)] == [600]


def test_a_disk_that_is_full_costs_the_later_agents_knowledge_and_nothing_else(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    directories.begin_script()
    (tmp_path / "before.tmp").mkdir()
    checkpoint(tmp_path, 10)
    directories.ready(100.0, alive=True)
    assert [d.step for d in directories.ready(110.0, alive=True)] == [10]


# --- torn -------------------------------------------------------------------------------------------


def names(directories: Iterable[Look]) -> list[str]:
    return [Path(directory.name).name for directory in directories]


def test_what_a_script_left_half_written_is_torn_and_what_it_completed_is_not(tmp_path: Path) -> None:
    directories = watch(tmp_path)
    directories.begin_script()
    checkpoint(tmp_path, 10)
    directories.ready(100.0, alive=True)
    directories.ready(110.0, alive=True)
    checkpoint(tmp_path, 20, "half of the wei")
    (tmp_path / "output" / "checkpoint-30").mkdir()
    directories.ready(112.0, alive=True)
    assert names(directories.torn()) == ["checkpoint-20", "checkpoint-30"]


def test_what_stood_before_the_script_is_not_torn_unless_it_has_changed(tmp_path: Path) -> None:
    """A checkpoint that comes with the code would be taken from a script that fails in its first seconds."""
    checkpoint(tmp_path, 0)
    checkpoint(tmp_path, 5)
    directories = watch(tmp_path)
    directories.begin_script()
    checkpoint(tmp_path, 5, "rewritten by halv")
    assert names(directories.torn()) == ["checkpoint-5"]


def test_a_later_agent_of_the_machine_knows_what_stood_before_the_script(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0)
    watch(tmp_path).begin_script()
    checkpoint(tmp_path, 10)
    later = watch(tmp_path)
    assert names(later.torn()) == ["checkpoint-10"]


def test_nothing_is_torn_where_no_script_was_started_or_one_has_finished(tmp_path: Path) -> None:
    checkpoint(tmp_path, 10)
    directories = watch(tmp_path)
    assert directories.torn() == ()
    directories.begin_script()
    checkpoint(tmp_path, 20)
    directories.finish_script()
    assert directories.torn() == ()


def test_a_complete_file_is_proof_enough(tmp_path: Path) -> None:
    directories = watch(tmp_path, "done")
    directories.begin_script()
    for step in (10, 20):
        path = checkpoint(tmp_path, step)
    (path / "done").touch()
    assert names(directories.torn()) == ["checkpoint-10"]
