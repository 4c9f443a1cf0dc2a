"""What is set aside of a script's checkpoints, and in which order it is uploaded."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cloudspot.agent.delivery.checkpoint_shelf import CheckpointShelf
from cloudspot.agent.delivery.checkpoint_states import Evidence, Memory, Stamp, State


@dataclass
class Copy:
    state: State
    dropped: list[int | None] = field(repr=False)

    def drop(self) -> None:
        self.dropped.append(self.state.step)


@pytest.fixture
def dropped() -> list[int | None]:
    return []


@pytest.fixture
def shelf(dropped: list[int | None]) -> CheckpointShelf[Copy]:
    return CheckpointShelf(lambda one: Copy(one, dropped), lambda _: True, Memory())


def state(step: int, evidence: Evidence | None = None) -> State:
    return State(f"step-{step}", step, ((f"step-{step}/model", Stamp(7, step, step)),), evidence)


def waiting(shelf: CheckpointShelf[Copy]) -> int | None:
    return None if shelf.ready is None else shelf.ready.state.step


def upload(shelf: CheckpointShelf[Copy]) -> None:
    taken = shelf.begin_upload()
    assert taken is not None
    shelf.note_commit(taken.state)
    shelf.end_upload(is_to_repeat=False)


def test_of_two_complete_states_the_newer_one_waits_and_nothing_that_is_known(shelf, dropped) -> None:
    shelf.begin([state(5)])
    shelf.look((), (state(5),), None)
    assert waiting(shelf) is None
    shelf.look((), (state(10, "quiet"),), None)
    shelf.look((), (state(10, "quiet"), state(20, "quiet")), None)
    assert (waiting(shelf), dropped) == (20, [10])
    shelf.look((), (state(10, "quiet"),), None)
    assert waiting(shelf) == 20


def test_what_may_be_complete_waits_once_the_next_save_has_begun(shelf, dropped) -> None:
    shelf.look((), (), state(10))
    assert waiting(shelf) is None
    shelf.look((state(10, "next"),), (), state(20))
    assert shelf.ready is not None
    assert (shelf.ready.state.step, shelf.ready.state.evidence, dropped) == (10, "next", [])


def test_an_older_state_is_not_uploaded_after_a_newer_one_though_it_turns_out_complete(
    shelf, dropped
) -> None:
    """It was set aside while the newer one, which had a marker, was on its way."""
    shelf.look((), (), state(10))
    shelf.look((), (state(20, "marker"),), state(10))
    upload(shelf)
    shelf.look((state(10, "next"),), (state(20, "marker"),), None)
    assert (waiting(shelf), dropped) == (None, [20, 10])


def test_an_upload_that_failed_is_repeated_unless_something_newer_waits(shelf, dropped) -> None:
    shelf.look((), (state(10, "quiet"),), None)
    shelf.begin_upload()
    shelf.end_upload(is_to_repeat=True)
    assert waiting(shelf) == 10
    shelf.begin_upload()
    shelf.look((), (state(20, "quiet"),), None)
    shelf.end_upload(is_to_repeat=True)
    assert (waiting(shelf), dropped) == (20, [10])


def test_a_state_that_is_being_uploaded_is_not_set_aside_again(shelf) -> None:
    shelf.look((), (state(10, "quiet"),), None)
    shelf.begin_upload()
    shelf.look((), (state(10, "quiet"),), state(10))
    assert waiting(shelf) is None


def test_what_quiet_alone_has_shown_is_doubtful_until_more_does(shelf) -> None:
    for step in (10, 20):
        shelf.look((), (state(step, "quiet"),), None)
        upload(shelf)
    assert shelf.num_doubtful(lambda *_: False) == 2
    assert shelf.num_doubtful(lambda name, _: name == "step-10") == 1
    shelf.look((), (state(30, "index"),), None)
    upload(shelf)
    assert shelf.num_doubtful(lambda *_: False) == 0


def test_what_the_next_save_has_confirmed_during_its_upload_is_not_doubtful(shelf) -> None:
    shelf.look((), (state(10, "quiet"),), None)
    taken = shelf.begin_upload()
    shelf.look((state(10, "next"),), (), None)
    shelf.look((state(20, "next"),), (), None)
    shelf.note_commit(taken.state)
    assert shelf.num_doubtful(lambda *_: False) == 0


def test_a_later_agent_knows_what_is_doubtful_from_before_it_was_committed(dropped) -> None:
    memory = Memory()
    killed = CheckpointShelf(lambda one: Copy(one, dropped), lambda _: True, memory)
    killed.look((), (state(10, "quiet"),), None)
    killed.begin_upload()
    shelf = CheckpointShelf(lambda one: Copy(one, dropped), lambda _: True, memory)
    assert shelf.num_doubtful(lambda *_: False) == 1


def test_a_later_agent_uploads_nothing_again_and_nothing_older(dropped) -> None:
    memory = Memory()
    killed = CheckpointShelf(lambda one: Copy(one, dropped), lambda _: True, memory)
    killed.look((), (state(20, "index"),), None)
    upload(killed)
    shelf = CheckpointShelf(lambda one: Copy(one, dropped), lambda _: True, memory)
    for step in (20, 10):
        shelf.look((), (state(step, "index"),), None)
        assert waiting(shelf) is None
