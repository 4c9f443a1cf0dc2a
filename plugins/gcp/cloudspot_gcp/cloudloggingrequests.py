"""The requests that a job's log makes to Cloud Logging: write entries, and list them by a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from cloudspot.calls.retrying import doubling, retry
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.plugin.answers import UNREADABLE, readable
from cloudspot_gcp.clients import TIMEOUT, GcpClients, endpoint
from cloudspot_gcp.errors import ERRORS, error_of

PAGE_ENTRIES = 1000
NUM_THROTTLED_TRIES = 10
"""How many times a throttled list request is tried, over 51 s in all, because the quota is per minute."""


class EntryRefused(CloudspotError):
    """Logging will never accept an entry."""


class _Throttled(TransientError):
    """There were too many requests; nothing was done."""


class _Unwell(TransientError):
    """The service failed, or did not answer."""


class LogRequests:
    """Writes and lists the entries of one log with given labels. Thread-safe; construction does no I/O."""

    def __init__(
        self,
        clients: GcpClients,
        *,
        log_name: str,
        labels: Mapping[str, str],
        sleep: Callable[[float], None],
    ) -> None:
        self._clients = clients
        self._log_name = log_name
        self._labels = labels
        self._sleep = sleep
        self.answered_ms = 0
        """When Logging sent its last response, by its own clock; 0 if unknown."""

    @property
    def log(self) -> str:
        """Return the log's full name: ``projects/PROJECT/logs/NAME``."""
        return f"projects/{self._clients.project}/logs/{self._log_name}"

    def write(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write entries with the labels, in addition to their own.

        Raises:
            EntryRefused: Logging will never accept some of the entries; it has accepted the others.
            TransientError: some entries may not have been written; it is safe to write them again.
        """
        body = {
            "logName": self.log,
            "resource": {"type": "global", "labels": {"project_id": self._clients.project}},
            "labels": self._labels,
            "entries": entries,
            "partialSuccess": True,
        }
        self._ask("write", body)

    def pages(
        self, about: str, *, order: str = "timestamp asc", size: int = PAGE_ENTRIES
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the entries that have the labels and match the query, page by page; at least one page."""
        parts = [f'logName="{self.log}"']
        parts += [f'labels.{name}="{value}"' for name, value in self._labels.items()]
        body = {
            "resourceNames": [f"projects/{self._clients.project}"],
            "filter": " AND ".join([*parts, about]),
            "orderBy": order,
            "pageSize": size,
        }
        while True:
            answer = self._ask("list", body, num_tries=NUM_THROTTLED_TRIES)
            yield answer.get("entries", [])
            token = answer.get("nextPageToken")
            if not token:
                return
            body["pageToken"] = token

    def _ask(self, method: str, body: Mapping[str, Any], *, num_tries: int = 5) -> Any:
        """Make a request, and repeat it after a transient failure: every request here is safe to repeat."""

        def call() -> Any:
            try:
                return self._send(method, body)
            except ERRORS.raised as error:
                failure = ERRORS.translation(
                    error, f"log {self._log_name} of project {self._clients.project}"
                )
                status = ERRORS.status_of(error)
                if status == HTTPStatus.BAD_REQUEST and method == "write":
                    raise EntryRefused(str(failure)) from error
                if status == HTTPStatus.TOO_MANY_REQUESTS or ERRORS.is_throttled(error):
                    raise _Throttled(str(failure)) from error
                if isinstance(failure, TransientError):
                    raise _Unwell(str(failure)) from error
                raise failure from error

        def patient() -> Any:
            return retry(call, sleep=self._sleep, kind=_Unwell)

        return retry(patient, sleep=self._sleep, kind=_Throttled, waits=doubling(0.1, num=num_tries - 1))

    def _send(self, method: str, body: Mapping[str, Any]) -> Any:
        answer = self._clients.session().post(
            f"{endpoint('logging')}/v2/entries:{method}", json=body, timeout=TIMEOUT, allow_redirects=False
        )
        if answer.status_code != HTTPStatus.OK:
            raise error_of(answer)
        self.answered_ms = _milliseconds(answer.headers.get("Date", ""))
        value = answer.json()
        with readable(f"log {self._log_name}"):
            return _listing(value)


def _listing(answer: Any) -> dict[str, Any]:
    """Return a response as a dictionary; raise TypeError if its entries are malformed."""
    entries = answer.get("entries", [])
    if not isinstance(entries, list) or any(
        not isinstance(one, dict) or not isinstance(one.get("labels") or {}, dict) for one in entries
    ):
        raise TypeError("the entries of the answer are malformed")
    return dict(answer)


def _milliseconds(date: str) -> int:
    """Return the time in a header, in milliseconds since 1970, or 0 if there is no time."""
    try:
        return int(parsedate_to_datetime(date).timestamp() * 1000)
    except UNREADABLE:
        return 0
