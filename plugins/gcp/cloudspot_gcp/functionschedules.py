"""The schedules that run a driver's function, and a trial run whose output is read from the function's log.

Source: Cloud Scheduler API v1 (its discovery document), "Cron job format"; Cloud Run, "Logging" (checked
2026-11).
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from google.api_core import exceptions as api

from cloudspot.decoding import whole_number
from cloudspot.errors import CloudspotError
from cloudspot.plugin.functionchecks import LACKS_RIGHTS
from cloudspot_gcp.clients import GcpClients, endpoint
from cloudspot_gcp.errors import ERRORS
from cloudspot_gcp.functionrights import KNOWN_SECONDS

SOURCE: Final = "cloudspot/schedule"
"""The event source that the schedules' requests name."""
MARK: Final = "cloudspot pass:"
"""The beginning of the line that the function prints when a pass has ended."""
TIMEOUT_SECONDS: Final = 300
"""How long a pass may take, in seconds."""
DENIED: Final = frozenset({7, 16})
"""PERMISSION_DENIED and UNAUTHENTICATED (google.rpc.Code)."""
LOG_CHARACTERS: Final = 500
DAILY: Final = "every 24 hours"
NUM_LINES: Final = 50
"""How many of the function's newest lines are read."""


class DriverSchedules:
    """The schedules of one driver: each has the driver's name, or one that begins with it and a hyphen."""

    def __init__(
        self, clients: GcpClients, email: str, *, region: str, sleep: Callable[[float], None]
    ) -> None:
        """Do no I/O; ``email`` is the driver's service account, with which the schedules run the function."""
        self._clients = clients
        self._email = email
        self._name = email.partition("@")[0]
        self._region = region
        self._sleep = sleep

    def make(self, job_id: str, uri: str, rate: str, event: Mapping[str, object]) -> dict[str, Any]:
        """Make or update a schedule of the function at ``uri``; return Cloud Scheduler's job."""
        cloud_event = {
            "specversion": "1.0",
            "type": "cloudspot.pass",
            "source": SOURCE,
            "id": job_id,
            "data": event,
        }
        body = {
            "name": self._path(job_id),
            "description": "cloudspot: runs the driver",
            "schedule": rate,
            "timeZone": "Etc/UTC",
            "attemptDeadline": f"{TIMEOUT_SECONDS + 20}s",
            "retryConfig": {"retryCount": 0},
            "httpTarget": {
                "uri": uri,
                "httpMethod": "POST",
                "headers": {"Content-Type": "application/cloudevents+json"},
                "body": b64encode(json.dumps(cloud_event).encode()).decode(),
                "oidcToken": {"serviceAccountEmail": self._email, "audience": uri},
            },
        }
        url = self._url(job_id)
        if self._found(job_id) is None:
            job = self._ask("POST", url.rpartition("/")[0], json=body)
        else:
            mask = {"updateMask": ",".join(sorted(body.keys() - {"name"}))}
            job = self._ask("PATCH", url, json=body, params=mask)
        if job["state"] == "PAUSED":
            job = self._ask("POST", f"{url}:resume", json={})
        return dict(job)

    def drop(self, job_id: str) -> None:
        """Remove a schedule, if it exists."""
        with suppress(api.NotFound):
            self._ask("DELETE", self._url(job_id))

    def every_seconds(self) -> float | None:
        """Return the seconds between two runs of the function, or None if it is not scheduled."""
        job = self._found(self._name) or {}
        parts = str(job.get("schedule", "")).split()
        is_ours = len(parts) == 3 and parts[0] == "every" and parts[2] == "minutes"
        minutes = whole_number(parts[1]) if is_ours and job.get("state") == "ENABLED" else None
        return None if minutes is None else 60.0 * minutes

    def remove(self) -> Iterator[str]:
        """Remove all schedules of the driver; yield their names."""
        asked, names = {"pageSize": 500}, list[str]()
        while True:
            answer = self._ask("GET", self._url("").rstrip("/"), params=asked)
            names += [str(one["name"]).rpartition("/")[2] for one in answer.get("jobs", ())]
            if not answer.get("nextPageToken"):
                break
            asked["pageToken"] = answer["nextPageToken"]
        for name in names:
            if f"{name}-".startswith(f"{self._name}-"):
                self._ask("DELETE", self._url(name))
                yield name

    def try_once(self, job: Mapping[str, Any], revision: str) -> None:
        """Let the job run this revision once; raise CloudspotError with the function's output if it fails.

        The run tests the schedule as well. New grants may take a while to take effect. All times are taken
        from Google's clocks.
        """
        end, since = time.monotonic() + KNOWN_SECONDS, str(job["userUpdateTime"])
        while True:
            attempted = str((self._found(self._name) or {}).get("lastAttemptTime", ""))
            self._ask("POST", f"{self._url(self._name)}:run", json={})
            since, line, before = self._wait(revision, since=since, attempted=attempted)
            if line == f"{MARK} done":
                return
            is_denied = LACKS_RIGHTS in line or not line.startswith(MARK)
            if not is_denied or time.monotonic() >= end:
                parts = f"{line.removeprefix(f'{MARK} failed: ')} {before[-LOG_CHARACTERS:]}"
                raise CloudspotError(f"the driver {self._name} does not run: {ERRORS.one_line(parts)}")
            self._sleep(5.0)

    def _wait(self, revision: str, *, since: str, attempted: str) -> tuple[str, str, str]:
        """Wait for a pass that ends after ``since``; return its end, its mark and its earlier output.

        If the schedule cannot reach the function, the reason is returned instead of the mark.
        """
        end = time.monotonic() + TIMEOUT_SECONDS + 30
        while time.monotonic() < end:
            before: list[str] = []
            for at, line in self._printed(revision, since):
                if line.startswith(MARK):
                    return at, line, " ".join(before)
                before.append(line)
            job = self._found(self._name) or {}
            code = job.get("status", {}).get("code", 0)
            if code in DENIED and job.get("lastAttemptTime", "") != attempted:
                return since, f"Cloud Scheduler is not let in (code {code})", ""
            self._sleep(2.0)
        raise CloudspotError(f"the driver {self._name} has not reported for {TIMEOUT_SECONDS + 30} s")

    def _printed(self, revision: str, since: str) -> list[tuple[str, str]]:
        """Return the time and text of each line that the function printed after ``since``, oldest first."""
        parts = (
            'resource.type="cloud_run_revision"',
            f'resource.labels.service_name="{self._name}"',
            f'resource.labels.revision_name="{revision}"',
            f'timestamp>"{since}"',
        )
        body = {
            "resourceNames": [f"projects/{self._clients.project}"],
            "filter": " AND ".join(parts),
            "orderBy": "timestamp desc",
            "pageSize": NUM_LINES,
        }
        answer = self._ask("POST", f"{endpoint('logging')}/v2/entries:list", json=body)
        entries = reversed(answer.get("entries", ()))
        return [(one["timestamp"], str(one.get("textPayload", "")).rstrip()) for one in entries]

    def _path(self, job_id: str) -> str:
        return f"projects/{self._clients.project}/locations/{self._region}/jobs/{job_id}"

    def _url(self, job_id: str) -> str:
        return f"{endpoint('cloudscheduler')}/v1/{self._path(job_id)}"

    def _found(self, job_id: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._ask("GET", self._url(job_id))
        except api.NotFound:
            return None
        return found

    def _ask(self, method: str, url: str, **options: Any) -> Any:
        return self._clients.ask_json(method, url, **options)


def rate_of(minutes: int) -> str:
    """Return the schedule in Cloud Scheduler's own syntax, because cron's allows only divisors of an hour."""
    return f"every {minutes} minutes"
