"""A third party's plugin, written for version 2 of the interfaces. NEVER EDIT THIS FILE.

It stands for all plugins that their authors do not touch when cloudspot changes. Where a change of cloudspot
breaks it, that change breaks them too: change cloudspot so that this file works as it is. When version 3 comes,
a second such plugin is put beside it; this one is removed in the release that drops version 2.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from typing import Any, ClassVar

import msgspec

from cloudspot.calls import (
    CheckRequest,
    CheckResults,
    CreateRequest,
    CreateResult,
    InstancesRequest,
    InstancesResult,
    OffersRequest,
    OffersResult,
    PreemptRequest,
    PreemptResult,
    TerminateRequest,
    TerminateResult,
)
from cloudspot.errors import (
    CapacityError,
    CloudspotError,
    ObjectExists,
    ObjectMissing,
    ProvisionError,
    SpecError,
)
from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import (
    Data,
    ObjectStore,
    PreemptionSource,
    Provider,
    Provisioner,
    Upload,
    check_key,
    is_key,
)
from cloudspot.model import (
    BootProfile,
    Capability,
    CheckResult,
    Instance,
    InstanceGroup,
    InstanceState,
    LaunchRequest,
    Market,
    NodeIdentity,
    ObjectMeta,
    ObjectPage,
    Offer,
    PreemptionNotice,
)

cloudspot_api_version = 2

SCHEME = "frozen://"


@hookimpl
def cloudspot_provider(name: str) -> type[Provider] | None:
    return FrozenProvider if name == "frozen" else None


@hookimpl
def cloudspot_object_store(url: str) -> ObjectStore | None:
    return FrozenStore(url) if url.startswith(SCHEME) else None


# --- the provider -------------------------------------------------------------------------------


class FrozenOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """``[providers.frozen]``."""

    region: str
    capacity: int = 4


class FrozenProvisioner(Provisioner):
    """Machines that only stand in a list."""

    token_seconds = 3600.0
    absence_proves_after_seconds = 60.0

    def __init__(self, options: FrozenOptions) -> None:
        self.options = options
        self.made: dict[str, tuple[Instance, ...]] = {}

    def render(self, group: InstanceGroup) -> LaunchRequest:
        return LaunchRequest(
            provider="frozen",
            body={
                "job_id": group.job_id,
                "launch": group.launch,
                "num_nodes": group.num_nodes,
                "min_nodes": group.min_nodes,
                "user_data": group.user_data,
                "store_url": group.store_url,
                "zone": group.offer.zone,
                "instance_type": group.offer.instance_type,
                "market": group.offer.market.value,
            },
        )

    def create(self, request: CreateRequest) -> CreateResult:
        if request.request.provider != "frozen":
            raise ProvisionError("the request is another provider's")
        body, token = request.request.body, request.token
        if token not in self.made:
            if body["min_nodes"] > self.options.capacity:
                raise CapacityError(f"no room in {body['zone']}")
            self.made[token] = tuple(
                Instance(
                    id=f"{token}-{rank}",
                    state=InstanceState.PENDING,
                    job_id=body["job_id"],
                    launch=body["launch"],
                    rank=rank,
                    zone=body["zone"],
                    instance_type=body["instance_type"],
                    market=Market(body["market"]),
                    store_url=body["store_url"],
                )
                for rank in range(min(body["num_nodes"], self.options.capacity))
            )
        return CreateResult(instances=self.made[token])

    def instances(self, request: InstancesRequest) -> InstancesResult:
        listed = (one for made in self.made.values() for one in made)
        return InstancesResult(instances=tuple(filter(request.wants, listed)))

    def terminate(self, request: TerminateRequest) -> TerminateResult:
        self.made = {
            token: tuple(one for one in made if one.id not in request.instance_ids)
            for token, made in self.made.items()
        }
        return TerminateResult()

    def offers(self, request: OffersRequest) -> OffersResult:
        return OffersResult(
            offers=tuple(
                Offer(
                    instance_type="one",
                    zone=f"{self.options.region}-a",
                    market=market,
                    price_per_hour=price,
                    on_demand_price_per_hour=1.0,
                )
                for market, price in ((Market.SPOT, 0.25), (Market.ON_DEMAND, 1.0))
            )
        )


class FrozenSource(PreemptionSource):
    """Tells of no end."""

    notice_seconds = 30.0

    def poll(self) -> PreemptionNotice | None:
        return None


class FrozenProvider(Provider[FrozenOptions]):
    """What every provider must have, and some of what it may have."""

    name: ClassVar[str] = "frozen"
    options_type: ClassVar[type[msgspec.Struct]] = FrozenOptions
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.PREEMPT})

    def provisioner(self) -> Provisioner:
        return FrozenProvisioner(self.options)

    def preemption_source(self) -> PreemptionSource:
        return FrozenSource()

    def node_identity(self) -> NodeIdentity:
        return NodeIdentity(instance_id="frozen-0", rank=0, address="127.0.0.1")

    def boot_profile(self) -> BootProfile:
        return BootProfile(environment={"FROZEN": "1"}, shutdown_command="true")

    def pinned_options(self) -> Mapping[str, Any]:
        return {"region": self.options.region}

    def check(self, request: CheckRequest) -> CheckResults:
        return CheckResults(results=(CheckResult(name="ice", ok=True, detail="solid"),))

    def preempt(self, request: PreemptRequest) -> PreemptResult:
        raise CloudspotError(f"frozen: there is no machine {request.instance_id}")


# --- the store ----------------------------------------------------------------------------------


class FrozenStore(ObjectStore):
    """The table of an SQLite file: ``frozen:///absolute/path``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = url[len(SCHEME) :]
        if not self.path.startswith("/"):
            raise SpecError(f'store "{url}": expected frozen:///absolute/path')

    @contextmanager
    def table(self) -> Iterator[sqlite3.Connection]:
        with (
            closing(sqlite3.connect(self.path, timeout=60, isolation_level="IMMEDIATE")) as database,
            database,
        ):
            database.execute("PRAGMA synchronous = OFF")
            database.execute(
                "CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, data BLOB, modified REAL)"
            )
            yield database

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        check_key(key)
        how = "" if if_absent else " OR REPLACE"
        try:
            with self.table() as table:
                table.execute(f"INSERT{how} INTO objects VALUES (?, ?, ?)", (key, bytes(data), time.time()))
        except sqlite3.IntegrityError as error:
            raise ObjectExists(f"{self.url}: {key} exists") from error

    def get(self, key: str) -> bytes:
        return self.one(key, "data")

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"start and length must not be negative: got {start}, {length}")
        return self.one(key, "coalesce(substr(data, ?, ?), x'')", start + 1, length)

    def head(self, key: str) -> ObjectMeta:
        size = self.one(key, "length(data)")
        modified_at = datetime.fromtimestamp(self.one(key, "modified"), timezone.utc)
        return ObjectMeta(key=key, size=size, modified_at=modified_at)

    def one(self, key: str, what: str, *arguments: int) -> Any:
        check_key(key)
        with self.table() as table:
            found = table.execute(f"SELECT {what} FROM objects WHERE key = ?", (*arguments, key)).fetchone()
        if found is None:
            raise ObjectMissing(f"{self.url}: there is no {key}")
        return found[0]

    def list_page(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, cursor: str = ""
    ) -> ObjectPage:
        if limit < 1:
            raise ValueError(f"limit must be positive: got {limit}")
        with self.table() as table:
            rows = table.execute(
                "SELECT key, length(data), modified FROM objects "
                "WHERE substr(key, 1, ?) = ? AND key > ? ORDER BY key LIMIT ?",
                (len(prefix), prefix, after or "", limit + 1),
            ).fetchall()
        found = tuple(
            ObjectMeta(key=key, size=size, modified_at=datetime.fromtimestamp(modified, timezone.utc))
            for key, size, modified in rows[:limit]
            if is_key(key)
        )
        return ObjectPage(objects=found, next_after=rows[limit - 1][0] if len(rows) > limit else None)

    def delete(self, key: str) -> None:
        check_key(key)
        with self.table() as table:
            table.execute("DELETE FROM objects WHERE key = ?", (key,))

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        check_key(key)
        return FrozenUpload(self, key, if_absent=if_absent)

    def presign_get(self, key: str, *, seconds: float) -> str:
        check_key(key)
        raise CloudspotError(f"{self.url}: nothing is presigned here")


class FrozenUpload(Upload):
    """Collects all in memory."""

    def __init__(self, store: FrozenStore, key: str, *, if_absent: bool) -> None:
        self.store, self.key, self.if_absent = store, key, if_absent
        self.data: bytearray | None = bytearray()

    def write(self, data: Data) -> None:
        self.open_data().extend(memoryview(data).cast("B"))

    def commit(self) -> None:
        data, self.data = self.open_data(), None
        self.store.put(self.key, data, if_absent=self.if_absent)

    def open_data(self) -> bytearray:
        if self.data is None:
            raise ValueError("the upload was committed or aborted")
        return self.data

    def abort(self) -> None:
        self.data = None
