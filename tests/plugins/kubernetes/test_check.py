"""What ``cloudspot providers check kubernetes`` says of the nodes: before an API that knows pods and nodes."""

from __future__ import annotations

import pytest
from support.clouds.pod_api import NAMESPACE, PodApi

from cloudspot.testing import plaincalls
from cloudspot_kubernetes.options import KubernetesOptions, PodType
from cloudspot_kubernetes.provider import KubernetesProvider

SPOT = {"key": "spot", "value": "true", "effect": "NoSchedule"}


def node(name="node-1", *, labels=None, taints=(), **allocatable):
    room = {"cpu": "7910m", "memory": "29022Mi", "pods": "110", **allocatable}
    return {
        "metadata": {"name": name, "labels": {"pool": "a10", **(labels or {})}},
        "spec": {"taints": list(taints)},
        "status": {"capacity": {"cpu": "8", "memory": "32Gi", "pods": "110"}, "allocatable": room},
    }


@pytest.fixture
def api():
    made = PodApi()
    yield made
    made.close()


@pytest.fixture
def lines(api, tmp_path):
    def check(**fields):
        kind = {"selector": {"pool": "a10"}, "spot_price": 0.3, **fields.pop("kind", {})}
        options = KubernetesOptions(
            **{
                "kubeconfig": str(api.write_kubeconfig(tmp_path / "kubeconfig")),
                "namespace": NAMESPACE,
                "image": "image",
                "types": {"a10": PodType(**kind)},
                "spot_tolerations": ("spot",),
                **fields,
            }
        )
        return {one.name: one for one in plaincalls.check(KubernetesProvider(options))}

    return check


def test_a_type_as_large_as_its_machine_can_be_on_no_node_and_the_check_says_so(api, lines):
    api.nodes = [node(taints=[SPOT]), node("node-2")]
    line = lines(kind={"cpus": 8})["room, spot a10"]
    assert not line.ok
    assert line.detail == (
        "none of the 2 nodes that the pod selects is large enough for it: the pod asks for 8 cpu, and node-1 can allocate 7910m "
        "of 8; ask for less in providers.kubernetes.types, because a kubelet reserves a part of its machine"
    )


@pytest.mark.parametrize(
    ("kind", "is_ok"),
    [
        ({"cpus": 7.91}, True),
        ({"cpus": 7.911}, False),
        ({"memory": 29022 * 2**20}, True),
        ({"memory": 29022 * 2**20 + 1}, False),
        ({"cpus": 1, "accelerator": "A10", "accelerator_count": 1}, False),
    ],
)
def test_every_resource_is_compared(api, lines, kind, is_ok):
    api.nodes = [node()]
    assert lines(kind=kind)["room, spot a10"].ok is is_ok


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "1 of 1 nodes that the pod selects have room for it"),
        ({"spot_selector": {"capacity": "spot"}}, "no node has the selected labels"),
        ({"spot_tolerations": ()}, "no node has the selected labels"),
        ({"spot_tolerations": ("spot=false",)}, "no node has the selected labels"),
        ({"spot_tolerations": ("spot=true:NoExecute",)}, "no node has the selected labels"),
        ({"spot_tolerations": ("spot=true:NoSchedule",)}, "1 of 1 nodes"),
        ({"zones": ("zone-b",)}, "no node has the selected labels"),
        ({"zones": ("zone-b", "zone-a")}, "1 of 1 nodes"),
    ],
)
def test_only_nodes_count_on_which_a_pod_may_be(api, lines, fields, said):
    api.nodes = [
        node(
            labels={"topology.kubernetes.io/zone": "zone-a"},
            taints=[SPOT, {"key": "soft", "effect": "PreferNoSchedule"}],
        ),
        node("other", labels={"pool": "cpu"}),
    ]
    line = lines(**fields)["room, spot a10"]
    assert line.detail.startswith(said)
    assert line.ok is said.startswith("1 of 1")


def test_nodes_that_an_autoscaler_has_to_make_are_waited_for_by_whoever_says_so(api, lines):
    line = lines()["room, spot a10"]
    assert not line.ok
    assert line.detail.endswith("set capacity_wait to the time that a new node takes")
    line = lines(capacity_wait=300.0)["room, spot a10"]
    assert line.ok
    assert line.detail.endswith("an autoscaler has to make one")


def test_who_may_not_list_nodes_is_told_that_nothing_was_compared(api, lines):
    api.denied = {("list", "nodes")}
    found = lines()
    assert found["room, spot a10"].ok
    assert found["room, spot a10"].detail.startswith(
        "not compared with the nodes, which this user may not list"
    )
    assert found["launch, spot"].ok
    assert api.pods == {}
