"""The stand-in for the kubelets, before a control plane that only takes notes."""

from types import SimpleNamespace
from urllib.error import HTTPError

import pytest

from cloudspot_kubernetes_sandbox import kubelet as kubelet_module
from cloudspot_kubernetes_sandbox.kubelet import Kubelet, NodeSpec, allocatable


class Plane:
    address = "127.0.0.1"

    def __init__(self):
        self.reported = []
        self.statuses = {}
        self.deleted = set()

    def server_context(self):
        return SimpleNamespace(wrap_socket=lambda bare, server_side: bare)

    def request(self, method, path, body):
        assert (method, path) == ("POST", "/api/v1/nodes")

    def patch(self, path, body):
        name = path.removeprefix("/api/v1/nodes/").removesuffix("/status")
        if name in self.deleted:
            raise HTTPError(path, 404, f'nodes "{name}" not found', None, None)
        self.reported.append(name)
        self.statuses[name] = body["status"]

    def get(self, path):
        return {"items": []}


@pytest.fixture
def plane():
    return Plane()


@pytest.fixture
def kubelet(plane, monkeypatch):
    # A test beats by itself.
    monkeypatch.setattr(kubelet_module, "LOOK_SECONDS", 3600.0)
    monkeypatch.setattr(kubelet_module, "BEAT_SECONDS", 3600.0)
    made = Kubelet(plane, SimpleNamespace(states=dict), tuple(NodeSpec(name) for name in "abc"))
    yield made
    made.close()


def test_a_node_that_is_deleted_keeps_no_other_from_being_ready(kubelet, plane):
    plane.deleted = {"b"}
    plane.reported.clear()
    kubelet._beat()
    assert plane.reported == ["a", "c"]


def test_a_node_that_has_failed_reports_no_more(kubelet, plane):
    kubelet.fail_node("a")
    plane.reported.clear()
    kubelet._beat()
    assert plane.reported == ["b", "c"]


def test_pods_get_less_of_a_node_than_it_has(kubelet, plane):
    status = plane.statuses["a"]
    assert status["capacity"] == {"cpu": "8000m", "memory": "32768Mi", "pods": "110"}
    assert status["allocatable"] == {"cpu": "7910m", "memory": "29022Mi", "pods": "110"}


@pytest.mark.parametrize(
    ("cpus", "memory_gib", "cpu", "memory"),
    [(1, 2, "940m", "1436Mi"), (2, 8, "1930m", "6248Mi"), (96, 384, "95690m", "378329Mi")],
)
def test_a_node_keeps_back_as_much_as_clouds_document(cpus, memory_gib, cpu, memory):
    room = allocatable(NodeSpec("a", cpus=cpus, memory_gib=memory_gib, accelerators=4))
    assert room == {"cpu": cpu, "memory": memory, "pods": "110", "nvidia.com/gpu": "4"}
