"""Cloud Scheduler: its jobs really send their requests to functions, at their time or on request.

Source: Cloud Scheduler API v1 (its discovery document), "Cron job format", "Use authentication with HTTP
targets"; checked 2026-11, the refusals' wording is from memory.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from cloudspot.emulation.api_faults import Faults
from cloudspot_gcp_sandbox.apierror import ApiError, invalid
from cloudspot_gcp_sandbox.discovery import Matched
from cloudspot_gcp_sandbox.guardedapi import GuardedApi
from cloudspot_gcp_sandbox.identities import Identities
from cloudspot_gcp_sandbox.strict_functions import StrictFunctions
from cloudspot_gcp_sandbox.strict_iam import StrictIam
from cloudspot_gcp_sandbox.wsgi import Request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

_PATH: Final = re.compile(r"/v1/projects/[^/]+/locations/[^/]+/jobs(?:[/:].*)?")
_JOB: Final = re.compile(r"projects/[^/]+/locations/[^/]+/jobs/[A-Za-z0-9_-]{1,500}")
_RATE: Final = re.compile(r"every ([1-9]\d*) (minutes|hours)")
_SECONDS: Final = re.compile(r"(\d+)(?:\.\d+)?s")
_CODES: Final[Mapping[int, int]] = {401: 16, 403: 7, 404: 5, 429: 8, 503: 14, 504: 4}
"""The google.rpc code for an HTTP status; other statuses are 13, INTERNAL."""
_FIELDS: Final = (*("description", "schedule", "timeZone", "attemptDeadline", "retryConfig", "httpTarget"),)


class StrictScheduler:
    """WSGI middleware; requests to other services reach ``app`` unchanged. Thread-safe."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        faults: Faults,
        identities: Identities,
        iam: StrictIam,
        functions: StrictFunctions,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.now = now
        """The clock that the jobs use."""
        self._app = app
        self._iam = iam
        self._functions = functions
        self._lock = threading.RLock()
        self._jobs: dict[str, dict[str, Any]] = {}
        self._due: dict[str, datetime] = {}
        self._running: set[str] = set()
        jobs = "cloudscheduler.projects.locations.jobs"
        self._api = GuardedApi(
            "cloudscheduler.v1",
            {
                f"{jobs}.create": self._create,
                f"{jobs}.delete": self._delete,
                f"{jobs}.get": lambda matched, _: dict(self._find(matched.path["name"])),
                f"{jobs}.list": self._list,
                f"{jobs}.patch": self._patch,
                f"{jobs}.pause": lambda matched, _: self._turn(matched, "PAUSED"),
                f"{jobs}.resume": lambda matched, _: self._turn(matched, "ENABLED"),
                f"{jobs}.run": self._run,
            },
            faults=faults,
            identities=identities,
            grants=iam,
        )

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = Request.of(environ)
        if _PATH.fullmatch(request.path) is None:
            return self._app(environ, start_response)
        return self._api.answer(request).send(start_response)

    def run_due(self) -> None:
        """Run the jobs that are due, each in its own thread."""
        now = self.now()
        with self._lock:
            due = [name for name, at in self._due.items() if now >= at and self._is_on(name)]
            for name in due:
                self._due[name] = now + _every(self._jobs[name]["schedule"])
        for name in due:
            self._start(name)

    def left(self) -> list[str]:
        """Return the names of all jobs."""
        with self._lock:
            return sorted(name.rpartition("/")[2] for name in self._jobs)

    def _is_on(self, name: str) -> bool:
        return bool(self._jobs[name]["state"] == "ENABLED")

    def _find(self, name: str) -> dict[str, Any]:
        with self._lock:
            if name not in self._jobs:
                raise ApiError(404, "notFound", f"Job not found: {name}")
            return self._jobs[name]

    def _create(self, matched: Matched, body: dict[str, Any]) -> Mapping[str, Any]:
        name = str(body.get("name", ""))
        if _JOB.fullmatch(name) is None or not name.startswith(f"{matched.path['parent']}/jobs/"):
            raise invalid(f"Job name must be formatted: projects/P/locations/L/jobs/J, not {name!r}")
        with self._lock:
            if name in self._jobs:
                raise ApiError(409, "alreadyExists", f"Job {name} already exists.")
            given: dict[str, Any] = {key: body[key] for key in _FIELDS if key in body}
            return self._keep({"name": name, "state": "ENABLED", **given})

    def _patch(self, matched: Matched, body: dict[str, Any]) -> Mapping[str, Any]:
        mask = str(matched.query.get("updateMask") or ",".join(_FIELDS)).split(",")
        with self._lock:
            job = dict(self._find(matched.path["name"]))
            if not set(mask) <= set(_FIELDS):
                raise invalid(f"Invalid update mask: {mask}")
            return self._keep(job | {key: body[key] for key in mask if key in body})

    def _keep(self, job: dict[str, Any]) -> Mapping[str, Any]:
        interval = _every(job.get("schedule", ""))
        target = job.get("httpTarget", {})
        if not str(target.get("uri", "")).startswith("https://") or target.get("httpMethod") != "POST":
            raise invalid("The emulated Cloud Scheduler sends POST requests to https URLs.")
        try:
            base64.b64decode(target.get("body", ""), validate=True)
        except binascii.Error as error:
            raise invalid("httpTarget.body is not in base64.") from error
        email = target.get("oidcToken", {}).get("serviceAccountEmail", "")
        if not self._iam.exists(email):
            raise ApiError(404, "notFound", f"Service account {email} does not exist.")
        match = _SECONDS.fullmatch(job.get("attemptDeadline", "180s"))
        if match is None or not 15 <= int(match[1]) <= 1800:
            raise invalid("attemptDeadline must be in the interval [15s, 30m].")
        job["userUpdateTime"] = self._moment()
        name = job["name"]
        if self._jobs.get(name, {}).get("schedule") != job["schedule"]:
            # The first run is one interval after the job was made.
            self._due[name] = self.now() + interval
        self._jobs[name] = job
        return dict(job)

    def _list(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        if matched.query.get("pageSize", 500) > 500:
            raise invalid("The page size must be at most 500.")
        with self._lock:
            here = f"{matched.path['parent']}/"
            found = [dict(one) for name, one in self._jobs.items() if name.startswith(here)]
        return {"jobs": found} if found else {}

    def _delete(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        name = self._find(matched.path["name"])["name"]
        with self._lock:
            del self._jobs[name], self._due[name]
        return {}

    def _turn(self, matched: Matched, state: str) -> Mapping[str, Any]:
        job = self._find(matched.path["name"])
        with self._lock:
            job["state"] = state
            return dict(job)

    def _run(self, matched: Matched, _body: dict[str, Any]) -> Mapping[str, Any]:
        job = dict(self._find(matched.path["name"]))
        self._start(job["name"])
        return job

    def _start(self, name: str) -> None:
        with self._lock:
            if name in self._running:  # A job never runs twice at the same time.
                return
            self._running.add(name)
        threading.Thread(target=self._attempt, args=(name,), name="schedule", daemon=True).start()

    def _attempt(self, name: str) -> None:
        with self._lock:
            job = dict(self._jobs.get(name, {}))
            if job:
                self._jobs[name]["lastAttemptTime"] = self._moment()
        try:
            if job:
                target = job["httpTarget"]
                answer = self._functions.call(
                    target["uri"] if target["oidcToken"].get("audience") == target["uri"] else "",
                    # Scheduler's default, unless the job sets another type.
                    {"Content-Type": "application/octet-stream", **target.get("headers", {})},
                    base64.b64decode(target.get("body", "")),
                    email=target["oidcToken"]["serviceAccountEmail"],
                )
                status: dict[str, int] = (
                    {} if answer.status < 300 else {"code": _CODES.get(answer.status, 13)}
                )
                with self._lock:
                    if name in self._jobs:
                        self._jobs[name]["status"] = status
        finally:
            with self._lock:
                self._running.discard(name)

    def _moment(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _every(schedule: str) -> timedelta:
    """Return the interval of a schedule in Scheduler's own syntax; other forms are not emulated."""
    match = _RATE.fullmatch(schedule)
    if match is None:
        raise invalid(f"Schedule or timezone is invalid: {schedule!r}")
    number = int(match[1])
    return timedelta(minutes=number) if match[2] == "minutes" else timedelta(hours=number)
