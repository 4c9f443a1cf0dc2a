"""Random histories of the launch protocol, by seed: real controllers and job store, simulated all else.

Two or three controllers run the real loop against the real job store. They are interleaved at every
call, suspended inside calls for up to a quarter of an hour, and killed; answers are lost, tokens
expire, listings lag, machines die with and without a notice, hang in their boot, or come up long after
everybody has given them up. Whatever happens: never two attempts alive at once, the job ends, and
nothing runs on afterwards.
"""

import dataclasses
import itertools
import os
import random
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec
import pytest

from cloudspot.controller import act, attempt, loop
from cloudspot.controller import decide as decide_module
from cloudspot.controller.actions import CloseLaunch, VoidSlot
from cloudspot.controller.decide import decide
from cloudspot.controller.loop import Controller
from cloudspot.errors import TransientError
from cloudspot.jobstore import codec, keys, parallel
from cloudspot.jobstore.journal import Journal
from cloudspot.jobstore.reader import HistoryReader
from cloudspot.jobstore.records import Closed, Finished, Intent, Submission
from cloudspot.jobstore.submission import request_stop
from cloudspot.model import InstanceState
from cloudspot.spec import Nodes, spec_from_json, spec_to_json
from cloudspot.testing.simcloud import SimCloud, SimProvider
from cloudspot.testing.simnodes import SimNode, Training
from cloudspot.testing.simulation import START, Odds, SimStore, Violation, World

JOB = "digits-1"
NUM_HISTORIES = 2000
NUM_TRIES = 400
"""Within so many histories a shortcut must be found out."""
LIMIT_SECONDS = 60_000.0
"""A job that has not ended by then never will."""


class OneAtATime:
    """Stands for the thread pool of the job store: who runs is for the world to say."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def submit(self, function, *args):
        future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - a future keeps any
            future.set_exception(error)
        return future


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(parallel, "ThreadPoolExecutor", OneAtATime)


@dataclass
class Result:
    outcome: str
    was_stopped: bool
    num_launches: int
    num_attempts: int
    num_commits: int
    seconds: float


def play(seed, *, nodes=None, training=None, change_cloud=None, odds=None):
    """Run one history to its end and check it; return what it came to."""
    rng = random.Random(seed)
    nodes = nodes or rng.choice([(1, 1), (1, 1), (2, 2), (1, 2)])
    world = World(rng, odds=odds or Odds(), calm_at=rng.uniform(500, 4000))
    store = SimStore(world)
    spec = spec_from_json(
        {
            "name": "digits",
            "nodes": {"min": nodes[0], "max": nodes[1]},
            "run": {"entrypoint": "train.py"},
            "spot": {"max_wait": 300.0},
            "limits": {"max_restarts": 10_000},
        }
    )
    submit(store, spec)
    training = training or Training(min_nodes=nodes[0])
    cloud = SimCloud(
        world,
        min_nodes=nodes[0],
        node=lambda machine: SimNode(world, cloud, store, machine, training).live(),
        is_rightful=lambda machine: is_rightful(store.inner, machine),
    )
    if change_cloud is not None:
        change_cloud(cloud)
    lives = [
        world.start(controller(world, store, cloud), delay=rng.uniform(0, 30))
        for _ in range(rng.randint(2, 3))
    ]
    if rng.random() < 0.15:
        world.start(stop(store), delay=rng.uniform(0, 1000))
    while not all(life.is_over for life in lives):
        if world.time > LIMIT_SECONDS or not world.step():
            is_finished = HistoryReader(store.inner, JOB).read().finished is not None
            raise Violation("machines run on" if is_finished else "the job does not end")
    settle(world, store, cloud)
    return check(world, store, cloud)


def submit(store, spec):
    submission = Submission(
        job_id=JOB,
        provider="sim",
        spec=spec_to_json(spec),
        code_sha256="0" * 64,
        code_bytes=0,
        secret_names=("TOKEN",),
        version="0",
        at=START,
        writer="submitter",
    )
    store.inner.put(keys.spec(JOB), codec.encode(submission))
    store.inner.put(keys.index(JOB), b"")
    store.inner.put(keys.secrets(JOB), b"{}")


def controller(world, store, cloud):
    """Be a controller, again and again killed, until the job is settled."""
    rng = world.rng
    while True:
        clock = world.clock()
        one = Controller(store, JOB, SimProvider(cloud), clock=clock, sleep=world.sleep)
        is_alive = True
        while is_alive:
            steps = one.steps()
            while True:
                if world.chance(0.01):
                    is_alive = False
                    break
                try:
                    next(steps)
                except StopIteration as end:
                    tick = end.value
                    break
                if world.chance(0.03):
                    yield rng.uniform(0, 900)
                elif world.chance(0.3):
                    yield rng.uniform(0, 5)
            if not is_alive:
                yield rng.uniform(0, 60)
            elif tick.is_settled:
                return
            else:
                yield 0.1 if tick.acted else rng.uniform(5, 40)


def stop(store):
    while True:
        try:
            request_stop(store, JOB, "user", sleep=lambda seconds: None)
        except TransientError:
            yield 1.0
        else:
            return


def settle(world, store, cloud):
    """Let a last controller come by, as ``reconcile`` would."""
    world.calm_at = 0.0
    one = Controller(store, JOB, SimProvider(cloud), clock=world.clock(), sleep=world.sleep)
    for _ in range(100):
        if one.run_pass().is_settled:
            return
        world.run(until=world.time + 30.0)
    raise Violation("machines run on")


def is_rightful(store, machine):
    """Say whether nobody has any business to terminate the machine."""
    history = HistoryReader(store, JOB).read()
    launch = history.launches[machine.launch - 1]
    if history.stop is not None or launch.closed is not None or launch.is_void:
        return False
    slot = launch.slots.get(machine.rank)
    return (slot is None or slot.instance_id == machine.id) and machine.rank not in launch.exits


def check(world, store, cloud):
    history = HistoryReader(store.inner, JOB).read()
    assert history.finished is not None
    expected = {"succeeded"} if history.stop is None else {"succeeded", "stopped"}
    assert history.finished.outcome in expected
    left = [one.id for one in cloud.machines.values() if not one.has_ended]
    assert left == []
    assert all(1 <= one.launch <= len(history.launches) for one in cloud.machines.values())
    assert list(store.inner.list_objects(keys.secrets(JOB))) == []
    check_journal(Journal(store.inner, JOB).read())
    return Result(
        outcome=history.finished.outcome,
        was_stopped=history.stop is not None,
        num_launches=len(history.launches),
        num_attempts=len(history.attempts),
        num_commits=len(history.commits),
        seconds=world.time,
    )


def check_journal(journal):
    """Launches are numbered without a gap, each is closed before the next, and the end is the end."""
    expected = []
    for record in journal[:-1]:
        kind = Closed if expected and expected[-1] is Intent else Intent
        assert type(record) is kind
        expected.append(kind)
        assert record.launch == (len(expected) + 1) // 2
    assert type(journal[-1]) is Finished
    assert not expected or expected[-1] is Closed


# --- the protocol ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(4))
def test_no_history_has_two_live_attempts_and_each_comes_to_its_end(part):
    results = [play(seed) for seed in range(part, NUM_HISTORIES, 4)]
    # They are worth something only if much goes wrong in them.
    assert sum(one.num_launches for one in results) > 2 * len(results)
    assert sum(one.num_attempts for one in results) > 1.2 * len(results)
    assert sum(one.outcome == "stopped" for one in results) > 0


def test_decide_is_pure_in_whatever_histories_bring(change_decisions):
    seen = set()

    def decide_twice(actions, *args):
        before = repr(args)
        assert decide(*args) == actions
        assert repr(args) == before
        seen.update(type(action).__name__ for action in actions)
        return actions

    change_decisions(decide_twice)
    for seed in range(60):
        play(seed)
    assert seen == {
        "FetchOffers",
        "OpenLaunch",
        "Create",
        "Announce",
        "VoidSlot",
        "CloseLaunch",
        "Finish",
        "Terminate",
        "CleanUp",
        "Release",
        "Wait",
    }


SOAK_HISTORIES = int(os.environ.get("CLOUDSPOT_SOAK_HISTORIES", "200000"))
SOAK_BLOCK = 5000


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(NUM_HISTORIES, SOAK_HISTORIES, SOAK_BLOCK))
def test_no_history_of_very_many_has_two_live_attempts(first):
    for seed in range(first, min(first + SOAK_BLOCK, SOAK_HISTORIES)):
        play(seed)


# --- plausible shortcuts, and that these histories find them out ----------------------------------


def first_violation(like="", *, num_tries=NUM_TRIES, **options):
    """Return the first thing of this kind that goes wrong in a history, or None when nothing does."""
    for seed in range(num_tries):
        try:
            play(seed, **options)
        except AssertionError as violation:
            if like in str(violation):
                return str(violation)
    return None


@pytest.fixture
def change_decisions(monkeypatch):
    """Return a function that puts another ``decide`` in the place of the real one."""

    def change(new):
        monkeypatch.setattr(loop, "decide", lambda *args: new(decide(*args), *args))

    return change


def test_closing_without_a_void_gives_two_live_attempts(change_decisions):
    def close(actions, spec, history, observed, now):
        return tuple(
            CloseLaunch(history.num_records + 1, one.launch, one.outcome, one.detail, ())
            if isinstance(one, VoidSlot)
            else one
            for one in actions
        )

    change_decisions(close)
    assert first_violation("are alive at once") is not None


def test_taking_absence_as_death_at_once_gives_two_live_attempts():
    def change(cloud):
        cloud.absence_proves_after_seconds = 0.0

    assert first_violation("are alive at once", change_cloud=change) is not None


def test_taking_shutting_down_as_death_gives_two_live_attempts(monkeypatch):
    real = attempt.provider_proves_death

    def proves(instance_id, observed):
        instance = attempt.find_instance(instance_id, observed)
        is_going = instance is not None and instance.state is InstanceState.SHUTTING_DOWN
        return is_going or real(instance_id, observed)

    monkeypatch.setattr(attempt, "provider_proves_death", proves)
    assert first_violation("are alive at once") is not None


def test_taking_silence_as_death_gives_two_live_attempts(monkeypatch):
    real = attempt.is_dead

    def is_dead(launch, rank, observed):
        is_silent = observed.silent_seconds.get((launch.number, rank), 0.0) >= 20.0
        return is_silent or real(launch, rank, observed)

    monkeypatch.setattr(decide_module, "is_dead", is_dead)
    assert first_violation("are alive at once") is not None


def test_closing_with_min_nodes_left_gives_two_live_attempts(monkeypatch):
    monkeypatch.setattr(
        loop,
        "decide",
        lambda spec, *args: decide(
            msgspec.structs.replace(spec, nodes=Nodes(min=spec.nodes.max, max=spec.nodes.max)), *args
        ),
    )
    assert first_violation("are alive at once", nodes=(1, 2)) is not None


def test_appending_after_a_lost_race_breaks_the_journal(monkeypatch):
    real = Journal.append

    def append(self, record, number):
        while not real(self, record, number):
            number += 1
        return True

    monkeypatch.setattr(Journal, "append", append)
    assert first_violation() is not None


def test_without_slots_a_late_or_expired_create_gives_two_attempts_and_two_machines_of_one_rank():
    options = {"training": Training(heeds_slots=False), "nodes": (1, 1)}
    assert first_violation("are alive at once", **options) is not None
    assert first_violation("train as the same rank", **options) is not None


def test_with_slots_a_token_of_any_age_gives_one_machine_of_each_rank(change_decisions):
    def replay_for_ever(actions, spec, history, observed, now):
        young = dataclasses.replace(observed, token_age_seconds=0.0)
        return decide(spec, history, young, now)

    change_decisions(replay_for_ever)
    assert first_violation(num_tries=100) is None


def render_again(monkeypatch):
    """Let every ``create`` send what it would ask for now, with the launch's old token."""
    real, zones = act.Actor._create, itertools.cycle("ab")

    def create(self, launch, events):
        body = {**launch.intent.request.body, "zone": next(zones)}
        request = msgspec.structs.replace(launch.intent.request, body=body)
        intent = msgspec.structs.replace(launch.intent, request=request)
        return real(self, dataclasses.replace(launch, intent=intent), events)

    monkeypatch.setattr(act.Actor, "_create", create)


def test_without_slots_rendering_again_gives_two_machines_of_one_rank(monkeypatch):
    # Nobody is suspended in these: a token that is as young as its replay is the only guard left.
    options = {
        "odds": Odds(interrupt=0, long_pause=0),
        "nodes": (1, 1),
        "training": Training(heeds_slots=False),
    }
    assert first_violation("train as the same rank", num_tries=100, **options) is None
    render_again(monkeypatch)
    assert first_violation("train as the same rank", num_tries=100, **options) is not None


def test_with_slots_rendering_again_costs_money_and_nothing_else(monkeypatch):
    render_again(monkeypatch)
    assert first_violation(num_tries=100) is None


def test_without_a_reaper_machines_run_on(monkeypatch):
    monkeypatch.setattr(decide_module, "reapable", lambda *_: ())
    assert first_violation("run on") is not None


def test_a_reaper_with_records_older_than_its_listing_ends_machines_that_have_a_right_to_run(monkeypatch):
    real = loop.Controller._read_history

    def read_first(self, problems):
        history = real(self, problems)
        self._list_instances(problems)
        return history

    monkeypatch.setattr(loop.Controller, "_read_history", read_first)
    assert first_violation("every right to run") is not None


def test_without_a_boot_limit_a_job_hangs_with_its_machine(monkeypatch):
    monkeypatch.setattr(decide_module, "BOOT_LIMIT_SECONDS", float("inf"))
    assert first_violation("does not end") is not None
