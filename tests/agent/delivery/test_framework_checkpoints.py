"""Checkpoint directories that are known by their content: finished, and cut short at every file."""

import os
import zipfile

import pytest

from cloudspot.agent.delivery.framework_checkpoints import finish_of

# In the order in which each is written; the last one finishes the directory.
TRAINER = [
    "config.json",
    "model.safetensors",
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
]
TRAINER += ["trainer_state.json"]
ACCELERATE = ["model.safetensors", "optimizer.bin", "scheduler.bin", "sampler.bin", "random_states_0.pkl"]
DISTRIBUTED = ["__0_0.distcp", "__1_0.distcp", ".metadata"]


def write(path, names):
    """Write the files one after the other."""
    for number, name in enumerate(names):
        (path / name).write_text("{}")
        os.utime(path / name, (1000 + number, 1000 + number))


def finished(path):
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in path.iterdir()]
    return finish_of(path, files)


@pytest.mark.parametrize(
    ("names", "what"),
    [(TRAINER, "all"), (ACCELERATE, "own"), (DISTRIBUTED, "own")],
    ids=["trainer", "accelerate", "distributed"],
)
def test_it_is_finished_by_its_last_file_and_not_before(tmp_path, names, what):
    for count in range(len(names)):
        write(tmp_path, names[:count])
        assert not finished(tmp_path)
    write(tmp_path, names)
    assert finished(tmp_path) == what
    write(tmp_path, names[:1])
    os.utime(tmp_path / names[0], (2000, 2000))  # it is being rewritten
    assert not finished(tmp_path)


@pytest.mark.parametrize("state", ['{"epoch": 0.5, "log_hist', "[" * 100_000])
def test_half_a_trainer_state_finishes_nothing(tmp_path, state):
    write(tmp_path, TRAINER)
    (tmp_path / "trainer_state.json").write_text(state)
    assert not finished(tmp_path)


def test_the_objects_of_a_script_come_after_accelerates_random_states(tmp_path):
    write(tmp_path, [*ACCELERATE, "custom_checkpoint_0.pkl"])
    assert finished(tmp_path) == "own"


def test_a_trainer_that_says_that_it_is_not_done_is_not(tmp_path):
    write(tmp_path, ["checkpoint-is-incomplete.txt", *TRAINER])
    assert not finished(tmp_path)


def test_lightnings_directory_is_finished_when_each_file_is_a_whole_archive(tmp_path):
    for name in ("epoch=0-step=10.ckpt", "last.ckpt"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("archive/data.pkl", b"weights" * 100)
    assert finished(tmp_path) == "all"
    data = (tmp_path / "last.ckpt").read_bytes()
    (tmp_path / "last.ckpt").write_bytes(data[: len(data) // 2])
    assert not finished(tmp_path)


def test_an_index_tells_of_its_own_shards_alone(tmp_path):
    index = "model.safetensors.index.json"
    write(tmp_path, ["a.safetensors", "b.safetensors", index])
    (tmp_path / index).write_text('{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}')
    os.utime(tmp_path / index, (1002, 1002))
    assert finished(tmp_path) == "own"
    (tmp_path / "optimizer.pt").write_text("it comes later")
    assert finished(tmp_path) is None
    (tmp_path / "optimizer.pt").unlink()
    (tmp_path / "b.safetensors").unlink()
    assert finished(tmp_path) is None


def test_an_unknown_directory_never_looks_finished(tmp_path):
    assert not finished(tmp_path)
    write(tmp_path, ["model.pt", "done"])
    assert not finished(tmp_path)
