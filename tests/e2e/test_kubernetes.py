"""Whole jobs on a real Kubernetes control plane: drained and evicted, through an outage of the API server."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.jobs.acting_user import COMMAND, tiny, wait_for

from cloudspot.emulation.local_machine_host import emulated
from cloudspot.errors import PluginError
from cloudspot_kubernetes_sandbox.build import binaries
from cloudspot_kubernetes_sandbox.cloud import EmulatedKubernetes

pytestmark = [pytest.mark.enclosed, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def control_plane(request):
    """Skips the test where it is not built; the soak insists."""
    try:
        binaries()
    except PluginError as error:
        if request.node.get_closest_marker("soak") is not None:
            pytest.fail(f"the soak needs it: {error}")
        pytest.skip(f"NOT TESTED: {error}")


class Cluster:
    """An emulated cluster as its owner and as a user of cloudspot see it."""

    def __init__(self, cloud: EmulatedKubernetes, home: Path) -> None:
        self.cloud, self.home = cloud, home
        assert cloud.plane is not None
        self.plane = cloud.plane
        self._started: list[subprocess.Popen[str]] = []
        self.environ = {**os.environ, **cloud.environment(), "CLOUDSPOT_LOCAL_HOME": str(home)}

    def run(self, name: str, *sets: str, store: str = "") -> subprocess.Popen[str]:
        """Start the tiny job, attached."""
        words = [*tiny(name, "kubernetes", sets), "--plain"]
        environ = {**self.environ, **({"CLOUDSPOT_STORE": store} if store else {})}
        with (self.home / f"{len(self._started)}.out").open("w") as output:
            started = subprocess.Popen(words_of(words), env=environ, stdout=output, stderr=output, text=True)
        self._started.append(started)
        return started

    def finish(self, started: subprocess.Popen[str]) -> None:
        status = started.wait(240)
        assert status == 0, self.said(started)

    def said(self, started: subprocess.Popen[str]) -> str:
        return (self.home / f"{self._started.index(started)}.out").read_text()[-60_000:]

    def show(self, name: str, store: str = "") -> dict[str, Any]:
        words = words_of(["show", name, "--json", *(["--store", store] if store else [])])
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def wait_for_step(self, started: subprocess.Popen[str], name: str, step: int, store: str = "") -> None:
        def has_come() -> bool:
            assert started.poll() is None, self.said(started)
            with contextlib.suppress(subprocess.CalledProcessError):
                return (self.show(name, store).get("step") or 0) >= step
            return False

        wait_for(f"step {step}", has_come, seconds=120)

    def kubectl(self, *words: str) -> str:
        """Run the real kubectl as the cluster's admin."""
        config = self.plane.directory.parent / "admin.kubeconfig"
        command = [str(binaries() / "kubectl"), "--kubeconfig", str(config), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pods(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self.plane.get("/api/v1/namespaces/default/pods")["items"]
        return found

    def pod_of(self, launch: int, rank: int) -> Mapping[str, Any]:
        wanted = {"cloudspot-launch": str(launch), "cloudspot-rank": str(rank)}
        (found,) = [one for one in self.pods() if wanted.items() <= one["metadata"]["labels"].items()]
        return found

    def evict(self, pod: Mapping[str, Any], *, seconds: int) -> None:
        metadata = {name: pod["metadata"][name] for name in ("name", "namespace")}
        body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": metadata}
        path = f"/api/v1/namespaces/default/pods/{metadata['name']}/eviction"
        self.plane.request("POST", path, {**body, "deleteOptions": {"gracePeriodSeconds": seconds}})

    def close(self) -> None:
        for one in self._started:
            if one.poll() is None:
                one.kill()
            one.wait()


def words_of(words: list[str]) -> list[str]:
    return [*COMMAND, *words]


@contextlib.contextmanager
def cluster_in(directory: Path) -> Iterator[Cluster]:
    cloud = EmulatedKubernetes()
    home = directory / "home"
    home.mkdir()
    with emulated(cloud, directory / "cloud", is_isolated=True):
        cluster = Cluster(cloud, home)
        try:
            yield cluster
        finally:
            cluster.close()


def weights_of(show: Mapping[str, Any]) -> str:
    found: str = show["final"]["weights_sha256"]
    return found


SLOW = 'run.env.TINY_STEP_SECONDS="0.15"'


@pytest.mark.full
def test_a_drained_node_hands_its_training_on_and_no_step_is_lost(tmp_path, undisturbed):
    calm = undisturbed(("nodes=2",))
    with cluster_in(tmp_path) as cluster:
        job = cluster.run("tiny", "nodes=2", SLOW)
        cluster.wait_for_step(job, "tiny", 8)
        node = cluster.pod_of(1, 0)["spec"]["nodeName"]
        cluster.kubectl("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data")
        # Whoever drains a node waits for its pods, and for nothing else.
        assert job.poll() is None
        cluster.finish(job)
        show = cluster.show("tiny")
        assert cluster.pods() == []
    print(json.dumps(show["nodes"]), json.dumps(show["launches"]), show["notices"])
    assert show["state"] == "succeeded"
    assert show["steps_lost"] == 0
    assert weights_of(show) == weights_of(calm)


@pytest.mark.full
def test_a_person_runs_a_command_on_a_pod(tmp_path):
    with cluster_in(tmp_path) as cluster:
        job = cluster.run("tiny", SLOW)
        cluster.wait_for_step(job, "tiny", 3)
        words = words_of(["exec", "tiny", "--", "sh", "-c", "read line; echo $line; exit 4"])
        done = subprocess.run(
            words, env=cluster.environ, input="hello\n", capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (4, "hello\n"), done.stderr
        cluster.finish(job)


@pytest.mark.full
def test_a_pod_of_a_job_that_has_failed_is_kept_until_the_job_is_stopped(tmp_path):
    with cluster_in(tmp_path) as cluster:
        job = cluster.run("tiny", 'run.env.TINY_FAIL_AT="3"', 'limits.keep_failed="30m"')

        def shown_as_kept():
            assert job.poll() is None, cluster.said(job)
            with contextlib.suppress(subprocess.CalledProcessError):
                show = cluster.show("tiny")
                return show["state"] == "failed" and (show["kept"] or {}).get("is_kept")
            return False

        wait_for("the pod that is kept", shown_as_kept)
        words = words_of(["exec", "tiny", "--", "ls"])
        done = subprocess.run(words, env=cluster.environ, capture_output=True, text=True, check=True)
        assert "train.py" in done.stdout.splitlines()
        assert [one["status"]["phase"] for one in cluster.pods()] == ["Running"]
        subprocess.run(words_of(["stop", "tiny"]), env=cluster.environ, check=True, capture_output=True)
        assert job.wait(120) == 1, cluster.said(job)
        show = cluster.show("tiny")
        assert cluster.pods() == []
    assert (show["state"], show["kept"]["is_kept"]) == ("failed", False)
    assert show["cost"]["purposes"]["kept"]["seconds"] > 0


@pytest.mark.full
def test_a_pod_that_is_evicted_without_grace_costs_no_more_than_what_was_not_committed(tmp_path, undisturbed):
    calm = undisturbed(())
    with cluster_in(tmp_path) as cluster:
        job = cluster.run("tiny", SLOW)
        cluster.wait_for_step(job, "tiny", 20)
        pod = cluster.pod_of(1, 0)
        cluster.evict(pod, seconds=0)
        cluster.finish(job)
        show = cluster.show("tiny")
        assert cluster.pods() == []
    assert weights_of(show) == weights_of(calm)
    assert show["notices"] == []
    first, second = (one for one in show["generations"] if not one["is_holding"])
    before, started, _ = cluster.said(job).partition("(generation 2")
    committed = [int(step) for step in re.findall(r"checkpoint at step (\d+) committed", before)]
    assert started
    assert second["restored"]["step"] == max(committed)
    assert show["steps_lost"] <= first["last_step"] - max(committed)
    print(json.dumps(show["nodes"]), json.dumps(show["launches"]))


@pytest.mark.full
def test_a_job_trains_through_an_outage_of_the_api_server_and_ends_after_it(tmp_path, undisturbed):
    calm = undisturbed(())
    with cluster_in(tmp_path) as cluster:
        job = cluster.run("tiny", SLOW)
        cluster.wait_for_step(job, "tiny", 5)
        cluster.plane.stop_api()
        time.sleep(6.0)
        cluster.plane.start_api()
        cluster.finish(job)
        show = cluster.show("tiny")
        assert cluster.pods() == []
    assert weights_of(show) == weights_of(calm)
    assert show["steps_lost"] == 0
    assert len(show["launches"]) == 1


@pytest.mark.full
def test_two_stores_in_one_namespace_have_jobs_of_one_name(tmp_path, undisturbed):
    calm = undisturbed(())
    with cluster_in(tmp_path) as cluster:
        stores = [f"{cluster.cloud.environment()['CLOUDSPOT_STORE']}/{name}" for name in ("a", "b")]
        jobs = [cluster.run("tiny", SLOW, store=store) for store in stores]
        for job, store in zip(jobs, stores, strict=True):
            cluster.wait_for_step(job, "tiny", 3, store)
        assert len(cluster.pods()) == 2
        for job in jobs:
            cluster.finish(job)
        shows = [cluster.show("tiny", store) for store in stores]
        assert cluster.pods() == []
    assert [weights_of(show) for show in shows] == [weights_of(calm)] * 2
    assert [len(show["nodes"]) for show in shows] == [1, 1]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_node_that_is_gone_with_its_pod_is_replaced_once_nobody_can_doubt_it(tmp_path, undisturbed):
    calm = undisturbed(())
    with cluster_in(tmp_path) as cluster:
        job = cluster.run("tiny", SLOW)
        cluster.wait_for_step(job, "tiny", 10)
        node = cluster.pod_of(1, 0)["spec"]["nodeName"]
        assert cluster.cloud.kubelet is not None
        cluster.cloud.kubelet.fail_node(node)
        # As the cloud's own controller does when the machine no longer exists.
        cluster.plane.request("DELETE", f"/api/v1/nodes/{node}")
        assert job.wait(600) == 0, cluster.said(job)
        show = cluster.show("tiny")
        assert cluster.pods() == []
    assert weights_of(show) == weights_of(calm)
    assert [node["outcome"] for node in show["nodes"]] == ["lost", "succeeded"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_two_nodes_train_through_evictions_at_random_moments(tmp_path, undisturbed, seed):
    calm = undisturbed(("nodes=2",))
    chance = random.Random(seed)
    with cluster_in(tmp_path) as cluster:
        job = cluster.run("tiny", "nodes=2", SLOW)
        cluster.wait_for_step(job, "tiny", 3)
        for _ in range(4):
            time.sleep(chance.uniform(1, 15))
            if chance.random() < 0.3:
                cluster.plane.stop_api()
                time.sleep(chance.uniform(0, 8))
                cluster.plane.start_api()
            running = [pod for pod in cluster.pods() if "deletionTimestamp" not in pod["metadata"]]
            running = [pod for pod in running if pod["status"]["phase"] == "Running"]
            if running:
                cluster.evict(chance.choice(running), seconds=chance.choice([0, 3, 20]))
        assert job.wait(900) == 0, cluster.said(job)
        show = cluster.show("tiny")
        assert cluster.pods() == []
    assert weights_of(show) == weights_of(calm)
