"""Real controllers on the strict EC2 over HTTP, with the plugin between them; the nodes are simulated.

``World`` gives the time and the trouble: others run inside each request of the SDK, answers are lost,
calls are throttled, listings lag, machines are reclaimed, and controllers are killed between any two
requests, also in the middle of a ``create``.
"""

import os
import random
from datetime import timedelta

import pytest
from launch_histories import OneAtATime

from cloudspot.controller.events import LaunchClosed, Warned
from cloudspot.controller.loop import Controller
from cloudspot.jobstore import codec, keys, parallel
from cloudspot.jobstore.journal import Journal
from cloudspot.jobstore.reader import HistoryReader
from cloudspot.jobstore.records import Closed, Intent, Submission
from cloudspot.model import EndReason, InstanceState, Market
from cloudspot.spec import decode_options, spec_from_json, spec_to_json
from cloudspot.testing.emulation import MachineHost, MachineStatus
from cloudspot.testing.simcloud import Machine, SimCloud
from cloudspot.testing.simnodes import SimNode, Training
from cloudspot.testing.simulation import START, Odds, SimStore, Violation, World
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.sandbox.strict_ec2 import StrictEc2

JOB = "digits-1"
NUM_HISTORIES = 6
LIMIT_SECONDS = 60_000.0


class Killed(BaseException):
    """The end of a controller's process, wherever it stands."""


class WorldHost(MachineHost):
    """Machines that live in the world's time, each with a simulated agent."""

    def __init__(self, town):
        self.town = town
        self.made = {}
        self.violations = []
        self.network = "172.31.0.0/16"
        self.truth = SimCloud(
            town.world,
            min_nodes=town.spec.nodes.min,
            node=lambda machine: SimNode(town.world, self.truth, town.store, machine, town.training).live(),
            is_rightful=lambda machine: False,
        )

    def allocate_address(self):
        raise AssertionError("EC2 chooses addresses by itself")

    def start(self, emulated):
        world = self.town.world
        machine = Machine(
            id=emulated.id,
            job_id=emulated.job.job_id,
            launch=emulated.job.launch,
            rank=emulated.job.rank,
            num_nodes=emulated.job.num_nodes,
            zone=emulated.metadata["availability-zone"],
            market=emulated.market,
            created_at=world.time,
            kept_seconds=0.0,
        )
        self.made[machine.id] = emulated
        self.truth.machines[machine.id] = machine
        self.truth._set(machine, InstanceState.RUNNING)
        machine.life = world.start(self.truth._node(machine))
        if machine.market is Market.SPOT and world.chance(0.5):
            world.start(self.truth._reclaim(machine), delay=world.rng.uniform(1, 300))

    def terminate(self, machine_id):
        machine = self.truth.machines[machine_id]
        if machine.has_ended:
            return
        if self.town.is_rightful(machine):
            self.violations.append(f"{machine_id} was terminated although it has every right to run")
        self.truth._set(machine, InstanceState.SHUTTING_DOWN)
        world = self.town.world
        world.start(self.truth._finish_off(machine), delay=world.rng.uniform(1, 60))

    def reclaim(self, machine_id, *, notice_seconds):
        raise AssertionError("the world does that")

    def set_tags(self, machine_id, tags):
        pass

    def states(self):
        return {
            machine.id: MachineStatus(
                state=machine.states[-1][1],
                address=self.made[machine.id].address,
                end_reason=machine.end_reason,
            )
            for machine in self.truth.machines.values()
        }


class Town:
    """A job in a store, an emulated account, and as many controllers as one likes."""

    def __init__(self, server, clients, *, seed=None, odds=None, options=None, **tables):
        rng = random.Random(seed)
        self.world = World(rng, odds=odds or Odds(), calm_at=0.0 if seed is None else rng.uniform(500, 3000))
        self.store = SimStore(self.world)
        self.spec = spec_from_json(
            {
                "name": "digits",
                "run": {"entrypoint": "train.py"},
                **tables,
                "providers": {
                    "aws": {
                        "region": "us-east-1",
                        "account": "123456789012",
                        "instance_types": ["g5.xlarge"],
                        "zones": ["us-east-1a", "us-east-1b"],
                        "image_has_cloudspot": True,
                        **(options or {}),
                    }
                },
            }
        )
        self.training = Training(min_nodes=self.spec.nodes.min)
        self.host = WorldHost(self)
        secrets = {os.environ["AWS_ACCESS_KEY_ID"]: os.environ["AWS_SECRET_ACCESS_KEY"]}
        self.ec2 = StrictEc2(server.moto, self.host, secrets=secrets, clock=self._unix_time)
        server.app = self.ec2
        self.faults = self.ec2.faults
        self._clients = clients
        self.num_kills = 0
        self.events = []
        submission = Submission(
            job_id=JOB,
            provider="aws",
            spec=spec_to_json(self.spec),
            code_sha256="0" * 64,
            code_bytes=0,
            secret_names=(),
            version="0",
            at=START,
            writer="submitter",
        )
        self.store.inner.put(keys.spec(JOB), codec.encode(submission))
        self.store.inner.put(keys.index(JOB), b"")

    def _unix_time(self):
        return (START + timedelta(seconds=self.world.time)).timestamp()

    def controller(self):
        # Each is a process of its own, with nothing looked up; only the SDK's clients are dear to make.
        from cloudspot_aws.provider import AwsProvider

        provider = AwsProvider(decode_options(self.spec, "aws", AwsOptions))
        provider._clients = self._clients
        return Controller(self.store, JOB, provider, clock=self.world.clock(), sleep=self.world.sleep)

    def run(self):
        """Let one controller run the job to its end; return the history."""
        return self.controller().run_until_finished(lambda tick: self.events.extend(tick.events))

    @property
    def history(self):
        return HistoryReader(self.store.inner, JOB).read()

    @property
    def journal(self):
        return Journal(self.store.inner, JOB).read()

    def outcomes(self):
        return [
            (one.intent.offer.market.value, one.intent.offer.zone, one.closed.outcome)
            for one in self.history.launches
        ]

    def warnings(self):
        return [event.text for event in self.events if isinstance(event, Warned)]

    def is_rightful(self, machine):
        """Say whether nobody has any business to terminate the machine."""
        history = self.history
        if not 1 <= machine.launch <= len(history.launches):
            return False
        launch = history.launches[machine.launch - 1]
        if history.stop is not None or launch.closed is not None or launch.is_void:
            return False
        slot = launch.slots.get(machine.rank)
        if len(launch.slots) < launch.intent.num_nodes and machine.num_nodes > 1:
            return False
        return (slot is None or slot.instance_id == machine.id) and machine.rank not in launch.exits

    def check_end(self):
        """Whatever happened: nothing runs, nothing is left, and the journal has no gap."""
        assert self.host.violations == []
        left = [one.id for one in self.host.truth.machines.values() if not one.has_ended]
        assert left == []
        client = self._clients.client("ec2")
        assert client.describe_placement_groups()["PlacementGroups"] == []
        assert client.describe_volumes()["Volumes"] == []
        kinds = [type(record) for record in self.journal[:-1]]
        assert kinds == [Intent, Closed] * (len(kinds) // 2)
        for machine in self.host.truth.machines.values():
            launch = self.history.launches[machine.launch - 1]
            assert launch.is_void or machine.rank in launch.slots, f"{machine.id} is in nobody's books"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(parallel, "ThreadPoolExecutor", OneAtATime)


@pytest.fixture
def found(ec2_server, ec2_clients, cloud):
    """``found(**tables)``: found a town. The account is that of ``cloud``, emptied."""
    towns = []

    def make(**options):
        town = Town(ec2_server, ec2_clients, **options)
        towns.append(town)
        return town

    yield make
    for town in towns:
        unhook(town)


def spot(price_zone):
    return ("spot", price_zone)


# --- capacity -------------------------------------------------------------------------------------


def test_the_cheapest_zone_has_none_and_the_other_one_runs_the_job(found):
    town = found()
    town.faults.capacity["us-east-1b", "*", "*"] = 0
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", "us-east-1b", "capacity"), ("spot", "us-east-1a", "succeeded")]
    closed = [event.text for event in town.events if isinstance(event, LaunchClosed)]
    assert "sufficient g5.xlarge capacity" in closed[0]
    town.check_end()


def test_no_zone_has_any_within_max_wait_and_the_job_fails(found):
    town = found(spot={"policy": "spot", "max_wait": 300.0})
    town.faults.capacity["*", "*", "*"] = 0
    finished = town.run().finished
    assert (finished.outcome, finished.exit_code) == ("failed", 1)
    assert finished.detail == "no spot capacity within spot.max_wait of 300 s"
    assert {outcome for _, _, outcome in town.outcomes()} == {"capacity"}
    assert town.host.truth.machines == {}
    assert 260 <= town.world.time < 460  # each computer's wall clock is up to 20 s off
    town.check_end()


def test_without_spot_capacity_the_job_goes_on_demand_after_max_wait(found):
    town = found(spot={"max_wait": 120.0})
    town.faults.capacity["*", "*", "spot"] = 0
    assert town.run().finished.outcome == "succeeded"
    markets = [market for market, _, _ in town.outcomes()]
    assert markets == ["spot"] * (len(markets) - 1) + ["on-demand"]
    town.check_end()


def test_a_quota_is_told_and_the_other_market_is_taken(found):
    town = found(spot={"max_wait": 60.0})
    town.faults.vcpu_quota["spot"] = 0
    assert town.run().finished.outcome == "succeeded"
    assert [(market, outcome) for market, _, outcome in town.outcomes()] == [
        ("spot", "quota"),
        ("spot", "quota"),
        ("on-demand", "succeeded"),
    ]
    assert "MaxSpotInstanceCountExceeded" in town.warnings()[0]
    assert "ask for more in Service Quotas" in town.warnings()[0]
    town.check_end()


def test_two_nodes_are_all_or_none(found):
    town = found(nodes={"min": 2, "max": 2})
    town.faults.capacity["us-east-1b", "*", "*"] = 1
    assert town.run().finished.outcome == "succeeded"
    assert town.outcomes() == [("spot", "us-east-1b", "capacity"), ("spot", "us-east-1a", "succeeded")]
    assert len(town.host.made) == 2
    town.check_end()


def test_every_third_call_is_throttled_and_the_job_succeeds(found):
    town = found(nodes={"min": 2, "max": 2}, options={"placement_group": "auto"})
    town.faults.throttle_every = 3
    assert town.run().finished.outcome == "succeeded"
    assert any(call.error == "RequestLimitExceeded" for call in town.faults.calls)
    town.faults.throttle_every = 0
    town.check_end()


def test_an_unwell_api_costs_time_and_no_machine(found):
    town = found()
    town.faults.inject("RunInstances", "InternalError", happens=True)
    town.faults.inject("DescribeInstances", "Unavailable", status=503, times=6)
    assert town.run().finished.outcome == "succeeded"
    assert len(town.host.made) == 1
    assert town.outcomes()[-1][2] == "succeeded"
    town.check_end()


def test_a_reclaimed_machine_is_followed_by_another(found):
    town = found()

    def reclaim():
        yield 25.0
        machine = next(iter(town.host.truth.machines.values()))
        town.host.truth.end(machine, EndReason.RECLAIMED)

    town.world.start(reclaim())
    assert town.run().finished.outcome == "succeeded"
    assert [outcome for _, _, outcome in town.outcomes()] == ["reclaimed", "succeeded"]
    assert town.history.launches[0].closed.machines[0].end_reason == "reclaimed"
    town.check_end()


def test_the_placement_group_goes_with_the_job(found):
    town = found(nodes={"min": 2, "max": 2}, options={"placement_group": "auto"})
    assert town.run().finished.outcome == "succeeded"
    assert town.faults.count("CreatePlacementGroup") == 1
    town.check_end()


def test_the_intents_bytes_are_what_ec2_gets(found):
    town = found()
    town.run()
    intent = town.journal[0]
    (call,) = [call for call in town.faults.calls if call.action == "RunInstances"]
    sent = dict(call.parameters)
    assert sent.pop("ClientToken") == intent.token
    asked = dict(intent.request.body["run_instances"])
    import base64

    assert base64.b64decode(sent.pop("UserData")).decode() == asked.pop("UserData")
    assert sent == asked


# --- histories ------------------------------------------------------------------------------------


def hook(town):
    """Let others run, and controllers die, before each request of the SDK and after each answer."""

    def before(**_):
        meet_fate(town)

    def after(**_):
        meet_fate(town)

    town.hooks = (before, after)
    for service in ("ec2", "sts"):
        events = town._clients.client(service, num_attempts=3).meta.events
        events.register("before-send.*", before)
        events.register("after-call.*", after)
    events = town._clients.client("ec2", region="us-east-1", num_attempts=1).meta.events
    events.register("before-send.*", before)
    events.register("after-call.*", after)


def unhook(town):
    for function in getattr(town, "hooks", ()):
        for client in town._clients._clients.values():
            client.meta.events.unregister("before-send.*", function)
            client.meta.events.unregister("after-call.*", function)


def meet_fate(town):
    world = town.world
    if not world._stack:
        return
    world.interrupt()
    if world.chance(0.02):
        town.num_kills += 1
        raise Killed
    if world.chance(0.04):
        code, status = world.rng.choice(
            [("RequestLimitExceeded", 503), ("InternalError", 500), ("Unavailable", 503)]
        )
        town.faults.inject("*", code, status=status, happens=world.rng.random() < 0.5)
    if world.chance(0.05):
        zone = world.rng.choice(["us-east-1a", "us-east-1b"])
        town.faults.capacity[zone, "*", "spot"] = world.rng.choice([0, 1, None])
    if world.is_calm:
        town.faults.capacity.clear()
        town.faults.throttle_every = 0
        town.faults.describe_lag_seconds = town.faults.tag_lag_seconds = 0.0


def drive(town):
    """Be a controller, again and again killed, until the job is settled."""
    world = town.world
    while True:
        try:
            controller = town.controller()
            while True:
                steps = controller.steps()
                while True:
                    if world.chance(0.01):
                        town.num_kills += 1
                        raise Killed
                    try:
                        next(steps)
                    except StopIteration as end:
                        tick = end.value
                        break
                    if world.chance(0.2):
                        yield world.rng.uniform(0, 30)
                if tick.is_settled:
                    return
                yield 0.1 if tick.acted else world.rng.uniform(5, 40)
        except Killed:
            yield world.rng.uniform(0, 60)


def play(found, seed):
    """Run one history to its end and check it; return the town."""
    rng = random.Random(seed)
    num_nodes = rng.choice([1, 2, 2])
    town = found(
        seed=seed,
        odds=Odds(long_seconds=300.0),
        nodes={"min": rng.choice([1, num_nodes]), "max": num_nodes},
        spot={"max_wait": 300.0},
        limits={"max_restarts": 10_000},
        options={"placement_group": rng.choice([None, "auto"])} if num_nodes > 1 else {},
    )
    town.faults.throttle_every = rng.choice([0, 0, 3, 7])
    town.faults.describe_lag_seconds = rng.choice([0.0, 5.0, 30.0])
    town.faults.tag_lag_seconds = rng.choice([0.0, 10.0])
    hook(town)
    lives = [town.world.start(drive(town), delay=rng.uniform(0, 30)) for _ in range(rng.randint(1, 2))]
    while not all(life.is_over for life in lives):
        if town.world.time > LIMIT_SECONDS or not town.world.step():
            raise Violation(f"history {seed} does not end")
    unhook(town)
    town.world.calm_at = 0.0
    settle(town)
    assert town.history.finished.outcome == "succeeded"
    town.check_end()
    return town


def settle(town):
    """Let a last controller come by, as ``reconcile`` would."""
    controller = town.controller()
    for _ in range(100):
        if controller.run_pass().is_settled:
            return
        town.world.run(until=town.world.time + 30.0)
    raise Violation("machines run on")


def check_histories(towns):
    """They are worth something only if much goes wrong in them."""
    assert sum(town.num_kills for town in towns) >= len(towns)
    assert sum(len(town.history.launches) for town in towns) > len(towns)
    assert any(call.error is not None for town in towns for call in town.faults.calls)


def test_controllers_that_are_killed_between_any_two_requests_never_have_two_live_attempts(found):
    check_histories([play(found, seed) for seed in range(NUM_HISTORIES)])


@pytest.mark.soak
def test_many_histories_never_have_two_live_attempts(found):
    first = NUM_HISTORIES
    number = int(os.environ.get("CLOUDSPOT_SOAK_EC2", "40"))
    check_histories([play(found, seed) for seed in range(first, first + number)])
