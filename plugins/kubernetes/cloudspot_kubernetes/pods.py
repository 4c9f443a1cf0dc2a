"""Creates, lists and ends the pods of a namespace: a pod is a machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, NoReturn

from cloudspot.calls import (
    CreateRequest,
    CreateResult,
    InstancesRequest,
    InstancesResult,
    OffersRequest,
    OffersResult,
    TerminateRequest,
    TerminateResult,
)
from cloudspot.decoding import EARLIEST
from cloudspot.errors import CapacityError, ProvisionError, QuotaError, TransientError
from cloudspot.interfaces import Provisioner
from cloudspot.model import Instance, InstanceGroup, InstanceState, LaunchRequest, Market, Offer
from cloudspot.plugin import machinetags
from cloudspot.plugin.answers import readable
from cloudspot.plugin.launchrequests import decode_request
from cloudspot.plugin.machinetypes import MachineType
from cloudspot.plugin.terminating import end_all
from cloudspot_kubernetes import podspec, quotas
from cloudspot_kubernetes.cluster import Cluster, Refusal, translated
from cloudspot_kubernetes.listing import state_of, to_instance, was_scheduled
from cloudspot_kubernetes.options import ANY_ZONE, KubernetesOptions, require_complete
from cloudspot_kubernetes.podspec import ENDED_BY_US, KEPT_MARK, REQUEST, TOKEN, PodsRequest

KEPT: Final = timedelta(hours=24)
"""How long a pod that has ended by itself is kept, unless the job is released earlier."""
VERDICT_SECONDS: Final = 30.0
"""How long to wait for the scheduler's first report."""
POLL_SECONDS: Final = 0.2
GONE_SECONDS: Final = 10.0
"""How long a refused launch waits until the pods that had started have ended."""
TERMINATE_SECONDS: Final = 1
"""The grace period of a pod that cloudspot ends, in seconds. If it were 0, the API would forget the pod
before it has ended.
"""

Pod = Mapping[str, Any]


class _Launch:
    """A launch's request and token, and the selector of its pods."""

    def __init__(self, body: PodsRequest, asked: CreateRequest) -> None:
        self.body = body
        self.asked = asked
        self.pods = podspec.pods_of(body, asked.token)
        self.path = _path(body.namespace)
        self.selector = f"{TOKEN}={podspec.token_digest(asked.token)}"
        self.request = self.pods[0]["metadata"]["annotations"][REQUEST]


class PodProvisioner(Provisioner):
    """The machines of one namespace. Thread-safe; construction does no I/O."""

    token_seconds = KEPT.total_seconds()
    absence_proves_after_seconds = 10.0
    """The API forgets a pod when its kubelet reports its end, when its node no longer exists, or when
    somebody deletes it by force because they know that it is not running.
    """

    def __init__(self, options: KubernetesOptions, cluster: Cluster) -> None:
        """Keep the job's options."""
        self._options = options
        self._cluster = cluster

    def render(self, group: InstanceGroup) -> LaunchRequest:
        """Return the pods of the launch; see Provisioner."""
        require_complete(self._options)
        return podspec.render(group, self._options, namespace=self._cluster.namespace)

    def create(self, request: CreateRequest) -> CreateResult:
        """Create the pods, wait for the scheduler's decision, and return those that have a node.

        A pod without a node has no capacity: such pods are deleted after ``capacity_wait``, and so are all
        pods of the launch if fewer than ``min_nodes`` have a node.

        Raises:
            TransientError: the API server or the scheduler did not answer; the pods may exist.
        """
        launch = _Launch(decode_request(request.request, PodsRequest), request)
        with _meaning("creating the pods"):
            pods = self._of(launch)
            if not _is_kept(pods):
                pods = self._made(launch, pods)
            self._forget_old(pods)
            found = (to_instance(pod) for pod in sorted(pods, key=_rank) if was_scheduled(pod))
            return CreateResult(instances=tuple(found))

    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Annotate the pods; see Provisioner."""
        with _meaning("annotating the pods"):
            for pod in self._found([one.id for one in instances]):
                self._patch(pod, {"annotations": dict(facts)})

    def instances(self, request: InstancesRequest) -> InstancesResult:
        """Return the pods, including those that ended by themselves, but not deleted ones after their end.

        Raises:
            TransientError: the listing failed.
        """
        with _meaning("listing the pods"):
            found = [to_instance(pod) for pod in self._list(request.job_id)]
        return InstancesResult(instances=tuple(filter(request.wants, found)))

    def terminate(self, request: TerminateRequest) -> TerminateResult:
        """Delete the pods, marked so that their end does not count as an eviction; see Provisioner."""
        with _meaning("deleting the pods"):
            pods = {
                to_instance(pod).id: pod
                for pod in self._found(request.instance_ids)
                if state_of(pod) is not InstanceState.ENDED
            }

        def end(ids: Sequence[str]) -> None:
            with _meaning("deleting the pod"):
                self._end(pods[ids[0]])

        return end_all(tuple(pods), end)

    def evict(self, instance_id: str, *, seconds: float | None) -> bool:
        """Delete a pod as an eviction does, by default in its own grace period; return whether it existed."""
        with _meaning("deleting the pod"):
            for pod in self._found([instance_id]):
                self._delete(pod, seconds=None if seconds is None else round(seconds))
                return True
        return False

    def console(self, instance: Instance) -> str:
        """Return the container's log, or the reason why there is none yet; see Provisioner."""
        if instance.state is InstanceState.PENDING and instance.detail:
            return f"{instance.detail}\n"
        path = f"{_path(self._cluster.namespace)}/{instance.id.rpartition('.')[0]}/log"
        try:
            text: str = self._cluster.request("GET", path, query={"tailLines": "1000"}, is_text=True)
        except Refusal as refusal:
            if refusal.status == HTTPStatus.NOT_FOUND:
                return ""
            if refusal.status == HTTPStatus.BAD_REQUEST:
                return f"{refusal}\n"  # the reason why it has not started, such as a missing image
            raise translated(refusal, "reading the pod's log") from refusal
        return text

    def release(self, job_id: str, *, store_url: str = "") -> None:
        """Delete the job's pods that have ended; see Provisioner.

        Raises:
            TransientError: a pod has not ended yet; call again.
        """
        with _meaning("deleting the pods"):
            ours = [
                pod
                for pod in self._list(job_id)
                if not store_url or to_instance(pod).store_url in {"", store_url}
            ]
            for pod in ours:
                if state_of(pod) is not InstanceState.ENDED:
                    raise TransientError(f"pod {pod['metadata']['name']} has not ended yet")
            for pod in ours:
                self._delete(pod, seconds=0)

    def offers(self, request: OffersRequest) -> OffersResult:
        """Return an offer for each type that fits, each zone, and each market for which the type has a price.

        Raises:
            SpecError: the options name no image or no type.
        """
        options = self._options
        require_complete(options)
        offers: list[Offer] = []
        for name, kind in options.types.items():
            machine = MachineType(
                name=name,
                cpus=int(kind.cpus),
                memory_bytes=kind.memory,
                accelerator=kind.accelerator,
                accelerator_count=kind.accelerator_count,
            )
            prices = {Market.SPOT: kind.spot_price, Market.ON_DEMAND: kind.on_demand_price}
            usual = next(price for price in reversed(prices.values()) if price is not None)
            offers += [
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
                if price is not None and machine.fits(request.resources)
            ]
        return OffersResult(offers=tuple(offers))

    def _list(self, job_id: str | None) -> Iterator[Pod]:
        selector = machinetags.JOB if job_id is None else f"{machinetags.JOB}={job_id}"
        for pod in self._cluster.list(_path(self._cluster.namespace), selector=selector):
            if pod["metadata"]["labels"].get(machinetags.JOB):  # an empty label names no job
                yield pod

    def _found(self, instance_ids: Iterable[str]) -> Iterator[Pod]:
        wanted = set(instance_ids)
        for pod in tuple(self._list(None)) if wanted else ():
            if to_instance(pod).id in wanted:
                yield pod

    def _forget_old(self, made: Sequence[Pod]) -> None:
        """Delete, for all jobs, the pods that ended long before ``made`` were created.

        All of these times are from the cluster's clock: by this computer's clock, a recent end may seem long
        ago.
        """
        now = max(filter(None, (to_instance(pod).launched_at for pod in made)), default=EARLIEST)
        for pod in tuple(self._list(None)):
            ended_at = to_instance(pod).ended_at
            if ended_at is not None and now - ended_at > KEPT:
                self._delete(pod, seconds=0)

    def _of(self, launch: _Launch) -> list[Pod]:
        pods = list(self._cluster.list(launch.path, selector=launch.selector))
        for pod in pods:
            if (pod["metadata"].get("annotations") or {}).get(REQUEST) != launch.request:
                raise ProvisionError("the token was already used for another request")
        return pods

    def _made(self, launch: _Launch, found: Sequence[Pod]) -> list[Pod]:
        """Create the missing pods, and return the launch's pods; a definite refusal leaves none of them."""
        try:
            self._add_missing(launch, found)
            return self._await_verdict(launch)
        except Refusal as refusal:
            meaning = translated(refusal, "creating the pods")
            if isinstance(meaning, QuotaError) and (limit := quotas.never_fits(refusal, launch.body)):
                meaning = ProvisionError(f"creating the pods: {limit}: {refusal}")
            if not isinstance(meaning, TransientError) and not _is_kept(self._of(launch)):
                self._drop(launch)
            raise meaning from refusal

    def _add_missing(self, launch: _Launch, found: Sequence[Pod]) -> None:
        there = {pod["metadata"]["name"] for pod in found}
        for pod in launch.pods:
            if pod["metadata"]["name"] in there:
                continue
            try:
                self._cluster.request("POST", launch.path, pod)
            except Refusal as refusal:
                if refusal.reason != "AlreadyExists":  # made by an earlier try, or by another driver
                    raise

    def _await_verdict(self, launch: _Launch) -> list[Pod]:
        """Wait for the launch's outcome, mark it on the pods, and return them.

        A driver that repeats the launch reaches the same outcome, wherever an earlier driver was killed.
        """
        began = time.monotonic()
        while True:
            pods = self._of(launch)
            if _is_kept(pods):
                return pods
            if len(pods) < len(launch.pods) or any("deletionTimestamp" in one["metadata"] for one in pods):
                self._refuse(launch, "another driver has given it up")
            waiting = [pod for pod in pods if not was_scheduled(pod)]
            waited = time.monotonic() - began
            silent = [pod for pod in waiting if not _verdict(pod)]
            if not waiting or (waited >= launch.body.capacity_wait and not silent):
                if len(pods) - len(waiting) < launch.body.min_nodes:
                    self._refuse(launch, _verdict(waiting[0]))
                self._keep(launch)
            elif waited >= max(launch.body.capacity_wait, VERDICT_SECONDS):
                name = silent[0]["metadata"]["name"]
                raise TransientError(f"the scheduler has not considered pod {name} yet")
            elif not launch.asked.seconds_left():
                raise TransientError(f"{len(waiting)} of {len(pods)} pods are still waiting for a node")
            else:
                time.sleep(POLL_SECONDS)

    def _keep(self, launch: _Launch) -> None:
        """Delete the pods without a node, unless they get one meanwhile, and then mark the others as kept.

        The mark is set last, because until then the launch may still be refused.
        """
        while waiting := [pod for pod in self._of(launch) if not was_scheduled(pod)]:
            for pod in waiting:
                self._delete(pod, seconds=None, is_unchanged=True)
        for pod in self._of(launch):
            self._patch(pod, {"annotations": {KEPT_MARK: "true"}})

    def _refuse(self, launch: _Launch, why: str) -> NoReturn:
        self._drop(launch)
        raise CapacityError(f"{launch.body.namespace} has no room for {len(launch.pods)} pods now: {why}")

    def _drop(self, launch: _Launch) -> None:
        """Delete all pods of the launch, and wait a while for those that had started."""
        self._end_all(self._of(launch))
        end = time.monotonic() + GONE_SECONDS
        while self._of(launch) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)

    def _end_all(self, pods: Iterable[Pod]) -> None:
        """End each pod, even if that is refused for another one; raise the first refusal at the end."""
        refused: list[Refusal] = []
        for pod in pods:
            try:
                self._end(pod)
            except Refusal as refusal:
                refused.append(refusal)
        if refused:
            raise refused[0]

    def _end(self, pod: Pod) -> None:
        """Mark the pod, so that its end does not count as an eviction, and delete it.

        If the permission to mark it is missing, delete it anyway: a wrong reason costs less than a running
        pod.
        """
        try:
            self._patch(pod, {"annotations": {ENDED_BY_US: "true"}})
        finally:
            self._delete(pod, seconds=TERMINATE_SECONDS)

    def _delete(self, pod: Pod, *, seconds: int | None, is_unchanged: bool = False) -> None:
        metadata = pod["metadata"]
        conditions = {"uid": metadata["uid"]}
        if is_unchanged:
            conditions["resourceVersion"] = metadata["resourceVersion"]
        options: dict[str, Any] = {"preconditions": conditions}
        if seconds is not None:
            options["gracePeriodSeconds"] = seconds
        self._unless_gone("DELETE", pod, options)

    def _patch(self, pod: Pod, metadata: Mapping[str, Any]) -> None:
        self._unless_gone("PATCH", pod, {"metadata": {"uid": pod["metadata"]["uid"], **metadata}})

    def _unless_gone(self, method: str, pod: Pod, body: Mapping[str, Any]) -> None:
        """Make a request for this pod; do nothing if it no longer exists or another pod now has its name."""
        metadata = pod["metadata"]
        try:
            self._cluster.request(method, f"{_path(metadata['namespace'])}/{metadata['name']}", body)
        except Refusal as refusal:
            if refusal.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise


@contextmanager
def _meaning(what: str) -> Iterator[None]:
    """Translate refusals and unreadable answers into cloudspot's errors."""
    try:
        with readable(what):
            yield
    except Refusal as refusal:
        raise translated(refusal, what) from refusal


def _is_kept(found: Sequence[Pod]) -> bool:
    """Return whether the launch's outcome is marked: it gets no more pods, and can no longer be refused."""
    return any(KEPT_MARK in (pod["metadata"].get("annotations") or {}) for pod in found)


def _verdict(pod: Pod) -> str:
    """Return why the scheduler finds no node for the pod, or "" if it has not reported a reason."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "unschedulable")
    return ""


def _rank(pod: Pod) -> int:
    return int(pod["metadata"]["labels"][podspec.RANK])


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"
