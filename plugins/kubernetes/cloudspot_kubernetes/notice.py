"""What a node knows in its pod: who it is, and whether the pod or its node is to go. Standard library only.

The kubelet ends a pod by SIGTERM to the container's process 1, which leaves a file (see ``podspec``). So
waiting for a notice takes no request. When the file is there, a pod that has its service account's token is
read once: the grace period by which it was deleted, which whoever evicts it may choose, says when the kubelet
kills it.
Sources: Kubernetes, "Pod Lifecycle", "API-initiated Eviction", "Node Shutdowns" (from memory, 2026-11).
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
"""The file in the node's directory that process 1 writes at SIGTERM: the machine's uptime then."""
UPTIME: Final = Path("/proc/uptime")
GRACE: Final = "CLOUDSPOT_POD_GRACE"
NODE: Final = "CLOUDSPOT_POD_NODE"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_SECONDS: Final = 3.0
MAX_ANSWER_BYTES: Final = 8 << 20
"""A pod or a node is read, of which etcd stores 1.5 MiB at the most."""
TAINT_SECONDS: Final = 5.0
"""How often a node's taints are read."""
UID_LENGTH: Final = 8
MAX_GRACE_SECONDS: Final = 1e9
MAX_UPTIME_SECONDS: Final = 1e10

TAINTS: Final[Mapping[str, str]] = {
    "aws-node-termination-handler/spot-itn": "AWS's node termination handler: the spot interruption notice",
    "aws-node-termination-handler/asg-lifecycle-termination": "the same: the group ends the machine",
    "karpenter.sh/disrupted": "Karpenter 1.0 and later: it drains the node",
    "karpenter.sh/disruption": "Karpenter before 1.0",
    "cloud.google.com/impending-node-termination": "GKE: graceful termination of the node",
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler drains the node",
    "node.kubernetes.io/out-of-service": "an administrator: the node is gone",
}
"""Taints that say that a node is to go, by key. From the projects' documentation, by memory: none of them was
proved on a real cluster."""

# Below the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.kubernetes.notice")


class _Names(NamedTuple):
    """The environment variables by which a pod learns who it is, by the downward API."""

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
    """Return a pod's id: its name, and what tells it from a later one of that name."""
    return f"{name}.{uid[:UID_LENGTH]}"


def node_identity() -> NodeIdentity:
    """Return who this pod is.

    Raises:
        TransientError: this is no pod of cloudspot's, or it has no address.
    """
    facts = {name: os.environ.get(getattr(POD, name), "") for name in POD._fields}
    for name in ("name", "uid", "rank", "address"):
        if not facts[name]:
            raise TransientError(f"the pod does not know its {name}: {getattr(POD, name)} is not set")
    rank = whole_number(facts["rank"], most=MAX_NODES - 1)
    market = next((one for one in Market if one.value == facts["market"]), None)
    if rank is None or (facts["market"] and market is None):
        raise TransientError(f"the pod says rank {facts['rank'][:40]!r} and market {facts['market'][:40]!r}")
    return NodeIdentity(
        instance_id=instance_id(facts["name"], facts["uid"]),
        rank=rank,
        address=facts["address"],
        zone=facts["zone"] or None,
        instance_type=facts["type"] or None,
        market=market,
    )


class PodApi:
    """The API server, as the pod's service account may ask it."""

    def read(self, path: str) -> Any:
        """Return the object at the path.

        Raises:
            OSError: there is no service account, no answer, or a refusal.
            ValueError: the answer cannot be read.
        """
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        # Read each time: the kubelet renews it.
        token = (SERVICE_ACCOUNT / "token").read_text(encoding="ascii").strip()
        request = urllib.request.Request(  # the scheme is ours
            f"https://{f'[{host}]' if ':' in host else host}:{port}{path}",
            headers={"Authorization": f"Bearer {token}"},
        )
        context = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
        handlers = (
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            NoRedirects(),  # it would get the token
        )
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_SECONDS) as answer:
            return json.loads(answer.read(MAX_ANSWER_BYTES))


class PodNoticeSource(PreemptionSource):
    """Looks for the file that process 1 leaves at SIGTERM and, where asked to, at the node's taints."""

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
        """Take times in seconds: the pod's grace period, and that of a node that shuts down."""
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
        """Return the notice of the pod's end, or else of its node's."""
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
        except FileNotFoundError:  # no token is in the pod
            return self._ends(begun, self._shutdown_grace, "SIGTERM")
        except (OSError, *UNREADABLE) as error:
            _log.warning(
                "this pod is ended, and when cannot be read (%s): it counts on %g s",
                _why(error),
                self._shutdown_grace,
            )
            return self._ends(begun, self._shutdown_grace, "SIGTERM")
        if "deletionTimestamp" not in metadata:
            # Nobody has deleted it: its node shuts down.
            return self._ends(begun, self._shutdown_grace, "node-shutdown")
        # What it is given counts from the SIGTERM, which came at once.
        return self._ends(begun, float(metadata.get("deletionGracePeriodSeconds") or 0), "eviction")

    def _begun(self) -> float:
        """Return when process 1 got its SIGTERM (monotonic); every process of the pod finds the same."""
        now = time.monotonic()
        # The uptime also counts sleep, and may be the container's alone.
        ahead = round(now - float(UPTIME.read_text(encoding="ascii").split()[0]))
        with self._file.open("rb") as file:  # which the training may have written
            said = number(file.read(MAX_DIGITS).decode("ascii", errors="replace"), most=MAX_UPTIME_SECONDS)
        return now if said is None else min(now, said + ahead)

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
                raise TransientError(f"the node's taints: {_why(error)}") from error
            _log.warning("the node's taints cannot be read (%s): they are not watched", _why(error))
            self._watches_taints = False
            return None
        except (OSError, *UNREADABLE) as error:
            raise TransientError(f"the node's taints: {_why(error)}") from error
        found = next((key for key in keys if key in TAINTS), None)
        return None if found is None else PreemptionNotice(deadline=None, source=f"taint {found}")


def _why(error: Exception) -> str:
    return f"HTTP status {error.code}" if isinstance(error, HTTPError) else f"{type(error).__name__}: {error}"
