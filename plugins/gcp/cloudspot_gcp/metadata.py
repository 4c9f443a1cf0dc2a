"""Reads a node's identity and notices from Compute Engine's metadata server.

The module uses only the standard library, because every agent carries it and it must work where nothing is
installed. Sources: Compute Engine documentation, "View and query VM metadata" ("Wait for updates", "Parts of
a request"), "Predefined metadata keys", "Create and use Spot VMs", and the discovery document of compute v1,
``Scheduling.preemptionNoticeDuration`` (checked 2026-11).
"""

from __future__ import annotations

import logging
import os
import time
import urllib.error
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from cloudspot.errors import TransientError
from cloudspot.interfaces import PreemptionSource
from cloudspot.model import Market, NodeIdentity, PreemptionNotice
from cloudspot.plugin.answers import number
from cloudspot.plugin.metadataclient import ask_metadata
from cloudspot_gcp.attributes import NOTICE_SECONDS, launch_and_rank

HOST: Final = "GCE_METADATA_HOST"
"""The environment variable that overrides the server's address, also for Google's clients: ``host`` or
``host:port``."""
DEFAULT_HOST: Final = "169.254.169.254"
"""The address of metadata.google.internal, for which no name server is needed."""
SHUTDOWN_SECONDS: Final = 30.0
"""The longest time between the power button (ACPI G2) and the end of a spot machine; shorter times have been
seen.
"""
MAX_NOTICE_SECONDS: Final = 86_400.0
"""The longest notice that Compute Engine gives."""
MAX_LONG_POLL_SECONDS: Final = 60.0
EXTRA_SECONDS: Final = 5.0
"""How much longer than requested a long poll may take before it counts as broken."""
EVENT_EVERY: Final = 10
"""The maintenance event, which is only logged, is read at every poll whose number is a multiple of this."""
NO_EVENT: Final = "NONE"
PREEMPTED: Final = "instance/preempted"
_MAX_TEXT: Final = 200

# A child of the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.gcp.metadata")


@dataclass(frozen=True)
class Value:
    """One version of the server's value at a path."""

    text: str
    etag: str
    """The version, which changes with the value."""


class Metadata:
    """A client of the metadata server. Thread-safe; it caches nothing."""

    def __init__(self, *, host: str | None = None, timeout_seconds: float = 3.0) -> None:
        """Do no I/O. The default ``host`` is the environment's, else the real address."""
        self._host = host
        self._timeout_seconds = timeout_seconds

    def read(
        self, path: str, *, newer_than: str | None = None, wait_seconds: float | None = None
    ) -> Value | None:
        """Return the server's value at ``/computeMetadata/v1/<path>``, or None if it has none.

        With ``wait_seconds`` (rounded down, at least 1) the server answers as soon as the version differs
        from ``newer_than``, or with the same version when the time is up.

        Raises:
            TransientError: the server did not answer, answered with another error, or is not Google's.
        """
        timeout, query = self._timeout_seconds, ""
        if wait_seconds is not None:
            seconds = max(1, int(wait_seconds))
            asked = {"wait_for_change": "true", "timeout_sec": str(seconds)}
            if newer_than is not None:
                # Without the version, a change between two polls would be missed.
                asked["last_etag"] = newer_than
            timeout, query = seconds + EXTRA_SECONDS, "?" + urllib.parse.urlencode(asked)
        host = self._host or os.environ.get(HOST) or DEFAULT_HOST
        url = f"http://{host}/computeMetadata/v1/{path}{query}"
        try:
            text, headers = ask_metadata(url, {"Metadata-Flavor": "Google"}, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                raise TransientError(f"the metadata service answered {error.code} to {path}") from error
        if headers.get("Metadata-Flavor") != "Google":
            raise TransientError(f"the server at {host} is not Google's metadata server")
        return Value(text, headers.get("ETag", ""))

    def get(self, path: str) -> str | None:
        """Return the text at the path without surrounding white space, or None if there is no value."""
        value = self.read(path)
        return None if value is None else value.text.strip()

    def require(self, path: str) -> str:
        """Return the text at the path; raise TransientError as ``read`` does, and while there is no value."""
        text = self.get(path)
        if not text:
            raise TransientError(f"the metadata server has no {path} yet")
        return text


class GcePreemptionSource(PreemptionSource):
    """Waits for ``instance/preempted``; a maintenance event is not a notice, and is logged once.

    ``preempted`` does not state when the machine ends. The power button is pressed after the notice that the
    machine's request asks for, or at once without one; then up to 30 seconds are left.
    """

    poll_seconds: ClassVar[float] = 1.0

    def __init__(
        self,
        metadata: Metadata | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read the length of the launch's notices from the machine's attribute.

        If the server does not answer, the shortest notice is assumed.
        """
        self._metadata = metadata or Metadata()
        self.notice_seconds = _notice_seconds(self._metadata)
        self._monotonic = monotonic
        self._sleep = sleep
        self._num_polls = 0
        self._event = NO_EVENT

    def poll(self) -> PreemptionNotice | None:
        if self._num_polls % EVENT_EVERY == 0:
            self._look_for_event()
        self._num_polls += 1
        return _as_notice(self._metadata.read(PREEMPTED))

    def wait(self, timeout: float) -> PreemptionNotice | None:
        """Return as soon as there is a notice, or None after ``timeout`` seconds.

        The wait uses a long poll, and renews a broken connection. If a server answers too early, because it
        does not support long polls, it is asked every ``poll_seconds``.

        Raises:
            TransientError: the server never answers.
        """
        end = self._monotonic() + timeout
        self._look_for_event()
        known = self._metadata.read(PREEMPTED)
        while True:
            notice = _as_notice(known)
            left = end - self._monotonic()
            if notice is not None or left <= 0:
                return notice
            if left < 1.0:  # a long poll takes at least a second
                self._sleep(left)
                return _as_notice(self._metadata.read(PREEMPTED))
            known = self._wait_for_change(known, min(left, MAX_LONG_POLL_SECONDS))

    def _wait_for_change(self, known: Value | None, seconds: float) -> Value | None:
        etag, began = None if known is None else known.etag, self._monotonic()
        try:
            changed = self._metadata.read(PREEMPTED, newer_than=etag, wait_seconds=seconds)
        except TransientError as error:
            _log.info("the long poll failed; polling again: %s", error)
            self._sleep(self.poll_seconds)
            return self._metadata.read(PREEMPTED)
        if _as_notice(changed) is None and self._monotonic() - began < self.poll_seconds:
            self._sleep(self.poll_seconds)
        return changed

    def _look_for_event(self) -> None:
        try:
            event = self._metadata.get("instance/maintenance-event") or NO_EVENT
        except TransientError:
            return  # the next poll may find it
        if event not in {self._event, NO_EVENT}:
            _log.warning(
                "Compute Engine announces maintenance of this machine's host (%s): this is not a reclaim, "
                "and the training goes on",
                event[:_MAX_TEXT],
            )
        self._event = event


def node_identity(metadata: Metadata | None = None) -> NodeIdentity:
    """Return this machine's identity; its name contains its rank.

    The machine's id is ``<zone>/<name>/<number>``. The number makes it unique, because another machine may
    have had the same name.

    Raises:
        TransientError: the metadata server is not available yet, or its answer is invalid.
    """
    metadata = metadata or Metadata()
    name = metadata.require("instance/name")
    named = launch_and_rank(name)
    if named is None:
        raise TransientError(f"the metadata server's instance/name is {name[:80]!r}, which has no rank")
    # These values have the forms projects/NUMBER/zones/ZONE and projects/NUMBER/machineTypes/TYPE.
    zone = metadata.require("instance/zone").rpartition("/")[2]
    machine_type = metadata.get("instance/machine-type")
    is_spot = metadata.get("instance/scheduling/preemptible")
    return NodeIdentity(
        instance_id=f"{zone}/{name}/{metadata.require('instance/id')}",
        rank=named[1],
        address=metadata.require("instance/network-interfaces/0/ip"),
        zone=zone,
        instance_type=None if machine_type is None else machine_type.rpartition("/")[2],
        market=None if is_spot is None else Market.SPOT if is_spot == "TRUE" else Market.ON_DEMAND,
    )


def _notice_seconds(metadata: Metadata) -> float:
    try:
        text = metadata.get(f"instance/attributes/{NOTICE_SECONDS}") or ""
    except TransientError:
        return SHUTDOWN_SECONDS
    return max(number(text, most=MAX_NOTICE_SECONDS) or 0.0, SHUTDOWN_SECONDS)


def _as_notice(value: Value | None) -> PreemptionNotice | None:
    if value is None or value.text.strip().upper() != "TRUE":
        return None
    return PreemptionNotice(deadline=None, action="terminate", source="metadata")
