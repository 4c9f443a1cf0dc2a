"""The roles that the plugin ships, against RBAC: they hold what is needed, and nothing to spare."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

import cloudspot_kubernetes
from cloudspot.errors import AuthError
from cloudspot.testing import plaincalls
from cloudspot_kubernetes.cluster import Cluster, Refusal
from cloudspot_kubernetes.options import KubernetesOptions
from cloudspot_kubernetes.provider import KubernetesProvider

pytestmark = pytest.mark.full


SHIPPED = Path(cloudspot_kubernetes.__file__).parent
RIGHTS = [
    (verb, resource)
    for rule in yaml.safe_load((SHIPPED / "role-submitter.yaml").read_text())["rules"]
    for resource in rule["resources"]
    for verb in rule["verbs"]
]


@pytest.fixture
def limited(cluster):
    """``limited(verb, resource)``: the token of a user who has the submitter's role without one right."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.name}"

    def make(verb, resource):
        role = copy.deepcopy(yaml.safe_load((SHIPPED / "role-submitter.yaml").read_text()))
        role["metadata"]["name"] = "limited"
        for rule in role["rules"]:
            if resource in rule["resources"]:
                rule["verbs"].remove(verb)
        role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
        accounts = f"/api/v1/namespaces/{cluster.name}/serviceaccounts"
        cluster.plane.request("POST", accounts, {"metadata": {"name": "limited"}})
        cluster.plane.request("POST", f"{rbac}/roles", role)
        binding = {
            "metadata": {"name": "limited"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "limited"},
            "subjects": [{"kind": "ServiceAccount", "name": "limited", "namespace": cluster.name}],
        }
        cluster.plane.request("POST", f"{rbac}/rolebindings", binding)
        cluster.wait_for_account("limited")
        return cluster.token_of("limited")

    return make


def do_all(cluster, provisioner):
    """Do what a driver does in the life of a job."""
    made = plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    provisioner.announce(made, {"MASTER_ADDR": "10.88.0.1"})
    plaincalls.terminate(provisioner, [one.id for one in made])
    provisioner.console(made[0])


@pytest.mark.parametrize(("verb", "resource"), RIGHTS)
def test_a_submitter_has_no_right_to_spare(cluster, limited, verb, resource):
    token = limited(verb, resource)
    provisioner = cluster.provisioner(user=token)
    with pytest.raises(
        AuthError, match=rf"access denied: pods .* cannot {verb if resource == 'pods' else 'get'}"
    ):
        do_all(cluster, provisioner)
    options = provisioner._options
    (line,) = [one for one in plaincalls.check(KubernetesProvider(options)) if one.name == "rights"]
    assert not line.ok
    assert f"lacks the right to {verb} {resource} in {cluster.name}" in line.detail
    assert line.remedy == "have an administrator run: cloudspot setup kubernetes --grant-to user:YOU"


def test_a_submitter_has_what_the_check_tries(cluster):
    provisioner = cluster.provisioner()
    lines = plaincalls.check(KubernetesProvider(provisioner._options))
    assert [(one.name, one.ok) for one in lines] == [
        ("kubeconfig", True),
        ("rights", True),
        ("listing", True),
        ("offers", True),
        ("room, on-demand small", True),
        ("room, spot small", True),
        ("launch, spot", True),
        ("launch, on-demand", True),
    ]
    assert cluster.pods() == []
    do_all(cluster, provisioner)


def test_the_check_tells_what_admission_refuses(cluster):
    options = cluster.provisioner(priority_class="none")._options
    (line,) = [one for one in plaincalls.check(KubernetesProvider(options)) if one.name == "launch, spot"]
    assert not line.ok
    assert "no PriorityClass with name none" in line.detail


def test_a_node_reads_pods_and_nothing_else(cluster, tmp_path):
    provisioner = cluster.provisioner()
    (made,) = plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    kubeconfig = cluster.provisioner(user=cluster.token_of("cloudspot-node"))._options.kubeconfig
    node = Cluster(KubernetesOptions(kubeconfig=kubeconfig))
    assert node.request("GET", cluster.path(made))["metadata"]["labels"]["cloudspot-rank"] == "0"
    for method, path in (
        ("GET", cluster.path(made).rpartition("/")[0]),
        ("DELETE", cluster.path(made)),
        ("GET", f"/api/v1/namespaces/{cluster.name}/secrets"),
        ("GET", f"/api/v1/nodes/{cluster.name}-a"),
        ("GET", cluster.path(made).replace(cluster.name, "default")),
    ):
        with pytest.raises(Refusal) as caught:
            node.request(method, path)
        assert caught.value.status == 403
