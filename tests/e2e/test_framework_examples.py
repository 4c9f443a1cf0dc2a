"""Trainings with other frameworks as whole jobs, reclaimed; in the soak, as each imports for seconds."""

from __future__ import annotations

import re

import pytest
from support.jobs.acting_user import EXAMPLES, JOBS, User

NUM_RECLAIMS = 50
UNCHANGED = {
    "lightning": ("lightning_alone.py", "checkpoints", 0.01),
    "accelerate": ("accelerate_alone.py", "output/checkpoint-*", 0.0),
}
"""The script, its checkpoints, and how far its last loss may be from the undisturbed one, relatively."""
EPOCHS, STEPS_AN_EPOCH = 375, 40


def run(user: User, example: str, name: str, *sets: str) -> dict:
    words = [word for each in sets for word in ("--set", each)]
    user.cloudspot("run", "--provider", "local", str(EXAMPLES / example / "job.toml"), "--name", name, *words)
    shown = user.show(name, "--verify")
    assert shown["state"] == "succeeded"
    return shown


@pytest.mark.soak
@pytest.mark.parametrize(
    ("example", "num_processes"),
    [("hf-trainer", 1), ("hf-trainer", 2), ("lightning", 1), ("lightning", 2), ("accelerate", 2)],
)
def test_an_example_with_the_callback_loses_no_step_and_no_bit(
    user: User, example: str, num_processes: int
) -> None:
    processes = f"procs_per_node={num_processes}"
    calm = run(user, example, "calm", processes, "providers.local.reclaims=[]")
    hit = run(user, example, "hit", processes)
    assert (len(calm["nodes"]), len(hit["nodes"])) == (1, 2)
    assert (len(hit["notices"]), hit["steps_lost"]) == (1, 0)
    assert hit["steps_total"] == calm["steps_total"]
    assert hit["last_commit"]["verified"] is True
    assert hit["final"]["weights_sha256"] == calm["final"]["weights_sha256"]


@pytest.mark.soak
def test_a_console_script_that_saves_on_a_signal_goes_on_where_it_saved(user: User) -> None:
    calm = run(user, "console-script", "calm", "providers.local.reclaims=[]")
    hit = run(user, "console-script", "hit")
    assert (len(calm["nodes"]), len(hit["nodes"]), len(hit["notices"])) == (1, 2, 1)
    restored = user.history("hit").generations[-1].restore_from
    assert restored is not None
    assert restored.step % 100 != 0, "it was not saved because of the notice"
    calm_loss, hit_loss = (
        re.findall(r"trained 300 steps, loss ([\d.]+)", user.cloudspot("logs", name).stdout)
        for name in ("calm", "hit")
    )
    assert len(calm_loss) == 1
    assert hit_loss == calm_loss


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_a_training_that_knows_nothing_of_cloudspot_outlives_its_reclaims(user: User, framework: str) -> None:
    """Each machine is taken at a random moment: while it boots, imports, trains, saves or evaluates."""
    script, directory, tolerance = UNCHANGED[framework]

    def run(name: str, *sets: str) -> float:
        words = [
            word
            for one in (
                f'run.command=["python", "{script}", "{EPOCHS}"]',
                f'checkpoint.directory="{directory}"',
                *sets,
            )
            for word in ("--set", one)
        ]
        file = str(JOBS / "unchanged" / "job.toml")
        user.cloudspot("run", "--provider", "local", file, "--name", name, *words, timeout=3000.0)
        log = user.cloudspot("logs", name, "--source", "train").stdout
        steps = [int(step) for step in re.findall(r"(?m) step (\d+)$", log)]
        assert steps == list(range(1, EPOCHS * STEPS_AN_EPOCH + 1)), "steps were made twice, or left out"
        (loss,) = re.findall(rf"trained {len(steps)} steps, loss ([\d.]+)", log)
        return float(loss)

    calm = run("calm")
    reclaims = f'{{mean="8s", max={NUM_RECLAIMS}, seed=1, notice="20s"}}'
    hit = run("hit", 'run.env.STEP_SECONDS="0.02"', f"providers.local.random_reclaims={reclaims}")
    shown = user.show("hit")
    assert [one["outcome"] for one in shown["launches"]] == [*(["reclaimed"] * NUM_RECLAIMS), "succeeded"]
    assert hit == pytest.approx(calm, rel=tolerance, abs=0.0)
