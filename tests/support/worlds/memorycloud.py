"""A cloud in memory, its provider, and an account for the kits: the smallest that keeps every promise."""

from __future__ import annotations

import itertools
import json
import threading
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
from cloudspot.testing.account import Account, Call, Fault
from cloudspot.testing.machine import Machine

ERRORS = {
    Fault.UNWELL: TransientError("the memory cloud is unwell: try again"),
    Fault.THROTTLED: TransientError("the memory cloud throttles the requests: try again"),
    Fault.DENIED: AuthError("the memory cloud: a right is missing"),
    Fault.QUOTA: QuotaError("the memory cloud: the limit of machines is reached"),
    Fault.REFUSED: ProvisionError("the memory cloud: there is no such image"),
}


class MemoryCloud:
    """What the cloud has: machines by id in the order of their creation, and tokens."""

    def __init__(self):
        self.machines: dict[str, Instance] = {}
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

    def alive(self) -> list[Instance]:
        return [one for one in self.machines.values() if one.state is not InstanceState.ENDED]

    def end(self, machine_id: str, reason: EndReason) -> None:
        one = self.machines.get(machine_id)
        if one is not None and one.state is not InstanceState.ENDED:
            self.machines[machine_id] = msgspec.structs.replace(
                one, state=InstanceState.ENDED, end_reason=reason
            )


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
            "offer": json.loads(msgspec.json.encode(group.offer)),
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
                raise CapacityError(f"no room in {body['offer']['zone']}")
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
            zone=body["offer"]["zone"],
            instance_type=body["offer"]["instance_type"],
            market=Market(body["offer"]["market"]),
            address=f"10.0.0.{rank + 1}",
            store_url=body["store_url"],
        )
        self.cloud.machines[one.id] = one
        self.cloud.shown_at[one.id] = self.cloud.now + self.cloud.lag
        return one

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
        if resources.accelerator is not None:
            return ()
        return tuple(
            Offer(
                instance_type="medium",
                zone=zone,
                market=market,
                price_per_hour=price,
                on_demand_price_per_hour=1.0,
            )
            for zone in ("a", "b")
            for market, price in ((Market.SPOT, 0.3), (Market.ON_DEMAND, 1.0))
        )


class MemorySource(PreemptionSource):
    notice_seconds = 120.0
    poll_seconds = 0.05

    def __init__(self, machine):
        self.machine = machine

    def poll(self):
        if self.machine.is_silent:
            raise TransientError("the metadata service does not answer: try again")
        return self.machine.notice


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
        if self.machine.is_silent:
            raise TransientError("the metadata service does not answer: try again")
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
        self.cloud, self.kind = MemoryCloud(), kind

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

    def running(self):
        return {one.id for one in self.cloud.alive()}


class MemoryMachine(Machine):
    """A machine of that cloud, seen from its inside."""

    def __init__(self, kind=MemoryProvider):
        self.kind = kind
        self.notice, self.is_silent = None, False
        self.instance = Instance(
            id="m-1", state=InstanceState.RUNNING, job_id="kit-1", launch=1, rank=1, address="10.0.0.2",
            zone="a", instance_type="medium", market=Market.SPOT,
        )  # fmt: skip

    def provider(self):
        return self.kind(machine=self)

    def give_notice(self, deadline):
        self.notice = PreemptionNotice(deadline=deadline, source="memory")

    def silence(self):
        self.is_silent = True
