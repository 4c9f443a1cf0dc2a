"""A cloud in memory, its provider, and an account for the kits: the smallest that keeps every promise."""

from __future__ import annotations

import itertools
import threading
from datetime import datetime, timedelta, timezone
from typing import ClassVar

import msgspec

from cloudspot.calls import CreateResult, InstancesResult, OffersResult, PreemptResult, TerminateResult
from cloudspot.errors import AuthError, CapacityError, ProvisionError, QuotaError, TransientError
from cloudspot.interfaces import PreemptionSource, Provider, Provisioner
from cloudspot.model import (
    BootProfile,
    Capability,
    EndReason,
    Instance,
    InstanceState,
    LaunchRequest,
    Market,
    NodeIdentity,
    Offer,
    PreemptionNotice,
)
from cloudspot.testing.account import Account, Bought, Call, Fault, Sold
from cloudspot.testing.machine import Machine, OtherEvent

ERRORS = {
    Fault.UNWELL: TransientError("the memory cloud is unwell: try again"),
    Fault.THROTTLED: TransientError("the memory cloud throttles the requests: try again"),
    Fault.DENIED: AuthError("the memory cloud: a permission is missing"),
    Fault.QUOTA: QuotaError("the memory cloud: the limit of machines is reached"),
    Fault.REFUSED: ProvisionError("the memory cloud: there is no such image"),
}


GIB = 1 << 30
PAGE = 3
"""So many rows the price list has on a page."""
ZONES = ("a", "b")
TYPES = {
    "large": {"cpus": 16, "memory_bytes": 64 * GIB, "price": 2.0},
    "medium": {"cpus": 8, "memory_bytes": 32 * GIB, "price": 1.0},
    "one-a100": {
        "cpus": 16,
        "memory_bytes": 64 * GIB,
        "price": 5.0,
        "accelerator": "A100",
        "accelerator_count": 1,
    },
    "two-a100": {
        "cpus": 32,
        "memory_bytes": 128 * GIB,
        "price": 9.0,
        "accelerator": "A100",
        "accelerator_count": 2,
    },
}
SOLD = tuple(
    Sold(
        instance_type=name,
        zone=zone,
        market=market,
        price_per_hour=facts["price"] * (0.3 if market is Market.SPOT else 1.0),
        **{key: value for key, value in facts.items() if key != "price"},
    )
    for name, facts in TYPES.items()
    for zone in ZONES
    for market in Market
)
EXTRAS_PER_HOUR = 0.02
"""What the disk of a machine costs."""


class MemoryCloud:
    """What the cloud has: machines by id in the order of their creation, what was bought, and tokens."""

    def __init__(self, *, ends_at_once=True):
        self.ends_at_once = ends_at_once
        self.machines: dict[str, Instance] = {}
        self.books: dict[str, Bought] = {}
        self.shown_at: dict[str, float] = {}
        self.tokens: dict[str, tuple[LaunchRequest, list[str]]] = {}
        self.room: int | None = None
        self.lag = self.now = 0.0
        self.faults: dict[Call, Fault] = {}
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)

    def check(self, call: Call) -> None:
        fault = self.faults.get(call)
        if fault in ERRORS:
            raise ERRORS[fault]

    def prices(self, page: int) -> tuple[Sold, ...]:
        """Return a page of the price list, from 0; behind the last one they are empty."""
        return SOLD[page * PAGE : (page + 1) * PAGE]

    def alive(self) -> list[Instance]:
        return [one for one in self.machines.values() if one.state is not InstanceState.ENDED]

    def buy(self, machine: Instance, bought: Bought) -> None:
        self.machines[machine.id], self.books[machine.id] = machine, bought
        self.shown_at[machine.id] = self.now + self.lag

    def end(self, machine_id: str, reason: EndReason) -> None:
        one = self.machines.get(machine_id)
        if one is not None and one.state.is_up:
            self.machines[machine_id] = msgspec.structs.replace(
                one, state=InstanceState.SHUTTING_DOWN, end_reason=reason
            )
        if self.ends_at_once:
            self.shut_down()

    def shut_down(self) -> None:
        """Let those end that are shutting down."""
        for one in self.alive():
            if one.state is InstanceState.SHUTTING_DOWN:
                self.machines[one.id] = msgspec.structs.replace(
                    one, state=InstanceState.ENDED, ended_at=self.clock()
                )

    def clock(self) -> datetime:
        return datetime(2026, 11, 1, tzinfo=timezone.utc) + timedelta(seconds=self.now)


class MemoryProvisioner(Provisioner):
    token_seconds = 3600.0
    absence_proves_after_seconds = 60.0

    def __init__(self, cloud: MemoryCloud):
        self.cloud = cloud

    def render(self, group):
        body = {
            "job_id": group.job_id,
            "launch": group.launch,
            "num_nodes": group.num_nodes,
            "min_nodes": group.min_nodes,
            "store_url": group.store_url,
            "user_data": group.user_data,
            "disk_bytes": max(group.resources.disk_bytes, 20 * GIB),
            "labels": dict(group.labels),
            "max_seconds": group.max_seconds,
            "instance_type": group.offer.instance_type,
            "zone": group.offer.zone,
            "market": group.offer.market.value,
        }
        return LaunchRequest(provider="memory", body=body)

    def create(self, request):
        return CreateResult(instances=tuple(self.created(request.request, token=request.token)))

    def created(self, request, *, token):
        if request.provider != "memory":
            raise ProvisionError("the request is not one of provider 'memory'")
        body, cloud = request.body, self.cloud
        with cloud.lock:
            cloud.check(Call.CREATE)
            if token in cloud.tokens:
                first, made = cloud.tokens[token]
                if first != request:
                    raise ProvisionError("the token was used for another request")
                return tuple(cloud.machines[one] for one in made)
            room = body["num_nodes"] if cloud.room is None else cloud.room - len(cloud.alive())
            if room < body["min_nodes"]:
                raise CapacityError(f"no room in {body['zone']}")
            made = [self.make(body, rank) for rank in range(min(room, body["num_nodes"]))]
            cloud.tokens[token] = (request, [one.id for one in made])
            self.lose_answer()
            return tuple(made)

    def lose_answer(self):
        if self.cloud.faults.get(Call.CREATE) is Fault.LOST_ANSWER:
            del self.cloud.faults[Call.CREATE]
            raise TransientError("the connection broke: try again")

    def make(self, body, rank):
        one = Instance(
            id=f"m-{next(self.cloud.numbers)}",
            state=InstanceState.RUNNING,
            job_id=body["job_id"],
            launch=body["launch"],
            rank=rank,
            zone=body["zone"],
            instance_type=body["instance_type"],
            market=Market(body["market"]),
            address=f"10.0.0.{rank + 1}",
            launched_at=self.cloud.clock(),
            store_url=body["store_url"],
        )
        self.cloud.buy(one, self.purchase(body))
        return one

    def purchase(self, body):
        names = ("user_data", "instance_type", "zone", "disk_bytes", "labels", "max_seconds")
        return Bought(market=Market(body["market"]), **{name: body[name] for name in names})

    def instances(self, request):
        listed = self.listed(job_id=request.job_id)
        ours = (one for one in listed if request.store_url in {"", one.store_url} or not one.store_url)
        return InstancesResult(instances=tuple(ours))

    def listed(self, *, job_id=None):
        with self.cloud.lock:
            self.cloud.check(Call.LIST)
            return tuple(
                one
                for one in self.cloud.machines.values()
                if job_id in {None, one.job_id} and self.cloud.shown_at[one.id] <= self.cloud.now
            )

    def terminate(self, request):
        self.ended(request.instance_ids)
        return TerminateResult()

    def ended(self, instance_ids):
        with self.cloud.lock:
            for one in instance_ids:
                self.cloud.end(one, EndReason.TERMINATED)

    def offers(self, request):
        return OffersResult(offers=tuple(self.offered(request.resources)))

    def offered(self, resources):
        sold = [one for one in self.price_list() if self.fits(one, resources)]
        return tuple(self.offer(one) for one in sold)

    def price_list(self):
        pages = itertools.takewhile(bool, map(self.cloud.prices, itertools.count()))
        return list(itertools.chain.from_iterable(pages))

    def fits(self, one, resources):
        return (
            one.cpus >= resources.cpus
            and one.memory_bytes >= resources.memory_bytes
            and one.accelerator == resources.accelerator
            and one.accelerator_count >= resources.accelerator_count
        )

    def offer(self, one):
        return Offer(
            instance_type=one.instance_type,
            zone=one.zone,
            market=one.market,
            price_per_hour=one.price_per_hour + EXTRAS_PER_HOUR,
            on_demand_price_per_hour=TYPES[one.instance_type]["price"] + EXTRAS_PER_HOUR,
            extras_per_hour=EXTRAS_PER_HOUR,
        )


class MemorySource(PreemptionSource):
    notice_seconds = 120.0
    poll_seconds = 0.05

    def __init__(self, machine):
        self.machine = machine

    def poll(self):
        events = self.machine.ask()
        mine = [event for event in events if event["machine"] == "m-1" and event["kind"] == "reclaim"]
        return self.heard(mine[0]["at"]) if mine else None

    def heard(self, at):
        return PreemptionNotice(deadline=at, source="memory")


class MemoryProvider(Provider):
    name: ClassVar[str] = "memory"
    capabilities = frozenset({Capability.PREEMPT})
    options_type = msgspec.defstruct("MemoryOptions", [], kw_only=True, frozen=True)
    provisioner_type = MemoryProvisioner
    source_type = MemorySource

    def __init__(self, options=None, *, cloud=None, machine=None):
        super().__init__(options if options is not None else self.options_type())
        self.cloud, self.machine = cloud or MemoryCloud(), machine

    def provisioner(self):
        return self.provisioner_type(self.cloud)

    def preemption_source(self):
        return self.source_type(self.machine)

    def node_identity(self):
        self.machine.ask()
        return self.identity()

    def identity(self):
        one = self.machine.instance
        return NodeIdentity(
            instance_id=one.id,
            rank=one.rank,
            address=one.address,
            zone=one.zone,
            instance_type=one.instance_type,
            market=one.market,
        )

    def boot_profile(self):
        return BootProfile()

    def preempt(self, request):
        with self.cloud.lock:
            self.cloud.end(request.instance_id, EndReason.RECLAIMED)
        return PreemptResult()


class MemoryAccount(Account):
    """An account of the cloud in memory, for one kind of provider."""

    unknown_ids = ("m-99999", "")
    patience_seconds = 0.5

    def __init__(self, kind=MemoryProvider):
        self.cloud, self.kind = MemoryCloud(ends_at_once=False), kind

    def provider(self):
        return self.kind(cloud=self.cloud)

    def limit(self, num_machines):
        self.cloud.room = num_machines

    def inject(self, call, fault):
        self.cloud.faults[call] = fault

    def heal(self):
        self.cloud.faults.clear()

    def lag(self, seconds):
        self.cloud.lag = seconds

    def pass_time(self, seconds):
        self.cloud.now += seconds

    def sold(self):
        return SOLD

    def bought(self, instance_id):
        return self.cloud.books[instance_id]

    def running(self):
        found = {one.id for one in self.cloud.alive()}
        self.cloud.shut_down()
        return found


class MemoryMachine(Machine):
    """A machine of that cloud, seen from its inside."""

    notice_seconds = 120.0

    def __init__(self, kind=MemoryProvider):
        self.kind = kind
        self.events, self.trouble = [], None
        self.instance = Instance(
            id="m-1", state=InstanceState.RUNNING, job_id="kit-1", launch=1, rank=1, address="10.0.0.2",
            zone="a", instance_type="medium", market=Market.SPOT,
        )  # fmt: skip

    def provider(self):
        return self.kind(machine=self)

    def ask(self):
        if self.trouble is not None:
            raise TransientError(f"the metadata service: {self.trouble}: try again")
        return self.events

    def give_notice(self, deadline):
        self.events.append({"machine": "m-1", "kind": "reclaim", "at": deadline})

    def give_other_event(self, event):
        machine = "m-2" if event is OtherEvent.ANOTHER_MACHINE else "m-1"
        kind = "reclaim" if event is OtherEvent.ANOTHER_MACHINE else event.value
        self.events.append({"machine": machine, "kind": kind, "at": datetime.now(timezone.utc)})

    def silence(self):
        self.trouble = "no answer"

    def trouble_with(self, trouble):
        self.trouble = trouble.value
