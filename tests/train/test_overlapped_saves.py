"""Saves next to steps: each holds what a stop at its boundary would have held, and none changes the training."""

import errno
import json
import os
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.worlds.few_or_many import few_or_many

from cloudspot.train.rounds.step_seconds import StepSeconds
from cloudspot.train.sessions import overlapped_save
from cloudspot.train.sessions.overlapped_save import OverlappedSave
from cloudspot.train.sessions.save_way import SaveWay
from cloudspot.train.sessions.saving import Saver
from cloudspot.train.state import arena, overlapped_copy
from cloudspot.train.state.overlapped_copy import OverlappedCopy

sys.path.insert(0, str(Path(__file__).parent / "jobs"))
import overlapped

SCRIPT = Path(overlapped.__file__)
NUM_RUNS = 40
SOAK_RUNS = int(os.environ.get("CLOUDSPOT_SOAK_SAVES", "200"))
SOAK_BLOCK = 10
LAYOUTS = {"ddp": 2, "fsdp": 2, "tp": 2, "hsdp": 4, "fsdp-tp": 4}
"""How many ranks each has."""


@pytest.fixture
def play(open_session, courier):
    """``play(seed)``: a training of one of the kinds, with saves at random moments."""

    def play_one(seed, kind=None):
        def open_one(*, with_agent, **objects):
            return open_session(courier.begin() if with_agent else {}, **objects)

        make = overlapped.KINDS[seed % len(overlapped.KINDS)] if kind is None else kind
        return overlapped.play(make, seed, open_one)

    return play_one


@pytest.fixture
def play_ranks(courier, tmp_path):
    """``play_ranks(layout, seed)``: the same in several processes; returns what became of each rank's saves."""

    def play_all(layout, seed):
        results = tmp_path / f"results-{seed}"
        results.mkdir()
        words = ("--layout", layout, "--seed", str(seed), "--results", str(results))
        courier.run_ranks(SCRIPT, *words, num_ranks=LAYOUTS[layout], environment=courier.begin())
        return [json.loads((results / f"outcome-{rank}.json").read_text()) for rank in range(LAYOUTS[layout])]

    return play_all


def is_right(outcome):
    return outcome.wrong == [] and outcome.is_equal


@pytest.mark.costly
@few_or_many(2, NUM_RUNS)
def test_each_save_is_the_state_at_its_boundary(play, seeds):
    outcomes = [play(seed) for seed in seeds]
    assert [each.wrong for each in outcomes if each.wrong] == []
    assert all(each.is_equal for each in outcomes)
    # They are worth something only if most saves are made next to a step.
    assert sum(each.num_sealed["overlapped"] for each in outcomes) > 2 * len(outcomes)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler
def test_so_it_is_where_the_optimizers_step_is_compiled(play):
    outcome = play(1, overlapped.compiled_step)
    assert is_right(outcome)
    assert outcome.num_sealed["overlapped"] > 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(NUM_RUNS, SOAK_RUNS, SOAK_BLOCK))
def test_many_more_saves_are_the_state_at_their_boundaries(play, first):
    for seed in range(first, min(first + SOAK_BLOCK, SOAK_RUNS)):
        outcome = play(seed)
        assert is_right(outcome), (seed, outcome)


def check_ranks(outcomes):
    assert [each["wrong"] for each in outcomes if each["wrong"]] == []
    assert all(each["is_equal"] for each in outcomes)


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_part_of_a_save_is_the_state_of_its_rank(play_ranks, layout):
    outcomes = play_ranks(layout, 1)
    check_ranks(outcomes)
    assert sum(each["sealed"]["overlapped"] for each in outcomes) > 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", range(2, 22, 5))
def test_many_more_parts_are_the_states_of_their_ranks(play_ranks, layout, first):
    for seed in range(first, first + 5):
        check_ranks(play_ranks(layout, seed))


# --- plausible shortcuts, and that these trainings find them out ------------------------------------


def hold_back_no_step(patch):
    patch.setattr(OverlappedSave, "before_write", lambda self: None)
    believe_that_nothing_is_written(patch)


def believe_that_nothing_is_written(patch):
    patch.setattr(OverlappedCopy, "written", lambda self: [])
    patch.setattr(OverlappedCopy, "torn", lambda self: [])
    try_nothing_out(patch)


def count_versions_alone(patch):
    patch.setattr(overlapped_copy, "_samples", lambda tensor: b"")
    try_nothing_out(patch)


def look_at_the_end_alone(patch):
    patch.setattr(OverlappedCopy, "torn", lambda self: [])
    try_nothing_out(patch)


def try_nothing_out(patch):
    patch.setattr(SaveWay, "end_trial", lambda self, written, share: setattr(self, "_is_tried", True))


SHORTCUTS = {
    hold_back_no_step: overlapped.foreach,
    believe_that_nothing_is_written: overlapped.renormalized,
    count_versions_alone: overlapped.swapped,
    look_at_the_end_alone: overlapped.swapped,
    try_nothing_out: overlapped.clipped_by_data,
}


@pytest.mark.full
@pytest.mark.parametrize("shortcut", SHORTCUTS, ids=lambda each: each.__name__)
def test_the_trainings_find_a_shortcut_out(play, monkeypatch, shortcut):
    with monkeypatch.context() as patch:
        shortcut(patch)
        assert not all(is_right(play(seed, SHORTCUTS[shortcut])) for seed in range(20))


# --- one training, step by step ---------------------------------------------------------------------


class Steps:
    """A training whose saves are ordered for the boundaries that a test names."""

    def __init__(self, run, courier, objects):
        self.run = run
        self.courier = courier
        self.model, self.optimizer = objects["model"], objects["optimizer"]
        self._steps = run.steps(60)

    def make(self, *, before=lambda: None):
        """Make one step, with something between the boundary and the optimizer."""
        next(self._steps)
        before()
        self.train()

    def train(self):
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 32)).square().mean().backward()
        self.optimizer.step()

    def save(self, **options):
        """Save at the next boundary, and make the step that follows it; return the seal, or None."""
        known = set(self.courier.seals())
        self.run._service._link.rounds.request_interval()
        while self.run._service._link.rounds._hold is None:
            pass
        self.make(**options)
        self.run._service._interval_saves.settle(waits=True)
        found = self.courier.seals()
        (fresh,) = set(found) - known or {None}
        if fresh is None:
            return None
        path = found[fresh][0]
        seal = json.loads(path.read_text())
        path.unlink()
        return seal


@pytest.fixture
def open_steps(open_session, courier, monkeypatch):
    """``open_steps()``: a training before its first step."""
    monkeypatch.setattr(arena, "_MIN_LATER_BYTES", 1)
    monkeypatch.setattr(StepSeconds, "lookahead", lambda _self: 0)

    def open_one():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 4))
        objects = {"model": model, "optimizer": torch.optim.Adam(model.parameters(), 0.01)}
        return Steps(open_session(courier.begin(), **objects), courier, objects)

    return open_one


@pytest.fixture
def steps(open_steps):
    """A training that has made three steps, and can save."""
    made = open_steps()
    for _ in range(3):
        made.make()
    while not made.run._service._saver.can_save():
        pass
    return made


def test_the_first_save_is_made_between_two_steps_and_the_next_ones_beside_them(steps):
    seals = [steps.save() for _ in range(3)]
    assert [seal["way"] for seal in seals] == ["boundary", "overlapped", "overlapped"]
    assert seals[0]["lost_seconds"] is None
    assert all(seal["copy_seconds"] > 0 < seal["stall_seconds"] for seal in seals)


def test_a_write_from_elsewhere_has_the_save_made_again_and_is_told_once(steps, caplog):
    def write():
        with torch.no_grad():
            steps.model[0].weight.mul_(0.5)

    steps.save()
    for number in range(2):
        pace = steps.run._service._link._pace
        pace.saved(0.0, stall_seconds=0.1)
        with mock.patch.object(pace, "hasten") as hasten:
            assert steps.save(before=write) is None
        assert hasten.call_count == 1
        assert steps.save()["way"] == "boundary"
        steps.run._service._interval_saves._way.excluded.clear()
        assert steps.run._service._interval_saves._way.obstacle is None or number == 1
    assert steps.save()["way"] == "boundary"
    told = [each.getMessage() for each in caplog.records if "made again" in each.getMessage()]
    assert len(told) == 1
    assert "model/0.weight was written to while it was copied, before an optimizer stepped" in told[0]


def test_a_save_before_a_long_evaluation_is_sealed_in_it(steps, courier, monkeypatch):
    monkeypatch.setattr(overlapped_save, "QUIET_SECONDS", 0.01)

    def wait():
        save = steps.run._service._saver.overlapped
        save._copy.join()
        assert save.has_ended
        assert len(courier.seals()) == 1

    steps.save()
    assert steps.save(before=wait)["way"] == "overlapped"


def test_a_drain_behind_takes_the_place_of_a_save_that_is_not_sealed(steps, courier):
    """As one that a rank hears of in an evaluation: the save of that boundary is given up for it."""

    def leave():
        steps.run.check()
        courier.drain()
        while not steps.run._service._link.rounds._can_rewind:
            pass
        steps.run.check()

    steps.run.check()
    steps.save()
    with pytest.raises(SystemExit):
        steps.save(before=leave)
    kinds = [
        json.loads(path.read_text())["kind"] for ranks in courier.seals().values() for path in ranks.values()
    ]
    assert kinds == ["drain"]


def test_a_step_that_was_interrupted_while_it_waited_waits_again(steps):
    """As a script does it that catches Ctrl-C and goes on."""
    steps.save()
    copy = mock.Mock(spec=OverlappedCopy, is_on_gpu=False, seconds=0.0, error=None)
    copy.finish.side_effect = [KeyboardInterrupt, 0.0]
    copy.written.return_value = ["model/0.weight"]
    save = OverlappedSave(copy, seal=mock.Mock(), release=mock.Mock())
    with pytest.raises(KeyboardInterrupt):
        save.before_write()
    save.before_write()
    save.before_write()
    assert copy.finish.call_count == 2
    assert save.spoilt == ["model/0.weight"]


def test_a_save_that_cannot_be_sealed_ends_the_training_unless_the_disk_is_full(steps, monkeypatch, caplog):
    steps.save()
    with monkeypatch.context() as patch:
        patch.setattr(Saver, "seal", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        assert steps.save() is None
        assert "the state was not saved: [Errno 28] No space left on device" in caplog.text
        patch.setattr(Saver, "seal", mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            steps.save()


def test_a_loop_that_is_left_in_the_middle_of_a_step_has_its_save_sealed(open_steps, courier):
    steps = open_steps()
    rounds = steps.run._service._link.rounds
    for step in steps.run.steps(60):
        if step == 6:
            break
        steps.train()
        if step == 5:
            courier.seals()[3][0].unlink()
        if step in {2, 5}:  # the first one is the trial
            while not steps.run._service._saver.can_save():
                pass
            rounds.request_interval()
            while rounds._hold is None:
                pass
    kinds = {
        step: json.loads(path.read_text())["way"]
        for step, each in courier.seals().items()
        for path in each.values()
    }
    assert kinds == {6: "overlapped", 7: "boundary"}


def test_in_a_forked_process_no_step_waits_for_a_copy(steps):
    steps.save()
    held = mock.Mock()
    steps.run._service._saver.overlapped = held
    with mock.patch("os.getpid", return_value=1):
        steps.optimizer.step()
    assert held.before_write.call_count == 0
    steps.optimizer.step()
    assert held.before_write.call_count == 1
    steps.run._service._saver.overlapped = None
