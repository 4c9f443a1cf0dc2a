"""Reads a node's identity and the notices of its pod's end, with the standard library only.

The kubelet ends a pod with SIGTERM to the container's process 1, which writes a file (see ``podspec``). So no
request is needed in order to wait for a notice. When the file exists and the pod has its service account's
token, the pod is read once: the grace period of its deletion, which an eviction may choose, shows when the
kubelet kills the pod. Sources: Kubernetes, "Pod Lifecycle", "API-initiated Eviction", "Node Shutdowns" (from
memory, 2026-11).
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
import urllib.request
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple
from urllib.error import HTTPError

from cloudspot.decoding import MAX_NODES, whole_number
from cloudspot.errors import TransientError
from cloudspot.host.public_addresses import NoRedirects
from cloudspot.interfaces import PreemptionSource
from cloudspot.model import Market, NodeIdentity, PreemptionNotice
from cloudspot.plugin.answers import MAX_DIGITS, UNREADABLE, number

TERMINATING: Final = "pod-terminating"
"""The file in the node's directory that process 1 writes at SIGTERM; it contains the machine's uptime at that
time.
"""
UPTIME: Final = Path("/proc/uptime")
GRACE: Final = "CLOUDSPOT_POD_GRACE"
NODE: Final = "CLOUDSPOT_POD_NODE"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_SECONDS: Final = 3.0
MAX_ANSWER_BYTES: Final = 8 << 20
"""The maximum size of a response, which is a pod or a node; etcd stores at most 1.5 MiB of either."""
TAINT_SECONDS: Final = 5.0
"""How often a node's taints are read."""
UID_LENGTH: Final = 8
MAX_GRACE_SECONDS: Final = 1e9
MAX_UPTIME_SECONDS: Final = 1e10

TAINTS: Final[Mapping[str, str]] = {
    "aws-node-termination-handler/spot-itn": "AWS's node termination handler: the spot interruption notice",
    "aws-node-termination-handler/asg-lifecycle-termination": "the same handler: the group ends the machine",
    "karpenter.sh/disrupted": "Karpenter 1.0 and later: it drains the node",
    "karpenter.sh/disruption": "Karpenter before 1.0",
    "cloud.google.com/impending-node-termination": "GKE: graceful termination of the node",
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler drains the node",
    "node.kubernetes.io/out-of-service": "an administrator: the node is gone",
}
"""Taints, by key, that announce that a node is about to be terminated. The taints are from memory of the
projects' documentation; none of them has been tried on a real cluster.
"""

# A child of the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.kubernetes.notice")


class _Names(NamedTuple):
    """The environment variables with a pod's identity, from the downward API."""

    name: str = "CLOUDSPOT_POD_NAME"
    uid: str = "CLOUDSPOT_POD_UID"
    namespace: str = "CLOUDSPOT_POD_NAMESPACE"
    rank: str = "CLOUDSPOT_POD_RANK"
    market: str = "CLOUDSPOT_POD_MARKET"
    type: str = "CLOUDSPOT_POD_TYPE"
    zone: str = "CLOUDSPOT_POD_ZONE"
    address: str = "CLOUDSPOT_POD_IP"


POD: Final = _Names()


def instance_id(name: str, uid: str) -> str:
    """Return a pod's id: its name and a part of its UID, because a later pod may have the same name."""
    return f"{name}.{uid[:UID_LENGTH]}"


def node_identity() -> NodeIdentity:
    """Return this pod's identity.

    Raises:
        TransientError: this is not one of cloudspot's pods, or it has no address.
    """
    facts = {name: os.environ.get(getattr(POD, name), "") for name in POD._fields}
    for name in ("name", "uid", "rank", "address"):
        if not facts[name]:
            raise TransientError(f"the pod's {name} is not known: {getattr(POD, name)} is not set")
    rank = whole_number(facts["rank"], most=MAX_NODES - 1)
    market = next((one for one in Market if one.value == facts["market"]), None)
    if rank is None or (facts["market"] and market is None):
        raise TransientError(
            f"{POD.rank} is {facts['rank'][:40]!r} and {POD.market} is {facts['market'][:40]!r}: expected a "
            "number and a market"
        )
    return NodeIdentity(
        instance_id=instance_id(facts["name"], facts["uid"]),
        rank=rank,
        address=facts["address"],
        zone=facts["zone"] or None,
        instance_type=facts["type"] or None,
        market=market,
    )


class PodApi:
    """A client of the API server with the pod's service account."""

    def read(self, path: str) -> Any:
        """Return the object at the path.

        Raises:
            OSError: there is no service account, no response, or a refusal.
            ValueError: the response cannot be read.
        """
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        # The token is read each time, because the kubelet renews it.
        token = (SERVICE_ACCOUNT / "token").read_text(encoding="ascii").strip()
        request = urllib.request.Request(  # the URL's scheme is fixed
            f"https://{f'[{host}]' if ':' in host else host}:{port}{path}",
            headers={"Authorization": f"Bearer {token}"},
        )
        context = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
        handlers = (
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            NoRedirects(),  # the target of a redirect would receive the token
        )
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_SECONDS) as answer:
            return json.loads(answer.read(MAX_ANSWER_BYTES))


class PodNoticeSource(PreemptionSource):
    """Looks for the file that process 1 writes at SIGTERM and, with ``watch_taints``, for known taints."""

    poll_seconds: ClassVar[float] = 0.25

    def __init__(
        self,
        *,
        grace: float,
        shutdown_grace: float,
        watch_taints: bool,
        api: PodApi | None = None,
        directory: Path | None = None,
    ) -> None:
        """Do no I/O. The grace periods, of the pod and of a node that shuts down, are in seconds."""
        self.notice_seconds = grace
        self._shutdown_grace = min(grace, shutdown_grace)
        self._watches_taints = watch_taints
        self._api = api or PodApi()
        self._file = (
            directory or Path(os.environ.get("CLOUDSPOT_NODE_DIR", "/var/lib/cloudspot"))
        ) / TERMINATING
        self._notice: PreemptionNotice | None = None
        self._tainted: PreemptionNotice | None = None
        self._taints_read_at = -TAINT_SECONDS

    def poll(self) -> PreemptionNotice | None:
        """Return the notice of the pod's end, or else of its node's end."""
        if self._notice is None:
            self._notice = self._terminating()
        if self._notice is None and self._watches_taints and self._tainted is None:
            self._tainted = self._taint()
        return self._notice or self._tainted

    def _terminating(self) -> PreemptionNotice | None:
        try:
            begun = self._begun()
        except FileNotFoundError:
            return None
        try:
            pod = self._api.read(
                f"/api/v1/namespaces/{os.environ[POD.namespace]}/pods/{os.environ[POD.name]}"
            )
            metadata = pod["metadata"]
            if number(metadata.get("deletionGracePeriodSeconds") or 0, most=MAX_GRACE_SECONDS) is None:
                raise ValueError("its grace period is not a time")
        except FileNotFoundError:  # the pod has no token
            return self._ends(begun, self._shutdown_grace, "SIGTERM")
        except (OSError, *UNREADABLE) as error:
            _log.warning(
                "this pod is ending, and its grace period cannot be read (%s): assuming %g s",
                _reason_of(error),
                self._shutdown_grace,
            )
            return self._ends(begun, self._shutdown_grace, "SIGTERM")
        if "deletionTimestamp" not in metadata:
            # The pod was not deleted, so its node is shutting down.
            return self._ends(begun, self._shutdown_grace, "node-shutdown")
        # The grace period began with the SIGTERM, which was sent at once.
        return self._ends(begun, float(metadata.get("deletionGracePeriodSeconds") or 0), "eviction")

    def _begun(self) -> float:
        """Return when process 1 received SIGTERM (monotonic); all processes of a pod get the same time."""
        now = time.monotonic()
        # The uptime includes times of sleep, and may be the container's own.
        ahead = round(now - float(UPTIME.read_text(encoding="ascii").split()[0]))
        with self._file.open("rb") as file:  # the training may have changed it
            seconds = number(file.read(MAX_DIGITS).decode("ascii", errors="replace"), most=MAX_UPTIME_SECONDS)
        return now if seconds is None else min(now, seconds + ahead)

    def _ends(self, begun: float, seconds: float, source: str) -> PreemptionNotice:
        said_at = datetime.fromtimestamp(self._file.stat().st_mtime, timezone.utc)
        return PreemptionNotice(
            deadline=said_at + timedelta(seconds=seconds), deadline_monotonic=begun + seconds, source=source
        )

    def _taint(self) -> PreemptionNotice | None:
        now = time.monotonic()
        if now - self._taints_read_at < TAINT_SECONDS:
            return None
        self._taints_read_at = now
        try:
            node = self._api.read(f"/api/v1/nodes/{os.environ[NODE]}")
            keys = [str(taint.get("key")) for taint in node["spec"].get("taints") or ()]
        except HTTPError as error:
            if error.code not in {401, 403}:
                raise TransientError(f"the node's taints cannot be read: {_reason_of(error)}") from error
            _log.warning("the node's taints cannot be read (%s): they are not watched", _reason_of(error))
            self._watches_taints = False
            return None
        except (OSError, *UNREADABLE) as error:
            raise TransientError(f"the node's taints cannot be read: {_reason_of(error)}") from error
        found = next((key for key in keys if key in TAINTS), None)
        return None if found is None else PreemptionNotice(deadline=None, source=f"taint {found}")


def _reason_of(error: Exception) -> str:
    return f"HTTP status {error.code}" if isinstance(error, HTTPError) else f"{type(error).__name__}: {error}"
