"""``cloudspot providers check kubernetes``: tries what a job needs, and says how to mend what fails."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from cloudspot.errors import AuthError, CloudspotError
from cloudspot.model import CheckResult, Offer, Resources
from cloudspot.plugin.checklist import Checklist, cheapest_by_market, trial_launch
from cloudspot.plugin.launchrequests import decode_request
from cloudspot_kubernetes.cluster import Cluster, Refusal, translated
from cloudspot_kubernetes.options import KubernetesOptions
from cloudspot_kubernetes.pods import PodProvisioner
from cloudspot_kubernetes.podspec import PodsRequest, pods_of

_ROLE: Final = "grant it: role-submitter.yaml (docs/kubernetes.md) has all rights that a submitter needs"
RIGHTS: Final = (
    ("create", "pods", ""),
    ("delete", "pods", ""),
    ("get", "pods", "log"),
    ("list", "pods", ""),
    ("patch", "pods", ""),
)
"""What a driver does: verb, resource, subresource."""


def check(options: KubernetesOptions, clients: Cluster, resources: Resources) -> Sequence[CheckResult]:
    """Try in order what a submission would need; skip what depends on something that failed."""
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
    for market, offer in cheapest_by_market(offers):
        lines.attempt(f"launch, {market.value}", partial(_launch, provisioner, clients, offer))
    return lines.results()


def _rights(clients: Cluster) -> str:
    """Ask the API server what this user may do; every user may ask that."""
    missing = []
    for verb, resource, sub in RIGHTS:
        asked = {"namespace": clients.namespace, "verb": verb, "resource": resource, "subresource": sub}
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
            missing.append(f"{verb} {resource}{f'/{sub}' if sub else ''}")
    if missing:
        raise AuthError(f"this user lacks the right to {', '.join(missing)} in {clients.namespace}")
    return f"all that a driver needs in {clients.namespace}"


def _launch(provisioner: PodProvisioner, clients: Cluster, offer: Offer) -> str:
    """Send the pod that a job would send as a dry run: admission judges it, the scheduler does not."""
    body = decode_request(provisioner.render(trial_launch(offer)), PodsRequest)
    path = f"/api/v1/namespaces/{body.namespace}/pods"
    try:
        found = clients.request("POST", path, pods_of(body, "check")[0], query={"dryRun": "All"})
    except Refusal as refusal:
        raise translated(refusal, "a pod of this kind") from refusal
    if not found["metadata"].get("name"):
        raise CloudspotError("a pod of this kind: the answer to the dry run cannot be read")
    return f"a pod of the type {offer.instance_type} is admitted; whether there is room only a launch shows"
