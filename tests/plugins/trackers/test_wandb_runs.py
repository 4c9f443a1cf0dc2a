"""Weights & Biases: which run each rank resumes."""

from pathlib import Path

from cloudspot.calls import TrackingRequest
from cloudspot_trackers.wandb_runs import WandbTracker


def request(**changes):
    def run_python(code, seconds):
        raise AssertionError("W&B needs no program")

    values = {"job_id": "digits-7k3f", "generation": 3, "ranks": (0, 1), "step": 40, "environment": {}}
    return TrackingRequest(
        work=Path("/work"), artifacts=Path("/artifacts"), run_python=run_python, **values | changes
    )


def test_rank_0_has_the_jobs_run_and_each_other_rank_its_own_of_the_same_group():
    found = WandbTracker().variables(request())
    assert found == {
        0: {"WANDB_RUN_ID": "digits-7k3f", "WANDB_RESUME": "allow", "WANDB_RUN_GROUP": "digits-7k3f"},
        1: {"WANDB_RUN_ID": "digits-7k3f-rank1", "WANDB_RESUME": "allow", "WANDB_RUN_GROUP": "digits-7k3f"},
    }


def test_a_rank_has_the_same_run_in_each_start_and_on_each_machine():
    first = WandbTracker().variables(request(generation=1, step=None))
    later = WandbTracker().variables(request(generation=9, ranks=(1, 2, 3)))
    assert first[1] == later[1]
    assert len({one["WANDB_RUN_ID"] for one in later.values()}) == 3
