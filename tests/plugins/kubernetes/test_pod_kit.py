"""Pods under the kit of provisioners that every provider runs, on the real control plane."""

from __future__ import annotations

import json
import subprocess
from types import MappingProxyType

import pytest
from support.stores.lossyproxy import LossyProxy

from cloudspot.errors import AuthError
from cloudspot.model import Market
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account, Bought, Call, Fault, Sold
from cloudspot.testing.kit import wait_until
from cloudspot.testing.offerkit import OfferTests
from cloudspot.testing.provisionerkit import ProvisionerTests
from cloudspot.testing.purchasekit import PurchaseTests
from cloudspot_kubernetes.options import PodType
from cloudspot_kubernetes.podspec import ANY_ZONE
from cloudspot_kubernetes.provider import KubernetesProvider
from cloudspot_kubernetes_sandbox.build import binaries
from cloudspot_kubernetes_sandbox.controlplane import SUBMITTER
from cloudspot_kubernetes_sandbox.kubelet import NodeSpec

pytestmark = pytest.mark.full


NUM_CPUS, CPUS_A_POD = 40, 2
CPUS = {"small": CPUS_A_POD, "wide": 4}
FIT = "test_all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else"
METHODS = {Call.CREATE: "POST", Call.LIST: "GET"}
REFUSALS = {
    Fault.UNWELL: (500, "InternalError"),
    Fault.THROTTLED: (429, "TooManyRequests"),
}


class PodAccount(Account):
    """A namespace, one node with room for twenty pods of both markets, and a proxy that misbehaves."""

    unknown_ids = ("digits-1-1-0-0123abcd.01234567", "machine-1")

    def __init__(self, field, proxy):
        self.field, self.proxy = field, proxy
        field.url = proxy.url
        field.add_nodes(NodeSpec("a", cpus=NUM_CPUS + 1))
        self.made = []
        self.is_denied = False
        self.is_filled = False

    def provider(self):
        selector = {"field": self.field.name}
        types = {
            name: PodType(cpus=cpus, selector=selector, spot_price=0.3 * cpus, on_demand_price=1.0 * cpus)
            for name, cpus in CPUS.items()
        }
        options = self.field.options(
            types=types, spot_selector={}, tolerations=("spot",), spot_tolerations=("taken",)
        )
        return KubernetesProvider(options)

    def sold(self):
        return [
            Sold(instance_type=name, zone=ANY_ZONE, market=market, price_per_hour=share * cpus, cpus=cpus)
            for name, cpus in CPUS.items()
            for market, share in ((Market.SPOT, 0.3), (Market.ON_DEMAND, 1.0))
        ]

    def bought(self, instance_id):
        pod = self.request("GET", f"pods/{instance_id.rpartition('.')[0]}")
        spec, metadata = pod["spec"], pod["metadata"]
        (container,) = spec["containers"]
        cpus = int(container["resources"]["requests"]["cpu"])
        return Bought(
            user_data=container["args"][0].replace("$$", "$"),
            instance_type=next(name for name, each in CPUS.items() if each == cpus),
            zone=spec["nodeSelector"].get("topology.kubernetes.io/zone", ANY_ZONE),
            market=Market.SPOT
            if any(one["key"] == "taken" for one in spec["tolerations"])
            else Market.ON_DEMAND,
            labels=metadata["labels"],
            max_seconds=float(spec["activeDeadlineSeconds"]),
        )

    def request(self, method, path, body=None):
        return self.field.plane.request(method, f"/api/v1/namespaces/{self.field.name}/{path}", body)

    def limit(self, num_machines):
        """Let another pod take the rest of the node."""
        if num_machines is None:
            self.request("DELETE", "pods/filler", {"gracePeriodSeconds": 0})
            return
        container = {
            "name": "filler",
            "image": "image",
            "command": ["sleep", "600"],
            "resources": {"requests": {"cpu": str(NUM_CPUS - num_machines * CPUS_A_POD)}},
        }
        spec = {
            "nodeName": f"{self.field.name}-a",
            "containers": [container],
            "serviceAccountName": "cloudspot-node",
        }
        self.request("POST", "pods", {"metadata": {"name": "filler"}, "spec": spec})

    def inject(self, call, fault):
        """Refuse by the cluster's own roles, quotas and limits where there are such, else in its place."""
        if fault is Fault.DENIED:
            self.field.plane.request("DELETE", self.binding())
            self.is_denied = True
            self.wait_for_rights(are_there=False)
        elif fault is Fault.QUOTA:
            # Another pod uses it up, or else it would never have room for two.
            self.limit(NUM_CPUS // CPUS_A_POD - 1)
            self.is_filled = True
            self.make("resourcequotas", {"hard": {"pods": "2"}})
        elif fault is Fault.REFUSED:
            self.make("limitranges", {"limits": [{"type": "Container", "max": {"cpu": "1"}}]})
        else:
            self.meet(METHODS[call], fault)

    def meet(self, method, fault):
        if fault is Fault.LOST_ANSWER:
            self.proxy.drop = lambda asked, _path: asked == method and self.proxy.num_dropped == 0
            return
        status, reason = REFUSALS[fault]
        told = {
            "kind": "Status",
            "status": "Failure",
            "reason": reason,
            "message": "injected",
            "code": status,
        }
        self.proxy.page_status, self.proxy.page_type = status, "application/json"
        self.proxy.takes = lambda asked, _path: asked == method
        self.proxy.page = json.dumps(told).encode()

    def make(self, kind, spec):
        self.request("POST", kind, {"metadata": {"name": "few"}, "spec": spec})
        self.made.append(f"{kind}/few")

    def binding(self):
        return (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/"
            f"{self.field.name}/rolebindings/cloudspot-submitter"
        )

    def wait_for_rights(self, *, are_there):
        """Until the API server has heard of it."""
        wait_until(lambda: self.may_list() is are_there, "the roles have changed", seconds=30.0)

    def may_list(self):
        try:
            plaincalls.instances(self.provider().provisioner())
        except AuthError:
            return False
        return True

    def heal(self):
        self.proxy.page = None
        if self.is_denied:
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "cloudspot-submitter"}
            user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": SUBMITTER}
            binding = {"metadata": {"name": "cloudspot-submitter"}, "roleRef": role, "subjects": [user]}
            self.field.plane.request("POST", self.binding().rpartition("/")[0], binding)
            self.is_denied = False
            self.wait_for_rights(are_there=True)
        if self.is_filled:
            self.limit(None)
            self.is_filled = False
        while self.made:
            self.request("DELETE", self.made.pop())


class TestPods(ProvisionerTests, PurchaseTests, OfferTests):
    deviations = MappingProxyType(
        {
            f"{FIT}[memory]": "the types here differ in their processors",
            f"{FIT}[accelerators]": "the types here have none",
            "test_a_machine_is_in_the_zone_that_was_asked_for": "the cluster chooses among the nodes",
            "test_a_machine_has_the_disk_that_was_asked_for": "a pod has its node's disk",
            "test_a_new_machine_that_no_listing_shows_yet_is_found_by_its_token": "a listing of pods does not lag",
            "test_a_reclaimed_machine_says_so": "the API forgets a pod that was evicted, and with it the reason",
            "test_a_token_whose_machines_have_ended_makes_no_others": (
                "the API forgets deleted pods, and with them their token: drivers delete a pod that comes after "
                "its launch was closed"
            ),
        }
    )

    @pytest.fixture
    def account(self, field, tmp_path):
        kubeconfig = field.plane.write_kubeconfig(tmp_path / "proxied", SUBMITTER)
        kubectl = [str(binaries() / "kubectl"), "--kubeconfig", str(kubeconfig), "proxy", "--port", "0"]
        with subprocess.Popen(kubectl, stdout=subprocess.PIPE, text=True) as tunnel:
            port = tunnel.stdout.readline().strip().rpartition(":")[2]
            proxy = LossyProxy(f"http://127.0.0.1:{port}")
            yield PodAccount(field, proxy)
            proxy.close()
            tunnel.terminate()
