"""An emulated Cloud Logging, as strict as the real one: writes entries, lists them by queries, lists logs.

Every request is checked against Google's discovery document and the service's limits. Entries with the same
log, time and insert id are a single entry; entries become visible after ``lag_seconds``. Faults are injected
by rules (:mod:`cloudspot.emulation.api_faults`), and every request is recorded.

Source: Cloud Logging API reference and "Quotas and limits" (checked 2026-11); the refusals' wording is from
memory.
"""

from __future__ import annotations

import base64
import bisect
import json
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot_gcp_sandbox.apierror import ApiError, invalid
from cloudspot_gcp_sandbox.discovery import Matched, api
from cloudspot_gcp_sandbox.guardedapi import NO_GRANTS, Grants
from cloudspot_gcp_sandbox.identities import Identities
from cloudspot_gcp_sandbox.logfilter import moment, parse_filter
from cloudspot_gcp_sandbox.wsgi import Reply, Request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

MAX_ENTRY_BYTES = 256 << 10
MAX_REQUEST_BYTES = 10_000_000
MAX_LABELS = 64
MAX_AGE = timedelta(days=30)
MAX_AHEAD = timedelta(days=1)
DEFAULT_PAGE = 50
MAX_PAGE = 1000
_LOG = re.compile(r"projects/([a-z0-9:.-]+)/logs/([A-Za-z0-9/_.%-]{1,511})")
_INSERT_ID = re.compile(r"[A-Za-z0-9_.-]{1,512}")
_RESOURCES: Mapping[str, frozenset[str]] = {
    "global": frozenset({"project_id"}),
    "gce_instance": frozenset({"project_id", "instance_id", "zone"}),
    "generic_node": frozenset({"project_id", "location", "namespace", "node_id"}),
    "cloud_run_revision": frozenset(
        {"project_id", "location", "service_name", "revision_name", "configuration_name"}
    ),
    "generic_task": frozenset({"project_id", "location", "namespace", "job", "task_id"}),
}
_RIGHTS = {
    "logging.entries.list": "logging.logEntries.list",
    "logging.entries.write": "logging.logEntries.create",
    "logging.logs.list": "logging.logs.list",
    "logging.projects.logs.list": "logging.logs.list",
    "logging.projects.logs.delete": "logging.logs.delete",
    "logging.logs.delete": "logging.logs.delete",
}


@dataclass(frozen=True)
class _Kept:
    place: tuple[datetime, str]
    entry: dict[str, Any]
    parsed: Mapping[str, Any]
    """The entry with its times as datetimes, for queries."""


def _place(kept: _Kept) -> tuple[datetime, str]:
    return kept.place


class StrictLogging:
    """WSGI middleware; requests to other services reach ``app`` unchanged. Thread-safe."""

    def __init__(
        self,
        app: WSGIApplication | None = None,
        *,
        faults: Faults,
        identities: Identities,
        page_entries: int = MAX_PAGE,
        lag_seconds: float = 0.0,
        grants: Grants = NO_GRANTS,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.page_entries = page_entries
        """The maximum number of entries on a page, even if more are requested."""
        self.lag_seconds = lag_seconds
        """How long a new entry is missing from listings."""
        self._app = app
        self._faults = faults
        self._identities = identities
        self._grants = grants
        self._now = now
        self._api = api("logging.v2")
        self._lock = threading.Lock()
        self._entries: list[_Kept] = []
        """The entries, in the order of time and insert id."""
        self._known: set[tuple[str, str, str]] = set()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = Request.of(environ)
        if not request.path.startswith("/v2/"):
            if self._app is None:
                return Reply.refusal(ApiError(404, "notFound", "Not Found")).send(start_response)
            return self._app(environ, start_response)
        return self._answer(request).send(start_response)

    def _answer(self, request: Request) -> Reply:
        action, caller, code = "unknown", "", None
        parameters: dict[str, Any] = {}
        try:
            caller = self._identities.authenticate(request)
            body = request.read_json()
            matched = self._api.check(request.method, request.path, request.query, body)
            action = matched.method_id
            parameters = {**matched.path, **matched.query, **_counted(body)}
            injected = self._faults.take(action)
            if injected is not None and not injected.happens:
                raise ApiError(injected.status, injected.code, injected.message)
            right = _RIGHTS.get(action, action)
            if right in self._faults.denied or self._grants.lacks(caller, right, ""):
                raise ApiError(
                    403, "forbidden", f"Permission '{right}' denied on resource (or it may not exist)."
                )
            reply = self._dispatch(request, matched, body or {})
            if injected is not None:
                raise ApiError(injected.status, injected.code, injected.message)
        except ApiError as error:
            code, reply = error.reason, Reply.refusal(error)
        self._faults.record(Call("logging", action, parameters, "", code, caller))
        return reply

    def _dispatch(self, request: Request, matched: Matched, body: Mapping[str, Any]) -> Reply:
        if matched.method_id == "logging.entries.write":
            if int(request.header("content-length") or 0) > MAX_REQUEST_BYTES:
                raise invalid("Request payload size exceeds the limit: 10485760 bytes.")
            self._write({_camel(name): value for name, value in body.items()})
            return Reply.json({})
        if matched.method_id == "logging.entries.list":
            answer = self._list({_camel(name): value for name, value in body.items()})
        elif matched.method_id in {"logging.logs.list", "logging.projects.logs.list"}:
            answer = self._list_logs(matched.path["parent"])
        elif matched.method_id in {"logging.logs.delete", "logging.projects.logs.delete"}:
            self._delete_log(unquote(matched.path["logName"]))
            return Reply.json({})
        else:
            raise ApiError(
                501, "notImplemented", f"The emulated Logging does not support {matched.method_id}."
            )
        self._api.check_answer(matched.method_id, answer)
        return Reply.json(answer)

    def deposit(self, entry: Mapping[str, Any]) -> None:
        """Store an entry that Google itself writes, such as a line that a function printed."""
        self._write({"entries": [entry]})

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._entries.clear()
            self._known.clear()

    # --- methods ----------------------------------------------------------------------------------

    def _write(self, body: Mapping[str, Any]) -> None:
        if not body.get("entries"):
            raise invalid("The request must have at least one log entry.")
        entries = [self._completed(entry, body) for entry in body["entries"]]
        now = self._now()
        if body.get("dryRun"):
            return
        with self._lock:
            for at, entry in entries:
                if at < now - MAX_AGE:
                    continue  # The entry is accepted, but never shown.
                key = (entry["logName"], entry["timestamp"], entry["insertId"])
                if key in self._known:
                    continue
                self._known.add(key)
                parsed = {**entry, "timestamp": at, "receiveTimestamp": moment(entry["receiveTimestamp"])}
                bisect.insort(self._entries, _Kept((at, entry["insertId"]), entry, parsed), key=_place)

    def _completed(
        self, entry: Mapping[str, Any], body: Mapping[str, Any]
    ) -> tuple[datetime, dict[str, Any]]:
        """Return the entry as it is stored, and its time.

        Raises:
            ApiError: 400, the entry breaks a rule or a limit.
        """
        now = self._now()
        received = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        full = {
            "logName": body.get("logName"),
            "resource": body.get("resource"),
            "timestamp": received,
            "insertId": secrets.token_hex(8),
            **entry,
            "receiveTimestamp": received,
        }
        labels = {**(body.get("labels") or {}), **(entry.get("labels") or {})}
        if labels:
            full["labels"] = labels
        name = full["logName"]
        if not name or _LOG.fullmatch(name) is None:
            raise invalid(f"Log entry with an invalid or missing log name: {name}")
        resource = full["resource"] or {}
        known = _RESOURCES.get(resource.get("type", ""))
        if known is None or not (resource.get("labels") or {}).keys() <= known:
            raise invalid(f"Log entry with an invalid or missing monitored resource: {resource}")
        if sum(kind in full for kind in ("textPayload", "jsonPayload", "protoPayload")) != 1:
            raise invalid("Log entry must have exactly one payload.")
        if _INSERT_ID.fullmatch(full["insertId"]) is None:
            raise invalid(f"Log entry with an invalid insert id: {full['insertId']}")
        if len(labels) > MAX_LABELS:
            raise invalid(f"Log entry with more than {MAX_LABELS} labels.")
        payload = full.get("textPayload")
        text = payload if payload is not None else json.dumps(full.get("jsonPayload"), ensure_ascii=False)
        size = len(text.encode("utf-8", "surrogatepass")) + sum(len(k) + len(v) for k, v in labels.items())
        if size > MAX_ENTRY_BYTES:
            raise invalid(f"Log entry with size {size} exceeds maximum size of {MAX_ENTRY_BYTES}")
        at = moment(full["timestamp"])
        if at > now + MAX_AHEAD:
            raise invalid("Log entry with timestamp too far in the future.")
        return at, full

    def _list(self, body: Mapping[str, Any]) -> dict[str, Any]:
        names = body.get("resourceNames") or []
        if not names or not all(re.fullmatch(r"projects/[a-z0-9:.-]+(/.*)?", name) for name in names):
            raise invalid("resource_names is required, each as projects/PROJECT_ID")
        projects = {name.split("/")[1] for name in names}
        order = body.get("orderBy") or "timestamp asc"
        if order not in {"timestamp asc", "timestamp desc"}:
            raise invalid(f"Invalid order_by: {order}")
        size = int(body.get("pageSize") or DEFAULT_PAGE)
        if not 0 < size <= MAX_PAGE:
            raise invalid(f"page_size must be 1 to {MAX_PAGE}: {size}")
        is_about = parse_filter(body.get("filter") or "")
        visible_at = self._now() - timedelta(seconds=self.lag_seconds)
        after = _page_start(body.get("pageToken"))
        with self._lock:
            entries = list(self._entries)
        if order.endswith("desc"):
            end = len(entries) if after is None else bisect.bisect_left(entries, after, key=_place)
            entries = entries[:end][::-1]
        elif after is not None:
            entries = entries[bisect.bisect_right(entries, after, key=_place) :]
        matching: list[dict[str, Any]] = []
        last: tuple[datetime, str] | None = None
        for kept_entry in entries:
            if (
                _project(kept_entry.entry) not in projects
                or kept_entry.parsed["receiveTimestamp"] > visible_at
            ):
                continue
            if not is_about(kept_entry.parsed):
                continue
            if len(matching) == min(size, self.page_entries):
                assert last is not None
                return {"entries": matching, "nextPageToken": _page_token(last)}
            last = kept_entry.place
            matching.append(kept_entry.entry)
        return {"entries": matching} if matching else {}

    def _list_logs(self, parent: str) -> dict[str, Any]:
        return {"logNames": sorted(name for name in self._log_names() if name.startswith(f"{parent}/"))}

    def _delete_log(self, name: str) -> None:
        with self._lock:
            self._entries = [one for one in self._entries if one.entry["logName"] != name]

    def _log_names(self) -> Iterator[str]:
        with self._lock:
            yield from {one.entry["logName"] for one in self._entries}


def _project(entry: Mapping[str, Any]) -> str:
    return str(entry["logName"]).split("/")[1]


def _page_token(place: tuple[datetime, str]) -> str:
    return base64.urlsafe_b64encode(f"{place[0].isoformat()} {place[1]}".encode()).decode()


def _page_start(token: str | None) -> tuple[datetime, str] | None:
    if not token:
        return None
    try:
        at, insert_id = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode().split(" ")
        return datetime.fromisoformat(at), insert_id
    except ValueError as error:
        raise invalid("page_token is invalid") from error


def _counted(body: Any) -> dict[str, Any]:
    """Return the request's fields with the entries replaced by their number."""
    if not isinstance(body, dict):
        return {}
    return {name: len(value) if name == "entries" else value for name, value in body.items()}


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)
