"""The nodes of an emulated cluster, with a kubelet that runs each pod as a machine of this host."""

from __future__ import annotations

import base64
import logging
import math
import re
import shlex
import socketserver
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final
from urllib.error import HTTPError

from cloudspot.emulation.cloud import (
    Answer,
    EmulatedMachine,
    JobHint,
    MachineHost,
    MachineStatus,
    MetadataService,
    Request,
)
from cloudspot.local.machines import now_utc
from cloudspot.model import EndReason, InstanceState, Market
from cloudspot_kubernetes_sandbox.controlplane import ControlPlane

_log = logging.getLogger(__name__)

SPOT_LABEL: Final = ("karpenter.sh/capacity-type", "spot")
"""Karpenter's label of spot nodes."""
SPOT_TAINT: Final = "spot"
"""The key of the emulated spot nodes' taint."""
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
LOOK_SECONDS: Final = 0.2
BEAT_SECONDS: Final = 5.0
_EXITED: Final = "kubelet: the container exited with "
_ACCOUNT: Final = "/run/secrets/kubernetes.io/serviceaccount"
_STOP: Final = "stop"
_KILLED: Final = 137
_KEPT: Final = (
    *("PATH", "PYTHONPATH", "LANG", "HOME", "PIP_INDEX_URL", "PIP_TRUSTED_HOST"),
    *("CLOUDSPOT_CORES", "CLOUDSPOT_MACHINE"),
)
"""The variables that a pod gets from its machine's environment."""
_RUN: Final = """\
#!/bin/bash
# The container's process 1, and beside it a process that signals it for the kubelet.
{files}cd /
setsid env -i {environment} {command} &
container=$!
(until curl -sf -o /dev/null "http://169.254.169.254/stop"; do :; done; kill -TERM "$container") 2>/dev/null &
wait "$container"
echo "{exited}$?"
exec shutdown -h now
"""


_CPU_STEPS: Final = ((1.0, 0.06), (1.0, 0.01), (2.0, 0.005), (math.inf, 0.0025))
_MEMORY_STEPS: Final = ((4.0, 0.25), (4.0, 0.2), (8.0, 0.1), (112.0, 0.06), (math.inf, 0.02))
"""The shares that a node reserves for its system: of its first CPUs or GiB, of the next ones, and so on."""
_EVICTION_MIB: Final = 100.0
UNKNOWN_EXIT = 137
"""The exit status that a kubelet reports for a container whose end it has not seen."""


@dataclass(frozen=True)
class NodeSpec:
    """A node's machine. Pods get less than the machine's resources; see ``allocatable``."""

    name: str
    zone: str = "zone-a"
    is_spot: bool = True
    cpus: int = 8
    memory_gib: int = 32
    accelerators: int = 0


def allocatable(node: NodeSpec) -> dict[str, str]:
    """Return the node's resources for pods, in the form that a kubelet reports.

    Source: Google Kubernetes Engine, "Plan node sizes"; EKS does the same for CPUs (from memory, 2026-11).
    """
    return _room(
        node,
        millicpus=1000 * (node.cpus - _kept_back(node.cpus, _CPU_STEPS)),
        memory_mib=1024 * (node.memory_gib - _kept_back(node.memory_gib, _MEMORY_STEPS)) - _EVICTION_MIB,
    )


def _room(node: NodeSpec, *, millicpus: float, memory_mib: float) -> dict[str, str]:
    room = {"cpu": f"{int(millicpus)}m", "memory": f"{int(memory_mib)}Mi", "pods": "110"}
    return {**room, "nvidia.com/gpu": str(node.accelerators)} if node.accelerators else room


def _kept_back(amount: float, steps: Sequence[tuple[float, float]]) -> float:
    kept = 0.0
    for width, share in steps:
        kept += share * min(amount, width)
        amount -= min(amount, width)
    return kept


@dataclass
class _Run:
    """A pod that this kubelet runs."""

    address: str
    begun_at: datetime
    stop_at: float | None = None
    """When to kill the pod (monotonic)."""
    shown: str = ""
    """The status that the API server shows."""
    is_evicted: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


class PodMetadata(MetadataService):
    """Supplies a machine with its pod's command and the order to stop; a real cluster has no such service."""

    server_version: ClassVar[str] = "kubelet"

    def answer(self, request: Request) -> Answer:
        """Answer at once; a request about the order to stop waits for a while."""
        if request.path == "/run":
            return Answer(200, self.view.user_data)
        if request.path == f"/{_STOP}" and (_STOP in self.view.tags or self.view.wait_for_change(20.0)):
            return Answer(200 if _STOP in self.view.tags else 404)
        return Answer(404)


class Kubelet:
    """The kubelets of all nodes, which run in a thread of their own until ``close``."""

    def __init__(
        self,
        plane: ControlPlane,
        host: MachineHost,
        nodes: tuple[NodeSpec, ...],
        *,
        contrary: frozenset[str] = frozenset(),
    ) -> None:
        """Register the nodes and start."""
        self._contrary = contrary
        self._plane = plane
        self._host = host
        self._runs: dict[str, _Run] = {}
        self._failed: set[str] = set()
        """The nodes whose kubelet is dead."""
        self._nodes = {one.name: one for one in nodes}
        self._is_over = threading.Event()
        self._consoles = _Consoles((plane.address, 0), _Handler)
        self._consoles.kubelet = self
        self._consoles.socket = plane.server_context().wrap_socket(self._consoles.socket, server_side=True)
        threading.Thread(target=self._consoles.serve_forever, name="consoles", daemon=True).start()
        for one in nodes:
            self._register(one)
        self._threads = [
            threading.Thread(target=self._repeat, args=(job, seconds), name="kubelet", daemon=True)
            for job, seconds in ((self._look, LOOK_SECONDS), (self._beat, BEAT_SECONDS))
        ]
        for thread in self._threads:
            thread.start()

    def fail_node(self, name: str) -> None:
        """Cut the node off: its machines end at once, and its kubelet reports nothing any more."""
        self._failed.add(name)
        for pod in self._pods():
            if pod["spec"]["nodeName"] == name:
                self._host.terminate(pod["metadata"]["uid"])

    def close(self) -> None:
        """Stop; the host ends the machines."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._consoles.shutdown()
        self._consoles.server_close()

    def console(self, namespace: str, name: str) -> str | None:
        """Return the output of the pod's container, or None if no kubelet here runs such a pod."""
        for pod in self._pods():
            if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name):
                return self._host.console(pod["metadata"]["uid"])
        return None

    def _repeat(self, job: Any, seconds: float) -> None:
        while not self._is_over.wait(seconds):
            try:
                job()
            except OSError as error:  # the API server is down, or another writer was faster
                _log.info("kubelet: %s", error)

    def _register(self, node: NodeSpec) -> None:
        labels = {"kubernetes.io/hostname": node.name, ZONE_LABEL: node.zone}
        spec: dict[str, Any] = {}
        if node.is_spot:
            labels.update([SPOT_LABEL])
            spec["taints"] = [{"key": SPOT_TAINT, "value": "true", "effect": "NoSchedule"}]
        metadata = {"name": node.name, "labels": labels}
        self._plane.request("POST", "/api/v1/nodes", {"metadata": metadata, "spec": spec})
        self._report_node(node)

    def _beat(self) -> None:
        for node in self._nodes.values():
            if node.name not in self._failed:
                # Each node has its own kubelet, so an error for a deleted node must not keep others from
                # reporting.
                with suppress(OSError):
                    self._report_node(node)

    def _report_node(self, node: NodeSpec) -> None:
        at = _written(now_utc())
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "an emulated node",
        }
        condition |= {"lastHeartbeatTime": at, "lastTransitionTime": at}
        status: dict[str, Any] = {
            "capacity": _room(node, millicpus=1000 * node.cpus, memory_mib=1024 * node.memory_gib),
            "allocatable": allocatable(node),
            "conditions": [condition],
        }
        status["addresses"] = [{"type": "InternalIP", "address": self._plane.address}]
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": self._consoles.server_address[1]}}
        self._plane.patch(f"/api/v1/nodes/{node.name}/status", {"status": status})

    def _pods(self) -> list[Mapping[str, Any]]:
        pods = self._plane.get("/api/v1/pods?resourceVersion=0")["items"]
        return [pod for pod in pods if pod["spec"].get("nodeName") in self._nodes]

    def _look(self) -> None:
        """Bring each pod one step closer to its wanted state."""
        states, pods = self._host.states(), self._pods()
        for pod in pods:
            if pod["spec"]["nodeName"] not in self._failed:
                with suppress(OSError):
                    self._tend(pod, states.get(pod["metadata"]["uid"]))
        # Pods that were removed by force are stopped too.
        for uid in self._runs.keys() - {pod["metadata"]["uid"] for pod in pods}:
            self._host.terminate(uid)

    def _tend(self, pod: Mapping[str, Any], state: MachineStatus | None) -> None:
        metadata, phase = pod["metadata"], pod["status"].get("phase")
        uid = metadata["uid"]
        if phase in {"Succeeded", "Failed"}:
            if metadata.get("deletionTimestamp") and metadata.get("deletionGracePeriodSeconds"):
                self._confirm(pod)
            return
        run = self._runs.get(uid)
        if run is None:
            if not metadata.get("deletionTimestamp"):
                self._begin(pod)
            else:
                self._report(pod, _Run("", now_utc()), phase="Failed")
            return
        self._stop_if_asked(pod, run, state)
        if state is None or state.state is InstanceState.PENDING:
            return
        if state.state is not InstanceState.ENDED:
            self._report(pod, run, phase="Running", state={"running": {"startedAt": _written(run.begun_at)}})
            return
        is_lost = "exit-code-lost" in self._contrary
        code = UNKNOWN_EXIT if is_lost else self._exit_code(uid)
        ended = {"exitCode": code, "startedAt": _written(run.begun_at), "finishedAt": _written(now_utc())}
        ended["reason"] = "ContainerStatusUnknown" if is_lost else "Error" if code else "Completed"
        is_gone = state.end_reason in {EndReason.RECLAIMED, EndReason.LOST} and not run.stop_at
        reason = "Terminated" if is_gone else ""
        self._report(
            pod, run, phase="Failed" if code else "Succeeded", state={"terminated": ended}, reason=reason
        )

    def _begin(self, pod: Mapping[str, Any]) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        address = self._host.allocate_address()
        run = _Run(address, now_utc())
        try:
            script, shared = self._script(pod, address)
        except (HTTPError, NotImplementedError) as error:
            self._report(pod, run, phase="Failed", reason="CreateContainerConfigError", message=str(error))
            return
        labels = metadata.get("labels") or {}
        tags = {**(metadata.get("annotations") or {}), **labels}
        is_spot = self._nodes[spec["nodeName"]].is_spot
        self._runs[metadata["uid"]] = run
        self._host.start(
            EmulatedMachine(
                id=metadata["uid"],
                address=address,
                host_name=metadata["name"],
                user_data=script.encode(),
                market=Market.SPOT if is_spot else Market.ON_DEMAND,
                notice_seconds=float(spec["terminationGracePeriodSeconds"]),
                shared=shared,
                job=JobHint.of_tags(tags, rank=int(labels.get("cloudspot-rank", 0))),
            )
        )

    def _stop_if_asked(self, pod: Mapping[str, Any], run: _Run, state: MachineStatus | None) -> None:
        """Send SIGTERM when the pod is deleted, and kill it after its grace period."""
        metadata, spec, now = pod["metadata"], pod["spec"], time.monotonic()
        deadline = None if state is None else state.notice_deadline
        if deadline is not None and not metadata.get("deletionTimestamp") and not run.is_evicted:
            # The host reclaims the machine, so the cluster's operator drains its node in the time that is
            # left.
            run.is_evicted = True
            self._evict(pod, seconds=max(1, int((deadline - now_utc()).total_seconds())))
        limit = spec.get("activeDeadlineSeconds")
        is_late = limit is not None and now_utc() - run.begun_at > timedelta(seconds=limit)
        if metadata.get("deletionTimestamp") or is_late:
            grace = float(metadata.get("deletionGracePeriodSeconds", spec["terminationGracePeriodSeconds"]))
            if "grace-cut" in self._contrary:
                grace = 0.0
            self._host.set_tags(metadata["uid"], {_STOP: "1"})
            if is_late and not metadata.get("deletionTimestamp"):
                run.extra = {"reason": "DeadlineExceeded"}
            run.stop_at = min(run.stop_at or now + grace, now + grace)
        if run.stop_at is not None and now >= run.stop_at:
            self._host.terminate(metadata["uid"])

    def _script(self, pod: Mapping[str, Any], address: str) -> tuple[str, dict[str, str]]:
        """Return the script of a pod's machine, and the directories that it shares with others.

        Raises:
            NotImplementedError: the pod uses a feature that this kubelet does not have.
            HTTPError: a secret or a claim is missing.
        """
        (container,) = pod["spec"]["containers"]
        mounts = {one["name"]: one["mountPath"] for one in container.get("volumeMounts") or ()}
        files, shared = "", {}
        for volume in pod["spec"].get("volumes") or ():
            path = mounts.get(volume["name"], "")
            if path == f"/var{_ACCOUNT}":
                files = self._account_files(pod, volume)
            elif "persistentVolumeClaim" in volume:
                shared[path] = self._claimed(pod, volume["persistentVolumeClaim"]["claimName"])
            elif "emptyDir" not in volume:
                raise NotImplementedError(f"this kubelet does not support volumes such as {volume['name']}")
            elif path not in {"/dev/shm", "/var/lib/cloudspot"}:  # noqa: S108 # each machine has its own
                files += f"mkdir -p {shlex.quote(path)}\n"
        variables = {
            "KUBERNETES_SERVICE_HOST": self._plane.url.partition("//")[2].rpartition(":")[0],
            "KUBERNETES_SERVICE_PORT": str(self._plane.port),
        }
        for source in container.get("envFrom") or ():
            secret = self._secret(pod, source["secretRef"]["name"])
            variables |= {name: base64.b64decode(value).decode() for name, value in secret.items()}
        for one in container.get("env") or ():
            variables[one["name"]] = self._value(pod, one, address)
        command = [_expand(text, variables) for text in (*container["command"], *container.get("args", ()))]
        # Here, an image's own variables, such as PATH, are those of the machine.
        assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        kept = [f'{name}="${{{name}-}}"' for name in _KEPT]
        return (
            _RUN.format(
                files=files,
                environment=" ".join([*kept, *assignments]),
                command=shlex.join(command),
                exited=_EXITED,
            ),
            shared,
        )

    def _account_files(self, pod: Mapping[str, Any], volume: Mapping[str, Any]) -> str:
        """Return the shell commands that write the service account's token."""
        lines = f"mkdir -p {_ACCOUNT}\n"
        for name, value in self._secret(pod, volume["secret"]["secretName"]).items():
            lines += f"base64 -d >{_ACCOUNT}/{shlex.quote(name)} <<<{value}\n"
        return lines

    def _secret(self, pod: Mapping[str, Any], name: str) -> Mapping[str, str]:
        secret = self._plane.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/secrets/{name}")
        return dict(secret.get("data") or {})

    def _claimed(self, pod: Mapping[str, Any], name: str) -> str:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/persistentvolumeclaims/{name}"
        volume = self._plane.get(path)["spec"]["volumeName"]
        return str(self._plane.get(f"/api/v1/persistentvolumes/{volume}")["spec"]["hostPath"]["path"])

    def _value(self, pod: Mapping[str, Any], entry: Mapping[str, Any], address: str) -> str:
        if "valueFrom" not in entry:
            return str(entry.get("value", ""))
        path = entry["valueFrom"]["fieldRef"]["fieldPath"]
        if path == "status.podIP":
            return address
        keyed = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
        if keyed:
            return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
        found: Any = pod
        for part in path.split("."):
            found = found[part]
        return str(found)

    def _report(
        self,
        pod: Mapping[str, Any],
        run: _Run,
        *,
        phase: str,
        state: Mapping[str, Any] | None = None,
        reason: str = "",
        message: str = "",
    ) -> None:
        """Report the pod's status to the API server if it has changed; confirm a deletion that is done."""
        is_ready = "True" if phase == "Running" else "False"
        status: dict[str, Any] = {
            "phase": phase,
            "podIP": run.address,
            "startTime": _written(run.begun_at),
            "containerStatuses": [],
            **run.extra,
        }
        if reason:
            status["reason"] = reason
        if message:
            status["message"] = message
        kept = [one for one in pod["status"].get("conditions") or () if one["type"] == "PodScheduled"]
        status["conditions"] = [*kept, {"type": "Ready", "status": is_ready}]
        if state is not None:
            container = pod["spec"]["containers"][0]
            known = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
            status["containerStatuses"] = [{**known, "ready": phase == "Running", "state": state}]
        if run.shown != phase:
            self._plane.patch(f"{_path(pod)}/status", {"status": status})
            run.shown = phase
        if phase in {"Succeeded", "Failed"} and pod["metadata"].get("deletionTimestamp"):
            self._confirm(pod)

    def _confirm(self, pod: Mapping[str, Any]) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._plane.request("DELETE", _path(pod), body)

    def _evict(self, pod: Mapping[str, Any], *, seconds: int) -> None:
        metadata = {name: pod["metadata"][name] for name in ("name", "namespace")}
        body: dict[str, Any] = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": metadata}
        body["deleteOptions"] = {"gracePeriodSeconds": seconds}
        self._plane.request("POST", f"{_path(pod)}/eviction", body)

    def _exit_code(self, uid: str) -> int:
        parts = self._host.console(uid).rpartition(_EXITED)[2].split()
        return (
            int(parts[0]) if parts and parts[0].isdigit() and _EXITED in self._host.console(uid) else _KILLED
        )


class _Consoles(ThreadingHTTPServer):
    daemon_threads = True
    kubelet: Kubelet

    def server_bind(self) -> None:
        # HTTPServer's own method looks up a name for the address, which may fail.
        socketserver.TCPServer.server_bind(self)


class _Handler(BaseHTTPRequestHandler):
    """Answers the API server's requests for ``kubectl logs``."""

    server: _Consoles

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].split("/")
        text = self.server.kubelet.console(*parts[2:4]) if parts[1] == "containerLogs" else None
        body = (text or "").encode()
        self.send_response(404 if text is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the base class's name
        _log.debug(format, *args)


def _path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _written(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand a word of a command as a kubelet does: $(NAME) is a variable, $$ is $."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^()$]*)\)", value, text)
