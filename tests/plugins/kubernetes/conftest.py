"""A real control plane for the tests, where it was built, and nodes whose pods run on paper."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import json
import os
import time

import msgspec
import pytest
from support.worlds.groups import group_of

from cloudspot.emulation.cloud import EmulatedMachine, MachineHost, MachineStatus
from cloudspot.errors import PluginError
from cloudspot.model import EndReason, InstanceState, Market, Resources
from cloudspot.testing import plaincalls
from cloudspot_kubernetes.cluster import Cluster
from cloudspot_kubernetes.options import KubernetesOptions, PodType
from cloudspot_kubernetes.pods import PodProvisioner
from cloudspot_kubernetes_sandbox.build import binaries
from cloudspot_kubernetes_sandbox.cloud import apply_roles
from cloudspot_kubernetes_sandbox.controlplane import SUBMITTER, ControlPlane
from cloudspot_kubernetes_sandbox.kubelet import SPOT_LABEL, SPOT_TAINT, Kubelet, NodeSpec

JOB = "digits-1"


def require_control_plane(request):
    """Return where its programs are; without them skip the test, or fail if it is one of the soak's."""
    try:
        return binaries()
    except PluginError as error:
        if request.node.get_closest_marker("soak") is not None:
            pytest.fail(f"the soak needs it: {error}")
        pytest.skip(f"NOT TESTED: {error}")


@pytest.fixture(name="require_control_plane")
def require_control_plane_fixture(request):
    """Skips the test where there is no control plane."""
    return require_control_plane(request)


class _Planes:
    """The one control plane of this process's tests, started when a test first needs it."""

    def __init__(self, directory):
        self.directory = directory
        self.plane = None

    def get(self, programs):
        if self.plane is None:
            self.plane = ControlPlane(programs, self.directory)
            self.plane.start()
        return self.plane


@pytest.fixture(scope="session")
def planes(tmp_path_factory):
    found = _Planes(tmp_path_factory.mktemp("control-plane"))
    yield found
    if found.plane is not None:
        found.plane.stop()


@pytest.fixture
def plane(planes, require_control_plane):
    return planes.get(require_control_plane)


class PaperHost(MachineHost):
    """Machines that run nothing: a test says when one ends."""

    network = "10.88.0.0/16"

    def __init__(self):
        self.machines: dict[str, EmulatedMachine] = {}
        self.ended: dict[str, EndReason] = {}
        self.stopped: list[str] = []
        self.is_polite = True
        """Whether a machine that is told to stop does so."""
        self._numbers = itertools.count(10)

    def allocate_address(self):
        return f"10.88.0.{next(self._numbers)}"

    def start(self, machine):
        self.machines[machine.id] = machine

    def terminate(self, machine_id):
        self.ended.setdefault(machine_id, EndReason.TERMINATED)

    def reclaim(self, machine_id, *, notice_seconds):
        raise NotImplementedError

    def set_tags(self, machine_id, tags):
        self.stopped.append(machine_id)
        if self.is_polite:
            self.ended.setdefault(machine_id, EndReason.SELF)

    def console(self, machine_id):
        codes = {EndReason.SELF: 0, EndReason.UNKNOWN: 1}
        reason = self.ended.get(machine_id)
        return f"kubelet: the container exited with {codes[reason]}\n" if reason in codes else ""

    def states(self):
        return {
            one: MachineStatus(
                state=InstanceState.ENDED if one in self.ended else InstanceState.RUNNING,
                end_reason=self.ended.get(one),
                address=machine.address,
            )
            for one, machine in self.machines.items()
        }


class Field:
    """A namespace with the plugin's roles, and nodes of its own."""

    def __init__(self, plane, name, directory):
        self.plane, self.name, self._directory = plane, name, directory
        self.host = PaperHost()
        self.kubelet = None
        self._nodes = []
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        apply_roles(plane, name)
        self.wait_for_account("cloudspot-node")

    def wait_for_account(self, account):
        """Until it has a token: the API server refuses its pods before that."""
        until(
            lambda: "secrets" in self.plane.get(f"/api/v1/namespaces/{self.name}/serviceaccounts/{account}")
        )

    def token_of(self, account):
        found = self.plane.get(f"/api/v1/namespaces/{self.name}/serviceaccounts/{account}")
        secret = self.plane.get(f"/api/v1/namespaces/{self.name}/secrets/{found['secrets'][0]['name']}")
        return base64.b64decode(secret["data"]["token"]).decode()

    def add_nodes(self, *nodes):
        """``nodes``: of this namespace's pods alone, by a label."""
        assert self.kubelet is None
        self._nodes = [dataclasses.replace(node, name=f"{self.name}-{node.name}") for node in nodes]
        self.kubelet = Kubelet(self.plane, self.host, tuple(self._nodes))
        for node in self._nodes:
            self.plane.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {"field": self.name}}})
        until(self.is_known_to_scheduler)

    def is_known_to_scheduler(self):
        """Whether it would use the nodes: it hears of them, their labels and taints later than the API server.

        Asked by a pod that no node has room for, and that nothing but the room keeps away.
        """
        path = f"/api/v1/namespaces/{self.name}/pods"
        container = {"name": "probe", "image": "image", "resources": {"requests": {"cpu": "1000000"}}}
        spec = {
            "containers": [container],
            "nodeSelector": {"field": self.name},
            "serviceAccountName": "cloudspot-node",
            "tolerations": [{"key": SPOT_TAINT, "operator": "Exists"}],
        }
        self.plane.request("POST", path, {"metadata": {"name": "probe"}, "spec": spec})
        verdicts = []

        def is_judged():
            conditions = self.plane.get(f"{path}/probe")["status"].get("conditions", ())
            verdicts[:] = [one["message"] for one in conditions if one["type"] == "PodScheduled"]
            return verdicts

        until(is_judged)
        self.plane.request("DELETE", f"{path}/probe", {"gracePeriodSeconds": 0})
        return f"{len(self._nodes)} Insufficient cpu" in verdicts[0]

    def node(self, name):
        return self.plane.get(f"/api/v1/nodes/{name}")

    def options(self, **fields):
        return KubernetesOptions(
            **{
                "namespace": self.name,
                "kubeconfig": str(
                    self.plane.write_kubeconfig(self._directory / "kubeconfig", SUBMITTER, url=self.url)
                ),
                "image": "image",
                "types": {"small": PodType(cpus=2, spot_price=0.3, on_demand_price=1.0)},
                "spot_selector": {"field": self.name, SPOT_LABEL[0]: SPOT_LABEL[1]},
                "spot_tolerations": (f"{SPOT_TAINT}=true:NoSchedule",),
                "capacity_wait": 0.5,
                **fields,
            }
        )

    url = ""

    def provisioner(self, *, user=None, **fields):
        options = self.options(**fields)
        if user is not None:
            path = self._directory / f"{user[:8]}.kubeconfig"
            config = json.loads((self._directory / "kubeconfig").read_text())
            config["users"] = [{"name": "sandbox", "user": {"token": user}}]
            path.write_text(json.dumps(config))
            options = msgspec.structs.replace(options, kubeconfig=str(path))
        return PodProvisioner(options, Cluster(options))

    def request(self, provisioner, *, market=Market.SPOT, **fields):
        offer = next(one for one in plaincalls.offers(provisioner, Resources()) if one.market is market)
        return provisioner.render(group_of(offer, **{"job_id": JOB, "max_seconds": 3600.0, **fields}))

    def pods(self):
        return self.plane.get(f"/api/v1/namespaces/{self.name}/pods")["items"]

    def end(self, instance, reason=EndReason.SELF):
        """The container of the machine ends by itself."""
        (pod,) = [one for one in self.pods() if one["metadata"]["name"] == instance.id.rpartition(".")[0]]
        until(lambda: pod["metadata"]["uid"] in self.host.machines)
        self.host.ended[pod["metadata"]["uid"]] = reason

    def path(self, instance):
        return f"/api/v1/namespaces/{self.name}/pods/{instance.id.rpartition('.')[0]}"

    def evict(self, instance, **delete_options):
        path = self.path(instance)
        metadata = {"name": path.rpartition("/")[2], "namespace": self.name}
        body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": metadata}
        self.plane.request("POST", f"{path}/eviction", {**body, "deleteOptions": delete_options})

    def close(self):
        if self.kubelet is not None:
            self.kubelet.close()
        for pod in self.pods():
            path = f"/api/v1/namespaces/{self.name}/pods/{pod['metadata']['name']}"
            with contextlib.suppress(OSError):
                self.plane.request("DELETE", path, {"gracePeriodSeconds": 0})
        for node in self._nodes:
            with contextlib.suppress(OSError):
                self.plane.request("DELETE", f"/api/v1/nodes/{node.name}")


def until(condition, *, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still not true after {seconds} s"
        time.sleep(0.05)


_numbers = itertools.count(1)


@pytest.fixture
def field(plane, tmp_path):
    made = Field(plane, f"field-{os.getpid()}-{next(_numbers)}", tmp_path)
    yield made
    made.close()


@pytest.fixture
def cluster(field):
    """The field with a node that has room for two of its pods."""
    field.add_nodes(NodeSpec("a", cpus=5))  # its system keeps some of the fifth
    return field
