"""Trainings of transformers, Lightning and Accelerate with the callback: the examples, reclaimed again and again."""

import importlib.util
import random
import time
from pathlib import Path

import pytest
import torch

import cloudspot.train as spot
from cloudspot.train import handoff

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = ("hf-trainer", "lightning", "accelerate")
NUM_EPOCHS = {"hf-trainer": 1, "lightning": 2, "accelerate": 2}
SOAK_RECLAIMS = 50
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Training:
    """An example's training in this process, one generation after the other."""

    def __init__(self, name, courier, monkeypatch):
        found = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "train.py")
        self.module = importlib.util.module_from_spec(found)
        found.loader.exec_module(self.module)
        self.num_epochs = NUM_EPOCHS[name]
        self.courier = courier
        self._monkeypatch = monkeypatch
        self._sessions = []
        self._drain_at = None
        self.num_moments = 0
        """How many moments this generation had: training and evaluation steps."""
        open_session = spot.session

        def session(**tracked):
            self._sessions.append(open_session(**tracked))
            return self._sessions[-1]

        monkeypatch.setattr(spot, "session", session)
        self._watch(name)

    def _watch(self, name):
        if name == "accelerate":
            functional = self.module.nn.functional
            accuracy, loss = self.module.accuracy, functional.cross_entropy
            self._monkeypatch.setattr(self.module, "accuracy", self._ticking(accuracy))
            self._monkeypatch.setattr(functional, "cross_entropy", self._ticking(loss))
            return
        hooks = {
            "hf-trainer": ("on_substep_end", "on_step_end", "on_prediction_step"),
            "lightning": ("on_train_batch_end", "on_validation_batch_end"),
        }[name]
        for hook in hooks:
            self._monkeypatch.setattr(
                self.module.SpotCallback, hook, self._ticking(getattr(self.module.SpotCallback, hook))
            )

    def _ticking(self, function):
        def ticking(*args, **kwargs):
            self._tick()
            return function(*args, **kwargs)

        return ticking

    def _tick(self):
        if not self._sessions:
            return  # Lightning's sanity check
        self.num_moments += 1
        if self.num_moments == self._drain_at:
            self.courier.drain()
            run, end = self._sessions[-1], time.monotonic() + 60
            # Until all ranks have promised a boundary, or the loop has ended before.
            while run._service._link.rounds._hold is None and self.courier.final() is None:
                assert time.monotonic() < end, "no round was opened"
                time.sleep(0.001)

    def run(self, restore=None, drain_at=None):
        """Run a generation; return whether it has come to its end."""
        self.num_moments, self._drain_at = 0, drain_at
        for name in (handoff.HANDOFF, handoff.RESTORE, handoff.GENERATION, handoff.ARTIFACTS):
            self._monkeypatch.delenv(name, raising=False)
        for name, value in self.courier.begin(restore).items():
            self._monkeypatch.setenv(name, value)
        try:
            self.module.main(self.num_epochs)
        except SystemExit:
            return False
        finally:
            while self._sessions:
                self._sessions.pop().close()
        return True


@pytest.fixture
def start(courier, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, they wait for one another where others compute
    def start_one(name):
        if name != "hf-trainer":
            pytest.importorskip("sklearn")
        pytest.importorskip({"hf-trainer": "transformers"}.get(name, name))
        return Training(name, courier, monkeypatch)

    yield start_one
    torch.set_num_threads(num_threads)


def check(training, seed, num_reclaims):
    """Reclaim the training at random moments until it was reclaimed so often; each of its runs ends as the first."""
    courier, draw = training.courier, random.Random(seed)
    assert training.run()
    expected, num_moments = courier.final(), training.num_moments
    restore = None
    while num_reclaims > 0:
        # Some are in an evaluation, and some after the last step.
        if training.run(restore, drain_at=draw.randrange(1, num_moments)):
            assert courier.final() == expected
            restore = None
            continue
        num_reclaims -= 1
        step = courier.drained()["step"]
        assert courier.final() is None
        restore = restore if step is None else courier.carry(step)
    assert training.run(restore)
    assert courier.final() == expected


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_reclaims_at_random_moments_change_no_bit(start, name):
    check(start(name), seed=1, num_reclaims=3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_soak_of_reclaims(start, name):
    check(start(name), seed=2, num_reclaims=SOAK_RECLAIMS)
