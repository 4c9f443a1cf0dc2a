"""Histories of one job by seed: real controllers and job store, simulated all else."""

import math
import random
from contextlib import suppress
from dataclasses import dataclass, field
from unittest import mock

from support.stores.one_at_a_time import OneAtATime
from support.worlds.simcloud import SimCloud, SimProvider
from support.worlds.simnodes import SimAgents
from support.worlds.simulation import START, Odds, SimStore, Violation, World
from support.worlds.stopped_calls import Stops

from cloudspot.agent.ending.keeping import GUARD_SECONDS
from cloudspot.controller import loop
from cloudspot.controller.assess.limits import Budget
from cloudspot.controller.assess.observed_duration import MAX_PASS_GAP_SECONDS
from cloudspot.controller.decide import decide
from cloudspot.controller.loop import Controller
from cloudspot.controller.moving import Target, plan_move
from cloudspot.errors import CloudspotError, JobResumed, TransientError
from cloudspot.jobfile.spec import spec_from_json, spec_to_json
from cloudspot.jobstore.access import parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.access.stored_records import find_meta
from cloudspot.jobstore.jobs import resumption
from cloudspot.jobstore.jobs.job_lists import is_marked_live
from cloudspot.jobstore.jobs.reader import HistoryReader, job_file_of
from cloudspot.jobstore.jobs.resumption import resume
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import head
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import (
    Commit,
    Finished,
    Generation,
    Intent,
    Kept,
    Repriced,
    Resumed,
    Seat,
    Submission,
)
from cloudspot.jobstore.nodes.delivering import SILENT_LIMIT_SECONDS, SILENT_NEWCOMER_SECONDS
from cloudspot.jobstore.nodes.keeping import kept_now
from cloudspot.jobstore.nodes.seats import seats_of
from cloudspot.model import Market
from cloudspot.story.ledger import bill
from cloudspot.testing import plaincalls

JOB = "digits-1"
NUM_TRIES = 400
"""Within so many histories a shortcut must be found out."""
SLACK_SECONDS = 5.0
"""A look takes time, and the store tells it in whole seconds."""
LIMIT_SECONDS = 60_000.0
"""A job that has not ended by then never will."""


def stopping(world, store, cloud, *, max_skew_seconds=20.0):
    """Return a controller, and the places where it stops."""
    stops = Stops(store, SimProvider(cloud))
    clock = world.clock(max_skew_seconds=max_skew_seconds)
    return stops, Controller(stops.store, JOB, stops.provider, clock=clock, sleep=world.sleep)


def staying(world, store, cloud):
    """Be a controller that stays, again and again killed, until the job is settled."""
    while True:
        stops, one = stopping(world, store, cloud)
        while True:
            tick = yield from interrupted(world, stops, one.tick)
            if tick is None:
                yield world.rng.uniform(0, 60)
                break
            if tick.is_settled:
                return
            yield 0.1 if tick.acted else world.rng.uniform(5, 40)


def passing(world, store, cloud):
    """Be what cron starts: each pass is a process of its own, with a clock that may be far off."""
    yield from passing_every(world, store, cloud, world.rng.choice([15.0, 60.0, 300.0, 900.0]))


def passing_every(world, store, cloud, interval, *, max_skew_seconds=900.0):
    while True:
        stops, one = stopping(world, store, cloud, max_skew_seconds=max_skew_seconds)
        tick = yield from interrupted(world, stops, one.run_pass)
        if tick is not None and tick.is_settled:
            return
        yield world.rng.uniform(0.5, 1.5) * interval


def interrupted(world, stops, call):
    """Make the call, with pauses between its requests; return its result, or None when it was killed."""
    rng = world.rng

    def pause_at(_name):
        if world.chance(0.005):
            return math.inf  # It is killed.
        if world.chance(0.015):
            return rng.uniform(0, 900)
        return rng.uniform(0, 5) if world.chance(0.15) else None

    steps = stops.steps(call, at=pause_at)
    while True:
        try:
            pause = next(steps)
        except StopIteration as end:
            return end.value
        except JobResumed:
            return None  # It was opened for what was submitted before.
        if pause == math.inf:
            steps.close()
            return None
        yield pause


def resuming(world, store, cloud, lives):
    """Be people who resume the job at odd moments, each killed in the middle or not, and then drive it."""
    for _ in range(world.rng.randint(1, 3)):
        yield world.rng.uniform(0, 3000)
        patience = with_retries(store, sleep=world.sleep)
        try:
            history = HistoryReader(patience, JOB).read()
            resume(
                patience,
                history,
                spec=job_file_of(history.submission),
                provider="sim",
                environ={"TOKEN": "t"},
            )
        except CloudspotError:
            continue
        finally:
            # Whether it was resumed or not: the mark tells drivers to look.
            lives.append(world.start(staying(world, store, cloud)))


def moving(world, store, cloud):
    """Be people who move the job at odd moments, each killed in the middle or not."""
    for _ in range(world.rng.randint(1, 3)):
        yield world.rng.uniform(0, 1500)
        target = Target(zone=world.rng.choice(["a", "b"]), market=world.rng.choice(list(Market)))
        one = Controller(store, JOB, SimProvider(cloud), clock=world.clock(), sleep=world.sleep)
        try:
            history = HistoryReader(with_retries(store, sleep=world.sleep), JOB).read()
            offers = plaincalls.offers(cloud, None)
            yield world.rng.choice([0.0, 0.0, 30.0])  # A person looks at the price.
            launch = plan_move(job_file_of(history.submission), history, offers, world.now(), target)
            one.open_launch(launch, history)
        except (CloudspotError, JobResumed):
            continue


def stopping_what_is_kept(world, store):
    """Be a person who has seen enough of the machine that is kept, some time after it is."""
    while True:
        yield world.rng.uniform(20, 400)
        with suppress(CloudspotError):
            history = HistoryReader(store, JOB).read()
            if kept_now(history, world.now()) is not None:
                resumption = history.submission.resumption
                request_stop(with_retries(store, sleep=world.sleep), JOB, "user", resumption=resumption)
                return


def stay_or_die(rng):
    return [staying] * rng.randint(2, 3)


def only_pass(rng):
    return [passing] * rng.randint(1, 3)


def pass_often(rng):
    return [lambda *house: passing_every(*house, 15.0)] * 3


def pass_and_stay(rng):
    return [staying, *only_pass(rng)]


@dataclass
class Result:
    outcome: str
    was_stopped: bool
    num_launches: int
    num_generations: int
    num_machines: int
    num_stand_ins: int
    """Nodes that took the place of another in the training."""
    num_commits: int
    num_resumptions: int
    seconds: float
    stop_reason: str | None
    money: float
    """What the machines really cost."""
    num_kept: int = 0
    """Machines that were kept for inspection."""


@dataclass
class Purse:
    """What every controller thought at each decision that the job had spent, and that a stop would cost."""

    world: World
    seen: list[tuple[float, Budget]] = field(default_factory=list)

    def decide(self, assessed, observed):
        """Decide, and note what was thought while the job went on."""
        is_paid_for = assessed.history.finished is None or assessed.kept is not None
        if assessed.history.stop is None and is_paid_for:
            self.seen.append((self.world.time, assessed.budget))
        return decide(assessed, observed)

    def check(self, cloud):
        """No more than the limit is spent, but for what the last look that saw it kept could not know.

        That is how far its bill was from the truth, as the clocks are off and no listing has shown when a machine
        began or ended; and how long each machine ran beyond the stop that this look has reckoned with, since
        the next look was late, or the stop took longer.
        """
        money = spent(cloud, math.inf)
        below = [(at, one) for at, one in self.seen if one.spent + one.stop_cost < one.limit]
        if not below:
            assert money == 0.0, "machines are bought at the limit"
            return
        at, last = below[-1]
        allowed = last.limit + max(0.0, spent(cloud, at) - last.spent)
        for machine in cloud.machines.values():
            price, ended = price_of(machine), machine.states[-1][0]
            allowed += price * max(0.0, ended - (at + last.stop_seconds)) / 3600
        if money > allowed:
            raise Violation(f"limits.max_cost of {last.limit:g} was passed: {money:g} > {allowed:g}")


def price_of(machine):
    return 1.0 if machine.market is Market.SPOT else 3.0


def spent(cloud, until):
    """Return what the machines have really cost by then, at the prices of ``SimCloud.offers``."""
    return sum(
        price_of(one) * max(0.0, min(one.states[-1][0], until) - one.created_at) / 3600
        for one in cloud.machines.values()
    )


def play(seed, **options):
    """Run one history to its end and check it; return what it came to."""
    with mock.patch.object(parallel, "ThreadPoolExecutor", OneAtATime):
        return _play(seed, **options)


def first_violation(like="", *, num_tries=NUM_TRIES, known=(), **options):
    """Return the first thing of this kind that goes wrong in a history, or None when nothing does.

    ``known`` seeds are tried first: it went wrong there once, and the search is long.
    """
    for seed in [*known, *range(num_tries)]:
        violation = violation_of(seed, **options)
        if violation is not None and like in str(violation):
            return str(violation)
    return None


def violation_of(seed, **options):
    """Run one history; return what goes wrong in it, or None."""
    try:
        play(seed, **options)
    except AssertionError as violation:
        return violation
    return None


def _play(
    seed,
    *,
    nodes=None,
    script=None,
    change_cloud=None,
    odds=None,
    drivers=stay_or_die,
    has_outages=False,
    resumes=False,
    moves=None,
    max_cost=None,
    is_calm=False,
    keeps=None,
    max_restarts=10_000,
):
    rng = random.Random(seed)
    nodes = nodes or rng.choice([(1, 1), (1, 1), (2, 2), (1, 2), (2, 3), (3, 3), (1, 3)])
    world = World(rng, odds=odds or Odds(), calm_at=0.0 if is_calm else rng.uniform(500, 4000))
    store = SimStore(world)
    spec = spec_from_json(
        {
            "name": "digits",
            "nodes": {"min": nodes[0], "max": nodes[1]},
            "run": {"entrypoint": "train.py"},
            "spot": {"max_wait": 300.0},
            "limits": {
                "max_restarts": max_restarts,
                **({} if max_cost is None else {"max_cost": max_cost}),
                **({} if keeps is None else {"keep_failed": keeps}),
            },
        }
    )
    purse = Purse(world)
    submit(store, spec)
    cloud = SimCloud(
        world,
        max_nodes=nodes[1],
        node=SimAgents(world, lambda: cloud, lambda: store, script=script, min_nodes=nodes[0]),
        is_rightful=lambda machine: is_rightful(world, store, machine),
        check_supply=lambda: check_supply(store, cloud, nodes[1]),
    )
    cloud.is_driven = drivers is stay_or_die
    if max_cost is not None:
        cloud.current_price = lambda offer: offer.price_per_hour
    if change_cloud is not None:
        change_cloud(cloud)
    if has_outages:
        end = 0.0
        for _ in range(rng.randint(1, 3)):
            start, seconds = end + rng.uniform(60, 3000), rng.choice([rng.uniform(60, 900), 2.5 * 3600])
            store.add_outage(start, seconds)
            end = start + seconds
    lives = [world.start(driver(world, store, cloud), delay=rng.uniform(0, 30)) for driver in drivers(rng)]
    if rng.random() < 0.15:
        world.start(stop(store), delay=rng.uniform(0, 1000))
    if keeps is not None and rng.random() < 0.5:
        world.start(stopping_what_is_kept(world, store))
    for _ in range(rng.randint(0, 1) if moves is None else moves):
        world.start(moving(world, store, cloud))
    if resumes:
        lives += [world.start(resuming(world, store, cloud, lives)) for _ in range(2)]
    asked = resumption.store_time if keeps is None else world.store_time  # by those who resume the job
    with (
        mock.patch.object(resumption, "store_time", asked),
        mock.patch.object(loop, "decide", loop.decide if max_cost is None else purse.decide),
    ):
        while not all(life.is_over for life in lives):
            if world.time > LIMIT_SECONDS or not world.step():
                is_finished = HistoryReader(store.inner, JOB).read().finished is not None
                raise Violation("machines run on" if is_finished else "the job does not end")
        check_marks(store)
        settle(world, store, cloud)
    if max_cost is not None:
        purse.check(cloud)
    return check(world, store, cloud)


def submit(store, spec):
    submission = Submission(
        job_id=JOB,
        provider="sim",
        spec=spec_to_json(spec),
        code_sha256="0" * 64,
        code_bytes=0,
        has_own_code=True,
        secret_names=("TOKEN",),
        version="0",
        at=START,
        writer="submitter",
    )
    store.inner.put(keys.spec(JOB), codec.encode(submission))
    store.inner.put(keys.index(JOB), b"")
    store.inner.put(keys.secrets(JOB, 0), b"{}")
    store.inner.put(keys.own_code(JOB), b"")


def stop(store):
    while True:
        try:
            request_stop(with_retries(store, sleep=lambda seconds: None), JOB, "user", resumption=0)
        except TransientError:
            yield 1.0
        else:
            return


def settle(world, store, cloud):
    """Let a last controller come by, as ``reconcile`` would."""
    world.calm_at = 0.0
    one = Controller(store, JOB, SimProvider(cloud), clock=world.clock(), sleep=world.sleep)
    for _ in range(400):
        if one.run_pass().is_settled:
            return
        world.run(until=world.time + 30.0)
    raise Violation("machines run on")


def is_rightful(world, store, machine):
    """Say whether nobody has any business to terminate the machine."""
    history = HistoryReader(store.inner, JOB).read()
    launch = history.launches[machine.launch - 1]
    seats = seats_of(history.launches, history.generations)
    seat, slot = Seat(machine.launch, machine.rank), launch.slots.get(machine.rank)
    kept = history.kept
    if kept is not None and kept.instance_id == machine.id:
        return kept_now(history, world.now()) is not None
    if history.stop is not None or history.finished is not None or seat in seats.excluded:
        return False
    if slot is not None and slot.instance_id == machine.id:
        # An outage of the store is no silence, but for what a gap between two passes may count.
        heard = machine.created_at if machine.heard_at is None else machine.heard_at
        down = store.down_seconds(heard)
        allowance = min(down, store.num_outages(heard) * MAX_PASS_GAP_SECONDS)
        limit = SILENT_NEWCOMER_SECONDS if seat in seats.newcomers else SILENT_LIMIT_SECONDS
        if world.time - heard - down + allowance >= limit - SLACK_SECONDS:
            return False
        # Who ends it may have decided that while it was silent, as a newcomer, and have been suspended since.
        before_joining = min(world.time, joined_at(store, seat)) - heard - down
        if (
            max(machine.longest_silence, before_joining) + allowance
            >= SILENT_NEWCOMER_SECONDS - SLACK_SECONDS
        ):
            return False
    return (slot is None or slot.instance_id == machine.id) and machine.rank not in launch.exits


def joined_at(store, seat):
    """Return when the node became a member; infinity, if it never did."""
    for number, record in enumerate(Journal(store.inner, JOB).read(), 1):
        if isinstance(record, Generation) and seat in record.seats:
            return store.landed_at(keys.journal(JOB, number))
    return math.inf


def check_supply(store, cloud, max_nodes):
    """Count the machines that have a seat, or may get one: at most twice ``nodes.max``, and ``nodes.max`` to stay."""
    history = HistoryReader(store.inner, JOB).read()
    seats = seats_of(history.launches, history.generations)
    held = set()
    for machine in cloud.machines.values():
        slot = history.launches[machine.launch - 1].slots.get(machine.rank)
        seat = Seat(machine.launch, machine.rank)
        # A certificate of a machine that runs is no excuse.
        has_left = machine.has_ended or machine.rank in history.launches[machine.launch - 1].own_exits
        if not has_left and (slot is None or slot.instance_id == machine.id):
            held.add(seat)
    if len(held) > 2 * max_nodes:
        raise Violation("more machines than twice nodes.max have a seat or may get one")
    leaving = held & (seats.noticed | seats.excluded)
    named = {principal for one, principal in seats.principals.items() if one in held - leaving}
    if len(held - leaving - named) > max_nodes:
        raise Violation("more machines than nodes.max are there to stay")


def check_marks(store):
    """Nobody looks at a job that is not marked live, so nothing may be left there for those who look."""
    left = list(store.inner.list_objects(keys.suspicions(JOB)))
    assert left == [] or is_marked_live(store.inner, JOB), "suspicions are left for good"


def check(world, store, cloud):
    history = HistoryReader(store.inner, JOB).read()
    assert history.finished is not None
    expected = {"succeeded"} if history.stop is None else {"succeeded", "stopped"}
    journal = Journal(store.inner, JOB).read()
    num_kept = check_kept(world, store, cloud, history, journal)
    if history.job_file.limits.keep_failed is not None:
        expected |= {"failed"}
    assert history.finished.outcome in expected
    left = [one.id for one in cloud.machines.values() if not one.has_ended]
    assert left == []
    assert all(1 <= one.launch <= len(history.launches) for one in cloud.machines.values())
    assert list(store.inner.list_objects(keys.secrets(JOB, history.submission.resumption))) == []
    check_marks(store)
    assert not is_marked_live(store.inner, JOB)
    check_journal(journal)
    num_prices = sum(isinstance(record, Repriced) for record in journal)
    most = 3 * len(history.launches) * (1 + world.time // 3600)  # The market changes each hour.
    assert num_prices <= most, "drivers write prices against each other"
    return Result(
        outcome=history.finished.outcome,
        was_stopped=history.stop is not None,
        num_launches=len(history.launches),
        num_generations=len(history.generations),
        num_machines=len(cloud.machines),
        num_stand_ins=len(
            {seat for one in history.generations for seat in one.seats}
            & {
                Seat(one.number, r)
                for one in history.launches
                for r, p in enumerate(one.intent.stands_in_for)
                if p
            }
        ),
        num_commits=len(history.commits),
        num_resumptions=sum(isinstance(record, Resumed) for record in journal),
        seconds=world.time,
        stop_reason=None if history.stop is None else history.stop.reason,
        money=spent(cloud, math.inf),
        num_kept=num_kept,
    )


def check_kept(world, store, cloud, history, journal):
    """No machine outlives the time for which it is kept, none is unbilled, and nothing starts beside one.

    Returns how many were kept.
    """
    lines = {line.instance_id: line for line in bill(history, world.now()).lines}
    found = [(number, record) for number, record in enumerate(journal, 1) if isinstance(record, Kept)]
    for number, record in found:
        machine, until = cloud.machines[record.instance_id], (record.until - START).total_seconds()
        ended = machine.states[-1][0]
        # A machine that stands still while it writes the record ends as soon as it goes on.
        due = max(until + GUARD_SECONDS, store.landed_at(keys.journal(JOB, number)))
        if ended > due + SLACK_SECONDS:
            raise Violation(f"{machine.id} outlives the time for which it is kept: {ended:g} > {until:g}")
        billed = lines[machine.id].ended or world.now()
        unbilled = ended - (billed - START).total_seconds()
        # What a cloud forgets at once is billed until it was heard of last.
        deaf = max(0.0, ended - (machine.heard_at or machine.created_at))
        if unbilled > deaf + 2 * SLACK_SECONDS:
            raise Violation(f"{machine.id}, which was kept, ran for {unbilled:g} s that are in no bill")
        stopped = keys.stop(JOB, sum(isinstance(one, Resumed) for one in journal[:number]))
        for later, after in enumerate(journal[number:], number + 1):
            if isinstance(after, Resumed):
                resumed = store.landed_at(keys.journal(JOB, later))
                is_stopped = find_meta(store.inner, stopped) is not None
                if not is_stopped and resumed < min(ended, until) - SLACK_SECONDS:
                    raise Violation("the job goes on beside a machine that is kept")
                break
            if isinstance(after, Intent | Generation):
                raise Violation("a job that has failed begins again beside a machine that is kept")
    return len(found)


def check_journal(journal):
    """Each generation resumes from all that was committed before it; the end comes last."""
    for number, record in enumerate(journal):
        if isinstance(record, Generation):
            assert record.restore_from == head(journal[:number]), "a committed step is lost"
        if isinstance(record, Generation | Commit | Intent):
            assert number == 0 or not isinstance(journal[number - 1], Finished)
    assert type(journal[-1]) is Finished
