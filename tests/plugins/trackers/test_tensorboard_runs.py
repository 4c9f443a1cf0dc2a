"""TensorBoard: steps that are made again replace those that were logged before; by the real library."""

import subprocess
import sys

import pytest

from cloudspot.calls import TrackingRequest
from cloudspot_trackers.tensorboard_runs import TensorBoardTracker, newest_files


def request(tmp_path, *, step=3, generation=2, run_python=None):
    work, artifacts = tmp_path / "work", tmp_path / "artifacts"
    work.mkdir(exist_ok=True)
    artifacts.mkdir(exist_ok=True)
    return TrackingRequest(
        job_id="digits-7k3f",
        generation=generation,
        ranks=(0,),
        step=step,
        work=work,
        artifacts=artifacts,
        environment={},
        run_python=run_python or (lambda code, seconds: 1 / 0),
    )


def test_the_newest_file_of_each_directory_is_found_but_for_hidden_ones_and_those_of_cloudspot(tmp_path):
    asked = request(tmp_path)
    for name in ("work/runs/a", "work/runs/b/c", "work/.cache/d", "artifacts/e", "artifacts/tensorboard"):
        (tmp_path / name).mkdir(parents=True)
        for event_file in (
            "1700000000.host.9.0",
            "1700000001.host.1.0",
            "1700000001.host.1.0.cloudspot-000002",
        ):
            (tmp_path / name / f"events.out.tfevents.{event_file}").touch()
    (tmp_path / "work/plain").mkdir()
    (tmp_path / "work/plain/notes.txt").touch()
    found = {path.relative_to(tmp_path).as_posix() for path in newest_files(asked)}
    assert found == {
        f"{place}/events.out.tfevents.1700000001.host.1.0"
        for place in ("work/runs/a", "work/runs/b/c", "artifacts/e")
    }


def test_nothing_is_marked_where_nobody_knows_the_step_or_nothing_was_logged(tmp_path):
    assert TensorBoardTracker().variables(request(tmp_path)) == {}
    unknown = request(tmp_path, step=None)
    (unknown.work / "events.out.tfevents.1700000000.host.1.0").touch()
    assert TensorBoardTracker().variables(unknown) == {}


@pytest.mark.full
def test_readers_drop_what_was_logged_from_the_step_on_that_the_training_resumes_from(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", exc_type=ImportError)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def run_python(code, seconds):
        done = subprocess.run([sys.executable, "-c", code], timeout=seconds, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return ""

    asked = request(tmp_path, run_python=run_python)
    runs = asked.work / "runs"

    def log(values, **options):
        with tensorboard.SummaryWriter(str(runs), **options) as writer:
            for step, value in values:
                writer.add_scalar("loss", value, step)

    log((step, 1.0) for step in range(6))
    TensorBoardTracker().variables(asked)
    log((step, 2.0) for step in range(3, 5))
    reader = EventAccumulator(str(runs))
    reader.Reload()
    assert [(one.step, one.value) for one in reader.Scalars("loss")] == [
        *((step, 1.0) for step in range(3)),
        *((step, 2.0) for step in range(3, 5)),
    ]
