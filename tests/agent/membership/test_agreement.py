"""Membership: real agents, over one store and in a hurry, agree on generations (P3)."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from support.records.made_journal import open_launch, start_generation

from cloudspot.agent.ending.exit_record import write_exit_record
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.membership.agreement import PROOF_SECONDS
from cloudspot.agent.membership.failure_votes import not_reached
from cloudspot.agent.membership.peers import Liveness
from cloudspot.errors import TransientError
from cloudspot.jobstore.access.store_clock import StoreClock, utc_now
from cloudspot.jobstore.checkpoints import manifests, retention
from cloudspot.jobstore.checkpoints.manifests import read_manifest
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import (
    CheckpointId,
    Failed,
    Idle,
    Intent,
    Notice,
    SaveId,
    Seat,
    new_nonce,
)
from cloudspot.jobstore.nodes import launches
from cloudspot.train import handoff as files

JOB = "digits-1"


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """A second of these agents is many of real ones; long enough, though, for a machine that is busy."""
    monkeypatch.setattr("cloudspot.agent.membership.peers.SUSPECT_SECONDS", 1.5)
    monkeypatch.setattr("cloudspot.agent.membership.peers.START_SECONDS", 2.5)
    monkeypatch.setattr("cloudspot.agent.membership.open_seats.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("cloudspot.agent.membership.peer_heartbeats.LISTEN_SECONDS", 0.04)
    monkeypatch.setattr("cloudspot.agent.membership.peer_heartbeats.REGROUP_SECONDS", 0.02)
    monkeypatch.setattr("cloudspot.agent.membership.heartbeat_writer.HEARTBEAT_SECONDS", 0.15)
    monkeypatch.setattr("cloudspot.agent.membership.heartbeat_writer.REGROUP_SECONDS", 0.03)
    monkeypatch.setattr("cloudspot.agent.membership.heartbeat_writer.LOOK_SECONDS", 0.05)


class Agent:
    """One node's membership with its heartbeat; what it decides is kept, what it runs is nothing."""

    def __init__(self, bench, rank, *, store=None, launch=1, num_seats=None, checkpoint=None, **nodes):
        self.bench, self.seat = bench, Seat(launch, rank)
        self.life = bench.life(
            machine=f"machine-{self.seat}", launch=launch, rank=rank, store=store, num_seats=num_seats,
            nodes=nodes, spot={"policy": "spot"}, checkpoint=checkpoint or {},
        )  # fmt: skip
        self.membership = bench.membership(self.life)
        launches.claim_slot(bench.store, JOB, launch, rank, self.life.context.job.identity)
        self.ended = None
        self.thread = None

    def wake(self, state="restoring"):
        self.life.context.status.state = state
        self.life.heartbeat.start()
        self.membership.start()
        return self

    def seek(self, why="first"):
        """Look for the next generation, as an agent does between two starts of torchrun."""

        def run():
            try:
                self.ended = self.membership.next(why)[0]
            except LeavingError as error:
                self.ended = error.leaving
            except SystemExit:  # it has died
                return
            else:
                self.life.context.status.state = "running"
                self.life.context.status.is_regrouping = False

        self.ended = None
        self.life.context.status.state = "restoring"
        self.thread = threading.Thread(target=run, daemon=True, name="seek")
        self.thread.start()
        return self

    def found(self):
        """What ``seek`` came to."""
        self.thread.join(20.0)
        assert not self.thread.is_alive(), "this node hangs"
        return self.ended

    def die(self):
        """Stop like a machine that lost its power."""
        self.life.heartbeat.stop()
        self.life.heartbeat._thread.join(10.0)
        self.membership.stop()
        object.__setattr__(self.life.context, "retry_until", self.bench.hang)

    def say(self, outcome, **facts):
        leaving = Leaving(outcome, facts.pop("detail", "as told"), **facts)
        write_exit_record(
            self.bench.store,
            self.life.context.node,
            self.life.context.job.identity,
            leaving,
            self.life.context.status,
        )

    def notice(self, seconds):
        now = datetime.now(timezone.utc)
        record = Notice(
            launch=self.seat.launch, rank=self.seat.rank, deadline=now + timedelta(seconds=seconds), action="terminate",
            source="test", step=1, at=now, writer=new_nonce(),
        )  # fmt: skip
        self.bench.store.put(keys.notice(JOB, *self.seat), codec.encode(record))


@pytest.fixture
def make(bench):
    """``make(3, min=2, max=3)``: agents that are awake and agreed on generation 1."""
    made = []

    def start(count, **nodes):
        made.extend(Agent(bench, rank, **nodes).wake() for rank in range(count))
        for agent in made:
            agent.seek()
        assert {ranks(agent.found()) for agent in made} == {tuple(range(count))}
        return made

    return start


def ranks(generation):
    assert not isinstance(generation, Leaving), generation
    return tuple(member.rank for member in generation.members)


def recorded(bench):
    return [(ranks(one), one.why) for one in bench.generations()]


# --- the first generation ---------------------------------------------------------------------------


def test_all_nodes_of_a_launch_agree_on_one_first_generation(bench, make):
    first, second, third = make(3, min=2, max=3)
    assert first.found() == second.found() == third.found()
    assert recorded(bench) == [((0, 1, 2), "first")]


def test_a_peer_that_sets_up_or_restores_is_waited_for(bench, wait_until):
    """It was started without, and started anew every two minutes for as long as the other restored."""
    first, second = (Agent(bench, rank, min=1, max=2).wake() for rank in range(2))
    second.life.context.status.state = "setup"
    first.seek()
    wait_until(lambda: first.life.context.status.state == "ready")
    second.life.context.status.state = "restoring"
    time.sleep(0.3)
    assert first.ended is None
    second.seek()
    assert first.found() == second.found()
    assert recorded(bench) == [((0, 1), "first")]


def test_who_is_late_holds_up_enough_others_only_for_a_while_and_joins_them_later(
    bench, monkeypatch, wait_until
):
    monkeypatch.setattr("cloudspot.agent.membership.peers.LATE_SECONDS", 0.5)
    first, second = (Agent(bench, rank, min=1, max=2).wake() for rank in range(2))
    second.life.context.status.state = "setup"
    assert ranks(first.seek().found()) == (0,)
    second.seek()
    wait_until(first.membership._peers.ready_newcomers)
    assert not first.membership.newcomers_wait()  # there is no commit of this generation yet
    first.seek("drained")
    assert ranks(first.found()) == ranks(second.found()) == (0, 1)
    assert recorded(bench) == [((0,), "first"), ((0, 1), "joined")]


def test_who_waits_long_for_another_says_so(bench, monkeypatch, wait_until):
    """A setup that hangs on one node idles all the others, and nothing but max_runtime ends that."""
    monkeypatch.setattr("cloudspot.agent.membership.agreement.WARN_SECONDS", 0.2)
    first, second = (Agent(bench, rank, min=1, max=2).wake() for rank in range(2))
    second.life.context.status.state = "setup"
    first.seek()
    wait_until(lambda: first.life.context.status.warnings)
    assert first.life.context.status.warnings == ("ready, and idle until node 1.1 (setup) is ready too",)
    second.seek()
    assert ranks(first.found()) == (0, 1)
    assert first.life.context.status.warnings == ()


@pytest.mark.full
def test_the_others_are_idle_once_all_of_them_say_so(bench, make, wait_until):
    """Their heartbeats are read for that, though nothing else about them has changed."""
    first, second, third = make(3, min=2, max=3)
    for one in (first, second):
        one.life.context.status.idle = Idle(seconds=1800.0, cause="GPUs at 0 %")
    wait_until(lambda: first.membership._peers.beats()[second.seat].idle is not None)
    assert not first.membership.others_are_idle()
    third.life.context.status.idle = Idle(seconds=1800.0, cause="GPUs at 0 %")
    for one in (first, second, third):
        wait_until(one.membership.others_are_idle)
    third.life.context.status.idle = None
    wait_until(lambda: not first.membership.others_are_idle())


def test_who_has_changed_and_was_not_read_yet_may_be_busy(bench, make, wait_until):
    first, second = make(2, min=1, max=2)
    second.life.context.status.idle = Idle(seconds=1800.0, cause="GPUs at 0 %")
    wait_until(first.membership.others_are_idle)
    first.membership._peers.stop()
    first.membership._peers._thread.join()
    first.membership._peers._unread = frozenset({second.seat})
    assert not first.membership.others_are_idle()


def test_who_idled_in_the_generation_before_says_nothing_of_this_one(bench, make, wait_until):
    first, second = make(2, min=1, max=2)
    second.life.context.status.idle = Idle(seconds=1800.0, cause="GPUs at 0 %")
    wait_until(first.membership.others_are_idle)
    first.membership.current = msgspec.structs.replace(first.membership.current, number=2)
    assert not first.membership.others_are_idle()


@pytest.mark.full
def test_who_has_finished_is_not_asked_whether_it_is_idle(bench, make, wait_until):
    first, second, third = make(3, min=2, max=3)
    third.say("succeeded")
    second.life.context.status.idle = Idle(seconds=1800.0, cause="GPUs at 0 %")
    wait_until(first.membership.others_are_idle)


# --- a loss -----------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_survivors_go_on_and_the_late_one_finds_that_it_is_out(bench, make, wait_until):
    first, second, third = make(3, min=2, max=3)
    beat = third.life.heartbeat.beat
    third.life.heartbeat.beat = lambda: None  # stopped, as by SIGSTOP
    wait_until(first.membership.why_regroup)
    first.seek("regrouped")
    second.seek("regrouped")
    assert ranks(first.found()) == ranks(second.found()) == (0, 1)
    third.life.heartbeat.beat = beat
    wait_until(third.membership.why_regroup)
    with pytest.raises(LeavingError, match="generation 2 goes on without this node"):
        third.membership.obey()
    assert third.seek("regrouped").found().outcome == "superseded"
    assert recorded(bench) == [((0, 1, 2), "first"), ((0, 1), "regrouped")]


@pytest.mark.full
def test_losses_down_to_min_go_on_and_below_it_the_last_one_holds_for_a_while_and_leaves(bench, make):
    first, second, third = make(3, min=2, max=3, hold=0.5)
    first.die()
    second.seek("regrouped")
    third.seek("regrouped")
    assert ranks(second.found()) == ranks(third.found()) == (1, 2)
    second.die()
    leaving = third.seek("regrouped").found()
    assert (leaving.outcome, leaving.permanent) == ("left", False)
    assert leaving.detail == "1 of at least 2 nodes are here, and no other came within 0 s"
    assert recorded(bench)[1:] == [((1, 2), "regrouped"), ((2,), "regrouped")]


# --- machines come and go ---------------------------------------------------------------------------


def buy(bench, launch, *, rank=0, num_seats=1, for_=(), **nodes):
    """A machine of a further launch; it has claimed its seat and beats."""
    open_launch(bench.store, JOB, launch, num_nodes=num_seats, stands_in_for=for_)
    return Agent(bench, rank, launch=launch, num_seats=num_seats, **nodes).wake("setup")


def seats(generation):
    assert not isinstance(generation, Leaving), generation
    return tuple(map(str, generation.seats))


@pytest.mark.full
def test_a_replacement_joins_when_it_is_ready_and_no_sooner(bench, make, wait_until):
    nodes = {"min": 2, "max": 2, "hold": 60.0}
    first, second = make(2, **nodes)
    second.die()
    first.seek("regrouped")
    wait_until(lambda: len(recorded(bench)) == 2)  # which leaves out the second, and trains nothing
    third = buy(bench, 2, **nodes)
    time.sleep(0.5)
    assert (first.ended, first.life.context.status.state) == (None, "ready")
    third.seek()
    assert seats(first.found()) == seats(third.found()) == ("1.0", "2.0")
    assert first.ended.endpoint.startswith("127.0.0.1:")
    assert [(one.seats, one.why) for one in bench.generations()[1:]] == [
        (((1, 0),), "regrouped"),
        (((1, 0), (2, 0)), "joined"),
    ]
    assert second.seek().ended is None  # it is dead; whoever goes on finds that it is out
    again = Agent(bench, 1, **nodes)
    again.membership.enter(bench.generations()[0])
    assert again.wake().seek("regrouped").found().outcome == "superseded"
    again.membership.stop()


@pytest.mark.full
def test_a_stand_in_takes_its_principals_place_and_no_others(bench, make, wait_until):
    nodes = {"min": 2, "max": 3}
    made = make(3, **nodes)
    stand_in = buy(bench, 2, num_seats=2, for_=((1, 1), (1, 2)), **nodes)
    assert not made[0].membership.newcomers_wait()
    stand_in.seek()
    for one in made:
        wait_until(one.membership._peers.ready_newcomers)
    assert [one.membership.has_replacement() for one in made] == [False, True, False]
    for one in made:
        one.seek("drained")
    assert (
        seats(made[0].found()) == seats(made[2].found()) == seats(stand_in.found()) == ("1.0", "1.2", "2.0")
    )
    leaving = made[1].found()
    assert (leaving.outcome, leaving.detail) == ("superseded", "generation 2 goes on without this node")
    assert bench.generations()[1].why == "handed-over"


@pytest.mark.full
def test_a_failure_goes_on_to_count_though_a_newcomer_joins(bench, make, wait_until):
    (first,) = make(1, min=1, max=2, num_seats=1)
    newcomer = buy(bench, 2, min=1, max=2).seek()
    wait_until(first.membership._peers.ready_newcomers)
    assert seats(first.seek("trainer-failed").found()) == seats(newcomer.found()) == ("1.0", "2.0")
    assert bench.generations()[1].why == "trainer-failed"


@pytest.mark.full
def test_a_join_waits_for_a_commit_of_the_running_generation(bench, make, wait_until):
    (first,) = make(1, min=1, max=2, num_seats=1)
    buy(bench, 2, min=1, max=2).seek()
    wait_until(first.membership._peers.ready_newcomers)
    assert not first.membership.newcomers_wait()
    bench.commit(bench.id(1, 40))
    first.life.context.journal.read()
    assert first.membership.newcomers_wait()


@pytest.mark.full
def test_newcomers_start_alone_once_all_members_are_gone_from_what_those_had_uploaded(
    bench, make, wait_until
):
    nodes = {"min": 2, "max": 2, "hold": 60.0}
    made = make(2, **nodes)
    newcomers = [buy(bench, 2, rank=rank, num_seats=2, **nodes).seek() for rank in range(2)]
    wait_until(lambda: all(one.life.context.status.state == "ready" for one in newcomers))
    for rank in range(2):
        bench.put_part(rank, 40)  # whole, and not committed
    time.sleep(0.5)
    assert [one.ended for one in newcomers] == [None, None]
    for one in made:
        one.die()
    assert {seats(one.found()) for one in newcomers} == {("2.0", "2.1")}
    record = bench.generations()[1]
    assert (record.restore_from, record.why) == (bench.id(1, 40), "relaunched")


def test_a_newcomer_that_nobody_needs_leaves_when_the_members_have_succeeded(bench, make):
    (first,) = make(1, min=1, max=1)
    newcomer = buy(bench, 2, min=1, max=1).seek()
    first.say("succeeded")
    leaving = newcomer.found()
    assert (leaving.outcome, leaving.detail) == ("superseded", "the job needs no more nodes")


@pytest.mark.full
def test_a_seat_that_may_be_claimed_is_waited_for_and_one_that_is_void_is_not(bench, make, wait_until):
    first, second = make(2, min=2, max=2, hold=0.3)
    open_launch(bench.store, JOB, 2)
    second.die()
    first.seek("regrouped")
    wait_until(lambda: len(recorded(bench)) == 2)
    time.sleep(1.0)
    assert first.ended is None
    launches.void_slot(bench.store, JOB, 2, 0, "no capacity")
    assert first.found().outcome == "left"


@pytest.mark.full
def test_the_last_beat_of_a_node_that_died_is_no_sign_of_life(bench, make):
    """A beat that was not read before the question counted as an answer: one loss in ten or so was booked
    as a failure of the script, which has few of them."""
    first, second = make(2, min=1, max=2)
    first.membership._peers.stop()
    first.membership._peers._thread.join(10.0)
    second.life.heartbeat.beat()  # never read so far
    second.die()
    first.membership._peers = type(first.membership._peers)(first.life.context)
    first.membership._peers._pass()
    second.life.heartbeat.beat()  # its last one, of just before the question
    first.membership.start()
    assert first.membership.others_are_well() is False


def test_nobody_waits_for_the_silence_of_a_member_that_has_provably_ended(bench, make, monkeypatch):
    """All others stood still for 20 s although the proof, and the machine in its place, were there at once."""
    monkeypatch.setattr("cloudspot.agent.membership.peers.SUSPECT_SECONDS", 3600.0)
    monkeypatch.setattr("cloudspot.agent.membership.peer_heartbeats.CERTIFICATE_SECONDS", 0.2)
    first, second = make(2, min=1, max=2)
    second.die()
    key = keys.certificate(JOB, 1, second.life.context.job.identity.instance_id)
    bench.store.put(key, b"{}")
    assert first.membership.others_are_well() is False
    assert ranks(first.seek("regrouped").found()) == (0,)


@pytest.mark.full
def test_an_outage_of_this_nodes_own_store_makes_no_member_absent(bench, make, monkeypatch, wait_until):
    """The heartbeats it knew were two minutes old: it ended a training in which all was well."""
    first, _ = make(2, min=1, max=2)
    peers = first.membership._peers
    wait_until(lambda: first.membership.why_regroup() is None and first.membership._all_ran)
    first.membership._all_ran = False
    peers._beats[Seat(1, 1)] = None  # it had not heard of the start yet
    monkeypatch.setattr(peers, "_list", fail)
    heard = peers.heard_seconds
    time.sleep(1.5)
    assert peers.heard_seconds - heard < 0.3
    assert first.membership.why_regroup() is None


def fail(*_):
    raise TransientError("down")


@pytest.mark.full
def test_a_member_that_lives_but_never_starts_is_left_behind(bench, make, wait_until):
    """It lives, so it was in the next generation again, and so on for ever."""
    first, second, third = make(3, min=2, max=3)
    first.seek("trainer-failed")
    second.seek("trainer-failed")
    assert ranks(first.found()) == ranks(second.found()) == (0, 1, 2)  # the third hangs in the first
    wait_until(lambda: (first.membership.why_regroup() or "").startswith("node 1.2 does not run"))
    first.seek("regrouped")
    assert ranks(first.found()) == (0, 1)
    assert third.seek("regrouped").found().outcome == "superseded"


@pytest.mark.full
def test_a_member_that_is_still_restoring_is_waited_for_and_not_left_behind(bench, make, wait_until):
    first, second = make(2, min=1, max=2)
    first.seek("trainer-failed")
    assert ranks(first.found()) == (0, 1)
    second.life.context.status.state = "restoring"
    wait_until(lambda: (first.membership.why_regroup() or "").startswith("node 1.1 does not run"))
    first.seek("regrouped")
    wait_until(lambda: first.life.context.status.state == "ready")
    second.seek("trainer-failed")  # adopts the second, which is newer than what it ran
    assert second.found().number == 2
    second.seek("regrouped")
    assert first.found() == second.found()
    assert ranks(first.ended) == (0, 1)


@pytest.mark.full
def test_damage_that_is_noted_while_a_member_waits_is_seen_before_it_proposes_and_asked_for_no_sooner(
    bench, make, wait_until
):
    """It looked for checkpoints ten times a second, for as long as it waited for the others."""
    first, second = make(2, min=2, max=2)
    for step in (10, 20):
        bench.commit_sharded(bench.id(1, step), [b"weights of 0", b"weights of 1"])
    second.life.context.status.state = "restoring"
    first.seek("trainer-failed")
    wait_until(lambda: first.life.context.status.state == "ready")
    list_page, listed = bench.store.list_page, []

    def counted(prefix, **options):
        if prefix == keys.manifests_prefix(JOB):
            listed.append(threading.current_thread())
        return list_page(prefix, **options)

    bench.store.list_page = counted
    time.sleep(0.5)
    assert first.ended is None
    assert listed == []
    retention.note_damage(bench.store, JOB, bench.id(1, 20), "a chunk")
    second.seek("trainer-failed")
    assert first.found() == second.found()
    assert first.ended.restore_from == bench.id(1, 10)
    assert [(one.checkpoint, one.reason) for one in first.ended.skipped] == [(bench.id(1, 20), "a chunk")]
    assert listed != []


@pytest.mark.full
def test_a_failure_elsewhere_is_heard_of_for_the_generation_that_runs_and_no_other(bench, make, wait_until):
    first, second, third = make(3, min=2, max=3)
    assert first.membership.votes.failed_elsewhere() is None
    failed = Failed(generation=1, why="trainer-failed", exit_code=3)
    second.life.context.status.failed = failed
    wait_until(first.membership.votes.failed_elsewhere)
    assert first.membership.votes.failed_elsewhere() == failed
    stuck = Failed(generation=1, why="trainer-stuck", exit_code=137)
    third.life.context.status.failed = stuck
    wait_until(lambda: first.membership.votes.failed_elsewhere() == stuck)
    for agent in (first, second, third):
        agent.seek("trainer-stuck")
    assert first.found().number == 2
    assert first.membership.votes.failed_elsewhere() is None


# --- how others leave -------------------------------------------------------------------------------


def test_a_node_with_a_notice_is_in_no_further_generation(bench, make):
    first, second = make(2, min=1, max=2)
    second.notice(seconds=30.0)
    assert ranks(first.seek("drained").found()) == (0,)


def test_a_peer_that_has_finished_is_not_missed(bench, make, wait_until):
    """Twenty seconds after it had gone, the other's evaluation was ended, for want of its sign of life."""
    first, second = make(2, min=2, max=2)
    wait_until(lambda: first.membership.why_regroup() is None and first.membership._all_ran)
    second.life.context.status.state = "ending"
    second.die()
    second.say("succeeded")
    peers = first.membership._peers
    wait_until(lambda: peers.is_gone(Seat(1, 1)) and Seat(1, 1) in peers._lost)
    assert first.membership.why_regroup() is None
    assert first.membership.others_are_well()
    assert first.membership.finished() == {Seat(1, 1)}


@pytest.mark.full
def test_a_drain_goes_on_though_the_node_that_asked_for_it_has_gone(bench, make, wait_until):
    """Ended twenty seconds after the other's last word, in the middle of the save."""
    first, second = make(2, min=1, max=2)
    second.notice(seconds=2.0)
    second.die()
    second.say("drained")
    peers = first.membership._peers
    wait_until(lambda: Seat(1, 1) in peers._lost)
    assert first.membership.why_regroup() is None
    wait_until(first.membership.why_regroup, seconds=5)  # the deadline has come


def test_a_peers_permanent_failure_is_waited_for_and_ends_all(bench, make, wait_until):
    first, second = make(2, min=1, max=2)
    second.life.context.status.state = "ending"
    wait_until(lambda: first.membership._peers.beats()[Seat(1, 1)].state == "ending")
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(first.membership.others_are_well()))
    thread.start()
    time.sleep(0.2)
    assert outcome == []
    second.say("failed", permanent=True, exit_code=3, detail="no such layer")
    thread.join(10.0)
    assert outcome == [False]
    leaving = first.seek("regrouped").found()
    assert (leaving.outcome, leaving.permanent, leaving.exit_code) == ("failed", True, 3)


@pytest.mark.parametrize("state", ["draining", "ending"])
@pytest.mark.parametrize(
    ("word", "is_well"), [("notice", False), ("drained", False), ("succeeded", True), ("stays", True)]
)
def test_a_member_that_drains_or_ends_is_waited_for_until_it_has_said_why(
    bench, make, wait_until, state, word, is_well
):
    """It may have a notice that is not in the store yet: without it, another start would count as a failure."""
    first, second = make(2, min=1, max=2)
    second.life.context.status.state = state
    wait_until(lambda: first.membership._peers.beats()[Seat(1, 1)].state == state)
    asked, outcome = threading.Event(), []
    first.membership._peers.pause, pause = lambda: (asked.set(), pause()), first.membership._peers.pause
    thread = threading.Thread(target=lambda: outcome.append(first.membership.others_are_well()))
    thread.start()
    assert asked.wait(10.0)
    wait_until(lambda: first.membership._peers.liveness(Seat(1, 1)) is not Liveness.UNKNOWN)
    asked.clear()
    assert asked.wait(10.0), "it was not waited for"
    assert outcome == []
    if word == "notice":
        second.notice(seconds=60.0)
    elif word == "stays":
        second.life.context.status.state = "running"
    else:
        second.say(word)
    thread.join(10.0)
    assert outcome == [is_well]


@pytest.mark.full
def test_a_member_that_falls_silent_while_it_drains_is_not_waited_for(bench, make, wait_until):
    first, second = make(2, min=1, max=2)
    second.life.context.status.state = "draining"
    wait_until(lambda: first.membership._peers.beats()[Seat(1, 1)].state == "draining")
    second.die()
    assert first.membership.others_are_well() is False


@pytest.mark.full
def test_who_waits_for_a_members_word_obeys_an_order_and_a_newer_generation(bench, make, wait_until):
    first, second, third = make(3, min=1, max=3)
    third.life.context.status.state = "draining"
    wait_until(lambda: first.membership._peers.beats()[Seat(1, 2)].state == "draining")
    start_generation(bench.store, 2, job_id=JOB, ranks=(0, 1, 2))
    first.life.context.read_journal()
    assert first.membership.others_are_well()
    first.membership.obey()
    start_generation(bench.store, 3, job_id=JOB, ranks=(1, 2))
    first.life.context.read_journal()
    second.life.context.read_journal()
    assert second.membership.others_are_well() is False
    second.membership.obey()
    with pytest.raises(LeavingError, match="generation 3 goes on without this node"):
        first.membership.obey()


def test_who_belongs_to_no_generation_misses_nobody(bench):
    membership = Agent(bench, 0, min=1, max=1).membership
    membership.obey()
    assert membership.others_are_well()


@pytest.mark.full
def test_a_generation_is_proposed_only_on_a_fresh_answer_to_who_lives(bench, make, wait_until):
    """A member that died meanwhile would be in it, and all others would start, and wait, for nothing."""
    first, second = make(2, min=1, max=2)
    peers = first.membership._peers
    wait_until(lambda: peers.liveness(Seat(1, 1)) is Liveness.FRESH)
    second.die()
    # All were well a moment ago, so nobody is asked at first; the journal then did not answer for a while.
    first.membership._well_at = time.monotonic()
    peers._asked_at = time.monotonic() - PROOF_SECONDS - 1.0
    assert ranks(first.seek("regrouped").found()) == (0,)


@pytest.mark.full
def test_a_generation_is_proposed_without_those_whom_the_proposer_does_not_reach(bench, make):
    first, second, third = make(3, min=2, max=3)
    first.membership.votes.cut_off = frozenset({third.seat})
    # The others do not know of the cut here: whoever of them came first would propose all three.
    assert ranks(first.seek("trainer-failed").found()) == (0, 1)
    assert ranks(second.seek("trainer-failed").found()) == (0, 1)
    assert third.seek("trainer-failed").found().outcome == "superseded"


def test_a_node_joins_no_generation_of_those_whom_it_does_not_reach(bench, make):
    first, second = make(2, min=1, max=2)
    first.seek("trainer-failed")
    assert ranks(first.found()) == (0, 1)
    second.membership.votes.cut_off = frozenset({first.seat})
    leaving = second.seek("trainer-failed").found()
    assert (leaving.outcome, leaving.permanent, leaving.is_cut_off) == ("failed", False, True)
    assert leaving.detail == "node 1.1 does not reach node 1.0: the network between the machines is cut"


def test_a_node_that_reaches_no_other_says_what_may_keep_it_apart_on_its_provider(bench, make, monkeypatch):
    first, second = make(2, min=1, max=2)
    context = second.life.context
    monkeypatch.setattr(type(context.provider), "cut_network_advice", "a NetworkPolicy may deny it")
    said = not_reached(context, [first.seat])
    assert said.endswith("the network between the machines is cut; a NetworkPolicy may deny it")


def test_a_node_that_leaves_before_a_generations_training_tells_no_step_of_the_one_before(bench, make):
    """They would be counted as lost twice."""
    (agent,) = make(1, min=1, max=1)
    first = agent.found()
    agent.membership.enter(first)
    status, handoff = agent.life.context.status, agent.life.context.node.handoff(1)
    handoff.mkdir(parents=True)
    files.progress_path(handoff, 0).write_bytes(files.PROGRESS.pack(55, 100, 56))
    status.ranks = (0,)
    assert (status.progress(), status.reached_step) == ((55, 100), 56)
    agent.membership.enter(msgspec.structs.replace(first, number=2, restore_from=CheckpointId(1, 40)))
    assert (status.progress(), status.reached_step, status.has_session) == ((40, None), 40, False)


# --- an agent that was killed -----------------------------------------------------------------------


@pytest.mark.full
def test_a_restarted_agent_rejoins_the_generation_it_has_not_started(bench, make):
    first, second = make(2, min=1, max=2)
    older = first.found()
    first.seek("trainer-failed")
    newer = first.found()
    first.die()  # before it has started anything
    again = Agent(bench, 0, min=1, max=2)
    again.membership.enter(older)
    again.wake()
    assert again.seek().found() == newer
    assert second.seek().found() == newer
    again.membership.stop()


def test_a_restarted_agent_does_not_start_a_generation_twice(bench, make):
    first, second = make(2, min=1, max=2)
    ran = first.found()
    first.die()
    again = Agent(bench, 0, min=1, max=2)
    again.membership.enter(ran)
    again.wake()
    second.seek("trainer-failed")
    assert again.seek("agent-restarted").found().number == second.found().number == 2
    assert recorded(bench)[1][1] in {"trainer-failed", "agent-restarted"}
    again.membership.stop()


# --- the commit of a drain --------------------------------------------------------------------------


def test_a_survivor_commits_where_the_last_part_came_from_a_node_that_died_before(bench, make):
    first, second = make(2, min=1, max=2)
    bench.put_part(0, 40)
    bench.put_part(1, 40)
    second.die()
    first.membership.await_commit(40)
    assert bench.commits() == (bench.id(1, 40),)
    assert first.life.context.status.committed == bench.id(1, 40)


@pytest.mark.full
def test_nobody_waits_for_a_node_that_has_handed_over(bench, make):
    first, second, third = make(3, min=2, max=3)
    bench.put_part(0, 40, world_size=3, number=2, relieved=(1,))
    second.notice(seconds=60.0)
    third.die()
    first.membership.await_commit(40)  # that of the dead one will never come; the other lives and brings none
    assert bench.commits() == ()
    bench.put_part(2, 40, world_size=3, number=2, relieved=(1,))
    first.membership.await_commit(40)
    assert bench.commits() == (bench.id(1, 40),)


def test_a_save_of_the_same_step_that_is_whole_first_ends_the_wait_for_a_drain(bench, make):
    first, _ = make(2, min=1, max=2)
    bench.put_part(0, 40, number=2)
    for rank in range(2):
        bench.put_part(rank, 40, number=1)
    first.membership.await_commit(40)
    assert read_manifest(bench.store, JOB, bench.id(1, 40)).round == 1
    bench.put_part(1, 40, number=2)
    first.membership.await_commit(40)
    assert read_manifest(bench.store, JOB, bench.id(1, 40)).round == 1


@pytest.mark.full
def test_a_survivor_does_not_wait_for_a_part_that_will_never_come(bench, make, monkeypatch):
    """It waited a minute for a commit that nobody could make, beside another that waited for the same."""
    monkeypatch.setattr("cloudspot.agent.membership.drain_commit.COMMIT_SECONDS", 3600.0)
    first, second, third = make(3, min=2, max=3)
    bench.put_part(0, 40, world_size=3)
    bench.put_part(1, 40, world_size=3)
    third.die()
    waiting = [threading.Thread(target=a.membership.await_commit, args=(40,)) for a in (first, second)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(100.0)
        assert not thread.is_alive()
    assert bench.commits() == ()


@pytest.mark.full
def test_a_node_with_a_notice_is_waited_for_as_long_as_it_lives(bench, make, monkeypatch, wait_until):
    monkeypatch.setattr("cloudspot.agent.membership.drain_commit.COMMIT_SECONDS", 0.0)
    first, second = make(2, min=1, max=2)
    bench.put_part(0, 40)
    second.notice(seconds=60.0)
    thread = threading.Thread(target=first.membership.await_commit, args=(40,))
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    bench.put_part(1, 40)
    thread.join(10.0)
    assert bench.commits() == (bench.id(1, 40),)


@pytest.mark.full
def test_the_node_of_rank_0_is_waited_for_until_it_has_spoken_its_last_word(bench, make, monkeypatch):
    monkeypatch.setattr("cloudspot.agent.membership.drain_commit.COMMIT_SECONDS", 0.0)
    first, second = make(2, min=1, max=2, checkpoint={"directory": "out"})
    first.membership.await_uploads()  # it is that node itself
    second.membership.await_uploads()  # that one has no notice, and no time is left
    first.notice(seconds=60.0)
    thread = threading.Thread(target=second.membership.await_uploads)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    first.die()
    thread.join(20.0)
    assert not thread.is_alive()


def test_the_last_part_counts_even_if_it_comes_just_after_an_attempt_to_commit(bench, make, monkeypatch):
    """The survivor saw that no part was missing any more, and left without the commit."""
    first, _ = make(2, min=1, max=2)
    bench.put_part(0, 40)
    commit_whole = manifests.commit_whole

    def attempt(*args, **options):
        commit = commit_whole(*args, **options)
        if commit is None:
            bench.put_part(1, 40)
        return commit

    monkeypatch.setattr(manifests, "commit_whole", attempt)
    first.membership.await_commit(40)
    assert bench.commits() == (bench.id(1, 40),)


def test_a_drain_of_which_a_part_is_malformed_is_given_up_and_not_waited_for(bench, make, caplog):
    first, _ = make(2, min=1, max=2)
    bench.put_part(0, 40)
    bench.store.put(keys.part(JOB, SaveId(1, 40, 0), 0), b"{")
    first.membership.await_commit(40)
    assert bench.commits() == ()
    assert "checkpoint 1-40 is given up" in caplog.text


def test_a_malformed_part_of_one_save_keeps_no_other_of_the_same_step_from_being_committed(bench, make):
    first, _ = make(2, min=1, max=2)
    bench.put_part(0, 40, number=2)
    bench.store.put(keys.part(JOB, SaveId(1, 40, 2), 0), b"{")
    for rank in range(2):
        bench.put_part(rank, 40, number=1)
    first.membership.await_commit(40)
    assert read_manifest(bench.store, JOB, bench.id(1, 40)).round == 1


@pytest.mark.parametrize("shift", [-3600.0, 3600.0])
def test_a_nodes_clock_does_not_set_how_long_it_holds(bench, make, monkeypatch, shift):
    """With one an hour ahead, machines were held and paid for half an hour instead of a minute."""
    (agent,) = make(1, min=1, max=1)
    wrong = StoreClock(wall=lambda: utc_now() + timedelta(seconds=shift))
    wrong.compare(bench.store)

    class Wrong(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(seconds=shift)

    monkeypatch.setattr("cloudspot.agent.membership.agreement.datetime", Wrong, raising=False)
    context = agent.life.context
    monkeypatch.setitem(vars(context), "_clock", wrong)
    (intent,) = [one for one in context.journal.read() if isinstance(one, Intent)]
    context.memory.start_seconds = None
    agent.membership._note_start()
    took = (utc_now() - intent.at).total_seconds()
    assert context.memory.start_seconds == pytest.approx(took, abs=5.0)
