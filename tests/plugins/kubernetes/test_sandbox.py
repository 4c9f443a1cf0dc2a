"""Pods of the sandbox as what is inside sees them: environment, volumes, the API server, and the end."""

from __future__ import annotations

import base64
import subprocess
import time

import pytest
from support.worlds.groups import group_of

import cloudspot_kubernetes_sandbox
from cloudspot.emulation.local_machine_host import emulated
from cloudspot.errors import CloudspotError, PluginError
from cloudspot.model import EndReason, InstanceState, Resources
from cloudspot.testing import plaincalls
from cloudspot_kubernetes.cluster import Cluster
from cloudspot_kubernetes.options import KubernetesOptions, PodType
from cloudspot_kubernetes.pods import PodProvisioner
from cloudspot_kubernetes_sandbox import build
from cloudspot_kubernetes_sandbox.build import COMMAND, binaries
from cloudspot_kubernetes_sandbox.cloud import EmulatedKubernetes

LOOK = """\
echo "$CLOUDSPOT_POD_RANK $CLOUDSPOT_POD_NODE $(hostname) $CLOUDSPOT_POD_IP"
echo "$WORD"
echo kept >/data/file
df --output=fstype /dev/shm | tail -n 1
python3 -c '
import os
from cloudspot_kubernetes.notice import PodApi
pods = "/api/v1/namespaces/default/pods"
print(PodApi().read(pods + "/" + os.environ["CLOUDSPOT_POD_NAME"])["spec"]["nodeName"])
try:
    PodApi().read(pods)
except OSError as error:
    print(error)
'
echo up
trap 'echo told; exit 9' TERM
while :; do sleep 0.1; done
"""


@pytest.mark.enclosed
@pytest.mark.full
def test_a_pod_has_what_it_asked_for_and_ends_by_sigterm(tmp_path, require_control_plane, wait_until):
    cloud = EmulatedKubernetes()
    volume = tmp_path / "volume"
    volume.mkdir()
    with emulated(cloud, tmp_path / "state", is_isolated=True) as host:
        plane, namespace = cloud.plane, "/api/v1/namespaces/default"
        secret = {"metadata": {"name": "keys"}, "data": {"WORD": base64.b64encode(b"a secret").decode()}}
        plane.request("POST", f"{namespace}/secrets", secret)
        claimed = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        made = {**claimed, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(volume)}}
        plane.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "volume"}, "spec": made})
        spec = {**claimed, "volumeName": "volume", "resources": {"requests": {"storage": "1Gi"}}}
        claims = f"{namespace}/persistentvolumeclaims"
        plane.request("POST", claims, {"metadata": {"name": "data"}, "spec": spec})
        wait_until(lambda: plane.get(f"{claims}/data")["status"]["phase"] == "Bound")
        options = KubernetesOptions(
            kubeconfig=cloud.environment()["KUBECONFIG"],
            image="image",
            types={"small": PodType(cpus=1, spot_price=0.1)},
            spot_selector={"karpenter.sh/capacity-type": "spot"},
            spot_tolerations=("spot",),
            secrets=("keys",),
            claims={"/data": "data"},
            read_deadline=True,
            capacity_wait=20.0,
        )
        provisioner = PodProvisioner(options, Cluster(options))
        script = f"mkdir -p /var/lib/cloudspot; touch /var/lib/cloudspot/on-shutdown\n{LOOK}"
        (offer,) = plaincalls.offers(provisioner, Resources())
        request = provisioner.render(group_of(offer, user_data=script, max_seconds=600.0))
        (one,) = plaincalls.create(provisioner, request, token="one")

        def said():
            return provisioner.console(one).splitlines()

        wait_until(lambda: "up" in said())
        name = one.id.rpartition(".")[0]
        (pod,) = plane.get(f"{namespace}/pods")["items"]
        rank, node, called, address, *lines = [*said()[0].split(), *said()[1:]]
        assert (rank, called) == ("0", name)
        assert (node, address) == (pod["spec"]["nodeName"], pod["status"]["podIP"])
        assert lines == ["a secret", "tmpfs", node, "HTTP Error 403: Forbidden", "up"]
        assert (volume / "file").read_text() == "kept\n"
        kubectl = [
            str(binaries() / "kubectl"),
            "--kubeconfig",
            str(tmp_path / "state/cloud/admin.kubeconfig"),
        ]
        done = subprocess.run([*kubectl, "logs", name], capture_output=True, text=True, check=True)
        assert "a secret" in done.stdout
        began = time.monotonic()
        metadata = {"name": name, "namespace": "default"}
        body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": metadata}
        body["deleteOptions"] = {"gracePeriodSeconds": 3}
        plane.request("POST", f"{namespace}/pods/{name}/eviction", body)
        (found,) = plaincalls.instances(provisioner)
        assert (found.state, found.end_reason) == (InstanceState.SHUTTING_DOWN, EndReason.RECLAIMED)
        wait_until(lambda: plane.get(f"{namespace}/pods")["items"] == [])
        # Its first process writes the file for the agent, and does not pass the signal on.
        assert "told" not in host.console(pod["metadata"]["uid"])
        assert time.monotonic() - began >= 2.5


def test_a_host_that_cannot_isolate_machines_has_no_pods(tmp_path):
    with (
        pytest.raises(CloudspotError, match="its pods need namespaces"),
        emulated(EmulatedKubernetes(), tmp_path / "state", is_isolated=False),
    ):
        pass


def test_without_the_control_plane_one_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(PluginError, match="lacks etcd, kube-apiserver, ") as caught:
        cloudspot_kubernetes_sandbox.cloudspot_sandbox("kubernetes")
    assert str(caught.value).endswith(COMMAND)


def test_what_is_built_is_not_built_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("subprocess.run", None)
    directory = tmp_path / "cloudspot" / "kubernetes" / "bin"
    directory.mkdir(parents=True)
    for name in build.PROGRAMS:
        (directory / name).touch(mode=0o755)
    assert build.main() == 0
    assert str(directory) in capsys.readouterr().out
