"""Pods under the kit of provisioners that every provider runs, on the real control plane."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
import urllib.error
import urllib.request
from types import MappingProxyType

import pytest

from cloudspot.errors import AuthError
from cloudspot.testing.account import Account, Call, Fault
from cloudspot.testing.kit import wait_until
from cloudspot.testing.provisionerkit import ProvisionerTests
from cloudspot_kubernetes.options import PodType
from cloudspot_kubernetes.provider import KubernetesProvider
from cloudspot_kubernetes_sandbox.build import binaries
from cloudspot_kubernetes_sandbox.controlplane import SUBMITTER
from cloudspot_kubernetes_sandbox.kubelet import NodeSpec

NUM_CPUS, CPUS_A_POD = 40, 2
METHODS = {Call.CREATE: "POST", Call.LIST: "GET"}
REFUSALS = {
    Fault.UNWELL: (500, "InternalError"),
    Fault.THROTTLED: (429, "TooManyRequests"),
}


class FaultyProxy(http.server.ThreadingHTTPServer):
    """Passes requests on to the API server, but for those that a test wants refused or unanswered."""

    daemon_threads = True

    def __init__(self, upstream):
        self.upstream = upstream
        self.method, self.fault = None, None
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault if self.command == self.server.method else None
        if fault in REFUSALS:
            status, reason = REFUSALS[fault]
            told = {
                "kind": "Status",
                "status": "Failure",
                "reason": reason,
                "message": "injected",
                "code": status,
            }
            self.answer(status, json.dumps(told).encode())
            return
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in {"host", "content-length"}
        }
        request = urllib.request.Request(
            self.server.upstream + self.path, data=body or None, headers=headers, method=self.command
        )
        try:
            with urllib.request.urlopen(request) as answer:
                status, data = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, data = error.code, error.read()
        if fault is Fault.LOST_ANSWER:
            self.server.fault = None
            self.close_connection = True
            return
        self.answer(status, data)

    def answer(self, status, data):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = do_PATCH = handle_any  # noqa: N815 - their names

    def log_message(self, *arguments):
        pass


class PodAccount(Account):
    """A namespace, one node with room for twenty pods of both markets, and a proxy that misbehaves."""

    unknown_ids = ("digits-1-1-0-0123abcd.01234567", "machine-1")

    def __init__(self, field, proxy):
        self.field, self.proxy = field, proxy
        field.url = proxy.url
        field.add_nodes(NodeSpec("a", cpus=NUM_CPUS))
        self.made = []
        self.is_denied = False

    def provider(self):
        selector = {"field": self.field.name}
        kind = PodType(cpus=CPUS_A_POD, selector=selector, spot_price=0.3, on_demand_price=1.0)
        options = self.field.options(types={"small": kind}, spot_selector={}, tolerations=("spot",))
        return KubernetesProvider(options)

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
            self.make("resourcequotas", {"hard": {"pods": "1"}})
        elif fault is Fault.REFUSED:
            self.make("limitranges", {"limits": [{"type": "Container", "max": {"cpu": "1"}}]})
        else:
            self.proxy.method, self.proxy.fault = METHODS[call], fault

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
            self.provider().provisioner().instances()
        except AuthError:
            return False
        return True

    def heal(self):
        self.proxy.fault = None
        if self.is_denied:
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "cloudspot-submitter"}
            user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": SUBMITTER}
            binding = {"metadata": {"name": "cloudspot-submitter"}, "roleRef": role, "subjects": [user]}
            self.field.plane.request("POST", self.binding().rpartition("/")[0], binding)
            self.is_denied = False
            self.wait_for_rights(are_there=True)
        while self.made:
            self.request("DELETE", self.made.pop())

    def running(self):
        self.proxy.fault = None
        return super().running()


class TestPods(ProvisionerTests):
    deviations = MappingProxyType(
        {
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
            proxy = FaultyProxy(f"http://127.0.0.1:{port}")
            yield PodAccount(field, proxy)
            proxy.fault = None
            proxy.shutdown()
            proxy.server_close()
            tunnel.terminate()
