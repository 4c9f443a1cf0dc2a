"""What the status of a pod says of its machine, in the shapes that the API reference of Kubernetes describes."""

import pytest

from cloudspot.model import EndReason, InstanceState
from cloudspot_kubernetes.listing import to_instance

OUT_OF_MEMORY = {
    "containerID": "docker://65183c1877aaec2e8427bc95609cc52677a454b56fcb24340dbd22917c23b10f",
    "exitCode": 137,
    "finishedAt": "2017-06-20T20:52:19Z",
    "reason": "OOMKilled",
    "startedAt": None,
}
"""As in the task "Assign Memory Resources to Containers and Pods" of Kubernetes' documentation."""


def container(state, name="node"):
    return {"name": name, "image": "train:7", "ready": False, "restartCount": 0, "state": state}


def pod(phase, *containers, limits=None, notes=(), metadata=None, **status):
    return {
        "metadata": {
            "name": "digits-1-1-0-abc",
            "uid": "uid",
            "creationTimestamp": "2017-06-20T20:50:00Z",
            "labels": {"cloudspot-job": "digits-1", "cloudspot-launch": "1", "cloudspot-rank": "0"},
            "annotations": {"cloudspot-type": "a10", "cloudspot-market": "spot", **dict(notes)},
            **(metadata or {}),
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "node", "image": "train:7", "resources": {"limits": limits or {}}}],
        },
        "status": {"phase": phase, "containerStatuses": list(containers), **status},
    }


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (
            {"memory": str(30 * 2**30)},
            (
                "it may use 30 GiB, with what is in /dev/shm; raise providers.kubernetes.types.a10.memory, "
                "or let the job use less"
            ),
        ),
        # An admission controller may write a limit of its own, as quantities are written.
        ({"memory": "512Mi"}, "it may use 512Mi, with what is in /dev/shm; raise"),
        (
            {},
            (
                "its node had no memory left; set providers.kubernetes.types.a10.memory, so that the scheduler "
                "keeps it free"
            ),
        ),
    ],
)
def test_a_pod_that_is_killed_for_memory_says_so_and_what_to_change(limits, said):
    found = to_instance(pod("Failed", container({"terminated": OUT_OF_MEMORY}), limits=limits))
    assert (found.state, found.end_reason) == (InstanceState.ENDED, EndReason.UNKNOWN)
    assert found.ended_at.isoformat() == "2017-06-20T20:52:19+00:00"
    assert found.detail.startswith(f"killed for memory (OOMKilled, exit status 137): {said}")


def test_a_pod_that_used_up_its_node_was_not_reclaimed():
    """So it was called, on spot nodes: another was bought at once, and met the same end, without a limit."""
    message = (
        "The node was low on resource: ephemeral-storage. Container node was using 41Gi, which exceeds "
        "its request of 0."
    )
    found = to_instance(pod("Failed", reason="Evicted", message=message))
    assert (found.state, found.end_reason) == (InstanceState.ENDED, EndReason.UNKNOWN)
    assert found.detail == f"Evicted: {message}"


@pytest.mark.parametrize("reason", ["Terminated", "NodeShutdown", "Preempting"])
def test_a_pod_whose_node_shut_down_was_reclaimed(reason):
    found = to_instance(
        pod("Failed", reason=reason, message="Pod was terminated in response to imminent node shutdown.")
    )
    assert found.end_reason is EndReason.RECLAIMED


@pytest.mark.parametrize(
    ("terminated", "said"),
    [
        ({"exitCode": 0, "reason": "Completed"}, ""),
        ({"exitCode": 3, "reason": "Error"}, "its container ended with exit status 3 (Error)"),
        (
            {
                "exitCode": 128,
                "reason": "StartError",
                "message": 'exec: "/bin/bash": stat /bin/bash:\n\x1bno such file',
            },
            'its container ended with exit status 128 (StartError): exec: "/bin/bash": stat /bin/bash: no such file',
        ),
        ({"exitCode": 1}, "its container ended with exit status 1 (no reason is given)"),
    ],
)
def test_a_container_that_ended_by_itself_says_how(terminated, said):
    phase = "Failed" if terminated["exitCode"] else "Succeeded"
    assert to_instance(pod(phase, container({"terminated": terminated}))).detail == said


def test_the_end_of_a_pod_that_cloudspot_has_deleted_needs_no_words():
    state = {"terminated": {"exitCode": 143, "reason": "Error"}}
    assert to_instance(pod("Failed", container(state), notes={"cloudspot-terminated": "true"})).detail == ""


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        ({"reason": "ContainerCreating"}, ""),
        ({"reason": "PodInitializing"}, ""),
        ({}, ""),
        (
            {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "train:7"'},
            (
                "the image train:7 cannot be pulled; correct providers.kubernetes.image or image_pull_secrets "
                '(ImagePullBackOff: Back-off pulling image "train:7")'
            ),
        ),
        (
            {"reason": "InvalidImageName"},
            (
                "the image train:7 cannot be pulled; correct providers.kubernetes.image or image_pull_secrets "
                "(InvalidImageName)"
            ),
        ),
        (
            {"reason": "CreateContainerConfigError", "message": 'secret "keys" not found'},
            'its container cannot start (CreateContainerConfigError: secret "keys" not found)',
        ),
    ],
)
def test_a_container_that_waits_says_why_unless_it_is_about_to_start(waiting, said):
    found = to_instance(pod("Pending", container({"waiting": waiting})))
    assert (found.state, found.detail) == (InstanceState.PENDING, said)


def test_only_the_nodes_own_container_counts_beside_a_mesh_sidecar():
    sidecar = container({"waiting": {"reason": "ErrImagePull"}}, name="istio-proxy")
    assert to_instance(pod("Pending", sidecar, container({"waiting": {}}))).detail == ""
    running = container({"running": {"startedAt": "2017-06-20T20:50:00Z"}})
    assert to_instance(pod("Running", running)).detail == ""
