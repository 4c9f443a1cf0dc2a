"""Pods as machines, on a real control plane: what a launch makes, what it leaves, and what is told of its end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import pytest
from support.stores.lossyproxy import LossyProxy

from cloudspot.errors import AuthError, CapacityError, ProvisionError, QuotaError, TransientError
from cloudspot.model import EndReason, InstanceState, Market, Resources
from cloudspot.testing import plaincalls
from cloudspot_kubernetes import pods as pods_module
from cloudspot_kubernetes_sandbox.build import binaries
from cloudspot_kubernetes_sandbox.controlplane import SUBMITTER
from cloudspot_kubernetes_sandbox.kubelet import NodeSpec

pytestmark = pytest.mark.full


JOB = "digits-1"


def by_id(provisioner, **arguments):
    return {one.id: one for one in plaincalls.instances(provisioner, **arguments)}


def ended(provisioner, wait_until, machine):
    """Return the machine once it has ended."""
    wait_until(lambda: by_id(provisioner)[machine.id].state is InstanceState.ENDED)
    return by_id(provisioner)[machine.id]


def going(provisioner, wait_until, machine):
    """Return what is told of the machine while it ends, and wait until it is gone."""
    seen = []

    def is_gone():
        found = by_id(provisioner).get(machine.id)
        seen.append(found)
        return found is None

    wait_until(is_gone)
    return {one.end_reason for one in seen if one is not None and one.end_reason is not None}


def test_a_launch_is_a_pod_a_node_and_its_replay_makes_none(cluster):
    provisioner = cluster.provisioner()
    request = cluster.request(provisioner, num_nodes=2, store_url="file:///a")
    made = plaincalls.create(provisioner, request, token="one")
    assert [(one.rank, one.launch, one.job_id, one.market) for one in made] == [
        (0, 1, JOB, Market.SPOT),
        (1, 1, JOB, Market.SPOT),
    ]
    assert [one.store_url for one in made] == ["file:///a"] * 2
    again = plaincalls.create(cluster.provisioner(), request, token="one")
    assert [one.id for one in again] == [one.id for one in made]
    assert len(cluster.pods()) == 2
    assert {pod["spec"]["activeDeadlineSeconds"] for pod in cluster.pods()} == {3600}
    assert by_id(provisioner).keys() == {one.id for one in made}


def test_the_answer_to_a_launch_is_lost_and_the_replay_finds_its_pods(cluster, tmp_path):
    kubeconfig = cluster.plane.write_kubeconfig(tmp_path / "proxied", SUBMITTER)
    kubectl = [str(binaries() / "kubectl"), "--kubeconfig", str(kubeconfig), "proxy", "--port", "0"]
    with subprocess.Popen(kubectl, stdout=subprocess.PIPE, text=True) as tunnel:
        try:
            port = tunnel.stdout.readline().strip().rpartition(":")[2]
            proxy = LossyProxy(f"http://127.0.0.1:{port}")
            try:
                proxy.drop = lambda method, path: method == "POST"
                cluster.url = proxy.url
                provisioner = cluster.provisioner()
                request = cluster.request(provisioner, num_nodes=2)
                for number in (1, 2):
                    with pytest.raises(TransientError, match="no answer from the cluster's API"):
                        plaincalls.create(provisioner, request, token="one")
                    assert len(cluster.pods()) == number
                made = plaincalls.create(provisioner, request, token="one")
                assert proxy.num_dropped == 2
            finally:
                proxy.close()
        finally:
            tunnel.terminate()
    assert [one.rank for one in made] == [0, 1]
    assert len(cluster.pods()) == 2


def test_two_drivers_that_send_a_launch_at_once_get_the_same_pods(cluster):
    request = cluster.request(cluster.provisioner(), num_nodes=2)
    found = []

    def launch(provisioner):
        found.append(plaincalls.create(provisioner, request, token="one"))

    drivers = [threading.Thread(target=launch, args=(cluster.provisioner(),)) for _ in range(3)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert len({tuple(one.id for one in made) for made in found}) == 1
    assert len(found) == 3
    assert len(cluster.pods()) == 2


def test_a_token_is_of_one_request(cluster):
    provisioner = cluster.provisioner()
    plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    with pytest.raises(ProvisionError, match="already used for another request"):
        plaincalls.create(provisioner, cluster.request(provisioner, max_seconds=7.0), token="one")


def test_a_launch_without_room_for_all_is_refused_and_leaves_nothing(cluster):
    provisioner = cluster.provisioner()
    request = cluster.request(provisioner, num_nodes=3)
    with pytest.raises(CapacityError, match=r"no room for 3 pods now: .* Insufficient cpu"):
        plaincalls.create(provisioner, request, token="one")
    # Two of them had a node: it waits until their kubelet has ended them.
    assert cluster.pods() == []


def test_nobody_offers_such_nodes(cluster):
    provisioner = cluster.provisioner(zones=("nowhere",))
    with pytest.raises(CapacityError, match="didn't match Pod's node affinity"):
        plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    assert cluster.pods() == []


def test_a_launch_keeps_as_many_as_there_is_room_for_and_no_replay_adds_to_them(field, wait_until):
    field.add_nodes(NodeSpec("a", cpus=5), NodeSpec("b", cpus=5))
    field.plane.patch(f"/api/v1/nodes/{field.name}-b", {"spec": {"unschedulable": True}})
    provisioner = field.provisioner()
    request = field.request(provisioner, num_nodes=3, min_nodes=2)
    made = plaincalls.create(provisioner, request, token="one")
    assert len(made) == 2
    field.plane.patch(f"/api/v1/nodes/{field.name}-b", {"spec": {"unschedulable": None}})
    again = plaincalls.create(field.provisioner(), request, token="one")
    assert [one.id for one in again] == [one.id for one in made]
    assert by_id(provisioner).keys() == {one.id for one in made}
    plaincalls.terminate(provisioner, [one.id for one in made])
    wait_until(lambda: field.pods() == [])


def test_a_scheduler_that_says_nothing_leaves_the_outcome_open(cluster, monkeypatch):
    monkeypatch.setattr(pods_module, "VERDICT_SECONDS", 1.0)
    provisioner = cluster.provisioner()
    request = cluster.request(provisioner)
    scheduler = cluster.plane._processes["kube-scheduler"].pid
    os.kill(scheduler, signal.SIGSTOP)
    try:
        with pytest.raises(TransientError, match="has not considered pod"):
            plaincalls.create(provisioner, request, token="one")
    finally:
        os.kill(scheduler, signal.SIGCONT)
    monkeypatch.undo()
    assert len(plaincalls.create(provisioner, request, token="one")) == 1


def set_quota(cluster, wait_until, hard):
    """Return once the API server goes by the quota."""
    path = f"/api/v1/namespaces/{cluster.name}/resourcequotas"
    cluster.plane.request("POST", path, {"metadata": {"name": "few"}, "spec": {"hard": hard}})
    wait_until(lambda: "hard" in cluster.plane.get(f"{path}/few").get("status", {}))


def test_a_quota_that_others_use_up_refuses_the_whole_launch_and_nothing_remains(cluster, wait_until):
    provisioner = cluster.provisioner()
    (other,) = plaincalls.create(provisioner, cluster.request(provisioner), token="zero")
    set_quota(cluster, wait_until, {"pods": "2"})
    with pytest.raises(QuotaError, match="exceeded quota: few"):
        plaincalls.create(provisioner, cluster.request(provisioner, num_nodes=2), token="one")
    assert by_id(provisioner).keys() == {other.id}


@pytest.mark.parametrize(
    ("hard", "name"), [({"pods": "1"}, "pods"), ({"requests.cpu": "1500m"}, "requests.cpu")]
)
def test_a_quota_that_has_never_room_refuses_a_launch_for_good(cluster, wait_until, hard, name):
    set_quota(cluster, wait_until, hard)
    provisioner = cluster.provisioner()
    with pytest.raises(ProvisionError, match=f"for more {name} than the namespace's quota") as caught:
        plaincalls.create(provisioner, cluster.request(provisioner, num_nodes=2), token="one")
    assert type(caught.value) is ProvisionError
    assert cluster.pods() == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"priority_class": "none"}, "no PriorityClass with name none"),
        ({"service_account": "none"}, 'serviceaccount "none" not found'),
        ({"spot_selector": {"a b": "c"}}, "Invalid value"),
        ({"namespace": "none"}, 'namespaces "none" not found|cannot'),
    ],
)
def test_a_request_that_can_never_work_is_said_to_be_one(cluster, fields, said):
    provisioner = cluster.provisioner(**fields)
    kind = AuthError if "namespace" in fields else ProvisionError
    with pytest.raises(kind, match=said):
        plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    assert cluster.pods() == []


def test_a_stranger_has_no_right_and_bad_credentials_are_told(cluster):
    stranger = cluster.provisioner(user=cluster.token_of("cloudspot-node"))
    with pytest.raises(AuthError, match=r"access denied: pods is forbidden.* cannot list"):
        plaincalls.instances(stranger)
    with pytest.raises(AuthError, match="does not accept the credentials"):
        plaincalls.instances(cluster.provisioner(user="f" * 48))


def test_the_list_tells_how_pods_end_until_they_are_gone(field, wait_until):
    field.add_nodes(NodeSpec("a", cpus=16))
    field.host.is_polite = False
    provisioner = field.provisioner()
    made = list(plaincalls.create(provisioner, field.request(provisioner, num_nodes=5), token="one"))
    field.end(made[0], EndReason.SELF)
    field.end(made[1], EndReason.UNKNOWN)
    assert ended(provisioner, wait_until, made[0]).end_reason is EndReason.SELF
    assert ended(provisioner, wait_until, made[1]).end_reason is EndReason.UNKNOWN
    assert by_id(provisioner)[made[0].id].ended_at is not None
    wait_until(lambda: all(one["status"]["phase"] != "Pending" for one in field.pods()))
    field.evict(made[2], gracePeriodSeconds=2)
    assert going(provisioner, wait_until, made[2]) == {EndReason.RECLAIMED}
    plaincalls.terminate(provisioner, [made[3].id])
    assert going(provisioner, wait_until, made[3]) == {EndReason.TERMINATED}
    with pytest.raises(TransientError, match="has not ended yet"):
        provisioner.release(JOB)
    # A replay adds nothing to what is left.
    left = plaincalls.create(provisioner, field.request(provisioner, num_nodes=5), token="one")
    assert [one.id for one in left] == [made[number].id for number in (0, 1, 4)]
    assert len(field.pods()) == 3
    plaincalls.terminate(provisioner, [made[4].id])
    wait_until(lambda: made[4].id not in by_id(provisioner))
    provisioner.release(JOB)
    assert field.pods() == []
    provisioner.release(JOB)


def test_an_on_demand_pod_that_somebody_deletes_is_not_reclaimed(field, wait_until):
    field.add_nodes(NodeSpec("a", is_spot=False))
    field.host.is_polite = False
    provisioner = field.provisioner()
    request = field.request(provisioner, market=Market.ON_DEMAND)
    (one,) = plaincalls.create(provisioner, request, token="one")
    wait_until(lambda: by_id(provisioner)[one.id].state is InstanceState.RUNNING)
    field.evict(one, gracePeriodSeconds=2)
    assert going(provisioner, wait_until, one) == {EndReason.TERMINATED}


def test_a_pod_that_does_not_end_by_itself_is_killed_after_its_grace_period(cluster, wait_until):
    cluster.host.is_polite = False
    provisioner = cluster.provisioner()
    (one,) = plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    wait_until(lambda: by_id(provisioner)[one.id].state is InstanceState.RUNNING)
    began = time.monotonic()
    cluster.evict(one, gracePeriodSeconds=3)
    wait_until(lambda: cluster.host.stopped)
    assert by_id(provisioner)[one.id].state is InstanceState.SHUTTING_DOWN
    wait_until(lambda: cluster.pods() == [])
    assert time.monotonic() - began >= 2.9


def test_a_pod_whose_node_is_silent_is_alive_until_it_is_deleted_by_force(cluster, wait_until):
    provisioner = cluster.provisioner()
    (one,) = plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    wait_until(lambda: by_id(provisioner)[one.id].state is InstanceState.RUNNING)
    cluster.kubelet.fail_node(f"{cluster.name}-a")
    plaincalls.terminate(provisioner, [one.id])
    time.sleep(3.0)
    assert by_id(provisioner)[one.id].state is InstanceState.SHUTTING_DOWN
    cluster.plane.request("DELETE", cluster.path(one), {"gracePeriodSeconds": 0})
    assert by_id(provisioner) == {}


def test_two_stores_have_jobs_of_one_name(cluster, wait_until):
    provisioner = cluster.provisioner()
    ours = plaincalls.create(provisioner, cluster.request(provisioner, store_url="file:///a"), token="a")
    theirs = plaincalls.create(provisioner, cluster.request(provisioner, store_url="file:///b"), token="b")
    for one in (*ours, *theirs):
        cluster.end(one)
        ended(provisioner, wait_until, one)
    provisioner.release(JOB, store_url="file:///a")
    assert {one.id: one.store_url for one in plaincalls.instances(provisioner)} == {theirs[0].id: "file:///b"}


def test_ids_that_are_nobodys_are_no_error(cluster, wait_until):
    provisioner = cluster.provisioner()
    plaincalls.terminate(provisioner, ["none", "digits-1-1-0-abc.12345678", ""])
    (one,) = plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    plaincalls.terminate(provisioner, [f"{one.id.rpartition('.')[0]}.00000000"])
    assert by_id(provisioner)[one.id].state is not InstanceState.SHUTTING_DOWN
    cluster.end(one)
    ended(provisioner, wait_until, one)
    plaincalls.terminate(provisioner, [one.id])
    assert plaincalls.create(provisioner, cluster.request(provisioner), token="one")[0].id == one.id
    provisioner.release(JOB)
    # A pod of the same name, which the same token made, is another machine.
    assert plaincalls.create(provisioner, cluster.request(provisioner), token="one")[0].id != one.id


def test_machines_are_told_facts(cluster):
    provisioner = cluster.provisioner()
    made = plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    provisioner.announce(made, {"MASTER_ADDR": "10.88.0.1"})
    provisioner.announce(made, {"MASTER_ADDR": "10.88.0.2"})
    assert cluster.pods()[0]["metadata"]["annotations"]["MASTER_ADDR"] == "10.88.0.2"


def test_a_console_is_what_the_container_has_printed(cluster, wait_until):
    provisioner = cluster.provisioner()
    (one,) = plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    cluster.end(one, EndReason.UNKNOWN)
    found = ended(provisioner, wait_until, one)
    assert provisioner.console(found) == "kubelet: the container exited with 1\n"
    provisioner.release(JOB)
    assert provisioner.console(found) == ""


def test_on_demand_pods_are_on_other_nodes(field):
    field.add_nodes(NodeSpec("a"), NodeSpec("b", is_spot=False))
    provisioner = field.provisioner()
    made = {}
    for market in Market:
        plaincalls.create(provisioner, field.request(provisioner, market=market), token=market.value)
    for pod in field.pods():
        made[pod["metadata"]["annotations"]["cloudspot-market"]] = pod["spec"]["nodeName"].rpartition("-")[2]
    assert made["spot"] == "a"
    assert made["on-demand"] != "a"


def test_a_kubeconfig_of_another_cluster_is_refused(cluster, tmp_path):
    provisioner = cluster.provisioner(cluster="0" * 16)
    with pytest.raises(AuthError, match=r"providers.kubernetes.cluster: .* leads to another"):
        plaincalls.instances(provisioner)


def test_offers_are_the_options_own(cluster):
    offers = plaincalls.offers(cluster.provisioner(zones=("b", "a")), Resources(cpus=2))
    assert [(one.key, one.price_per_hour, one.on_demand_price_per_hour) for one in offers] == [
        ("spot/b/small", 0.3, 1.0),
        ("on-demand/b/small", 1.0, 1.0),
        ("spot/a/small", 0.3, 1.0),
        ("on-demand/a/small", 1.0, 1.0),
    ]
    assert plaincalls.offers(cluster.provisioner(), Resources(cpus=3)) == ()


def test_a_right_that_is_missing_right_after_an_outage_may_not_be(cluster):
    provisioner = cluster.provisioner(user=cluster.token_of("cloudspot-node"))
    api = provisioner._cluster
    with pytest.raises(AuthError):
        plaincalls.instances(provisioner)
    cluster.plane.stop_api()
    try:
        with pytest.raises(TransientError, match="no answer"):
            plaincalls.instances(provisioner)
    finally:
        cluster.plane.start_api()
    with pytest.raises(TransientError, match="may not have read its roles yet"):
        plaincalls.instances(provisioner)
    api._monotonic = lambda: api._failed_at + 61
    with pytest.raises(AuthError):
        plaincalls.instances(provisioner)
