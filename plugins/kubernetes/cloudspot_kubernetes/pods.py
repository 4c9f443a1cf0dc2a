"""Creates, lists and ends the pods of a namespace: a pod is a machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http import HTTPStatus
from typing import Any, Final

from cloudspot.errors import CapacityError, ProvisionError, TransientError
from cloudspot.interfaces import Provisioner
from cloudspot.model import Instance, InstanceGroup, InstanceState, LaunchRequest, Market, Offer, Resources
from cloudspot.plugin import machinetags
from cloudspot.plugin.launchrequests import decode_request
from cloudspot.plugin.machinetypes import MachineType
from cloudspot_kubernetes import podspec
from cloudspot_kubernetes.cluster import Cluster, Refusal, translated
from cloudspot_kubernetes.listing import state_of, to_instance, was_scheduled
from cloudspot_kubernetes.options import ANY_ZONE, KubernetesOptions, require_complete
from cloudspot_kubernetes.podspec import ENDED_BY_US, FINALIZER, REQUEST, TOKEN, PodsRequest

KEPT: Final = timedelta(hours=24)
"""How long the record of a pod that has ended is kept, unless the job is released before."""
VERDICT_SECONDS: Final = 30.0
"""How long to wait for the scheduler's first word."""
POLL_SECONDS: Final = 0.2
GONE_SECONDS: Final = 10.0
"""How long a refused launch waits for the end of pods that had begun."""
TERMINATE_SECONDS: Final = 1
"""The grace of a pod that cloudspot ends. Not 0, which would take the pod for gone before it is."""

Pod = Mapping[str, Any]


class PodProvisioner(Provisioner):
    """The machines of one namespace. Thread-safe; asks nothing before it is asked."""

    token_seconds = KEPT.total_seconds()
    absence_proves_after_seconds = 60.0
    """A pod is in the API until its end is recorded; who is absent was removed by force."""

    def __init__(
        self,
        options: KubernetesOptions,
        cluster: Cluster,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep the job's options."""
        self._options = options
        self._cluster = cluster
        self._sleep = sleep
        self._monotonic = monotonic

    def render(self, group: InstanceGroup) -> LaunchRequest:
        """Return the pods of the launch; see Provisioner."""
        require_complete(self._options)
        return podspec.render(group, self._options, namespace=self._cluster.namespace)

    def create(self, request: LaunchRequest, *, token: str) -> Sequence[Instance]:
        """Create the pods, wait for the scheduler's verdict, and return those that have a node.

        A pod that finds no node is a launch that finds no capacity: after ``capacity_wait`` those without one
        are deleted, and all of them if fewer than ``min_nodes`` have one.

        Raises:
            TransientError: the API server or the scheduler did not answer; the pods may be there.
        """
        body = decode_request(request, PodsRequest)
        wanted = podspec.pods_of(body, token)
        path, selector = _path(body.namespace), f"{TOKEN}={podspec.token_digest(token)}"
        with _meaning("creating the pods"):
            found = self._of_token(path, selector, wanted)
            if not any(_is_refused(pod) for pod in found.values()):
                self._add_missing(path, wanted, found)
            pods = self._await_verdict(body, path, selector, wanted)
            self._forget_old()
            return [to_instance(pod, now=_now()) for pod in pods]

    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Annotate the pods; see Provisioner."""
        with _meaning("annotating the pods"):
            for pod in self._found([one.id for one in instances]):
                self._patch(pod, {"annotations": dict(facts)})

    def instances(self, *, job_id: str | None = None) -> Sequence[Instance]:
        """Return the pods, those that have ended included, but none that never found a node.

        Raises:
            TransientError: the listing failed; nothing is known.
        """
        now = _now()
        with _meaning("listing the pods"):
            return [to_instance(pod, now=now) for pod in self._list(job_id) if not _is_refused(pod)]

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Delete the pods, and mark them so that nobody takes it for an eviction; see Provisioner."""
        with _meaning("deleting the pods"):
            for pod in self._found(instance_ids):
                if state_of(pod, now=_now()) is not InstanceState.ENDED:
                    self._patch(pod, {"annotations": {ENDED_BY_US: "true"}})
                    self._delete(pod, seconds=TERMINATE_SECONDS)

    def evict(self, instance_id: str, *, seconds: float | None) -> bool:
        """Delete a pod as an eviction does; return whether there is one. None: with its own grace period."""
        with _meaning("deleting the pod"):
            for pod in self._found([instance_id]):
                self._delete(pod, seconds=None if seconds is None else round(seconds))
                return True
        return False

    def console(self, instance: Instance) -> str:
        """Return the container's log; see Provisioner."""
        path = f"{_path(self._cluster.namespace)}/{instance.id.rpartition('.')[0]}/log"
        try:
            text: str = self._cluster.request("GET", path, query={"limitBytes": "100000"}, is_text=True)
        except Refusal as refusal:
            if refusal.status == HTTPStatus.NOT_FOUND:
                return ""
            if refusal.status == HTTPStatus.BAD_REQUEST:
                return f"{refusal}\n"  # why it has not started, such as an image that cannot be pulled
            raise translated(refusal, "reading the pod's log") from refusal
        return text

    def release(self, job_id: str, *, store_url: str = "") -> None:
        """Remove the records of the job's pods; see Provisioner.

        Raises:
            TransientError: one has not ended yet; call again.
        """
        now = _now()
        with _meaning("removing the records"):
            for pod in self._list(job_id):
                notes = pod["metadata"].get("annotations") or {}
                if store_url and notes.get(machinetags.STORE, "") not in {"", store_url}:
                    continue
                if state_of(pod, now=now) is not InstanceState.ENDED:
                    raise TransientError(f"pod {pod['metadata']['name']} has not ended yet")
                self._remove(pod)

    def offers(self, resources: Resources) -> Sequence[Offer]:
        """Return the types of the options that fit, in each zone, on each market for which they have a price.

        Raises:
            SpecError: the options name no image or no type.
        """
        options = self._options
        require_complete(options)
        found = []
        for name, kind in options.types.items():
            machine = MachineType(
                name=name,
                cpus=kind.cpus,
                memory_bytes=kind.memory,
                accelerator=kind.accelerator,
                accelerator_count=kind.accelerator_count,
            )
            prices = {Market.SPOT: kind.spot_price, Market.ON_DEMAND: kind.on_demand_price}
            usual = next(price for price in reversed(prices.values()) if price is not None)
            found += [
                Offer(
                    instance_type=name,
                    zone=zone,
                    market=market,
                    price_per_hour=price,
                    on_demand_price_per_hour=usual,
                    currency=options.currency,
                )
                for zone in options.zones or (ANY_ZONE,)
                for market, price in prices.items()
                if price is not None and machine.fits(resources)
            ]
        return found

    def _list(self, job_id: str | None) -> Iterator[Pod]:
        selector = machinetags.JOB if job_id is None else f"{machinetags.JOB}={job_id}"
        return self._cluster.list(_path(self._cluster.namespace), selector=selector)

    def _found(self, instance_ids: Iterable[str]) -> Iterator[Pod]:
        wanted, now = set(instance_ids), _now()
        for pod in tuple(self._list(None)) if wanted else ():
            if to_instance(pod, now=now).id in wanted:
                yield pod

    def _forget_old(self) -> None:
        """Remove the records of pods that ended long ago, whosever they are."""
        now = _now()
        for pod in tuple(self._list(None)):
            ended_at = to_instance(pod, now=now).ended_at
            if ended_at is not None and now - ended_at > KEPT:
                self._remove(pod)

    def _of_token(self, path: str, selector: str, wanted: Sequence[Pod]) -> dict[str, Pod]:
        """Return the pods that this token has made, by name."""
        found = {pod["metadata"]["name"]: pod for pod in self._cluster.list(path, selector=selector)}
        request = wanted[0]["metadata"]["annotations"][REQUEST]
        for pod in found.values():
            if (pod["metadata"].get("annotations") or {}).get(REQUEST) != request:
                raise ProvisionError("the token was used before with another request")
        return found

    def _add_missing(self, path: str, wanted: Sequence[Pod], found: Mapping[str, Pod]) -> None:
        for pod in wanted:
            if pod["metadata"]["name"] in found:
                continue
            try:
                self._cluster.request("POST", path, pod)
            except Refusal as refusal:
                if refusal.reason == "AlreadyExists":  # our own earlier try, or another driver's
                    continue
                meaning = translated(refusal, "creating the pods")
                if not isinstance(meaning, TransientError):
                    self._drop(path, pod["metadata"]["labels"][TOKEN])
                raise meaning from refusal

    def _await_verdict(
        self, body: PodsRequest, path: str, selector: str, wanted: Sequence[Pod]
    ) -> Sequence[Pod]:
        began = self._monotonic()
        while True:
            found = self._of_token(path, selector, wanted)
            placed = [pod for pod in found.values() if was_scheduled(pod)]
            refused = [pod for pod in found.values() if _is_refused(pod)]
            waiting = len(found) - len(placed) - len(refused)
            waited = self._monotonic() - began
            if not waiting and not refused and len(found) == len(wanted):
                return sorted(placed, key=_rank)
            silent = [pod for pod in found.values() if not was_scheduled(pod) and not _verdict(pod)]
            if refused or len(found) < len(wanted) or (waited >= body.capacity_wait and not silent):
                # Decided: now, before the last driver was killed, or by another one.
                settled = self._settle(body, path, found)
                if settled is not None:
                    return settled
            if waited >= max(body.capacity_wait, VERDICT_SECONDS):
                raise TransientError(
                    f"the scheduler has not looked at pod {silent[0]['metadata']['name']} yet"
                )
            self._sleep(POLL_SECONDS)

    def _settle(self, body: PodsRequest, path: str, found: Mapping[str, Pod]) -> Sequence[Pod] | None:
        """Delete the pods without a node; return the others, if there are enough. None: look again."""
        why = next((text for pod in found.values() if (text := _verdict(pod))), "another driver gave it up")
        for pod in found.values():
            if not was_scheduled(pod) and not _is_refused(pod):
                # Unless it got a node in this moment.
                self._delete(pod, seconds=None, is_unchanged=True)
        token = next((pod["metadata"]["labels"][TOKEN] for pod in found.values()), "")
        left = {pod["metadata"]["name"]: pod for pod in self._cluster.list(path, selector=f"{TOKEN}={token}")}
        placed = sorted((pod for pod in left.values() if was_scheduled(pod)), key=_rank)
        if any(not was_scheduled(pod) and not _is_refused(pod) for pod in left.values()):
            return None
        if len(placed) >= body.min_nodes:
            return placed
        self._drop(path, token)
        raise CapacityError(f"{body.namespace} has no room for {body.num_nodes} pods now: {why}")

    def _drop(self, path: str, token: str) -> None:
        """End all pods of the token; of those that never ran, nothing is left."""
        for pod in list(self._cluster.list(path, selector=f"{TOKEN}={token}")):
            self._patch(pod, {"annotations": {ENDED_BY_US: "true"}})
            self._delete(pod, seconds=TERMINATE_SECONDS)
        end = self._monotonic() + GONE_SECONDS
        while left := list(self._cluster.list(path, selector=f"{TOKEN}={token}")):
            for pod in left:
                self._remove(pod)
            if self._monotonic() >= end:
                return  # its node is silent
            self._sleep(POLL_SECONDS)

    def _delete(self, pod: Pod, *, seconds: int | None, is_unchanged: bool = False) -> None:
        metadata = pod["metadata"]
        conditions = {"uid": metadata["uid"]}
        if is_unchanged:
            conditions["resourceVersion"] = metadata["resourceVersion"]
        options: dict[str, Any] = {"preconditions": conditions}
        if seconds is not None:
            options["gracePeriodSeconds"] = seconds
        self._unless_gone("DELETE", pod, options)

    def _remove(self, pod: Pod) -> None:
        """Remove the record: of a pod that has ended, or that is not waited for."""
        others = [one for one in pod["metadata"].get("finalizers") or () if one != FINALIZER]
        if len(others) != len(pod["metadata"].get("finalizers") or ()):
            self._patch(pod, {"finalizers": others})
        if not pod["metadata"].get("deletionTimestamp"):
            self._delete(pod, seconds=0)

    def _patch(self, pod: Pod, metadata: Mapping[str, Any]) -> None:
        self._unless_gone("PATCH", pod, {"metadata": {"uid": pod["metadata"]["uid"], **metadata}})

    def _unless_gone(self, method: str, pod: Pod, body: Mapping[str, Any]) -> None:
        """Make the request for this very pod; that it no longer exists, or is another by now, is no error."""
        metadata = pod["metadata"]
        try:
            self._cluster.request(method, f"{_path(metadata['namespace'])}/{metadata['name']}", body)
        except Refusal as refusal:
            if refusal.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise


@contextmanager
def _meaning(what: str) -> Iterator[None]:
    """Raise refusals as cloudspot's errors."""
    try:
        yield
    except Refusal as refusal:
        raise translated(refusal, what) from refusal


def _is_refused(pod: Pod) -> bool:
    """Return whether the pod was deleted before it had a node: it never was a machine."""
    return bool(pod["metadata"].get("deletionTimestamp")) and not was_scheduled(pod)


def _verdict(pod: Pod) -> str:
    """Return why the scheduler finds no node for the pod; empty: it has not said so."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "unschedulable")
    return ""


def _rank(pod: Pod) -> int:
    return int(pod["metadata"]["labels"][podspec.RANK])


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _now() -> datetime:
    return datetime.now(timezone.utc)
