"""What a launch's records say of its seats, and the job file that a history carries."""

import pytest
from support.records.made_records import Records

from cloudspot.errors import SpecError
from cloudspot.jobstore.journal import history
from cloudspot.story.report import show_json

MADE = Records()


def launch(num_nodes=3, **fields):
    return MADE.launch(intent=MADE.intent(num_nodes=num_nodes), **fields)


def test_a_launch_that_nobody_has_claimed_is_live_and_open():
    found = launch(claimed=False)
    assert (found.claimed, found.open_ranks, found.live_ranks) == ({}, (0, 1, 2), (0, 1, 2))
    assert [found.over_at(rank) for rank in range(3)] == [None] * 3
    assert (found.ended_at, found.is_settled) == (None, False)


def test_a_claimed_seat_is_live_until_its_owner_has_said_its_last_word_or_is_proven_dead():
    proof = MADE.certificate("i-1-1", rank=1, ended=130.0)
    word = MADE.exit("drained", instance_id="i-1-2", rank=2, at=140.0)
    found = launch(certificates={"i-1-1": proof}, exits={2: word})
    assert set(found.claimed) == {0, 1, 2}
    assert [found.is_over(rank) for rank in range(3)] == [False, True, True]
    assert (found.open_ranks, found.live_ranks) == ((), (0,))
    assert [found.over_at(rank) for rank in range(3)] == [None, MADE.at(130), MADE.at(140)]
    assert [found.certificate(rank) for rank in range(3)] == [None, proof, None]
    assert (found.ended_at, found.is_settled) == (None, False)


def test_a_node_was_over_when_it_said_so_though_its_machine_ended_later():
    word = MADE.exit("drained", at=100.0)
    found = launch(1, exits={0: word}, certificates={"i-1-0": MADE.certificate(ended=160.0)})
    assert (found.over_at(0), found.ended_at, found.is_settled) == (MADE.at(100), MADE.at(100), True)


def test_a_void_seat_ended_when_it_was_made_void():
    found = launch(2, slots={0: MADE.slot("i-1-0"), 1: MADE.slot(at=50.0)})
    assert (set(found.claimed), found.live_ranks, found.open_ranks) == ({0}, (0,), ())
    assert (found.over_at(0), found.over_at(1), found.ended_at) == (None, MADE.at(50), None)
    assert (found.is_over(1), found.certificate(1)) == (False, None)


def test_a_launch_ended_with_the_last_of_its_seats():
    proofs = {
        "i-1-0": MADE.certificate("i-1-0", ended=90.0),
        "i-1-1": MADE.certificate("i-1-1", rank=1, ended=120.0),
    }
    slots = {0: MADE.slot("i-1-0"), 1: MADE.slot("i-1-1"), 2: MADE.slot(at=20.0)}
    found = launch(slots=slots, certificates=proofs)
    assert (found.live_ranks, found.ended_at, found.is_settled) == ((), MADE.at(120), True)


def test_the_last_word_of_a_machine_that_owns_no_seat_ends_none():
    foreign = MADE.exit("failed", instance_id="i-9", at=80.0)
    found = launch(1, exits={0: foreign}, certificates={"i-9": MADE.certificate("i-9", rank=None)})
    assert (found.own_exits, found.live_ranks, found.over_at(0), found.is_settled) == ({}, (0,), None, False)
    void = launch(1, slots={0: MADE.slot()}, exits={0: foreign})
    assert (void.own_exits, void.live_ranks) == ({}, ())


def test_the_last_word_alone_does_not_settle_a_launch_as_its_bill_is_open():
    found = launch(1, exits={0: MADE.exit("succeeded")})
    assert (found.live_ranks, found.is_settled) == ((), False)


def test_the_live_launches_are_those_with_a_live_seat():
    history = MADE.history(
        MADE.launch(1),
        MADE.launch(2, outcome="reclaimed"),
        MADE.launch(3, claimed=False),
        MADE.capacity(4, at=9.0),
    )
    assert [one.number for one in history.live_launches] == [1, 3]


def test_whoever_asks_a_history_for_its_job_file_gets_the_one_that_was_decoded_first(monkeypatch):
    decoded, real = [], history.spec_from_json

    def counted(value):
        decoded.append(value)
        return real(value)

    monkeypatch.setattr(history, "spec_from_json", counted)
    launches = [MADE.launch(number, outcome="reclaimed") for number in range(1, 9)]
    generations = [MADE.generation(number, launch=number) for number in range(1, 9)]
    found = MADE.history(*launches, generations=tuple(generations))
    assert show_json(found, MADE.at(900))["name"] == found.job_file.name == "digits"
    assert len(decoded) <= 2, "the report also looks at the job as it was before its end was written"


@pytest.mark.parametrize(
    ("resumption", "key"), [(0, "jobs/digits-1/spec"), (2, f"jobs/digits-1/submissions/{'5' * 64}")]
)
def test_a_job_file_that_cannot_be_read_names_the_key_of_its_submission(resumption, key):
    known = MADE.history()
    odd = MADE.change(known.submission, spec={"name": 3}, resumption=resumption)
    with pytest.raises(SpecError, match=rf"^{key}: stored job: "):
        _ = MADE.change(known, submission=odd).job_file
