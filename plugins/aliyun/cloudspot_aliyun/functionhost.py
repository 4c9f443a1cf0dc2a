"""Function Compute as the host of a driver, which is run by a timer and by EventBridge at ECS's notices.

The function runs on Debian 12, in a custom runtime: Function Compute's own Python 3.10 and 3.12 are on Debian
10 and 11, whose C libraries are too old for today's `cryptography`, which Alibaba Cloud's SDK needs. The code
is sent within the request, so that no object can be left behind in a bucket.

Source: Function Compute 3.0, "Limits" (code, memory, time), "Custom runtimes" (Pythons), "Timer triggers" and
"Configure event triggers for Alibaba Cloud services", and the API reference of version 2023-03-30; ECS,
"Instance event notifications" (checked 2026-11). From memory: Function Compute may not know a new role for a
while.
"""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from fastcrc import crc64

import cloudspot
from cloudspot.decoding import whole_number
from cloudspot.errors import CloudspotError
from cloudspot.interfaces import FunctionHost
from cloudspot.model import REAP_EVENT, DriverFunction, FunctionStatus
from cloudspot.plugin.answers import UNREADABLE, moment, readable
from cloudspot.plugin.functionchecks import (
    LACKS_RIGHTS,
    PASS_SECONDS,
    FunctionLimits,
    bucket_of,
    once_effective,
    passes_a_month,
    whole_minutes,
)
from cloudspot_aliyun import functionserver
from cloudspot_aliyun.clients import REGION, AliyunClients
from cloudspot_aliyun.driverrole import DriverRole, driver_policy
from cloudspot_aliyun.functioncompute import FunctionCompute
from cloudspot_aliyun.metadata import DISABLED

MEMORY_MIB: Final = 512
VCPUS: Final = 0.5
TIMEOUT_SECONDS: Final = 300
RUNTIME: Final = "custom.debian12"
LIMITS: Final = FunctionLimits(
    host="Function Compute",
    runtime=f"Function Compute's {RUNTIME}",
    machines={"x86_64": "x86-64"},
    # The runtime's Pythons are in /usr/bin and in /opt/python3.12/bin.
    glibc={(3, 11): (2, 36), (3, 12): (2, 36)},
    max_packed_bytes=75_000_000,  # 100 MB in base64, the limit of a request
    max_unpacked_bytes=512_000_000,  # the size of the free disk
)
CNY_A_CU: Final = 0.00012
CU_A_VCPU_SECOND: Final = 1.0
CU_A_GB_SECOND: Final = 0.15
CU_A_CALL: Final = 0.0075
"""Function Compute's prices in mainland China, from memory; a new account has a free allowance."""
ROLE_SECONDS: Final = 60.0
"""How long a new role and its permissions may be unknown. Alibaba Cloud promises no bound."""
SCHEDULE: Final = "schedule"
NOTICES: Final = "notices"
REAP: Final = "reap"
_DAILY: Final = "@every 1440m"
_VERSION: Final = "CLOUDSPOT_DRIVER_VERSION"
_DEPLOYING: Final = "deploying the driver"
_REMOVING: Final = "removing the driver"
_ASKING: Final = "asking for the driver"
_UNSETTLED: Final = ("Pending", "InProgress")
Result = TypeVar("Result")


class FunctionComputeHost(FunctionHost):
    """Functions in one account and region. The name of each resource begins with its function's name."""

    def __init__(self, clients: AliyunClients, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Do no I/O; ``sleep`` is used to wait until changes take effect."""
        self._clients = clients
        self._functions = FunctionCompute(clients)
        self._sleep = sleep

    def plan(self, function: DriverFunction) -> Sequence[str]:
        """Return the resources to make and their cost; see FunctionHost."""
        minutes = whole_minutes(function, scheduler="Function Compute's timer")
        bucket = _checked_bucket(function)
        cu = CU_A_CALL + PASS_SECONDS * (VCPUS * CU_A_VCPU_SECOND + MEMORY_MIB / 1024 * CU_A_GB_SECOND)
        cny = passes_a_month(minutes) * cu * CNY_A_CU
        size = f"{VCPUS:g} vCPU, {MEMORY_MIB} MiB"
        role = self._role_name(function.name)
        every = "minute" if minutes == 1 else f"{minutes} minutes"
        return (
            f"Function Compute function {function.name} in {self._clients.region}: {_python()}, {size}",
            LIMITS.size_of(function),
            f"triggers: every {every}, and, by EventBridge, when ECS is about to take a spot machine",
            f"role {role} with the plugin's policy-driver.json for {bucket}",
            *(("once a day `cloudspot reap`, with the plugin's policy-reap.json",) if function.reaps else ()),
            f"about {cny:.2f} CNY a month at {PASS_SECONDS:g} s a pass, and the store's requests",
        )

    def deploy(self, function: DriverFunction) -> None:
        """Make or update the driver, and run it once; see FunctionHost."""
        minutes = whole_minutes(function, scheduler="Function Compute's timer")
        bucket = _checked_bucket(function)
        role = self.role(function.name).make(driver_policy(bucket, reaps=function.reaps))
        self._make_function(function, role)
        self._schedule(function.name, SCHEDULE, f"@every {minutes}m", {})
        if function.reaps:
            self._schedule(function.name, REAP, _DAILY, REAP_EVENT)
        else:
            path = f"/functions/{function.name}/triggers/{REAP}"
            self._ask(_DEPLOYING, "DELETE DeleteTrigger", path, ignoring="TriggerNotFound")
        pattern = {"source": ["acs.ecs"], "type": [functionserver.INTERRUPTION]}
        rule = {
            "triggerEnable": True,
            "eventRuleFilterPattern": json.dumps(pattern),
            "eventSourceConfig": {"eventSourceType": "Default"},
        }
        self._make_trigger(function.name, NOTICES, "eventbridge", rule)
        self._try(function.name)

    def status(self, name: str) -> FunctionStatus | None:
        """Return the state that Function Compute reports; see FunctionHost."""
        described = self._ask(_ASKING, "GET GetFunction", f"/functions/{name}", ignoring="FunctionNotFound")
        if described is None:
            return None
        path = f"/functions/{name}/triggers/{SCHEDULE}"
        timer = self._ask(_ASKING, "GET GetTrigger", path, ignoring="TriggerNotFound")
        with readable(_ASKING):
            return FunctionStatus(
                where=str(described["functionArn"]),
                state=str(described.get("state") or "Active"),
                every_seconds=None if timer is None else _seconds(json.loads(timer["triggerConfig"])),
                version=str(described.get("environmentVariables", {}).get(_VERSION, "unknown")),
                changed_at=moment(described["lastModifiedTime"]),
            )

    def remove(self, name: str) -> Sequence[str]:
        """Remove triggers, function, policy and role; see FunctionHost."""
        removed: list[str] = []
        path = f"/functions/{name}"
        listed = self._ask(_REMOVING, "GET ListTriggers", f"{path}/triggers", ignoring="FunctionNotFound")
        for trigger in (listed or {}).get("triggers") or ():
            own = str(trigger["triggerName"])
            call = "DELETE DeleteTrigger"
            if self._ask(_REMOVING, call, f"{path}/triggers/{own}", ignoring="TriggerNotFound") is not None:
                removed.append(f"trigger {own}")
        if self._ask(_REMOVING, "DELETE DeleteFunction", path, ignoring="FunctionNotFound") is not None:
            removed.append(f"function {name}")
        return [*removed, *self.role(name).remove()]

    def role(self, name: str) -> DriverRole:
        """Return the role of a driver."""
        return DriverRole(self._clients, self._role_name(name))

    @property
    def _ask(self) -> Callable[..., dict[str, Any] | None]:
        return self._functions.ask

    def _role_name(self, name: str) -> str:
        """Return the role's name, which contains the region because roles belong to the whole account."""
        return f"{name}-{self._clients.region}"

    def _make_function(self, function: DriverFunction, role: str) -> None:
        path = f"/functions/{function.name}"
        settings: dict[str, Any] = {
            "role": role,
            "handler": function.handler,
            "runtime": RUNTIME,
            "customRuntimeConfig": {
                "command": [_python(), "-m", functionserver.__name__],
                "port": functionserver.PORT,
            },
            "timeout": TIMEOUT_SECONDS,
            "memorySize": MEMORY_MIB,
            "cpu": VCPUS,
            "diskSize": 512,
            "instanceConcurrency": 1,
            "description": f"cloudspot: drives the jobs of {function.store_url}"[:256],
            "environmentVariables": {
                **function.environment,
                _VERSION: cloudspot.__version__,
                REGION: self._clients.region,
                # A function is not an ECS instance, and has no metadata service with a role.
                DISABLED: "true",
                "PATH": "/opt/python3.12/bin:/usr/local/bin:/usr/bin:/bin",
            },
        }
        checksum = str(crc64.xz(function.archive))
        code = {"code": {"zipFile": b64encode(function.archive).decode(), "checksum": checksum}}
        existing = self._ask(_DEPLOYING, "GET GetFunction", path, ignoring="FunctionNotFound")
        if existing is None:
            asked = {"functionName": function.name, **settings, **code}
            self._once_known(lambda: self._ask(_DEPLOYING, "POST CreateFunction", "/functions", asked))
        else:
            changed = {key: value for key, value in settings.items() if existing.get(key) != value}
            if existing.get("codeChecksum") != checksum:
                changed |= code
            if changed:
                self._ask(_DEPLOYING, "PUT UpdateFunction", path, changed)
        # A failed pass is not retried, because the next one does its work.
        once = {"maxAsyncRetryAttempts": 0}
        self._ask(_DEPLOYING, "PUT PutAsyncInvokeConfig", f"{path}/async-invoke-config", once)
        self._settle(path)

    def _settle(self, path: str) -> None:
        """Wait until the changes of the function have taken effect.

        Raises:
            CloudspotError: the changes have failed, or take more than a minute.
        """
        end = time.monotonic() + ROLE_SECONDS
        while True:
            found = self._ask(_DEPLOYING, "GET GetFunction", path) or {}
            states = [str(found.get(name) or "") for name in ("state", "lastUpdateStatus")]
            if "Failed" in states or time.monotonic() >= end:
                why = found.get("stateReason") or found.get("lastUpdateStatusReason") or " ".join(states)
                raise CloudspotError(f"Function Compute cannot make the driver: {why}")
            if not set(states) & set(_UNSETTLED):
                return
            self._sleep(1.0)

    def _once_known(self, call: Callable[[], Result]) -> Result:
        """Repeat ``call`` until Function Compute knows the new role; return its result."""
        return self._once_effective(call, is_new=lambda error: "assume" in str(error))

    def _once_effective(self, call: Callable[[], Result], **waits: Any) -> Result:
        return once_effective(
            call, kind=CloudspotError, within_seconds=ROLE_SECONDS, sleep=self._sleep, **waits
        )

    def _schedule(self, function: str, name: str, rate: str, event: Mapping[str, Any]) -> None:
        """Run the function at a rate such as ``@every 2m``, each time with this event."""
        timer = {"enable": True, "cronExpression": rate, "payload": json.dumps(event)}
        self._make_trigger(function, name, "timer", timer)

    def _make_trigger(self, function: str, name: str, kind: str, config: Mapping[str, Any]) -> None:
        path = f"/functions/{function}/triggers"
        asked = {"triggerName": name, "triggerType": kind, "triggerConfig": json.dumps(config)}
        made = self._ask(_DEPLOYING, "POST CreateTrigger", path, asked, ignoring="TriggerAlreadyExists")
        if made is not None:
            return
        found = self._ask(_DEPLOYING, "GET GetTrigger", f"{path}/{name}") or {}
        held = json.loads(found.get("triggerConfig") or "{}")
        if any(held.get(key) != value for key, value in config.items()):
            changed = {"triggerConfig": asked["triggerConfig"]}
            self._ask(_DEPLOYING, "PUT UpdateTrigger", f"{path}/{name}", changed)

    def _try(self, name: str) -> None:
        """Run the function once, and raise CloudspotError with the end of its log if it fails."""
        seconds = TIMEOUT_SECONDS + 10.0

        def run() -> None:
            done = self._once_known(lambda: self._functions.invoke(_DEPLOYING, name, b"{}", seconds=seconds))
            if done.has_failed:
                raise CloudspotError(f"the driver {name} does not run: {_error_and_log(done.payload)}")

        self._once_effective(run, is_new=lambda error: LACKS_RIGHTS in str(error), wait_seconds=5.0)


def _error_and_log(payload: bytes) -> str:
    """Return a function's error and the end of its log, in one line."""
    text = payload.decode("utf-8", "replace")
    try:
        result = json.loads(text)
        text = f"{result['errorMessage']} {result.get('log', '')}"
    except UNREADABLE:  # Function Compute's own text, because the server did not start.
        pass
    return " ".join(text.split())


def _seconds(timer: Mapping[str, Any]) -> float | None:
    rate = str(timer.get("cronExpression", ""))
    minutes = whole_number(rate.removeprefix("@every ").removesuffix("m"))
    return None if minutes is None or not timer.get("enable") else 60.0 * minutes


def _python() -> str:
    return f"python{sys.version_info[0]}.{sys.version_info[1]}"


def _checked_bucket(function: DriverFunction) -> str:
    """Return the store's bucket; raise SpecError if the store is not in OSS, or the code cannot run there."""
    LIMITS.require_fit(function)
    return bucket_of(function, scheme="oss", needs="a driver on Function Compute needs a store in OSS")
