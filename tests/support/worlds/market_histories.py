"""Histories of one job in a made-up market by seed: real controllers and policies, simulated all else."""

import math
import random
from dataclasses import dataclass
from itertools import pairwise
from unittest import mock

from support.stores.one_at_a_time import OneAtATime
from support.worlds.launch_histories import JOB, settle, staying, submit
from support.worlds.simcloud import SimCloud
from support.worlds.simnodes import Script, SimAgents
from support.worlds.simulation import Odds, SimStore, Violation, World

from cloudspot.controller.supply.needs import MARKET_MOVE_SECONDS
from cloudspot.errors import CapacityError
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.access import parallel
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.market.hazards import DEFAULT
from cloudspot.market.made_up import made_up
from cloudspot.model import EndReason, Market, Offer

ZONES = ("a", "b")
TICK_SECONDS = 120.0
STEP_SECONDS = 11.0
"""A simulated step, in the mean."""
NOTICE_SECONDS = 30.0
LIMIT_SECONDS = 400_000.0


class MarketCloud(SimCloud):
    """A cloud whose spot capacity comes and goes, and which always has on-demand machines."""

    def __init__(self, world, is_up, prices, **options):
        super().__init__(world, **options)
        self._is_up, self._prices = is_up, prices

    def offered(self, resources):
        return [
            Offer(
                instance_type="sim",
                zone=zone,
                market=market,
                price_per_hour=1.0 if market is Market.ON_DEMAND else self._prices[zone],
                on_demand_price_per_hour=1.0,
            )
            for zone, market in ((*((zone, Market.SPOT) for zone in ZONES), ("a", Market.ON_DEMAND)))
        ]

    def current_price(self, offer):
        return offer.price_per_hour

    def created(self, request, *, token):
        if request.body["market"] == Market.SPOT.value and not self.has_capacity(request.body["zone"]):
            raise CapacityError(f"{request.body['zone']} has none now")
        return super().created(request, token=token)

    def has_capacity(self, zone):
        tick = int(self._world.time / TICK_SECONDS)
        return tick < len(self._is_up) and bool(self._is_up[tick, ZONES.index(zone), 0])

    def take_back(self):
        """Take spot machines when their zone has no capacity any more, after a notice or without one."""
        while True:
            yield TICK_SECONDS - self._world.time % TICK_SECONDS
            for machine in list(self.machines.values()):
                is_lost = machine.market is Market.SPOT and not self.has_capacity(machine.zone)
                if is_lost and not machine.has_ended and not machine.has_notice:
                    self._world.start(self._take(machine, self._world.rng.random() < 0.8))

    def _take(self, machine, is_told):
        if is_told:
            machine.has_notice = True
            yield NOTICE_SECONDS
        self.end(machine, EndReason.RECLAIMED)


@dataclass
class Played:
    """What a history came to; hours, and money with on-demand at 1 an hour."""

    policy: str
    length: float
    deadline: float
    end: float
    money: float
    num_market_moves: int
    num_losses: int
    markets: tuple[str, ...]


def play(seed):
    """Run one history to its end and check it."""
    with mock.patch.object(parallel, "ThreadPoolExecutor", OneAtATime):
        return _play(seed)


def _play(seed):
    rng = random.Random(seed)
    world = World(rng, odds=Odds(), calm_at=0.0)
    store = SimStore(world)
    num_steps = rng.randint(100, 900)
    length = num_steps * STEP_SECONDS
    policy = rng.choice(["deadline", "deadline", "spot-then-on-demand"])
    # Two starts, the reserve, and what random steps differ from their mean are the least that is asked for.
    deadline = 1.15 * length + 1800.0 + rng.choice([0.0, 0.5, 1.0, 3.0]) * length
    spot = {"policy": policy}
    if policy == "deadline":
        spot |= {"deadline": deadline, "length": length * rng.uniform(1.05, 1.15)}
    spec = spec_from_json(
        {
            "name": "digits",
            "nodes": {"min": 1, "max": 1},
            "run": {"entrypoint": "train.py"},
            "spot": spot,
            "limits": {"max_restarts": 10_000},
        }
    )
    submit(store, spec)
    badness = 2 ** rng.uniform(-3, 3)
    num_ticks = int(6 * length / TICK_SECONDS) + 100
    market = made_up(
        DEFAULT.scaled(badness, rng.choice([0.1, 1.0, 3.0])),
        num_ticks=num_ticks,
        tick_hours=TICK_SECONDS / 3600,
        num_zones=len(ZONES),
        num_runs=1,
        seed=seed,
    )
    cloud = MarketCloud(
        world,
        market,
        {zone: rng.choice([0.2, 0.3, 0.9]) for zone in ZONES},
        max_nodes=1,
        node=SimAgents(
            world,
            lambda: cloud,
            lambda: store,
            script=Script(num_steps=num_steps, doubt=0.0, tells_restored=True),
            min_nodes=1,
        ),
        is_rightful=lambda machine: False,
    )
    world.start(cloud.take_back())
    life = world.start(staying(world, store, cloud))
    while not life.is_over:
        if world.time > LIMIT_SECONDS or not world.step():
            raise Violation("the job does not end")
    settle(world, store, cloud)
    history = HistoryReader(store.inner, JOB).read()
    if history.finished.outcome != "succeeded":
        raise Violation(f"the job has ended: {history.finished.outcome}")
    machines = list(cloud.machines.values())
    found = Played(
        policy=policy,
        length=length / 3600,
        deadline=deadline / 3600,
        end=(history.finished.at - history.asked_at).total_seconds() / 3600,
        money=sum(
            (1.0 if one.market is Market.ON_DEMAND else cloud._prices[one.zone])
            * (one.states[-1][0] - one.created_at)
            / 3600
            for one in machines
        ),
        num_market_moves=sum(one.intent.why == "market" for one in history.launches),
        num_losses=sum(one.end_reason is EndReason.RECLAIMED for one in machines),
        markets=tuple(one.intent.offer.market.value for one in history.launches),
    )
    _check(found, history)
    return found


def _check(found, history):
    if found.policy == "deadline" and found.end > found.deadline:
        raise Violation(f"late, though on-demand was to be had: {found.end:.2f} > {found.deadline:.2f} h")
    moves = [one.intent.at for one in history.launches if one.intent.why == "market"]
    for before, after in pairwise(moves):
        if (after - before).total_seconds() < MARKET_MOVE_SECONDS:
            raise Violation("two moves to another market within a quarter of an hour")
    if found.num_market_moves > math.ceil(4 * found.end):
        raise Violation("more than four moves an hour")
