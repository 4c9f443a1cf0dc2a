"""``cloudspot providers check kubernetes``: tries each step that a job needs, with advice on failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from cloudspot.errors import AuthError, CloudspotError
from cloudspot.model import CheckResult, Offer, Resources
from cloudspot.plugin.answers import readable
from cloudspot.plugin.checklist import Checklist, cheapest_by_market, trial_launch
from cloudspot.plugin.launchrequests import decode_request
from cloudspot_kubernetes import noderoom, permissions
from cloudspot_kubernetes.cluster import Cluster, Refusal, translated
from cloudspot_kubernetes.options import KubernetesOptions
from cloudspot_kubernetes.pods import PodProvisioner
from cloudspot_kubernetes.podspec import PodsRequest, pods_of

_ROLE: Final = "have an administrator run: cloudspot setup kubernetes --grant-to user:YOU"
_NOT_COMPARED: Final = (
    "not compared with the nodes, which this user may not list: role-submitter-nodes.yaml gives the right"
)


def check(options: KubernetesOptions, clients: Cluster, resources: Resources) -> Sequence[CheckResult]:
    """Try in order each step that a submission needs; skip those that depend on a failed one."""
    lines = Checklist(remedy=_ROLE)
    if not lines.attempt(
        "kubeconfig", lambda: f"{clients.connect().configuration.host}, {clients.namespace}"
    ):
        return lines.results()
    if not lines.attempt("rights", partial(_rights, clients)):
        return lines.results()
    provisioner = PodProvisioner(options, clients)
    lines.attempt_listing(provisioner)
    offers = lines.attempt_offers(provisioner, resources)
    nodes = _Nodes(clients)
    for (kind, market), ours in sorted(_by_type(offers).items()):
        ask = partial(_room, options, nodes, [_pod(provisioner, offer) for offer in ours])
        lines.attempt(f"room, {market} {kind}", ask)
    for market, offer in cheapest_by_market(offers):
        lines.attempt(f"launch, {market.value}", partial(_launch, provisioner, clients, offer))
    return lines.results()


def _rights(clients: Cluster) -> str:
    """Check the user's permissions by asking the API server, which answers every user."""
    missing = []
    for right in sorted(permissions.rights(permissions.role("submitter")["rules"])):
        group, (resource, _, sub), verb = right[0], right[1].partition("/"), right[2]
        asked = {"namespace": clients.namespace, "verb": verb, "resource": resource, "subresource": sub}
        asked |= {"group": group}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        try:
            found = clients.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        except Refusal as refusal:
            raise translated(refusal, "asking for rights") from refusal
        if not found["status"].get("allowed"):
            missing.append(permissions.shown(right))
    if missing:
        raise AuthError(f"this user lacks the right to {', '.join(missing)} in {clients.namespace}")
    return f"all that a driver needs in {clients.namespace}"


class _Nodes:
    """The nodes of the cluster, read when they are first needed."""

    def __init__(self, clients: Cluster) -> None:
        self._clients = clients
        self._found: Sequence[noderoom.Node] | None = None

    def read(self) -> Sequence[noderoom.Node] | None:
        """Return the nodes, or None if this user may not list them."""
        try:
            self._found = self._found or tuple(self._clients.list("/api/v1/nodes", selector=""))
        except Refusal as refusal:
            if refusal.status != HTTPStatus.FORBIDDEN:
                raise translated(refusal, "listing the nodes") from refusal
            return None
        return self._found


def _by_type(offers: Sequence[Offer]) -> dict[tuple[str, str], list[Offer]]:
    found: dict[tuple[str, str], list[Offer]] = {}
    for one in offers:
        found.setdefault((one.instance_type, one.market.value), []).append(one)
    return found


def _pod(provisioner: PodProvisioner, offer: Offer) -> Mapping[str, Any]:
    return pods_of(decode_request(provisioner.render(trial_launch(offer)), PodsRequest), "check")[0]


def _room(options: KubernetesOptions, nodes: _Nodes, pods: Sequence[Mapping[str, Any]]) -> str:
    """Compare a pod's requests with the allocatable resources of its nodes, which may be in use."""
    with readable("reading the nodes"):
        found = nodes.read()
        if found is None:
            return _NOT_COMPARED
        allowed = [node for node in found if any(noderoom.allows(node, pod["spec"]) for pod in pods)]
        if allowed:
            return noderoom.room(allowed, pods[0]["spec"]["containers"][0]["resources"]["requests"])
    if options.capacity_wait <= KubernetesOptions().capacity_wait:
        raise CloudspotError(
            "no node has the selected labels and only tolerated taints; with an autoscaler, set "
            "capacity_wait to the time that a new node takes"
        )
    return "no node has the selected labels and only tolerated taints now: an autoscaler has to make one"


def _launch(provisioner: PodProvisioner, clients: Cluster, offer: Offer) -> str:
    """Send a job's pod as a dry run, which is checked by admission, but not by the scheduler."""
    pod = _pod(provisioner, offer)
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    try:
        found = clients.request("POST", path, pod, query={"dryRun": "All"})
    except Refusal as refusal:
        raise translated(refusal, "a pod of this kind") from refusal
    if not found["metadata"].get("name"):
        raise CloudspotError("the answer to the dry run of a pod of this kind cannot be read")
    return f"a pod of the type {offer.instance_type} is admitted; only a launch shows whether there is room"
