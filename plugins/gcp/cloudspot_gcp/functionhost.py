"""Cloud Run functions as the host of a driver; Cloud Scheduler and, at a preemption, Eventarc run it.

The Eventarc trigger is part of the function: it is made, kept and removed with it. The schedule sends the
same kind of request as the trigger, a CloudEvent, so that one function handles both.

Source: Cloud Functions API v2 (its discovery document), "Write event-driven functions", "Runtime support",
"Quotas"; Cloud Scheduler API; Cloud Run, "Restrict network ingress"; Eventarc, "Cloud Audit Logs"; Compute
Engine, "System event audit logs"; how Google builds a function: GoogleCloudPlatform/buildpacks, cmd/python
(checked 2026-11).
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import requests
from google.api_core import exceptions as api

import cloudspot
from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.interfaces import FunctionHost
from cloudspot.model import REAP_EVENT, DriverFunction, FunctionStatus
from cloudspot.plugin.answers import moment
from cloudspot.plugin.driverinventory import DriverRest
from cloudspot.plugin.functionchecks import (
    NOTICE_SECONDS,
    PASS_SECONDS,
    FunctionLimits,
    bucket_of,
    passes_a_month,
    whole_minutes,
)
from cloudspot_gcp.clients import TIMEOUT, GcpClients, endpoint
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.functionrights import DriverRights
from cloudspot_gcp.functionschedules import (
    DAILY,
    DENIED,
    MARK,
    SOURCE,
    TIMEOUT_SECONDS,
    DriverSchedules,
    rate_of,
)

MEMORY_MIB: Final = 512
"""A pass over a live job took 203 MB at its peak, in the sandbox."""
VCPUS: Final = 0.333
"""The vCPUs that come with ``MEMORY_MIB`` (Cloud Run functions, "Configure memory"; from memory)."""
MAX_INSTANCES: Final = 3
"""Passes may overlap, because a notice does not wait for the schedule."""
RUNTIME: Final = f"python{sys.version_info[0]}{sys.version_info[1]}"
LIMITS: Final = FunctionLimits(
    host="Google Cloud",
    runtime=f"Google's {RUNTIME}",
    machines={"x86_64": "x86-64"},
    # Ubuntu 22.04; from Python 3.14 on, Ubuntu 24.04.
    glibc={(3, 10): (2, 35), (3, 11): (2, 35), (3, 12): (2, 35), (3, 13): (2, 35), (3, 14): (2, 39)},
)
USD_A_VCPU_SECOND: Final = 0.000024
USD_A_GIB_SECOND: Final = 0.0000025
USD_A_CALL: Final = 0.0000004
USD_A_SCHEDULE: Final = 0.10
"""Prices of Cloud Run in us-central1 and of Cloud Scheduler, from memory; Google's free tier is not
deducted."""
BUILD_SECONDS: Final = 900.0
LOG_CHARACTERS: Final = 500
_TIME: Final = (2020, 1, 1, 0, 0, 0)
_CODE: Final = "cloudspot-code"
_VERSION: Final = "CLOUDSPOT_DRIVER_VERSION"
_REQUIREMENTS: Final = "functions-framework>=3.8,<4\n"
_MAIN: Final = '''\
"""The entry point of Cloud Run functions: calls {handler} with the schedule's event, or at a preemption."""

from {module} import {name} as handle


def drive(event):
    told = event.data if event["source"] == "{source}" else {{"wait_seconds": {wait:g}}}
    try:
        handle(told)
    except Exception as error:
        print(f"{mark} failed: {{error}}", flush=True)
        raise
    print("{mark} done", flush=True)
'''


class CloudRunHost(FunctionHost):
    """Functions in one project and region. The name of each resource begins with its function's name."""

    def __init__(
        self, clients: GcpClients, *, region: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Do no I/O; ``sleep`` is used to wait for builds, and until new accounts and grants are known."""
        self._clients = clients
        self._region = region
        self._sleep = sleep

    def plan(self, function: DriverFunction) -> Sequence[str]:
        """Return the resources to make and their cost; see FunctionHost."""
        minutes, bucket = _minutes(function), _checked_bucket(function)
        second = VCPUS * USD_A_VCPU_SECOND + MEMORY_MIB / 1024 * USD_A_GIB_SECOND
        usd = passes_a_month(minutes) * (PASS_SECONDS * second + USD_A_CALL)
        usd += USD_A_SCHEDULE * (2 if function.reaps else 1)
        email, where = self._rights(function.name).email, f"{function.name} in {self._region}"
        return (
            f"Cloud Run function {where}: {RUNTIME}, {MEMORY_MIB} MiB, closed to the internet",
            LIMITS.size_of(function),
            f"Cloud Scheduler: {rate_of(minutes)}; Eventarc: when a spot machine is preempted, in any region",
            f"service account {email} with the plugin's role-driver.json, and {bucket}'s objects",
            *(("once a day `cloudspot reap`, with the permissions for it",) if function.reaps else ()),
            f"about {usd:.2f} USD a month at {PASS_SECONDS:g} s a pass, and the store's requests",
        )

    def deploy(self, function: DriverFunction) -> None:
        """Make or update the driver, and run it once; see FunctionHost."""
        minutes, bucket = _minutes(function), _checked_bucket(function)
        rights = self._rights(function.name)
        with ERRORS.translated("deploying the driver"):
            rights.make(function, bucket)
            made = rights.once_known(lambda: self._make_function(function, rights.email))
            rights.let_it_run()
            schedules, config = self._schedules(function.name), made["serviceConfig"]
            job = schedules.make(function.name, config["uri"], rate_of(minutes), {})
            if function.reaps:
                schedules.make(f"{function.name}-reap", config["uri"], DAILY, REAP_EVENT)
            else:
                schedules.drop(f"{function.name}-reap")
            schedules.try_once(job, config["revision"])

    def status(self, name: str) -> FunctionStatus | None:
        """Return the state that Cloud Functions and Cloud Scheduler report; see FunctionHost."""
        with ERRORS.translated("asking for the driver"):
            described = self._found(self._function_url(name))
            if described is None:
                return None
            every = self._schedules(name).every_seconds()
        environment = described.get("serviceConfig", {}).get("environmentVariables", {})
        changed = described.get("updateTime")
        return FunctionStatus(
            where=described["name"],
            state=described["state"],
            every_seconds=every,
            version=environment.get(_VERSION, "unknown"),
            # Python cannot parse the nanoseconds.
            changed_at=moment(str(changed)[:19]),
        )

    def remove(self, name: str) -> Sequence[str]:
        """Remove schedules, function with its trigger, grants, roles and account; see FunctionHost.

        The function's output stays in Cloud Logging until it expires, because entries cannot be deleted for
        one service alone.
        """
        removed: list[str] = []
        with ERRORS.translated("removing the driver"):
            removed.extend(f"schedule {one}" for one in self._schedules(name).remove())
            if self._settled(name) is not None:
                self._wait_for(self._ask("DELETE", self._function_url(name)))
                removed.append(f"function {name}")
            removed.extend(self._rights(name).remove())
        return removed

    def rest(self, name: str) -> DriverRest | None:
        """Return the resources of a driver that can remain after its function and schedules are removed."""
        with ERRORS.translated("looking for the remains of the driver"):
            return self._rights(name).rest()

    def region_of(self, name: str) -> str | None:
        """Return the region that has a function of this name, or None if no region has one.

        Raises:
            TransientError: some regions did not answer.
        """
        url = f"{endpoint('cloudfunctions')}/v2/projects/{self._clients.project}/locations/-/functions"
        asked = {"pageSize": 1000}
        with ERRORS.translated("asking for the driver in all regions"):
            while True:
                answer = self._ask("GET", url, params=asked)
                if answer.get("unreachable"):
                    raise TransientError(f"not all regions answer: {', '.join(answer['unreachable'])}")
                for one in answer.get("functions", ()):
                    parts = one["name"].split("/")
                    if parts[-1] == name:
                        return str(parts[3])
                if not answer.get("nextPageToken"):
                    return None
                asked["pageToken"] = answer["nextPageToken"]

    # --- the function -----------------------------------------------------------------------------

    def _make_function(self, function: DriverFunction, email: str) -> dict[str, Any]:
        archive = _with_entry(function)
        wanted = self._wanted(function, email, hashlib.sha256(archive).hexdigest()[:40])
        name, existing = function.name, self._settled(function.name)
        stale = sorted(
            part for part in wanted if existing is not None and not _has(existing, part, wanted[part])
        )
        if existing is not None and not stale and existing["state"] == "ACTIVE":
            return existing
        if existing is None or existing["state"] != "ACTIVE" or {"buildConfig", "labels"} & set(stale):
            stale = sorted(wanted)
            wanted["buildConfig"]["source"] = {"storageSource": self._upload(archive)}
        body = {"name": self._path("functions", name), "environment": "GEN_2"}
        body |= {part: wanted[part] for part in stale}
        if existing is None:
            url, _, _ = self._function_url(name).rpartition("/")
            operation = self._ask("POST", url, json=body, params={"functionId": name})
        else:
            mask = {"updateMask": ",".join(stale)}
            operation = self._ask("PATCH", self._function_url(name), json=body, params=mask)
        self._wait_for(operation)
        made = self._settled(name)
        if made is None or made["state"] != "ACTIVE":
            message = json.dumps((made or {}).get("stateMessages", "it is gone"))
            raise CloudspotError(f"Google has not built the driver {name}: {message[:LOG_CHARACTERS]}")
        return made

    def _wanted(self, function: DriverFunction, email: str, code: str) -> dict[str, Any]:
        """Return the wanted description of the function, without its source."""
        environment = {
            **function.environment,
            _VERSION: cloudspot.__version__,
            "GOOGLE_CLOUD_PROJECT": self._clients.project,
        }
        return {
            "description": f"cloudspot: drives the jobs of {function.store_url}"[:256],
            "labels": {_CODE: code},
            "buildConfig": {"runtime": RUNTIME, "entryPoint": "drive"},
            "serviceConfig": {
                "availableMemory": f"{MEMORY_MIB}Mi",
                "timeoutSeconds": TIMEOUT_SECONDS,
                "maxInstanceCount": MAX_INSTANCES,
                "maxInstanceRequestConcurrency": 1,
                "ingressSettings": "ALLOW_INTERNAL_ONLY",
                "serviceAccountEmail": email,
                "environmentVariables": environment,
            },
            "eventTrigger": {
                "triggerRegion": "global",
                "eventType": "google.cloud.audit.log.v1.written",
                "eventFilters": [
                    {"attribute": "serviceName", "value": "compute.googleapis.com"},
                    {"attribute": "methodName", "value": "compute.instances.preempted"},
                ],
                "serviceAccountEmail": email,
                # A failed pass is not retried, because the next one does its work.
                "retryPolicy": "RETRY_POLICY_DO_NOT_RETRY",
            },
        }

    def _upload(self, archive: bytes) -> Any:
        """Upload the code to the URL that Google returns, which needs no permission for a bucket."""
        url = f"{self._function_url('').rstrip('/')}:generateUploadUrl"
        answer = self._ask("POST", url, json={"environment": "GEN_2"})
        # Google refuses credentials in addition to those in the URL.
        sent = requests.put(
            answer["uploadUrl"],
            data=archive,
            headers={"content-type": "application/zip"},
            timeout=TIMEOUT,
            allow_redirects=False,
        )
        if not sent.ok:
            raise CloudspotError(
                f"the driver's code cannot be uploaded: HTTP {sent.status_code} "
                f"{ERRORS.one_line(sent.text[:LOG_CHARACTERS])}"
            )
        return answer["storageSource"]

    def _settled(self, name: str) -> dict[str, Any] | None:
        """Wait for an earlier deployment or removal to end; return the function, or None without one."""
        end = time.monotonic() + BUILD_SECONDS
        while True:
            found = self._found(self._function_url(name))
            if found is None or found["state"] not in {"DEPLOYING", "DELETING"}:
                return found
            if time.monotonic() >= end:
                raise CloudspotError(
                    f"the function {name} is still in state {found['state']} after {BUILD_SECONDS:g} s"
                )
            self._sleep(2.0)

    def _wait_for(self, operation: Mapping[str, Any]) -> None:
        """Wait until the operation has succeeded; raise CloudspotError with Google's message if it fails."""
        end = time.monotonic() + BUILD_SECONDS
        while not operation.get("done"):
            if time.monotonic() >= end:
                raise CloudspotError(f"Google has not made the driver within {BUILD_SECONDS:g} s; try again")
            self._sleep(2.0)
            operation = self._ask("GET", f"{endpoint('cloudfunctions')}/v2/{operation['name']}")
        if "error" in operation:
            message = ERRORS.one_line(operation["error"].get("message", ""))
            kind = AuthError if operation["error"].get("code") in DENIED else CloudspotError
            raise kind(f"Google cannot make the driver: {message}")

    # --- requests ---------------------------------------------------------------------------------

    def _rights(self, name: str) -> DriverRights:
        return DriverRights(self._clients, name, region=self._region, sleep=self._sleep)

    def _schedules(self, name: str) -> DriverSchedules:
        return DriverSchedules(
            self._clients, self._rights(name).email, region=self._region, sleep=self._sleep
        )

    def _path(self, kind: str, name: str) -> str:
        return f"projects/{self._clients.project}/locations/{self._region}/{kind}/{name}"

    def _function_url(self, name: str) -> str:
        return f"{endpoint('cloudfunctions')}/v2/{self._path('functions', name)}"

    def _found(self, url: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._ask("GET", url)
        except api.NotFound:
            return None
        return found

    def _ask(self, method: str, url: str, **options: Any) -> Any:
        return self._clients.ask_json(method, url, **options)


def _with_entry(function: DriverFunction) -> bytes:
    """Return the archive with the files that Google's build needs; equal code gives equal bytes."""
    module, _, name = function.handler.rpartition(".")
    main = _MAIN.format(
        handler=function.handler, module=module, name=name, source=SOURCE, wait=NOTICE_SECONDS, mark=MARK
    )
    target = io.BytesIO(function.archive)
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
        for path, text in (("main.py", main), ("requirements.txt", _REQUIREMENTS)):
            archive.writestr(zipfile.ZipInfo(path, _TIME), text)
    return target.getvalue()


def _has(found: Mapping[str, Any], part: str, wanted: object) -> bool:
    """Return whether a field of a function has the wanted value; Google adds fields of its own."""
    has = found.get(part)
    if not isinstance(wanted, dict) or not isinstance(has, dict):
        return has == wanted
    return all(has.get(name) == value for name, value in wanted.items())


def _minutes(function: DriverFunction) -> int:
    return whole_minutes(function, scheduler="Cloud Scheduler")


def _checked_bucket(function: DriverFunction) -> str:
    """Return the store's bucket; raise SpecError if it is not in Cloud Storage, or the code cannot run."""
    LIMITS.require_fit(function)
    return bucket_of(function, scheme="gs", needs="a driver on Google Cloud needs a store in Cloud Storage")
