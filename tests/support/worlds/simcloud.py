"""A simulated cloud: tokens that expire, answers that are lost, listings that lag, machines that die."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
from support.worlds.simulation import START, Actor, Life, Violation, World

from cloudspot.calls import (
    CreateRequest,
    CreateResult,
    InstancesRequest,
    InstancesResult,
    OffersRequest,
    OffersResult,
    TerminateRequest,
    TerminateResult,
)
from cloudspot.errors import CapacityError, CloudspotError, ProvisionError, QuotaError, TransientError
from cloudspot.interfaces import PreemptionSource, Provider, Provisioner
from cloudspot.jobstore.layout.records import Generation
from cloudspot.model import (
    BootProfile,
    Capability,
    EndReason,
    Instance,
    InstanceGroup,
    InstanceState,
    LaunchRequest,
    Market,
    NodeIdentity,
    Offer,
    Resources,
)

NOTICE_SECONDS = 120.0


@dataclass(eq=False)
class Machine:
    """A machine as it really is, whatever a listing says."""

    id: str
    job_id: str
    launch: int
    rank: int
    num_nodes: int
    zone: str
    market: Market
    created_at: float
    kept_seconds: float
    """How long a listing still shows it after its end."""
    states: list[tuple[float, InstanceState]] = field(default_factory=list)
    end_reason: EndReason | None = None
    has_notice: bool = False
    runs_user_code: bool = False
    heard_at: float | None = None
    """When its claim or its newest heartbeat reached the store."""
    longest_silence: float = 0.0
    """Seconds between two of these."""
    life: Life | None = None

    def note_heard(self, now: float, down_seconds: Callable[[float], float]) -> None:
        """Note that a heartbeat has reached the store; ``down_seconds`` says how long that was away since."""
        last = self.created_at if self.heard_at is None else self.heard_at
        self.longest_silence = max(self.longest_silence, now - last - down_seconds(last))
        self.heard_at = now

    @property
    def has_ended(self) -> bool:
        """Say whether it is truly gone."""
        return self.states[-1][1] is InstanceState.ENDED

    def state_at(self, moment: float) -> tuple[float, InstanceState]:
        """Return (since when, state) at an earlier moment."""
        return next(entry for entry in reversed(self.states) if entry[0] <= moment)


class SimCloud(Provisioner):
    """A provisioner that keeps exactly the promises of the interface, and no other.

    It also knows the truth, and raises Violation when two machines run user code in the same seat, when more
    of them have a seat than may be, when a generation is formed that must not be, or when a machine is
    terminated that has every right to run.
    """

    token_seconds = 300.0
    absence_proves_after_seconds = 60.0
    max_lag_seconds = 30.0
    """How old a listing may be; absence proves nothing within this time."""
    lag_chance = 0.5
    """How likely one is."""
    has_networks = False
    """Each zone is a network of its own, as if it were a region."""

    def __init__(
        self,
        world: World,
        *,
        max_nodes: int,
        node: Callable[[Machine], Actor],
        is_rightful: Callable[[Machine], bool],
        check_supply: Callable[[], None] = lambda: None,
    ) -> None:
        self._world = world
        self.max_nodes = max_nodes
        self._node = node
        self._is_rightful = is_rightful
        self._check_supply = check_supply
        self.is_driven = False
        """Some controller is always there once all is calm."""
        self._tokens: dict[tuple[str, str], tuple[float, LaunchRequest, list[Machine]]] = {}
        self.machines: dict[str, Machine] = {}

    # --- the interface ----------------------------------------------------------------------------

    def render(self, group: InstanceGroup) -> LaunchRequest:
        """Return what matters here of the group."""
        body = {
            "job_id": group.job_id,
            "launch": group.launch,
            "num_nodes": group.num_nodes,
            "min_nodes": group.min_nodes,
            "zone": group.offer.zone,
            "market": group.offer.market.value,
        }
        return LaunchRequest(provider="sim", body=body)

    def create(self, request: CreateRequest) -> CreateResult:
        """Create all machines, once while the token is remembered in the zone."""
        return CreateResult(instances=tuple(self.created(request.request, token=request.token)))

    def created(self, request: LaunchRequest, *, token: str) -> Sequence[Instance]:
        """Create the machines; the tests override it."""
        self._enter()
        zone = request.body["zone"]
        born, sent, machines = self._tokens.get((zone, token), (-1e9, request, []))
        if self._world.time - born >= self.token_seconds:
            if self._world.chance(0.25):
                raise CapacityError(f"{zone} has none now")
            if self._world.chance(0.02):
                raise QuotaError("all used")
            machines = self._create(request)
            self._tokens[zone, token] = (self._world.time, request, machines)
        elif sent != request:
            raise ProvisionError("the token was used with another request")
        self._leave()
        return [self._show(one, self._world.time) for one in machines]

    def instances(self, request: InstancesRequest) -> InstancesResult:
        """List as of some moment within the last ``max_lag_seconds``."""
        return InstancesResult(instances=tuple(filter(request.wants, self.listed(job_id=request.job_id))))

    def listed(self, *, job_id: str | None = None) -> Sequence[Instance]:
        """List the machines; the tests override it."""
        self._enter()
        is_late = self._world.chance(self.lag_chance)
        lag = self._world.rng.uniform(0, self.max_lag_seconds) if is_late else 0.0
        moment = self._world.time - lag
        shown = [
            self._show(one, moment)
            for one in self.machines.values()
            if job_id in {None, one.job_id}
            and one.created_at <= moment
            and not self._is_forgotten(one, moment)
        ]
        self._leave()
        return shown

    def terminate(self, request: TerminateRequest) -> TerminateResult:
        """Begin the end of the machines; user code goes on until it has come."""
        self._enter()
        for instance_id in request.instance_ids:
            machine = self.machines.get(instance_id)
            if machine is None or machine.has_ended:
                continue
            if self._is_rightful(machine):
                raise Violation(f"{instance_id} was terminated although it has every right to run")
            self._set(machine, InstanceState.SHUTTING_DOWN)
            self._world.start(self._finish_off(machine), delay=self._world.rng.uniform(1, 60))
        self._leave()
        return TerminateResult()

    def offers(self, request: OffersRequest) -> OffersResult:
        """Return spot in two zones and on-demand in one."""
        return OffersResult(offers=tuple(self.offered(request.resources)))

    def offered(self, resources: Resources) -> Sequence[Offer]:
        """Return the offers; the tests override it."""
        self._enter()
        prices = (("a", Market.SPOT, 1.0), ("b", Market.SPOT, 1.0), ("a", Market.ON_DEMAND, 3.0))
        return [
            Offer(
                instance_type="sim",
                zone=zone,
                market=market,
                price_per_hour=price,
                on_demand_price_per_hour=3.0,
                network=zone if self.has_networks else "",
            )
            for zone, market, price in prices
        ]

    # --- the truth --------------------------------------------------------------------------------

    def current_price(self, offer: Offer) -> float | None:
        """Ask for half as much again in each second hour."""
        return offer.price_per_hour * (1.0 + self._world.time // 3600 % 2 / 2)

    def enter_user_code(self, machine: Machine) -> None:
        """Note that the machine runs user code from now on, and check that it may."""
        machine.runs_user_code = True
        running = [
            one for one in self.machines.values() if one.runs_user_code and one.job_id == machine.job_id
        ]
        doubles = [one for one in running if (one.launch, one.rank) == (machine.launch, machine.rank)]
        if len(doubles) > 1:
            raise Violation(f"{' and '.join(one.id for one in doubles)} run user code in the same seat")
        self._check_supply()

    def note_generation(self, record: Generation) -> None:
        """Check a generation that was just written."""
        if len(record.members) > self.max_nodes:
            raise Violation("a generation is larger than nodes.max")
        if self.has_networks and len({self.machines[one.instance_id].zone for one in record.members}) > 1:
            raise Violation("a generation's nodes do not reach each other")

    def leave_user_code(self, machine: Machine) -> None:
        """Note that the machine trains no more."""
        machine.runs_user_code = False

    def end(self, machine: Machine, reason: EndReason) -> None:
        """End the machine now."""
        if not machine.has_ended:
            self._set(machine, InstanceState.ENDED)
            machine.end_reason = reason
            machine.runs_user_code = False
            assert machine.life is not None
            self._world.kill(machine.life)

    def _create(self, request: LaunchRequest) -> list[Machine]:
        body, rng = request.body, self._world.rng
        created = []
        num_nodes = body["num_nodes"]
        if self._world.chance(0.3):
            num_nodes = rng.randint(min(body["min_nodes"], num_nodes), num_nodes)
        for rank in range(num_nodes):
            machine = Machine(
                id=f"i-{body['launch']}-{rank}-{len(self.machines)}",
                job_id=body["job_id"],
                launch=body["launch"],
                rank=rank,
                num_nodes=body["num_nodes"],
                zone=body["zone"],
                market=Market(body["market"]),
                created_at=self._world.time,
                kept_seconds=rng.choice([0.0, 300.0]),
            )
            self._set(machine, InstanceState.RUNNING)
            self.machines[machine.id] = machine
            machine.life = self._world.start(self._node(machine))
            if machine.market is Market.SPOT and self._world.chance(0.6):
                self._world.start(self._reclaim(machine), delay=rng.uniform(1, 300))
            created.append(machine)
        self._check_supply()
        return created

    def _reclaim(self, machine: Machine) -> Actor:
        if self._world.is_calm:
            return
        rng = self._world.rng
        if rng.random() < 0.6:
            machine.has_notice = True
            if rng.random() < 0.5 and not machine.has_ended:
                self._set(machine, InstanceState.SHUTTING_DOWN)
            yield NOTICE_SECONDS
        self.end(machine, rng.choice([EndReason.RECLAIMED, EndReason.RECLAIMED, EndReason.LOST]))

    def _finish_off(self, machine: Machine) -> Actor:
        self.end(machine, EndReason.TERMINATED)
        return
        yield

    def _set(self, machine: Machine, state: InstanceState) -> None:
        machine.states.append((self._world.time, state))

    def _is_forgotten(self, machine: Machine, moment: float) -> bool:
        since, state = machine.state_at(moment)
        return state is InstanceState.ENDED and moment - since >= machine.kept_seconds

    def _show(self, machine: Machine, moment: float) -> Instance:
        since, state = machine.state_at(moment)
        has_ended = state is InstanceState.ENDED
        return Instance(
            id=machine.id,
            state=state,
            job_id=machine.job_id,
            launch=machine.launch,
            rank=machine.rank,
            end_reason=machine.end_reason if has_ended else None,
            address="10.0.0.1",
            zone=machine.zone,
            launched_at=START + timedelta(seconds=machine.created_at),
            ended_at=START + timedelta(seconds=since) if has_ended else None,
        )

    def _enter(self) -> None:
        self._world.interrupt()
        if self._world.chance(0.05):
            raise TransientError("the cloud did not answer")

    def _leave(self) -> None:
        self._world.interrupt()
        if self._world.chance(0.05):
            raise TransientError("the cloud's answer was lost")


class NoOptions(msgspec.Struct, frozen=True):
    """The simulated cloud has no options."""


class SimProvider(Provider):
    """The simulated cloud as a provider; nodes are simulated too and do not ask it."""

    name = "sim"
    options_type = NoOptions
    capabilities = frozenset({Capability.CONSOLE})

    def __init__(self, cloud: SimCloud) -> None:
        super().__init__(NoOptions())
        self._cloud = cloud

    def provisioner(self) -> Provisioner:
        """Return the cloud."""
        return self._cloud

    def preemption_source(self) -> PreemptionSource:
        """Refuse: no process runs on a simulated node."""
        raise CloudspotError("a simulated node has no notices")

    def node_identity(self) -> NodeIdentity:
        """Refuse: no process runs on a simulated node."""
        raise CloudspotError("this is no simulated node")

    def boot_profile(self) -> BootProfile:
        """Return a profile that boots at once."""
        return BootProfile(has_cloudspot=True)
