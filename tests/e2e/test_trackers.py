"""Runs in Weights & Biases, MLflow and TensorBoard through reclaims, a loss without notice and a move.

Each is read back by its own library.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs.acting_user import JOBS, User, wait_for
from support.jobs.first_in_full import first_in_full

from cloudspot.cli.exit_codes import STOPPED
from cloudspot.story.progress import newest_step

pytestmark = pytest.mark.full

mlflow = pytest.importorskip("mlflow", reason="MLflow keeps runs", exc_type=ImportError)
pytest.importorskip("wandb", reason="Weights & Biases keeps runs", exc_type=ImportError)
pytest.importorskip("torch.utils.tensorboard", reason="TensorBoard keeps runs", exc_type=ImportError)

STEPS_PER_EPOCH = 20


class Tracked:
    """A job whose ranks log each step's loss to all three."""

    def __init__(self, user: User, *, epochs: int, ranks: str = "0", sets: tuple[str, ...] = ()) -> None:
        self.user = user
        self.server = f"sqlite:///{user.home}/mlflow.db"
        # Two ranks that create the tables of a new database at the same time fail, as without cloudspot.
        mlflow.MlflowClient(tracking_uri=self.server).search_experiments()
        words = [
            f'run.env.MLFLOW_TRACKING_URI="{self.server}"',
            f'run.env.TRACKED_EPOCHS="{epochs}"',
            f'run.env.TRACKED_RANKS="{ranks}"',
            *sets,
        ]
        options = [word for one in words for word in ("--set", one)]
        job = str(JOBS / "tracked" / "job.toml")
        self.run = user.start("run", job, "--name", "tracked", "--provider", "local", *options)

    def await_generation(self, number: int, *, steps: int) -> None:
        """Wait until that start of the training has made so many steps beyond where it resumed."""

        def has_come() -> bool:
            time.sleep(1.0)  # whoever looks all the time takes the processor from the job
            if not (self.user.home / "store" / "jobs" / "tracked" / "journal").exists():
                return False
            assert self.run.poll() in {None, 0}, self.user.output(self.run)[-6000:]
            history = self.user.history("tracked")
            if len(history.generations) < number:
                return False
            restored = history.generations[number - 1].restore_from
            begin = 0 if restored is None else restored.step
            return newest_step(history) >= begin + steps

        wait_for(f"generation {number}", has_come, seconds=600)

    def end(self, directory: Path, *, status: int = 0) -> dict[str, Any]:
        """Wait for the job's end, bring its artifacts to the directory, and return what ``show`` tells."""
        assert self.run.wait(900) == status, self.user.output(self.run)[-6000:]
        self.user.cloudspot("artifacts", "download", "tracked", "--to", str(directory))
        shown = self.user.show("tracked")
        assert not [one for one in shown["warnings"] if "may not continue" in one]
        return shown

    def mlflow_steps(self) -> dict[str, list[int]]:
        """Return the steps of each run's history in MLflow, by the rank in its tags, in the order of logging."""
        client = mlflow.MlflowClient(tracking_uri=self.server)
        runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
        found = {}
        for run in runs:
            assert run.data.tags["cloudspot.job"] == "tracked"
            history = client.get_metric_history(run.info.run_id, "loss")
            assert run.data.tags["cloudspot.rank"] not in found
            found[run.data.tags["cloudspot.rank"]] = [
                one.step for one in sorted(history, key=lambda one: (one.timestamp, one.step))
            ]
        return found


def tensorboard_steps(directory: Path) -> list[int]:
    """Return the steps that TensorBoard shows of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    reader.Reload()
    return [one.step for one in reader.Scalars("loss")]


def wandb_steps(directory: Path) -> dict[str, list[int]]:
    """Return the steps of each run in W&B's offline files, by the run's id, in the order of the starts."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, list[int]] = {}
    for path in sorted(directory.glob("**/*.wandb")):
        records = [Record.FromString(data) for data in stored_records(path)]
        run_ids = {one.run.run_id for one in records if one.HasField("run")}
        if not run_ids:
            print(f"{path.name}: {len(records)} records and no run")  # nothing was written out before the end
            continue
        (run_id,) = run_ids
        steps = [one.history.step.num for one in records if one.HasField("history")]
        found.setdefault(run_id, []).extend(steps)
    return found


def stored_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format behind W&B's header of 7 bytes, as far as it is whole."""
    data, at, record = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if at + 7 + length > len(data):
            return
        record = (record if kind in {3, 4} else b"") + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:
            yield record


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("num_reclaims", first_in_full(1, 3))
def test_reclaims_a_loss_without_notice_and_a_move_are_one_run_in_each_with_no_step_missing(
    user: User, tmp_path: Path, num_reclaims: int
) -> None:
    job = Tracked(user, epochs=1000)
    for number, notice in enumerate((("--notice", "20s"),) * num_reclaims + (("--no-notice",),), start=1):
        job.await_generation(number, steps=12)
        user.cloudspot("preempt", "tracked", *notice)
    job.await_generation(num_reclaims + 2, steps=8)
    user.cloudspot("move", "tracked", "--market", "on-demand", "--yes", timeout=900)
    job.await_generation(num_reclaims + 3, steps=8)
    user.cloudspot("stop", "tracked", "--wait", status=STOPPED, timeout=400)
    shown = job.end(tmp_path, status=STOPPED)
    every = list(range(shown["step"]))

    assert tensorboard_steps(tmp_path / "runs" / "rank0") == every  # each once
    ((rank, steps),) = job.mlflow_steps().items()
    assert (rank, sorted(set(steps))) == ("0", every)
    ((run_id, offline),) = wandb_steps(tmp_path / "wandb").items()
    # W&B buffers what it writes: what it had not written of the start that was lost without notice is gone.
    lost = shown["generations"][num_reclaims]
    assert run_id == "tracked"
    assert {*every} - {*offline} <= {*range(lost["restored"]["step"], lost["last_step"] + 1)}
    # A step that was made again comes twice in these two.
    again = [step for step, count in Counter(steps).items() if count > 1]
    print(f"made again: {again}")
    assert all(count <= 2 for count in Counter(steps).values())
    assert {step for step, count in Counter(offline).items() if count > 1} <= {*again}


@pytest.mark.timeout(1500)
def test_a_script_that_logs_on_each_rank_has_a_run_for_each(user: User, tmp_path: Path) -> None:
    job = Tracked(user, epochs=4, ranks="0,1", sets=("procs_per_node=2",))
    job.await_generation(1, steps=8)
    user.cloudspot("preempt", "tracked", "--notice", "20s")
    job.end(tmp_path)
    every = list(range(4 * STEPS_PER_EPOCH // 2))
    assert {rank: sorted(set(steps)) for rank, steps in job.mlflow_steps().items()} == {
        "0": every,
        "1": every,
    }
    found = {run: sorted(set(steps)) for run, steps in wandb_steps(tmp_path / "wandb").items()}
    assert found == {"tracked": every, "tracked-rank1": every}
    for rank in (0, 1):
        assert tensorboard_steps(tmp_path / "runs" / f"rank{rank}") == every
