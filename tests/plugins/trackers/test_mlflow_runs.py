"""MLflow: how the run of an earlier start is found; by the real library, in a database of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudspot.calls import TrackingRequest
from cloudspot.errors import CloudspotError
from cloudspot_trackers.mlflow_runs import MlflowTracker


def request(environment, *, generation, run_python=None, ranks=(0, 1)):
    return TrackingRequest(
        job_id="digits-7k3f",
        generation=generation,
        ranks=ranks,
        step=None,
        work=Path("/work"),
        artifacts=Path("/artifacts"),
        environment=environment,
        run_python=run_python or (lambda code, seconds: "printed first\n{}\n"),
    )


def test_a_first_start_tags_each_ranks_run_and_asks_nobody():
    found = MlflowTracker().variables(
        request({"MLFLOW_TRACKING_URI": "http://mlflow"}, generation=1, run_python=lambda *_: 1 / 0)
    )
    assert {rank: json.loads(one["MLFLOW_RUN_CONTEXT"]) for rank, one in found.items()} == {
        0: {"cloudspot.job": "digits-7k3f", "cloudspot.rank": "0"},
        1: {"cloudspot.job": "digits-7k3f", "cloudspot.rank": "1"},
    }
    assert all("MLFLOW_RUN_ID" not in one for one in found.values())


def test_a_server_that_the_job_file_does_not_name_is_asked_for():
    with pytest.raises(CloudspotError, match=r"run\.env has no MLFLOW_TRACKING_URI"):
        MlflowTracker().variables(request({}, generation=1))


def test_an_answer_that_is_none_is_no_run():
    server = {"MLFLOW_TRACKING_URI": "http://mlflow"}
    with pytest.raises(CloudspotError, match="MLflow's answer cannot be read"):
        MlflowTracker().variables(request(server, generation=2, run_python=lambda *_: "warning: slow\n"))


@pytest.mark.full
def test_the_first_run_of_a_rank_is_found_among_nested_runs_and_those_of_other_jobs(tmp_path):
    pytest.importorskip("mlflow", reason="MLflow keeps the runs", exc_type=ImportError)
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}

    def run_python(code, seconds, **more):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(job, rank, lines):
        tags = json.dumps({"cloudspot.job": job, "cloudspot.rank": str(rank)})
        return run_python(f"import mlflow\n{lines}", 120, MLFLOW_RUN_CONTEXT=tags).split()

    nested = (
        "with mlflow.start_run() as run:\n print(run.info.run_id)\n with mlflow.start_run(nested=True): pass"
    )
    (first,) = start("digits-7k3f", 0, nested)
    start("digits-7k3f", 0, "mlflow.start_run()")
    start("digits-other", 1, "mlflow.set_experiment('elsewhere'); mlflow.start_run()")
    (second,) = start(
        "digits-7k3f", 2, "mlflow.set_experiment('elsewhere'); print(mlflow.start_run().info.run_id)"
    )
    found = MlflowTracker().variables(
        request(environment, generation=2, run_python=run_python, ranks=(0, 1, 2))
    )
    assert {rank: one.get("MLFLOW_RUN_ID") for rank, one in found.items()} == {0: first, 1: None, 2: second}
