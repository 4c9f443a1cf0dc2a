"""The tables of docs/kubernetes.md, against nodes that are labelled and tainted as each cloud does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.worlds.groups import group_of

from cloudspot.jobfile.tables import convert
from cloudspot.jobfile.toml import read_toml
from cloudspot.model import Market, Resources
from cloudspot.testing import plaincalls
from cloudspot_kubernetes import noderoom
from cloudspot_kubernetes.options import KubernetesOptions, PodType
from cloudspot_kubernetes.pods import PodProvisioner
from cloudspot_kubernetes.podspec import render
from cloudspot_kubernetes_sandbox.kubelet import NodeSpec, allocatable

PAGE = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text(encoding="utf-8")

NODES = {
    "EKS": ({"eks.amazonaws.com/capacityType": "SPOT"}, []),
    "GKE": (
        {"cloud.google.com/gke-spot": "true", "cloud.google.com/gke-accelerator": "nvidia-l4"},
        [
            {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"},
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        ],
    ),
    "AKS": (
        {"kubernetes.azure.com/scalesetpriority": "spot"},
        [{"key": "kubernetes.azure.com/scalesetpriority", "value": "spot", "effect": "NoSchedule"}],
    ),
    "ACK": ({"node.alibabacloud.com/spot-strategy": "SpotAsPriceGo"}, []),
}
"""Labels and taints of a spot node, by the clouds' documentation (checked 2026-11)."""
ON_DEMAND = {
    "EKS": ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, []),
    "GKE": ({}, []),
    "AKS": ({}, []),
    "ACK": ({"node.alibabacloud.com/spot-strategy": "NoSpot"}, []),
}


def table_of(heading, directory):
    """Return the first table of the page below the heading, as the job file's ``providers.kubernetes``."""
    text = re.search(r"```toml\n(.*?)^```", PAGE[PAGE.index(heading) :], re.DOTALL | re.MULTILINE)[1]
    path = directory / "job.toml"
    path.write_text(text)
    return read_toml(path)["providers"]["kubernetes"]


def options_of(heading, directory, **fields):
    table = {"image": "image", **table_of(heading, directory)}
    table.setdefault("types", {"small": {"cpus": 2, "spot_price": 0.3}})
    return convert({**table, **fields}, KubernetesOptions, at=("providers", "kubernetes"))


def pod_of(options):
    offers = plaincalls.offers(PodProvisioner(options, None), Resources())
    offer = next(one for one in offers if one.market is Market.SPOT)
    return render(group_of(offer), options, namespace="jobs").body["pod"]


def node_of(labels, taints):
    return {"metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints}}


@pytest.mark.parametrize("cloud", NODES)
def test_a_spot_pod_may_be_on_the_clouds_spot_nodes_and_on_no_others(cloud, tmp_path):
    spec = pod_of(options_of(f"\n**{cloud}**", tmp_path))["spec"]
    assert noderoom.allows(node_of(*NODES[cloud]), spec)
    assert not noderoom.allows(node_of(*ON_DEMAND[cloud]), spec)


def test_the_pages_example_fits_on_the_machine_that_it_names(tmp_path):
    """It asked for all of it, which no node can give."""
    requests = pod_of(options_of("**The types**", tmp_path))["spec"]["containers"][0]["resources"]["requests"]
    room = allocatable(NodeSpec("g5.2xlarge", cpus=8, memory_gib=32, accelerators=1))
    node = {**node_of({}, []), "status": {"capacity": room, "allocatable": room}}
    assert noderoom.room([node], requests).startswith("1 of 1 nodes")


@pytest.mark.full
@pytest.mark.parametrize("cloud", NODES)
def test_the_scheduler_places_a_spot_pod_on_the_clouds_spot_node(field, cloud, tmp_path):
    field.add_nodes(NodeSpec("a"))
    labels, taints = NODES[cloud]
    name = f"/api/v1/nodes/{field.name}-a"
    field.plane.patch(name, {"metadata": {"labels": labels}, "spec": {"taints": taints or None}})
    found = options_of(f"\n**{cloud}**", tmp_path)
    provisioner = field.provisioner(
        types={"small": PodType(cpus=2, spot_price=0.3)},
        spot_selector={**found.spot_selector, "field": field.name},
        spot_tolerations=found.spot_tolerations,
        tolerations=found.tolerations,
        capacity_wait=10.0,
    )
    (made,) = plaincalls.create(provisioner, field.request(provisioner), token="one")
    (pod,) = field.pods()
    assert made.id.startswith(pod["metadata"]["name"])
    assert pod["spec"]["nodeName"] == f"{field.name}-a"
