"""A rank's part in a rescue: what it says to its agent, and for how long its process waits."""

import json
import threading

import pytest

from cloudspot.train import handoff
from cloudspot.train.handoff import HOLD, RELEASE, SAVE, RescueCommand
from cloudspot.train.rounds import rescue
from cloudspot.train.rounds.rescue import Held, Rescue
from cloudspot.train.rounds.save_order import RESCUE, SaveOrder

HELD = Held(
    boundary=7,
    before=6,
    step=8,
    digest="d",
    draws=False,
    differs=True,
    holders=((0, 1),),
    needs_all=False,
    keeps=(1,),
)
ORDER = SaveOrder(RESCUE, 7, 900_001, avoid=frozenset({1}), rescue={"cause": "lost"}, keepers={1: 2})


class Rank:
    """A rank whose state is made up."""

    def __init__(self, directory):
        self.state, self.saved, self.may_stop, self.is_stopped = HELD, [], True, threading.Event()
        self.num_told = 0
        self.rescue = Rescue(directory, rank=2, rescuable=self, stop_rounds=self.stop_rounds)

    def stop_rounds(self):
        self.is_stopped.set()
        return self.may_stop

    def held(self):
        return self.state

    def report_likeness(self):
        self.num_told += 1

    def save(self, order):
        self.saved.append(order)
        return 8


@pytest.fixture
def rank(tmp_path, monkeypatch):
    for name in ("POLL_SECONDS", "SETTLED_SECONDS"):
        monkeypatch.setattr(rescue, name, 0.005)
    found = Rank(tmp_path)
    yield found
    found.rescue.stop()


def read(path):
    end = threading.Event()
    for _ in range(2000):
        if path.exists():
            return json.loads(path.read_text())
        end.wait(0.005)
    pytest.fail(f"{path.name} did not come")


def test_a_rank_that_is_asked_stops_its_rounds_and_says_what_it_holds(rank, tmp_path):
    rank.rescue.start()
    assert not rank.is_stopped.wait(0.05)
    handoff.write_rescue(tmp_path, RescueCommand(HOLD, 1))
    said = read(handoff.survives_path(tmp_path, 2))
    assert rank.is_stopped.is_set()
    assert said["held"] == {
        "rank": 2, "boundary": 7, "before": 6, "step": 8, "digest": "d", "draws": False, "differs": True, "holders": [[0, 1]],
        "needs_all": False, "keeps": [1],
    }  # fmt: skip
    assert not said["is_ending"]


def test_a_process_that_is_about_to_end_says_so_unasked_and_waits_until_it_is_released(rank, tmp_path):
    rank.rescue.start()
    main = threading.Thread(target=rank.rescue.hold)
    main.start()
    assert read(handoff.survives_path(tmp_path, 2))["is_ending"]
    handoff.write_rescue(tmp_path, RescueCommand(SAVE, 3, ORDER.to_json()))
    assert read(handoff.rescued_path(tmp_path, 2)) == {"attempt": 3, "step": 8}
    assert rank.saved == [ORDER]
    main.join(0.05)
    assert main.is_alive()
    handoff.write_rescue(tmp_path, RescueCommand(RELEASE, 0))
    main.join(5)
    assert not main.is_alive()


def test_a_process_that_holds_nothing_says_why_and_does_not_wait(rank, tmp_path):
    rank.state = "the optimizer has stepped"
    rank.rescue.start()
    rank.rescue.hold()
    said = read(handoff.survives_path(tmp_path, 2))
    assert (said["held"], said["problem"]) == (None, "the optimizer has stepped")


def test_a_process_whose_agent_is_gone_does_not_wait_for_ever(rank, monkeypatch):
    monkeypatch.setattr(rescue, "ANSWER_SECONDS", 0.05)
    rank.rescue.start()
    rank.rescue.hold()


def test_a_main_thread_that_changes_the_state_all_the_time_is_given_up(rank, tmp_path, monkeypatch):
    monkeypatch.setattr(rescue, "UNSETTLED_SECONDS", 0.05)
    rank.state = "an optimizer has stepped"
    rank.rescue.start()
    handoff.write_rescue(tmp_path, RescueCommand(HOLD, 1))
    assert read(handoff.survives_path(tmp_path, 2))["held"] is None


def test_a_rank_that_has_left_otherwise_holds_nothing(rank, tmp_path):
    rank.may_stop = False
    rank.rescue.start()
    rank.rescue.hold()
    assert read(handoff.survives_path(tmp_path, 2))["problem"] == "its loop has ended"


def test_an_error_while_it_saves_lets_the_process_end(rank, tmp_path, caplog):
    rank.save = lambda order: 1 / 0
    rank.rescue.start()
    handoff.write_rescue(tmp_path, RescueCommand(SAVE, 1, ORDER.to_json()))
    rank.rescue.hold()
    assert "the state of rank 2 cannot be saved in a rescue" in caplog.text


def test_a_handler_of_signals_waits_for_no_lock(rank):
    """The main thread may hold it where the signal interrupts it."""
    rank.rescue.start()
    with rank.rescue._woken._cond:
        handler = threading.Thread(target=rank.rescue.begin, daemon=True)
        handler.start()
        handler.join(2)
        assert not handler.is_alive()
