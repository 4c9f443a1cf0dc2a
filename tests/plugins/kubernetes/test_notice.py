"""What a pod hears of its end, by its service account at a real API server; and what it knows of itself."""

from __future__ import annotations

import logging
import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml

import cloudspot_kubernetes
from cloudspot.errors import TransientError
from cloudspot.model import Market, NodeIdentity
from cloudspot.testing import plaincalls
from cloudspot_kubernetes import notice
from cloudspot_kubernetes.notice import TAINTS, TERMINATING, PodApi, PodNoticeSource, node_identity

SHIPPED = Path(cloudspot_kubernetes.__file__).parent
BEGUN = 1_790_000_000


class NoApi(PodApi):
    """No request is expected."""

    def read(self, path):
        raise AssertionError(path)


@pytest.fixture
def pod(cluster, tmp_path, monkeypatch, wait_until):
    """A pod that runs, as whose this process appears."""
    cluster.host.is_polite = False
    provisioner = cluster.provisioner()
    (made,) = plaincalls.create(provisioner, cluster.request(provisioner), token="one")
    wait_until(lambda: [one for one in cluster.pods() if one["status"]["phase"] == "Running"])
    become(cluster, tmp_path, monkeypatch, "cloudspot-node")
    monkeypatch.setenv("CLOUDSPOT_POD_NAME", made.id.rpartition(".")[0])
    monkeypatch.setenv("CLOUDSPOT_POD_NAMESPACE", cluster.name)
    monkeypatch.setenv("CLOUDSPOT_POD_NODE", f"{cluster.name}-a")
    return made


def become(cluster, tmp_path, monkeypatch, account):
    """Let this process have the account's files, as the kubelet gives them to a pod."""
    directory = tmp_path / "account"
    directory.mkdir(exist_ok=True)
    (directory / "token").write_text(cluster.token_of(account))
    (directory / "ca.crt").write_bytes((cluster.plane.directory / "ca.crt").read_bytes())
    monkeypatch.setattr(notice, "SERVICE_ACCOUNT", directory)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", cluster.plane.address)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(cluster.plane.port))


def source(tmp_path, **fields):
    known = {"grace": 120.0, "shutdown_grace": 15.0, "watch_taints": False, "directory": tmp_path}
    return PodNoticeSource(**{**known, **fields})


def terminate(tmp_path):
    """Leave what process 1 leaves at SIGTERM."""
    path = tmp_path / TERMINATING
    path.write_text(notice.UPTIME.read_text().split()[0] + "\n")
    os.utime(path, (BEGUN, BEGUN))


def after(seconds):
    return datetime.fromtimestamp(BEGUN, timezone.utc) + timedelta(seconds=seconds)


def test_until_a_sigterm_nothing_is_asked(tmp_path):
    assert source(tmp_path, api=NoApi()).poll() is None


def test_a_pod_without_a_token_counts_on_its_nodes_shutdown_and_warns_of_nothing(
    tmp_path, monkeypatch, caplog
):
    terminate(tmp_path)
    monkeypatch.setattr(notice, "SERVICE_ACCOUNT", tmp_path / "none")
    for name in ("CLOUDSPOT_POD_NAMESPACE", "CLOUDSPOT_POD_NAME", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    told = source(tmp_path).poll()
    assert (told.deadline, told.source) == (after(15.0), "SIGTERM")
    assert caplog.records == []


class SilentApi(PodApi):
    """The API server does not answer."""

    def read(self, path):
        raise OSError(path)


@pytest.mark.parametrize(("ago", "left"), [(0.0, 15.0), (5.0, 10.0), (-1e9, 15.0)])
def test_how_long_is_left_does_not_follow_the_machines_clock(tmp_path, ago, left):
    """The file is of 2026-09, and tells how long the machine had run by then; an older version told the time."""
    terminate(tmp_path)
    uptime = float((tmp_path / TERMINATING).read_text())
    (tmp_path / TERMINATING).write_text(f"{uptime - ago:.2f}\n")
    os.utime(tmp_path / TERMINATING, (BEGUN, BEGUN))
    found = source(tmp_path, api=SilentApi()).poll()
    assert found.deadline == after(15)
    assert found.deadline_monotonic - time.monotonic() == pytest.approx(left, abs=1.6)


@pytest.mark.parametrize("text", [b"x", b"\xff", b"nan", b"-inf", b"1" * 5000])
def test_a_file_that_process_1_has_not_written_means_that_the_end_begins_now(tmp_path, text):
    """The training may write it; the thread that looks for notices died of it."""
    terminate(tmp_path)
    (tmp_path / TERMINATING).write_bytes(text)
    found = source(tmp_path, api=SilentApi()).poll()
    assert found.deadline_monotonic - time.monotonic() == pytest.approx(15.0, abs=1.6)


@pytest.mark.full
@pytest.mark.parametrize("seconds", [7, 30])
def test_the_deadline_of_an_eviction_is_its_own_grace_period(cluster, pod, tmp_path, seconds):
    cluster.evict(pod, gracePeriodSeconds=seconds)
    terminate(tmp_path)
    found = source(tmp_path).poll()
    assert (found.deadline, found.source) == (after(seconds), "eviction")


@pytest.mark.full
def test_without_another_the_pods_grace_period_counts(cluster, pod, tmp_path):
    cluster.evict(pod)
    terminate(tmp_path)
    assert source(tmp_path).poll().deadline == after(120)


@pytest.mark.full
def test_a_sigterm_that_nobody_has_ordered_is_a_node_that_shuts_down(pod, tmp_path):
    terminate(tmp_path)
    found = source(tmp_path).poll()
    assert (found.deadline, found.source) == (after(15), "node-shutdown")


@pytest.mark.full
def test_a_pod_that_may_not_read_itself_counts_on_the_least(cluster, pod, tmp_path, monkeypatch, caplog):
    cluster.wait_for_account("default")
    become(cluster, tmp_path, monkeypatch, "default")
    terminate(tmp_path)
    with caplog.at_level(logging.WARNING):
        found = source(tmp_path).poll()
    assert (found.deadline, found.source) == (after(15), "SIGTERM")
    assert "cannot be read (HTTP status 403): assuming 15 s" in caplog.text


@pytest.mark.full
def test_a_known_taint_is_a_notice_where_the_node_may_be_read(cluster, pod, tmp_path, monkeypatch):
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = yaml.safe_load((SHIPPED / "role-node-taints.yaml").read_text())
    role["metadata"]["name"] = name = f"{cluster.name}-taints"
    cluster.plane.request("POST", f"{rbac}/clusterroles", role)
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "cloudspot-node", "namespace": cluster.name}],
    }
    cluster.plane.request("POST", f"{rbac}/clusterrolebindings", binding)
    watching = source(tmp_path, watch_taints=True)
    assert watching.poll() is None
    node = f"/api/v1/nodes/{cluster.name}-a"
    taints = cluster.plane.get(node)["spec"]["taints"]
    for key in ("example.com/other", next(iter(TAINTS))):
        taints.append({"key": key, "effect": "NoSchedule"})
    cluster.plane.patch(node, {"spec": {"taints": taints}})
    # It looks again only after a while.
    assert watching.poll() is None
    found = source(tmp_path, watch_taints=True).poll()
    assert (found.deadline, found.source) == (None, "taint aws-node-termination-handler/spot-itn")


@pytest.mark.full
def test_without_the_right_taints_are_not_watched_and_the_log_says_so(pod, tmp_path, caplog):
    watching = source(tmp_path, watch_taints=True)
    with caplog.at_level(logging.WARNING):
        assert watching.poll() is None
    assert "the node's taints cannot be read (HTTP status 403): they are not watched" in caplog.text


@pytest.mark.full
def test_taints_that_cannot_be_read_in_passing_are_an_unknown(pod, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with pytest.raises(TransientError, match="the node's taints"):
        source(tmp_path, watch_taints=True).poll()


def test_a_pod_knows_who_it_is_by_the_downward_api(monkeypatch):
    for name, value in {
        "NAME": "digits-1-0-abc",
        "UID": "12345678-aaaa",
        "RANK": "1",
        "IP": "10.88.0.10",
        "MARKET": "spot",
        "TYPE": "small",
        "ZONE": "any",
    }.items():
        monkeypatch.setenv(f"CLOUDSPOT_POD_{name}", value)
    assert node_identity() == NodeIdentity(
        instance_id="digits-1-0-abc.12345678",
        rank=1,
        address="10.88.0.10",
        zone="any",
        instance_type="small",
        market=Market.SPOT,
    )
    monkeypatch.delenv("CLOUDSPOT_POD_IP")
    with pytest.raises(TransientError, match="CLOUDSPOT_POD_IP is not set"):
        node_identity()
