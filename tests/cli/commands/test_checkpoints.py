"""``cloudspot checkpoints``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from cloudspot import __version__
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, SaveId


def test_the_newest_comes_first(jobs):
    found = jobs.run_json("checkpoints", "ls", jobs.reclaimed_and_finished())
    assert [(each["id"], each["generation"], each["step"]) for each in found] == [
        ("2-100", 2, 100),
        ("1-40", 1, 40),
    ]
    assert {
        (each["kind"], each["bytes"], each["sent_bytes"], each["num_parts"], each["verified"])
        for each in found
    } == {("directory", 1000, 1000, 1, None)}


def test_verify_reads_the_chunks(jobs):
    found = jobs.run_json("checkpoints", "verify", jobs.reclaimed_and_finished())
    assert [each["verified"] for each in found] == [True, True]


def test_a_flipped_bit_is_found_and_the_others_are_still_checked(jobs):
    jobs.reclaimed_and_finished()
    key = keys.chunk("digits-7k3f", SaveId(2, 100, 0), 0, 0)
    data = bytearray(jobs.store.get(key))
    data[500] ^= 1
    jobs.store.put(key, data)
    found = jobs.run_json("checkpoints", "verify", "digits-7k3f", status=8)
    assert [each["verified"] for each in found] == [False, True]
    assert found[0]["error"]
    assert found[1]["error"] is None


def test_a_malformed_manifest_is_shown_even_without_verify(jobs):
    jobs.reclaimed_and_finished()
    jobs.store.put(keys.manifest("digits-7k3f", 2, 100), b"{")
    found = jobs.run_json("checkpoints", "ls", "digits-7k3f", status=8)
    assert [each["verified"] for each in found] == [False, None]
    assert jobs.run("checkpoints", "ls", "digits-7k3f", status=8).stdout.splitlines()[1].startswith("2-100")


def test_a_checkpoint_that_the_job_deletes_while_it_is_read_is_left_out(jobs, before_reading):
    jobs.reclaimed_and_finished()
    before_reading("*/chunks/*", lambda: jobs.delete_checkpoint("digits-7k3f", CheckpointId(2, 100)))
    found = jobs.run_json("checkpoints", "verify", "digits-7k3f")
    assert [(each["id"], each["verified"]) for each in found] == [("1-40", True)]


def test_text_is_a_table(jobs):
    lines = jobs.run("checkpoints", "verify", jobs.reclaimed_and_finished()).stdout.splitlines()
    assert lines[0].split() == ["CHECKPOINT", "STEP", "SIZE", "PARTS", "KIND", "COMMITTED", "STATUS"]
    assert lines[1].split()[:6] == ["2-100", "100", "1000", "B", "1", "directory"]
    assert lines[1].endswith("verified")


def test_a_job_without_one_says_so(jobs):
    jobs.submit("new-1")
    assert jobs.run("checkpoints", "ls", "new-1").stdout == "job new-1 has no checkpoint\n"
    assert jobs.run_json("checkpoints", "ls", "new-1") == []


def test_one_step_alone_is_verified(jobs):
    found = jobs.run_json("checkpoints", "verify", jobs.reclaimed_and_finished(), "--step", "40")
    assert [(each["id"], each["verified"]) for each in found] == [("1-40", True)]


def test_a_step_that_is_not_there_lists_those_that_are(jobs, tmp_path):
    jobs.reclaimed_and_finished()
    line = "error: job digits-7k3f has no checkpoint of step 50; it has: 40, 100\n"
    assert jobs.run("checkpoints", "verify", "digits-7k3f", "--step", "50", status=2).stderr == line
    to = str(tmp_path / "x")
    assert (
        jobs.run("checkpoints", "export", "digits-7k3f", "--step", "50", "--to", to, status=2).stderr == line
    )


def test_the_old_spelling_is_an_error_that_names_the_new_ones(jobs):
    assert "see: cloudspot checkpoints --help" in jobs.run("checkpoints", "new-1", status=2).stderr.replace(
        "program", "cloudspot"
    )


# --- export -------------------------------------------------------------------------------------


@pytest.fixture
def trained(jobs, put_session_checkpoint):
    """A job of a session that has committed steps 10 and 20; the model of step 20."""
    jobs.submit("new-1")
    jobs.add_intent("new-1", 1, minutes=0)
    jobs.add_generation("new-1", 1, minutes=0)
    torch.manual_seed(0)
    for step in (10, 20):
        model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(8, 30)).sum().backward()
        optimizer.step()
        objects = {"model": model, "optimizer": optimizer}
        put_session_checkpoint(jobs.store, "new-1", CheckpointId(1, step), objects)
    return objects


def export(jobs, target, *arguments, status=0):
    return jobs.run("checkpoints", "export", "new-1", "--to", str(target), *arguments, status=status)


@pytest.mark.full
def test_the_newest_weights_are_taken_home(jobs, trained, tmp_path):
    path = tmp_path / "model.safetensors"
    result = export(jobs, path)
    assert result.stdout == f"step 20 of new-1: {path} ({path.stat().st_size / 1024:.1f} KiB, 7 tensors)\n"
    found = safetensors.torch.load_file(path)
    trained["model"].load_state_dict(found)
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in trained["model"].state_dict().items()
    }
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {
            "format": "pt",
            "job": "new-1",
            "checkpoint": "1-20",
            "step": "20",
            "source": f"{jobs.store.url}/jobs/new-1/manifests/000001-000000000020",
            "cloudspot": __version__,
        }


@pytest.mark.full
def test_an_older_step_is_taken_by_its_number(jobs, trained, tmp_path):
    export(jobs, tmp_path / "old.safetensors", "--step", "10")
    export(jobs, tmp_path / "new.safetensors")
    old, new = (safetensors.torch.load_file(tmp_path / f"{name}.safetensors") for name in ("old", "new"))
    assert old.keys() == new.keys()
    assert not old["0.weight"].equal(new["0.weight"])


@pytest.mark.full
def test_json_says_what_was_written(jobs, trained, tmp_path):
    path = tmp_path / "model.safetensors"
    found = jobs.run_json("checkpoints", "export", "new-1", "--to", str(path))
    assert found == {
        "file": str(path),
        "bytes": path.stat().st_size,
        "checkpoint": "1-20",
        "step": 20,
        "tensors": 7,
        "left_out": [],
    }


@pytest.mark.full
def test_the_whole_state_is_in_the_file_with_its_numbers_beside(jobs, trained, tmp_path):
    path = tmp_path / "state.safetensors"
    export(jobs, path, "--all")
    with safetensors.safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])["state"]
        assert state["optimizer"]["param_groups"][0]["betas"] == {"$tuple": [0.9, 0.999]}
        moment = file.get_tensor("optimizer/state/0/exp_avg")
    assert moment.equal(trained["optimizer"].state_dict()["state"][0]["exp_avg"])


@pytest.mark.full
def test_what_is_no_tensor_is_named_and_left_out(jobs, trained, tmp_path):
    result = export(jobs, tmp_path / "x.safetensors", "--only", "optimizer")
    assert result.stderr == "left out, not tensors: param_groups\n"


@pytest.mark.full
def test_a_torch_file_is_what_torch_load_reads_without_pickled_code(jobs, trained, tmp_path):
    path = tmp_path / "model.pt"
    export(jobs, path)
    found = torch.load(path, weights_only=True)
    assert list(found) == list(trained["model"].state_dict())
    assert all(found[name].equal(value) for name, value in trained["model"].state_dict().items())
    assert path.stat().st_size < 10_000  # weights alone, no optimizer: 2.9 KB and what the format adds
    export(jobs, path, "--only", "optimizer")
    trained["optimizer"].load_state_dict(torch.load(path, weights_only=True))
    export(jobs, path, "--all")
    assert list(torch.load(path, weights_only=True)) == ["model", "optimizer"]
    assert sorted(each.name for each in tmp_path.glob(".*")) == []


def test_tied_weights_stay_tied_in_a_torch_file(jobs, put_session_checkpoint, tmp_path):
    jobs.submit("new-1")
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(9, 5), "b": torch.nn.Linear(9, 5)})
    model["b"].weight = model["a"].weight
    put_session_checkpoint(jobs.store, "new-1", CheckpointId(1, 20), {"model": model})
    export(jobs, tmp_path / "model.pt")
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    assert found["a.weight"].data_ptr() == found["b.weight"].data_ptr()
    assert found["a.weight"].equal(model["a"].weight)


@pytest.mark.full
def test_without_torch_the_error_names_the_command(jobs, trained, tmp_path):
    export(jobs, tmp_path / "before.safetensors")
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'torch', 'numpy', 'safetensors'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "from cloudspot.cli.main import main\n"
        "main()\n"
    )

    def run(target):
        return subprocess.run(
            [sys.executable, "-c", code, "checkpoints", "export", "new-1", "--to", str(target)],
            env={"CLOUDSPOT_STORE": jobs.store.url, "CLOUDSPOT_LOCAL_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=60,
        )

    done = run(tmp_path / "model.pt")
    assert (done.returncode, done.stderr) == (
        1,
        "error: a .pt file needs torch here; run: pip install torch (or export to .safetensors, which does not need it)\n",
    )
    done = run(tmp_path / "model.safetensors")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "before.safetensors").read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_corrupt_chunk_is_named_with_status_8(jobs, trained, tmp_path, suffix):
    key = keys.chunk("new-1", SaveId(1, 20, 0), 0, 0)
    data = bytearray(jobs.store.get(key))
    data[0] ^= 1
    jobs.store.put(key, data)
    path = tmp_path / f"model{suffix}"
    result = export(jobs, path, status=8)
    assert result.stderr == f"error: chunk {key} does not match its checksum\n"
    assert not path.exists()
    assert sorted(each.name for each in tmp_path.glob(".*")) == []


@pytest.mark.full
@pytest.mark.parametrize("keys", ["*/chunks/*", "*/manifests/*"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_checkpoint_that_the_job_deletes_while_it_is_exported_is_not_called_corrupt(
    jobs, trained, before_reading, tmp_path, keys, suffix
):
    before_reading(keys, lambda: jobs.delete_checkpoint("new-1", CheckpointId(1, 20)))
    result = export(jobs, tmp_path / f"model{suffix}", status=7)
    assert result.stderr == (
        "error: checkpoint 1-20 was deleted while it was being read: job new-1 has not ended and keeps only its newest "
        "checkpoints; try again\n"
    )
    assert list(tmp_path.glob("*model*")) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("target", "arguments", "line"),
    [
        ("model.bin", [], "error: --to must end with .safetensors or .pt: got '{}/model.bin'\n"),
        ("none/m.pt", [], "error: --to: there is no directory {}/none\n"),
        ("m.pt", ["--only", "model", "--all"], "error: give --only or --all, not both\n"),
    ],
)
def test_what_cannot_be_meant_is_one_line(jobs, trained, tmp_path, target, arguments, line):
    result = export(jobs, tmp_path / target, *arguments, status=2)
    assert result.stderr == line.format(tmp_path)


def test_a_job_without_a_checkpoint_has_nothing_to_export(jobs, tmp_path):
    jobs.submit("new-1")
    result = export(jobs, tmp_path / "model.pt", status=2)
    assert result.stderr == "error: job new-1 has no checkpoint to export\n"


def test_a_directory_that_a_script_wrote_is_put_back_as_it_was(jobs, tmp_path):
    jobs.reclaimed_and_finished("new-1")
    target = tmp_path / "back"
    assert export(jobs, target).stdout == f"step 100 of new-1: {target} (1000 B)\n"
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"weights": bytes([100]) * 1000}
    assert sorted(each.name for each in tmp_path.glob(".*")) == []
    result = export(jobs, target, status=1)
    assert result.stderr == f"error: --to: {target} already exists; remove it first or name another\n"
    result = export(jobs, tmp_path / "m.safetensors", status=2)
    assert result.stderr == (
        "error: checkpoint 2-100 is a directory that the script wrote itself; give only --to DIR\n"
    )


def test_a_target_may_be_relative(jobs, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model.safetensors", "model.pt"):
        export(jobs, name)
        assert Path(name).stat().st_size > 2400
