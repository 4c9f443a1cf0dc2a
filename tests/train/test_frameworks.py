"""Trainings of transformers, Lightning and Accelerate with the callback: the examples, reclaimed again and again."""

import importlib.util
import random
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = ("hf-trainer", "lightning", "accelerate")
NUM_EPOCHS = {"hf-trainer": 1, "lightning": 2, "accelerate": 2}
SOAK_RECLAIMS = 50
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def start(framework_training, monkeypatch, tmp_path):
    """``start(name)``: an example's training, and its ``main``."""
    monkeypatch.chdir(tmp_path)

    def start_one(name):
        found = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "train.py")
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        hooks = {
            "hf-trainer": ("SpotCallback", ("on_substep_end", "on_step_end", "on_prediction_step")),
            "lightning": ("SpotCallback", ("on_train_batch_end", "on_validation_batch_end")),
            "accelerate": ("Accelerator", ("backward", "gather_for_metrics")),
        }
        owner, methods = hooks[name]
        training = framework_training({getattr(module, owner): methods})
        return training, lambda: module.main(NUM_EPOCHS[name])

    return start_one


def check(courier, training, main, seed, num_reclaims):
    """Reclaim the training at random moments, so often; each time that it comes to its end, it is as undisturbed."""
    draw = random.Random(seed)
    assert training.run(main)
    expected, num_moments = courier.final(), training.num_moments
    restore = None
    while num_reclaims > 0:
        if training.run(main, restore=restore, drain_at=draw.randrange(1, num_moments)):
            assert courier.final() == expected
            restore = None
            continue
        num_reclaims -= 1
        step = courier.drained()["step"]
        assert courier.final() is None
        restore = restore if step is None else courier.carry(step)
    assert training.run(main, restore=restore)
    assert courier.final() == expected


@pytest.mark.parametrize(
    "name", [FRAMEWORKS[0], *(pytest.param(name, marks=pytest.mark.full) for name in FRAMEWORKS[1:])]
)
def test_reclaims_at_random_moments_change_no_bit(start, courier, name):
    check(courier, *start(name), seed=1, num_reclaims=3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_soak_of_reclaims(start, courier, name):
    check(courier, *start(name), seed=2, num_reclaims=SOAK_RECLAIMS)
