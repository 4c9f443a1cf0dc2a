"""Lists of pods that a test has made up: on a real control plane no clock can be wrong, nor a day pass."""

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

from cloudspot.testing import plaincalls
from cloudspot_kubernetes.options import KubernetesOptions
from cloudspot_kubernetes.pods import PodProvisioner

NOW = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
"""By the cluster's clock; by that of whoever tests, some other time."""


def stamp(hours_ago):
    return (NOW - timedelta(hours=hours_ago)).isoformat()


def pod(name, *, job="digits-1", made=0.0, ended=None):
    status = {"phase": "Running"}
    if ended is not None:
        terminated = {"finishedAt": stamp(ended)}
        status = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": terminated}}]}
    return {
        "metadata": {
            "name": name,
            "namespace": "jobs",
            "uid": f"uid-{name}",
            "creationTimestamp": stamp(made),
            "labels": {"cloudspot-job": job, "cloudspot-launch": "1"},
        },
        "status": status,
    }


def provisioner_of(*pods):
    """Return a provisioner of a cluster with these pods, and the names of those that it will have deleted."""
    deleted = []
    cluster = SimpleNamespace(
        namespace="jobs",
        list=lambda _path, *, selector: iter(pods),
        request=lambda method, path, body: deleted.append(path.rpartition("/")[2]),
    )
    return PodProvisioner(KubernetesOptions(), cluster), deleted


def test_a_pod_with_an_empty_label_is_nobodys_and_spoils_no_list():
    provisioner, _ = provisioner_of(pod("nobodys", job=""), pod("mine"))
    assert [one.id.partition(".")[0] for one in plaincalls.instances(provisioner)] == ["mine"]


def test_the_console_of_a_pod_that_cannot_start_is_why_and_takes_no_request():
    waiting = pod("waits")
    state = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
    waiting["status"] = {"phase": "Pending", "containerStatuses": [{"name": "node", "state": state}]}
    waiting["spec"] = {"containers": [{"name": "node", "image": "train:7"}]}
    provisioner, _ = provisioner_of(waiting)
    (found,) = plaincalls.instances(provisioner)
    assert provisioner.console(found).endswith("(ErrImagePull: manifest unknown)\n")


def test_pods_are_forgotten_a_day_after_their_end_by_the_clusters_clock():
    """By a driver's, which may be a day ahead, the end of a pod was forgotten before anybody had seen it."""
    new = pod("new")
    provisioner, deleted = provisioner_of(
        new, pod("old", made=30, ended=25), pod("recent", made=30, ended=23), pod("long", made=100)
    )
    provisioner._forget_old([pod("replayed", made=3), new])
    assert deleted == ["old"]
    deleted.clear()
    provisioner._forget_old([pod("replayed", made=3)])
    assert deleted == [], "no more is known of the time"
