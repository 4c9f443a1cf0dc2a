"""Turns a pod into cloudspot's description of a machine: its job, its state, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from cloudspot.decoding import MAX_NODES, whole_number
from cloudspot.model import EndReason, Instance, InstanceState, Market
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import moment
from cloudspot_kubernetes.cluster import one_line
from cloudspot_kubernetes.notice import instance_id
from cloudspot_kubernetes.podspec import CONTAINER, ENDED_BY_US, MARKET, RANK, TYPE, ZONE

_TAKEN: Final = frozenset({"NodeShutdown", "Preempting", "Shutdown", "Terminated"})
"""The reasons of failed pods that were reclaimed: a graceful node shutdown, preemption. ``Evicted`` is not
among them: a kubelet gives this reason to a pod that has used up memory or disk, its own or the node's, as it
would on any node. A drain of a node deletes its pods.
"""
_USUAL: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""The reasons of a container that is waiting, but will start soon."""
_IMAGE: Final = frozenset(
    {
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""The reasons of a container that is waiting because its image cannot be pulled (kubelet,
pkg/kubelet/images/types.go).
"""
_OUT_OF_MEMORY: Final = "OOMKilled"


def to_instance(pod: Mapping[str, Any]) -> Instance:
    """Return the machine for a pod with cloudspot's labels."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    market = next((one for one in Market if one.value == notes.get(MARKET)), None)
    state = state_of(pod)
    is_going = state in {InstanceState.SHUTTING_DOWN, InstanceState.ENDED}
    return Instance(
        id=instance_id(metadata["name"], metadata["uid"]),
        state=state,
        job_id=labels.get(machinetags.JOB, ""),
        launch=machinetags.launch_of(labels),
        rank=whole_number(labels.get(RANK), most=MAX_NODES - 1),
        end_reason=_end_reason(pod, market) if is_going else None,
        address=status.get("podIP") or None,
        zone=notes.get(ZONE),
        instance_type=notes.get(TYPE),
        market=market,
        launched_at=parse_time(metadata.get("creationTimestamp")),
        ended_at=_ended_at(pod) if state is InstanceState.ENDED else None,
        store_url=notes.get(machinetags.STORE, ""),
        detail=detail_of(pod, state),
    )


def state_of(pod: Mapping[str, Any]) -> InstanceState:
    """Return the pod's state. The state is ENDED only if the pod's containers are known to have stopped.

    A pod that has ended is Succeeded or Failed. Kubelets before 1.27 leave a deleted pod in the phase
    Running, and report its containers as terminated.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    if status.get("phase") in {"Succeeded", "Failed"}:
        return InstanceState.ENDED
    if metadata.get("deletionTimestamp"):
        has_stopped = bool(containers) and all("terminated" in one.get("state", {}) for one in containers)
        return InstanceState.ENDED if has_stopped else InstanceState.SHUTTING_DOWN
    return InstanceState.PENDING if status.get("phase") == "Pending" else InstanceState.RUNNING


def detail_of(pod: Mapping[str, Any], state: InstanceState) -> str:
    """Return a line that says why the pod has ended or does not start; empty for usual reasons.

    Source: Kubernetes API reference, Pod v1 core: PodStatus, ContainerStateTerminated and
    ContainerStateWaiting; "Pod Lifecycle", container states (from memory, 2026-11).
    """
    if state is InstanceState.ENDED:
        return _why_ended(pod)
    return _why_waiting(pod) if state is InstanceState.PENDING else ""


def was_scheduled(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod ever had a node."""
    return bool(pod["spec"].get("nodeName"))


def parse_time(text: str | None) -> datetime | None:
    """Parse one of the API's times, ``2026-11-20T08:30:00Z``; return None if it is not a time."""
    return moment(text)


def _end_reason(pod: Mapping[str, Any], market: Market | None) -> EndReason:
    metadata, status = pod["metadata"], pod.get("status") or {}
    by_others = EndReason.RECLAIMED if market is Market.SPOT else EndReason.TERMINATED
    if ENDED_BY_US in (metadata.get("annotations") or {}):
        return EndReason.TERMINATED
    if metadata.get("deletionTimestamp"):
        return by_others
    reason = status.get("reason")
    if reason in _TAKEN:
        return by_others
    if reason == "DeadlineExceeded":
        return EndReason.TERMINATED
    if reason == "NodeLost":
        return EndReason.LOST
    return EndReason.SELF if status.get("phase") == "Succeeded" else EndReason.UNKNOWN


def _why_ended(pod: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    state = _own_state(pod, "terminated")
    reason, code = str(state.get("reason") or ""), state.get("exitCode")
    if reason == _OUT_OF_MEMORY:
        return _killed_for_memory(pod, code)
    if status.get("reason"):
        return one_line(": ".join(filter(None, (str(status["reason"]), str(status.get("message") or "")))))
    if not code or ENDED_BY_US in (pod["metadata"].get("annotations") or {}):
        return ""
    message = f": {state['message']}" if state.get("message") else ""
    return one_line(
        f"its container ended with exit status {code} ({reason or 'no reason is given'}){message}"
    )


def _killed_for_memory(pod: Mapping[str, Any], code: object) -> str:
    """Return the cause and advice for a container that the kernel has killed because of memory."""
    kind = (pod["metadata"].get("annotations") or {}).get(TYPE, "")
    resources = next((one.get("resources") or {} for one in pod["spec"]["containers"]), {})
    limit = (resources.get("limits") or {}).get("memory")
    field = f"providers.kubernetes.types.{kind}.memory"
    if limit is None:
        cause, advice = "its node had no memory left", f"set {field}, so that the scheduler keeps it free"
    else:
        shown = f"{int(limit) / 2**30:g} GiB" if str(limit).isdigit() else limit
        cause, advice = (
            f"it may use {shown}, with what is in /dev/shm",
            f"raise {field}, or let the job use less",
        )
    return one_line(f"killed for memory ({_OUT_OF_MEMORY}, exit status {code}): {cause}; {advice}")


def _why_waiting(pod: Mapping[str, Any]) -> str:
    state = _own_state(pod, "waiting")
    reason = str(state.get("reason") or "")
    if reason in _USUAL:
        return ""
    message = ": ".join(filter(None, (reason, str(state.get("message") or ""))))
    if reason not in _IMAGE:
        return one_line(f"its container cannot start ({message})")
    image = next((str(one.get("image")) for one in pod["spec"]["containers"]), "")
    advice = "correct providers.kubernetes.image or image_pull_secrets"
    return one_line(f"the image {image} cannot be pulled; {advice} ({message})")


def _own_state(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return this state of the node's container, or of a failed init container; empty if neither has it."""
    status = pod.get("status") or {}
    ours = [one for one in status.get("containerStatuses") or () if one.get("name") in {CONTAINER, None}]
    for one in (*(status.get("initContainerStatuses") or ()), *ours):
        state: Mapping[str, Any] = (one.get("state") or {}).get(kind) or {}
        if state and (one in ours or state.get("exitCode", 1)):
            return state
    return {}


def _ended_at(pod: Mapping[str, Any]) -> datetime | None:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    stopped = [one.get("state", {}).get("terminated", {}).get("finishedAt") for one in containers]
    times = [parse_time(one) for one in stopped if one]
    return max((one for one in times if one), default=parse_time(pod["metadata"].get("deletionTimestamp")))
