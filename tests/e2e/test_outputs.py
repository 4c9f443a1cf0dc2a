"""Scripts that know nothing of cloudspot: what they leave in their working directory comes home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.jobs.acting_user import User, wait_for

pytestmark = pytest.mark.full

SCRIPT = """
import pathlib, time

out = pathlib.Path("out")
if not out.exists():
    out.mkdir()
    (out / "notes.txt").write_text("by the first machine")
    pathlib.Path(".env").write_text("PASSWORD=x")
    print("the first machine has written", flush=True)
    time.sleep(600)
print("found", sorted(path.name for path in out.iterdir()), flush=True)
(out / "unet").mkdir()
(out / "unet" / "model.safetensors").write_bytes(b"w" * (9 << 20))
"""


def job_file(directory: Path, script: str) -> str:
    """Write a job whose script saves no checkpoint."""
    directory.mkdir()
    (directory / "train.py").write_text(script)
    (directory / "job.toml").write_text(
        'name = "stranger"\n[run]\ncommand = ["python3", "train.py"]\n[checkpoint]\ndirectory = "checkpoints"\n'
    )
    return str(directory / "job.toml")


def test_a_result_in_the_working_directory_is_kept_and_returns_after_a_reclaim(
    user: User, tmp_path: Path
) -> None:
    run = user.start("run", job_file(tmp_path / "job", SCRIPT), "--name", "stranger")
    wait_for("the first file", lambda: "the first machine has written" in user.output(run), seconds=240)
    user.cloudspot("preempt", "stranger", "--notice", "8s")
    assert run.wait(300) == 0, user.output(run)
    told = user.output(run)
    assert "found ['notes.txt']" in told
    assert "kept as artifacts: out/notes.txt (20 B)" in told
    assert "1 outputs are not kept because their names are those of secrets: .env (10 B)" in told
    assert "kept as artifacts: out/unet/model.safetensors (9.0 MiB)" in told
    assert "out/unet/model.safetensors, 9.0 MiB\n" in told.rpartition("job stranger")[2]
    names = [
        one["name"] for one in json.loads(user.cloudspot("artifacts", "ls", "stranger", "--json").stdout)
    ]
    assert names == ["out/notes.txt", "out/unet/model.safetensors"]
    target = tmp_path / "home"
    user.cloudspot("artifacts", "download", "stranger", "out/unet", "--to", str(target))
    assert (target / "out" / "unet" / "model.safetensors").read_bytes() == b"w" * (9 << 20)


def test_a_success_that_leaves_nothing_says_so_at_the_end(user: User, tmp_path: Path) -> None:
    job = job_file(tmp_path / "job", "print('done')")
    done = user.cloudspot("run", job, "--name", "stranger", timeout=300)
    assert done.stdout.rstrip().endswith(
        "this job has kept nothing: it has no checkpoint, and the training wrote no file to keep "
        "below its working directory"
    )
