"""Cloud Run functions as the host of a driver: Cloud Scheduler runs it, and Eventarc when a machine is taken.

The trigger is the function's own: it is made, kept and removed with it. The schedule sends the same kind of
request as the trigger, a CloudEvent, so that one function takes both.

Source: Cloud Functions API v2 (its discovery document), "Write event-driven functions", "Runtime support",
"Quotas"; Cloud Scheduler API; Cloud Run, "Restrict network ingress"; Eventarc, "Cloud Audit Logs"; Compute
Engine, "System event audit logs"; how Google builds a function: GoogleCloudPlatform/buildpacks, cmd/python
(checked 2026-11).
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import time
import zipfile
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import requests
from google.api_core import exceptions as api

import cloudspot
from cloudspot.errors import AuthError, CloudspotError, SpecError
from cloudspot.interfaces import FunctionHost
from cloudspot.model import DriverFunction, FunctionStatus
from cloudspot.plugin.functionchecks import DAYS_A_MONTH, PASS_SECONDS, bucket_of, whole_minutes
from cloudspot_gcp.clients import TIMEOUT, GcpClients, endpoint
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.functionrights import KNOWN_SECONDS, DriverRights

MEMORY_MIB: Final = 512
VCPUS: Final = 0.333
"""What comes with that memory (Cloud Run functions, "Configure memory"; from memory)."""
TIMEOUT_SECONDS: Final = 300
MAX_INSTANCES: Final = 3
"""Passes may overlap: a notice does not wait for the schedule."""
GLIBC: Final = {(3, 10): (2, 35), (3, 11): (2, 35), (3, 12): (2, 35), (3, 13): (2, 35), (3, 14): (2, 39)}
"""The C library of each Python's runtime: Ubuntu 22.04, and 24.04 from Python 3.14 on."""
USD_A_VCPU_SECOND: Final = 0.000024
USD_A_GIB_SECOND: Final = 0.0000025
USD_A_CALL: Final = 0.0000004
USD_A_SCHEDULE: Final = 0.10
"""Prices of Cloud Run in us-central1 and of Cloud Scheduler, from memory; what Google gives free is not taken
off."""
BUILD_SECONDS: Final = 900.0
NOTICE_SECONDS: Final = 5.0
SOURCE: Final = "cloudspot/schedule"
MARK: Final = "cloudspot pass:"
"""What the function prints when a pass has ended."""
LACKS_RIGHTS: Final = f"status {AuthError.exit_code}"
"""In what ``cloudspot.cli.function`` raises when a right is missing."""
LOG_CHARACTERS: Final = 500
_TIME: Final = (2020, 1, 1, 0, 0, 0)
_CODE: Final = "cloudspot-code"
_VERSION: Final = "CLOUDSPOT_DRIVER_VERSION"
_DENIED: Final = frozenset({7, 16})
"""PERMISSION_DENIED and UNAUTHENTICATED (google.rpc.Code)."""
_REQUIREMENTS: Final = "functions-framework>=3.8,<4\n"
_MAIN: Final = '''\
"""What Cloud Run functions calls: {handler}, with the schedule's event, or at a preemption."""

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
    """Functions in one project and region. What belongs to one has its name, or begins with it."""

    def __init__(
        self, clients: GcpClients, *, region: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Do no I/O; ``sleep`` waits for Google to build, and to know new accounts and grants."""
        self._clients = clients
        self._region = region
        self._sleep = sleep

    def plan(self, function: DriverFunction) -> Sequence[str]:
        """Return what is made and what it costs; see FunctionHost."""
        minutes = _minutes(function)
        _check_fits(function)
        passes = DAYS_A_MONTH * 24 * 60 / minutes
        second = VCPUS * USD_A_VCPU_SECOND + MEMORY_MIB / 1024 * USD_A_GIB_SECOND
        usd = passes * (PASS_SECONDS * second + USD_A_CALL) + USD_A_SCHEDULE
        packed, unpacked = len(function.archive) / 1e6, function.unpacked_bytes / 1e6
        email, where = self._rights(function.name).email, f"{function.name} in {self._region}"
        return (
            f"Cloud Run function {where}: {_runtime()}, {MEMORY_MIB} MiB, closed to the internet",
            f"its code: {packed:.1f} MB packed, {unpacked:.0f} MB unpacked; Google sets no limit",
            f"Cloud Scheduler: {_rate(minutes)}; Eventarc: when a spot machine is preempted, in any region",
            f"service account {email} with the plugin's role-driver.json, and {_bucket(function)}'s objects",
            f"about {usd:.2f} USD a month at {PASS_SECONDS:g} s a pass, and the store's requests",
        )

    def deploy(self, function: DriverFunction) -> None:
        """Make it, or bring it up to date, and run it once; see FunctionHost."""
        _check_fits(function)
        minutes, rights = _minutes(function), self._rights(function.name)
        with ERRORS.translated("deploying the driver"):
            rights.make(function, _bucket(function))
            made = rights.once_known(lambda: self._make_function(function, rights.email))
            rights.let_it_run()
            job = self._make_schedule(function.name, made["serviceConfig"]["uri"], _rate(minutes), {})
            self._try(function.name, job, made["serviceConfig"]["revision"])

    def status(self, name: str) -> FunctionStatus | None:
        """Return what Cloud Functions and Cloud Scheduler tell; see FunctionHost."""
        with ERRORS.translated("asking for the driver"):
            found = self._found(self._function_url(name))
            if found is None:
                return None
            job = self._found(self._job_url(name)) or {}
        every = _seconds(job.get("schedule", "")) if job.get("state") == "ENABLED" else None
        environment = found.get("serviceConfig", {}).get("environmentVariables", {})
        changed = found.get("updateTime")
        return FunctionStatus(
            where=found["name"],
            state=found["state"],
            every_seconds=every,
            version=environment.get(_VERSION, "unknown"),
            # With nanoseconds, which Python does not read.
            changed_at=datetime.fromisoformat(f"{changed[:19]}+00:00") if changed else None,
        )

    def remove(self, name: str) -> Sequence[str]:
        """Remove schedules, function with its trigger, grants, roles and account; see FunctionHost.

        What it has printed stays in Cloud Logging until that drops it: entries are not deleted by service.
        """
        removed: list[str] = []
        with ERRORS.translated("removing the driver"):
            for job in self._jobs(name):
                self._ask("DELETE", f"{endpoint('cloudscheduler')}/v1/{job}")
                removed.append(f"schedule {job.rpartition('/')[2]}")
            if self._settled(name) is not None:
                self._wait_for(self._ask("DELETE", self._function_url(name)))
                removed.append(f"function {name}")
            removed.extend(self._rights(name).remove())
        return removed

    # --- the function -----------------------------------------------------------------------------

    def _make_function(self, function: DriverFunction, email: str) -> dict[str, Any]:
        archive = _with_entry(function)
        wanted = self._wanted(function, email, hashlib.sha256(archive).hexdigest()[:40])
        name, found = function.name, self._settled(function.name)
        stale = sorted(part for part in wanted if found is not None and not _has(found, part, wanted[part]))
        if found is not None and not stale and found["state"] == "ACTIVE":
            return found
        if found is None or found["state"] != "ACTIVE" or {"buildConfig", "labels"} & set(stale):
            stale = sorted(wanted)
            wanted["buildConfig"]["source"] = {"storageSource": self._upload(archive)}
        body = {"name": self._path("functions", name), "environment": "GEN_2"}
        body |= {part: wanted[part] for part in stale}
        if found is None:
            url, _, _ = self._function_url(name).rpartition("/")
            operation = self._ask("POST", url, json=body, params={"functionId": name})
        else:
            mask = {"updateMask": ",".join(stale)}
            operation = self._ask("PATCH", self._function_url(name), json=body, params=mask)
        self._wait_for(operation)
        made = self._settled(name)
        if made is None or made["state"] != "ACTIVE":
            said = json.dumps((made or {}).get("stateMessages", "it is gone"))
            raise CloudspotError(f"Google has not built the driver {name}: {said[:LOG_CHARACTERS]}")
        return made

    def _wanted(self, function: DriverFunction, email: str, code: str) -> dict[str, Any]:
        """Return the function as it is to be, but for its source."""
        environment = {
            **function.environment,
            _VERSION: cloudspot.__version__,
            "GOOGLE_CLOUD_PROJECT": self._clients.project,
        }
        return {
            "description": f"cloudspot: drives the jobs of {function.store_url}"[:256],
            "labels": {_CODE: code},
            "buildConfig": {"runtime": _runtime(), "entryPoint": "drive"},
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
                # A pass that fails is made up for by the next one.
                "retryPolicy": "RETRY_POLICY_DO_NOT_RETRY",
            },
        }

    def _upload(self, archive: bytes) -> Any:
        """Hand the code over where Google says: it needs no right to a bucket, and leaves nothing in it."""
        url = f"{self._function_url('').rstrip('/')}:generateUploadUrl"
        answer = self._ask("POST", url, json={"environment": "GEN_2"})
        # Google refuses credentials beside the URL's own.
        sent = requests.put(
            answer["uploadUrl"], data=archive, headers={"content-type": "application/zip"}, timeout=TIMEOUT
        )
        if not sent.ok:
            raise CloudspotError(
                f"the driver's code cannot be handed over: HTTP {sent.status_code} "
                f"{ERRORS.one_line(sent.text[:LOG_CHARACTERS])}"
            )
        return answer["storageSource"]

    def _settled(self, name: str) -> dict[str, Any] | None:
        """Return the function, or None, once no earlier deployment or removal is under way."""
        end = time.monotonic() + BUILD_SECONDS
        while True:
            found = self._found(self._function_url(name))
            if found is None or found["state"] not in {"DEPLOYING", "DELETING"}:
                return found
            if time.monotonic() >= end:
                raise CloudspotError(f"the function {name} is {found['state']} for {BUILD_SECONDS:g} s")
            self._sleep(2.0)

    def _wait_for(self, operation: Mapping[str, Any]) -> None:
        """Return when the operation has succeeded; raise CloudspotError with Google's words otherwise."""
        end = time.monotonic() + BUILD_SECONDS
        while not operation.get("done"):
            if time.monotonic() >= end:
                raise CloudspotError(f"Google takes more than {BUILD_SECONDS:g} s; try again")
            self._sleep(2.0)
            operation = self._ask("GET", f"{endpoint('cloudfunctions')}/v2/{operation['name']}")
        if "error" in operation:
            said = ERRORS.one_line(operation["error"].get("message", ""))
            kind = AuthError if operation["error"].get("code") in _DENIED else CloudspotError
            raise kind(f"Google cannot make the driver: {said}")

    # --- what runs it -----------------------------------------------------------------------------

    def _make_schedule(
        self, job_id: str, uri: str, rate: str, event: Mapping[str, object], *, function: str = ""
    ) -> dict[str, Any]:
        """Have the function run at this rate with this event; return the job as it is now.

        ``function`` is the function's name, where the schedule has another.
        """
        email = self._rights(function or job_id).email
        told = {"specversion": "1.0", "type": "cloudspot.pass", "source": SOURCE, "id": job_id, "data": event}
        body = {
            "name": self._path("jobs", job_id),
            "description": "cloudspot: runs the driver",
            "schedule": rate,
            "timeZone": "Etc/UTC",
            "attemptDeadline": f"{TIMEOUT_SECONDS + 20}s",
            "retryConfig": {"retryCount": 0},
            "httpTarget": {
                "uri": uri,
                "httpMethod": "POST",
                "headers": {"Content-Type": "application/cloudevents+json"},
                "body": b64encode(json.dumps(told).encode()).decode(),
                "oidcToken": {"serviceAccountEmail": email, "audience": uri},
            },
        }
        url = self._job_url(job_id)
        if self._found(url) is None:
            job = self._ask("POST", url.rpartition("/")[0], json=body)
        else:
            mask = {"updateMask": ",".join(sorted(body.keys() - {"name"}))}
            job = self._ask("PATCH", url, json=body, params=mask)
        if job["state"] == "PAUSED":
            job = self._ask("POST", f"{url}:resume", json={})
        return dict(job)

    def _jobs(self, name: str) -> list[str]:
        """Return the names of the driver's schedules."""
        asked, found = {"pageSize": 500}, list[str]()
        while True:
            answer = self._ask("GET", self._job_url("").rstrip("/"), params=asked)
            found += [one["name"] for one in answer.get("jobs", ())]
            if not answer.get("nextPageToken"):
                break
            asked["pageToken"] = answer["nextPageToken"]
        return [one for one in found if f"{one.rpartition('/')[2]}-".startswith(f"{name}-")]

    def _try(self, name: str, job: Mapping[str, Any], revision: str) -> None:
        """Run the function by its schedule once; raise CloudspotError with its words if it fails.

        So what runs it is tried, too. Grants that were just made may take a while to hold. All times are
        Google's own.
        """
        end = time.monotonic() + KNOWN_SECONDS
        since = str(job["userUpdateTime"])
        while True:
            attempted = str(self._ask("GET", self._job_url(name)).get("lastAttemptTime", ""))
            self._ask("POST", f"{self._job_url(name)}:run", json={})
            since, said = self._said(name, revision, since=since, attempted=attempted)
            if said == f"{MARK} done":
                return
            is_denied = LACKS_RIGHTS in said or not said.startswith(MARK)
            if not is_denied or time.monotonic() >= end:
                before = " ".join(line for _, line in self._printed(name, revision)[-8:])
                words = f"{said.removeprefix(f'{MARK} failed: ')} {before[-LOG_CHARACTERS:]}"
                raise CloudspotError(f"the driver {name} does not run: {ERRORS.one_line(words)}")
            self._sleep(5.0)

    def _said(self, name: str, revision: str, *, since: str, attempted: str) -> tuple[str, str]:
        """Return when a pass has ended after ``since``, and its mark; or why the function was not reached."""
        end = time.monotonic() + TIMEOUT_SECONDS + 30
        while time.monotonic() < end:
            for at, line in self._printed(name, revision, since=since):
                if line.startswith(MARK):
                    return at, line
            job = self._ask("GET", self._job_url(name))
            code = job.get("status", {}).get("code", 0)
            if code in _DENIED and job.get("lastAttemptTime", "") != attempted:
                return since, f"Cloud Scheduler is not let in (code {code})"
            self._sleep(2.0)
        raise CloudspotError(f"the driver {name} has told nothing for {TIMEOUT_SECONDS + 30} s")

    def _printed(self, name: str, revision: str, *, since: str = "") -> list[tuple[str, str]]:
        """Return when the function has printed what, the oldest first."""
        parts = [
            'resource.type="cloud_run_revision"',
            f'resource.labels.service_name="{name}"',
            f'resource.labels.revision_name="{revision}"',
            *([f'timestamp>"{since}"'] if since else []),
        ]
        body = {
            "resourceNames": [f"projects/{self._clients.project}"],
            "filter": " AND ".join(parts),
            "orderBy": "timestamp desc",
            "pageSize": 50,
        }
        answer = self._ask("POST", f"{endpoint('logging')}/v2/entries:list", json=body)
        entries = reversed(answer.get("entries", ()))
        return [(one["timestamp"], str(one.get("textPayload", "")).rstrip()) for one in entries]

    # --- requests ---------------------------------------------------------------------------------

    def _rights(self, name: str) -> DriverRights:
        return DriverRights(self._clients, name, region=self._region, sleep=self._sleep)

    def _path(self, kind: str, name: str) -> str:
        return f"projects/{self._clients.project}/locations/{self._region}/{kind}/{name}"

    def _function_url(self, name: str) -> str:
        return f"{endpoint('cloudfunctions')}/v2/{self._path('functions', name)}"

    def _job_url(self, name: str) -> str:
        return f"{endpoint('cloudscheduler')}/v1/{self._path('jobs', name)}"

    def _found(self, url: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._ask("GET", url)
        except api.NotFound:
            return None
        return found

    def _ask(self, method: str, url: str, **options: Any) -> Any:
        return self._clients.ask_json(method, url, **options)


def _with_entry(function: DriverFunction) -> bytes:
    """Return the archive with what Google's build asks for beside the code: equal code gives equal bytes."""
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
    """Return whether a part of a function is as wanted; Google adds fields of its own."""
    has = found.get(part)
    if not isinstance(wanted, dict) or not isinstance(has, dict):
        return has == wanted
    return all(has.get(name) == value for name, value in wanted.items())


def _minutes(function: DriverFunction) -> int:
    return whole_minutes(function, scheduler="Cloud Scheduler")


def _rate(minutes: int) -> str:
    """Return the schedule in Cloud Scheduler's English: in cron's, only divisors of 60 can be said."""
    return f"every {minutes} minutes"


def _seconds(rate: str) -> float | None:
    words = rate.split()
    is_known = len(words) == 3 and words[0] == "every" and words[1].isdecimal() and words[2] == "minutes"
    return 60.0 * int(words[1]) if is_known else None


def _runtime() -> str:
    return f"python{sys.version_info[0]}{sys.version_info[1]}"


def _bucket(function: DriverFunction) -> str:
    return bucket_of(function, scheme="gs", needs="a driver on Google Cloud needs a store in Cloud Storage")


def _check_fits(function: DriverFunction) -> None:
    """Raise SpecError if Google cannot run the code that is installed here, or not with this store."""
    _bucket(function)
    here = sys.version_info[:2]
    if sys.platform != "linux" or platform.machine() != "x86_64" or here not in GLIBC:
        raise SpecError(
            "a driver on Google Cloud is made of what is installed here, so deploy it from Linux on x86-64 "
            f"with Python 3.10 to 3.14; here is {_runtime()} on {sys.platform}, {platform.machine()}"
        )
    if function.needs_glibc > GLIBC[here]:
        needed, has = (".".join(map(str, one)) for one in (function.needs_glibc, GLIBC[here]))
        raise SpecError(
            f"a package that is installed here is compiled for glibc {needed} or newer, and Google's "
            f"{_runtime()} has {has}: install an older one"
        )
