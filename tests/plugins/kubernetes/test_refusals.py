"""What a launch, and the end of one, come to when the API server refuses a part of it."""

from __future__ import annotations

import pytest
from support.clouds.pod_api import NAMESPACE, PodApi, Refused
from support.worlds.groups import group_of

from cloudspot.errors import AuthError, CapacityError, ProvisionError, QuotaError, TransientError
from cloudspot.model import Resources
from cloudspot.testing import plaincalls
from cloudspot_kubernetes import pods as pods_module
from cloudspot_kubernetes.cluster import Cluster
from cloudspot_kubernetes.options import KubernetesOptions, PodType
from cloudspot_kubernetes.pods import PodProvisioner


@pytest.fixture
def api():
    made = PodApi()
    yield made
    made.close()


@pytest.fixture
def provisioner(api, tmp_path, monkeypatch):
    monkeypatch.setattr(pods_module, "POLL_SECONDS", 0.0)
    options = KubernetesOptions(
        kubeconfig=str(api.write_kubeconfig(tmp_path / "kubeconfig")),
        namespace=NAMESPACE,
        image="image",
        types={"small": PodType(cpus=2, memory=2**30, spot_price=0.3)},
        capacity_wait=0.0,
    )
    return PodProvisioner(options, Cluster(options))


def launch(provisioner, *, num_nodes=1, **fields):
    (offer,) = plaincalls.offers(provisioner, Resources())
    request = provisioner.render(group_of(offer, num_nodes=num_nodes, **fields))
    return plaincalls.create(provisioner, request, token="one")


def forbidden(message):
    return Refused(403, "Forbidden", f'pods "digits-1-1-0-abc" is forbidden: {message}')


def test_a_pod_can_be_ended_by_whoever_may_not_mark_it(api, provisioner):
    made = launch(provisioner, num_nodes=2)
    api.denied = {("patch", "pods")}
    with pytest.raises(AuthError, match=r"access denied: pods is forbidden: .* cannot patch"):
        plaincalls.terminate(provisioner, [one.id for one in made])
    assert api.pods == {}


def test_a_launch_that_may_not_be_marked_leaves_no_pod_running(api, provisioner):
    api.denied = {("patch", "pods")}
    with pytest.raises(AuthError, match="cannot patch"):
        launch(provisioner, num_nodes=2)
    assert api.pods == {}


def test_pods_that_another_driver_has_marked_meanwhile_are_left_to_it(api, provisioner, monkeypatch):
    launch(provisioner)
    (pod,) = api.pods.values()
    mark = pod["metadata"]["annotations"].pop("cloudspot-kept")
    listed = provisioner._of

    def marked_after_the_first_look(one):
        if ("patch", "pods") in api.calls:
            pod["metadata"]["annotations"]["cloudspot-kept"] = mark
        return listed(one)

    api.calls.clear()
    api.denied = {("patch", "pods")}
    monkeypatch.setattr(provisioner, "_of", marked_after_the_first_look)
    with pytest.raises(AuthError):
        launch(provisioner)
    assert len(api.pods) == 1


@pytest.mark.parametrize(
    ("num_nodes", "said", "limit"),
    [
        (
            1,
            "requested: limits.cpu=2,requests.cpu=2, used: requests.cpu=0, limited: requests.cpu=1500m",
            "cpu",
        ),
        (
            1,
            "requested: requests.memory=1Gi, used: requests.memory=0, limited: requests.memory=512Mi",
            "memory",
        ),
        (3, "requested: pods=1, used: pods=2, limited: pods=2", "pods"),
    ],
)
def test_a_quota_that_has_never_room_for_the_launch_refuses_it_for_good(
    api, provisioner, num_nodes, said, limit
):
    api.admission = [*[None] * (num_nodes - 1), forbidden(f"exceeded quota: few, {said}")]
    with pytest.raises(
        ProvisionError, match=rf"for more \S*{limit} than the namespace's quota can ever give"
    ) as e:
        launch(provisioner, num_nodes=num_nodes)
    assert type(e.value) is ProvisionError
    assert "exceeded quota: few" in str(e.value)
    assert api.pods == {}


@pytest.mark.parametrize(
    "said",
    [
        "requested: pods=1, used: pods=2, limited: pods=2",
        "requested: requests.cpu=2, used: requests.cpu=3, limited: requests.cpu=4",
        "requested: requests.cpu=x, used: requests.cpu=3, limited: requests.cpu=1",
        "",
    ],
)
def test_a_quota_that_others_use_up_is_asked_again(api, provisioner, said):
    api.admission = [None, forbidden(f"exceeded quota: few, {said}")]
    with pytest.raises(QuotaError, match="exceeded quota: few"):
        launch(provisioner, num_nodes=2, min_nodes=1)
    assert api.pods == {}


def test_long_refusals_are_understood_whole(api, provisioner):
    others = ",".join(f"count/resource-{i}.example.com={i}" for i in range(20))
    said = f"exceeded quota: few, requested: {others},pods=2, used: {others}, limited: {others},pods=1"
    api.admission = [forbidden(said)]
    with pytest.raises(ProvisionError, match="for more pods than"):
        launch(provisioner)


def test_a_quota_that_has_just_been_made_is_not_known_yet(api, provisioner):
    api.admission = [forbidden("status unknown for quota: few, resources: pods")]
    with pytest.raises(TransientError, match="status unknown for quota"):
        launch(provisioner)


@pytest.mark.parametrize(
    "said",
    [
        "failed quota: few: must specify limits.cpu,limits.memory",
        "[maximum cpu usage per Container is 4. No limit is specified]",
    ],
)
def test_a_namespace_that_wants_limits_says_which_options_set_them(api, provisioner, said):
    api.admission = [forbidden(said)]
    with pytest.raises(ProvisionError, match=r"set cpu_limit and memory of the type") as caught:
        launch(provisioner)
    assert type(caught.value) is ProvisionError


def test_no_room_is_a_lack_of_capacity_and_leaves_nothing(api, provisioner, monkeypatch):
    monkeypatch.setattr(pods_module, "VERDICT_SECONDS", 0.0)
    api.schedules = False
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    create = api._create

    def judged(body, *, is_trial):
        pod = create(body, is_trial=is_trial)
        pod["status"]["conditions"] = [condition]
        return pod

    api._create = judged
    with pytest.raises(CapacityError, match="0/1 nodes are available"):
        launch(provisioner)
    assert api.pods == {}
