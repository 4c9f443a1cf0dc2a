"""Turns a pod into ours: its job, its state, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from cloudspot.decoding import MAX_NODES, whole_number
from cloudspot.model import EndReason, Instance, InstanceState, Market
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import moment
from cloudspot_kubernetes.notice import instance_id
from cloudspot_kubernetes.podspec import ENDED_BY_US, MARKET, RANK, TYPE, ZONE

_TAKEN: Final = frozenset({"Evicted", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})
"""Reasons of a failed pod whose node took it: node pressure, a graceful node shutdown, preemption."""


def to_instance(pod: Mapping[str, Any]) -> Instance:
    """Return the machine that a pod with cloudspot's labels is."""
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
    )


def state_of(pod: Mapping[str, Any]) -> InstanceState:
    """Return the pod's state. ENDED only if its containers are known to run no more.

    A pod that has ended is Succeeded or Failed. Kubelets before 1.27 leave a deleted one Running, and report
    its containers as terminated.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    if status.get("phase") in {"Succeeded", "Failed"}:
        return InstanceState.ENDED
    if metadata.get("deletionTimestamp"):
        has_stopped = bool(containers) and all("terminated" in one.get("state", {}) for one in containers)
        return InstanceState.ENDED if has_stopped else InstanceState.SHUTTING_DOWN
    return InstanceState.PENDING if status.get("phase") == "Pending" else InstanceState.RUNNING


def was_scheduled(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod ever had a node."""
    return bool(pod["spec"].get("nodeName"))


def parse_time(text: str | None) -> datetime | None:
    """Return a time of the API's, ``2026-11-20T08:30:00Z``; None: it is not one."""
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


def _ended_at(pod: Mapping[str, Any]) -> datetime | None:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    stopped = [one.get("state", {}).get("terminated", {}).get("finishedAt") for one in containers]
    times = [parse_time(one) for one in stopped if one]
    return max((one for one in times if one), default=parse_time(pod["metadata"].get("deletionTimestamp")))
