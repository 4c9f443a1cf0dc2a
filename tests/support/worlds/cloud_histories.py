"""Histories of one job on an emulated cloud over HTTP: real controllers, a real plugin, simulated nodes.

``World`` gives the time and the trouble: others run inside each request of the SDK, answers are lost,
calls are throttled, listings lag, machines are reclaimed, and controllers are killed between any two
requests, also in the middle of a ``create``. A plugin's tests say what is the cloud's own: a subclass
of ``Town``, which calls ``meet_fate`` before each request and after each answer.
"""

import random
from datetime import timedelta

from support.records.made_journal import forget_copies
from support.worlds.launch_histories import check_journal, check_supply, is_rightful
from support.worlds.simcloud import Machine, SimCloud
from support.worlds.simnodes import Script, SimAgents
from support.worlds.simulation import START, Odds, SimStore, Violation, World
from support.worlds.stopped_calls import Stops

from cloudspot.controller.loop import Controller
from cloudspot.emulation.cloud import MachineHost, MachineStatus
from cloudspot.jobfile.spec import spec_from_json, spec_to_json
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Submission
from cloudspot.model import InstanceState, Market
from cloudspot.story.events import EventKind
from cloudspot.story.ledger import bill
from cloudspot.story.outcomes import launch_end
from cloudspot.testing import plaincalls

JOB = "digits-1"
LIMIT_SECONDS = 60_000.0
"""A job that has not ended by then never will."""


class Killed(BaseException):
    """The end of a controller's process, wherever it stands."""


class WorldHost(MachineHost):
    """Machines that live in the world's time, each with a simulated agent."""

    network = "10.77.0.0/16"

    def __init__(self, town):
        self.town = town
        self.made = {}
        self._ids = {}
        self.violations = []
        self.truth = SimCloud(
            town.world,
            max_nodes=town.spec.nodes.max,
            node=SimAgents(
                town.world,
                lambda: self.truth,
                lambda: town.store,
                script=town.script,
                min_nodes=town.spec.nodes.min,
            ),
            is_rightful=lambda machine: False,
            check_supply=lambda: check_supply(town.store, self.truth, town.spec.nodes.max),
        )

    def allocate_address(self):
        return f"10.77.{len(self.made) // 250}.{len(self.made) % 250 + 1}"

    def start(self, emulated):
        world = self.town.world
        machine = Machine(
            id=self.town.instance_id_of(emulated),
            job_id=emulated.job.job_id,
            launch=emulated.job.launch,
            rank=emulated.job.rank,
            num_nodes=emulated.job.num_nodes,
            zone=self.town.zone_of(emulated),
            market=emulated.market,
            created_at=world.time,
            kept_seconds=0.0,
        )
        self.made[machine.id] = emulated
        self._ids[emulated.id] = machine.id
        self.truth.machines[machine.id] = machine
        self.truth._set(machine, InstanceState.RUNNING)
        machine.life = world.start(self.truth._node(machine))
        self.truth._check_supply()
        if machine.market is Market.SPOT and world.chance(0.5):
            world.start(self.truth._reclaim(machine), delay=world.rng.uniform(1, 300))

    def terminate(self, machine_id):
        machine = self.truth.machines[self._ids[machine_id]]
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
            self.made[machine.id].id: MachineStatus(
                state=machine.states[-1][1],
                address=self.made[machine.id].address,
                end_reason=machine.end_reason,
            )
            for machine in self.truth.machines.values()
        }


class Town:
    """A job in a store, an emulated account, and as many controllers as one likes."""

    provider_name = None
    zones = ()
    """Those that the job uses."""
    bill_seconds = 45.0
    """The bill of a machine is right to so much, where nothing holds up the controllers, whose clocks are
    20 s off."""
    faults_of_the_api = ()
    """(code, HTTP status) of what a request may fail with in passing."""

    def __init__(self, *, seed=None, odds=None, options=None, script=None, **tables):
        rng = random.Random(seed)
        self.world = World(rng, odds=odds or Odds(), calm_at=0.0 if seed is None else rng.uniform(500, 3000))
        self.store = SimStore(self.world)
        self.spec = spec_from_json(
            {
                "name": "digits",
                "run": {"entrypoint": "train.py"},
                **tables,
                "providers": {self.provider_name: {**self.options(), **(options or {})}},
            }
        )
        self.script = script or Script(doubt=0.01 if seed is not None else 0.0)
        self.host = WorldHost(self)
        self.faults = self.emulate()
        self.is_hooked = False
        self.is_punctual = seed is None
        """Nothing holds the controllers up."""
        self.num_kills = 0
        self.events = []
        submission = Submission(
            job_id=JOB,
            provider=self.provider_name,
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

    # --- a cloud's own ----------------------------------------------------------------------------

    def options(self):
        """Return the job's table of the provider."""
        raise NotImplementedError

    def emulate(self):
        """Bring up the account on ``self.host``, by ``self.unix_time``; return its Faults."""
        raise NotImplementedError

    def provider(self):
        """Return a provider as a new process would have it, with nothing looked up."""
        raise NotImplementedError

    def zone_of(self, emulated):
        """Return the zone of an EmulatedMachine."""
        raise NotImplementedError

    def instance_id_of(self, emulated):
        """Return what the machine itself and the provider's listing call it."""
        return emulated.id

    def check_leftovers(self):
        """Look for what a job leaves behind beside its machines."""

    # ----------------------------------------------------------------------------------------------

    def unix_time(self):
        return (START + timedelta(seconds=self.world.time)).timestamp()

    def controller(self, store=None, provider=None):
        store, provider = store or self.store, provider or self.provider()
        return Controller(store, JOB, provider, clock=self.world.clock(), sleep=self.world.sleep)

    def run(self):
        """Let one controller run the job to its end; return the history."""
        return self.controller().run_until_finished(lambda tick: self.events.extend(tick.events))

    @property
    def history(self):
        return HistoryReader(self.store.inner, JOB).read()

    @property
    def journal(self):
        """The records themselves: their copy lacks the requests."""
        forget_copies(self.store.inner, JOB)
        return Journal(self.store.inner, JOB).read()

    def outcomes(self):
        return [
            (one.intent.offer.market.value, one.intent.offer.zone, launch_end(one).outcome)
            for one in self.history.launches
        ]

    def warnings(self):
        return [event.text for event in self.events if event.kind is EventKind.WARNED]

    def is_rightful(self, machine):
        """Say whether nobody has any business to terminate the machine."""
        return is_rightful(self.world, self.store, machine)

    def check_end(self):
        """Whatever happened: nothing runs, nothing is left, every machine is in the books, and on the bill."""
        assert self.host.violations == []
        left = [one.id for one in self.host.truth.machines.values() if not one.has_ended]
        assert left == []
        self.check_leftovers()
        check_journal(self.journal)
        history = self.history
        assert all(launch_end(one) is not None for one in history.launches)
        assert not self.is_punctual or all(one.is_settled for one in history.launches)
        lines = {line.instance_id: line for line in bill(history, self.world.now()).lines}
        assert set(lines) <= set(self.host.truth.machines)
        self.faults.throttle_every = 0
        listed = {one.id: one for one in plaincalls.instances(self.provider().provisioner(), job_id=JOB)}
        for machine in self.host.truth.machines.values():
            launch = history.launches[machine.launch - 1]
            assert machine.rank in launch.slots, f"{machine.id} is in nobody's books"
            slot = launch.slots[machine.rank]
            if machine.id not in slot.owed and not self.is_punctual:
                continue  # It came when its seat was void already, and was ended for that.
            line = lines[machine.id]
            is_told = machine.id in launch.certificates or launch.own_exits.keys() >= {machine.rank}
            assert is_told, f"{machine.id} is on the bill without a word of its end"
            if machine.id in listed:
                started, ended = listed[machine.id].launched_at, listed[machine.id].ended_at
                # The clock by which the intent was dated may be ahead of the cloud's.
                moved = timedelta() if started is None else max(started, launch.intent.at) - started
                assert started is None or line.started == started + moved
                if started is None and ended is not None:  # the driver knew the start that is listed no more
                    moved = line.ended - ended
                assert timedelta() <= moved <= 2 * timedelta(seconds=20)
                assert ended is None or line.ended == ended + moved
            if self.is_punctual:
                life = machine.states[-1][0] - machine.created_at
                assert abs(line.seconds - life) <= self.bill_seconds, f"{line.seconds} s for {life} s"

    def meet_fate(self):
        """Let others run, and controllers die; for before each request and after each answer."""
        world = self.world
        if not self.is_hooked or not world._stack:
            return
        world.interrupt()
        if world.chance(0.02):
            self.num_kills += 1
            raise Killed
        if world.chance(0.04):
            code, status = world.rng.choice(self.faults_of_the_api)
            self.faults.inject("*", code, status=status, happens=world.rng.random() < 0.5)
        if world.chance(0.05):
            zone = world.rng.choice(self.zones)
            self.faults.capacity[zone, "*", "spot"] = world.rng.choice([0, 1, None])
        if world.is_calm:
            self.faults.capacity.clear()
            self.faults.throttle_every = 0
            self.faults.describe_lag_seconds = self.faults.tag_lag_seconds = 0.0

    def drive(self):
        """Be a controller, again and again killed, until the job is settled."""
        world = self.world

        def pause_at(_name):
            if world.chance(0.005):
                self.num_kills += 1
                raise Killed
            return world.rng.uniform(0, 30) if world.chance(0.1) else None

        while True:
            try:
                stops = Stops(self.store, self.provider())
                controller = self.controller(stops.store, stops.provider)
                while True:
                    tick = yield from stops.steps(controller.tick, at=pause_at)
                    if tick.is_settled:
                        return
                    yield 0.1 if tick.acted else world.rng.uniform(5, 40)
            except Killed:
                yield world.rng.uniform(0, 60)

    def settle(self):
        """Let a last controller come by, as ``reconcile`` would."""
        controller = self.controller()
        for _ in range(100):
            if controller.run_pass().is_settled:
                return
            self.world.run(until=self.world.time + 30.0)
        raise Violation("machines run on")


def play(found, seed, *, several=None):
    """Run one history to its end and check it; return the town.

    ``several`` is the options that jobs of more than one node may have.
    """
    rng = random.Random(seed)
    num_nodes = rng.choice([1, 2, 2])
    choice = rng.choice([{}, several or {}])
    town = found(
        seed=seed,
        odds=Odds(long_seconds=300.0),
        nodes={"min": rng.choice([1, num_nodes]), "max": num_nodes},
        spot={"max_wait": 300.0},
        limits={"max_restarts": 10_000},
        options=choice if num_nodes > 1 else {},
    )
    town.faults.throttle_every = rng.choice([0, 0, 3, 7])
    town.faults.describe_lag_seconds = rng.choice([0.0, 5.0, 30.0])
    town.faults.tag_lag_seconds = rng.choice([0.0, 10.0])
    town.is_hooked = True
    lives = [town.world.start(town.drive(), delay=rng.uniform(0, 30)) for _ in range(rng.randint(1, 2))]
    while not all(life.is_over for life in lives):
        if town.world.time > LIMIT_SECONDS or not town.world.step():
            raise Violation(f"history {seed} does not end")
    town.is_hooked = False
    town.world.calm_at = 0.0
    town.settle()
    assert town.history.finished.outcome == "succeeded"
    town.check_end()
    return town


def check_histories(towns):
    """They are worth something only if much goes wrong in them."""
    assert sum(town.num_kills for town in towns) >= len(towns)
    assert sum(len(town.history.launches) for town in towns) > len(towns)
    assert any(call.error is not None for town in towns for call in town.faults.calls)
