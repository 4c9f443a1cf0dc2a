"""What a launch asks of the cluster, and the process that is first in a node's container."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import msgspec
import pytest
from support.worlds.groups import group_of

from cloudspot.boot.script import ending_command
from cloudspot.errors import SpecError
from cloudspot.jobfile.tables import convert
from cloudspot.model import Market, Resources
from cloudspot.testing import plaincalls
from cloudspot_kubernetes.notice import TERMINATING
from cloudspot_kubernetes.options import KubernetesOptions
from cloudspot_kubernetes.podspec import PodsRequest, pods_of
from cloudspot_kubernetes.provider import KubernetesProvider
from cloudspot_kubernetes_sandbox.kubelet import _expand

JOB = {
    "namespace": "training",
    "cluster": None,
    "image": "registry.example.com/train:7",
    "zones": ["zone-b"],
    "spot_selector": {"spot": "yes"},
    "spot_tolerations": ["spot=true:NoSchedule", "gpu"],
    "tolerations": ["team=:NoExecute"],
    "priority_class": "low",
    "secrets": ["keys"],
    "claims": {"/data": "datasets"},
    "image_pull_secrets": ["registry"],
    "grace": "100s",
    "types": {
        "a10": {
            "cpus": 8,
            "memory": "30GiB",
            "accelerator": "A10",
            "accelerator_count": 2,
            "selector": {"type": "g5"},
            "spot_price": 0.5,
            "on_demand_price": 1.5,
        }
    },
}


def options_of(**fields):
    table = {**{name: value for name, value in JOB.items() if value is not None}, **fields}
    return convert(table, KubernetesOptions, at=("providers", "kubernetes"))


@pytest.fixture
def provisioner(provisioner_with):
    return provisioner_with()


@pytest.fixture
def provisioner_with(tmp_path, monkeypatch):
    # A kubeconfig that is only read: no request is made.
    path = tmp_path / "kubeconfig"
    named = [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}]
    contexts = [{"name": "x", "context": {"cluster": "x", "user": "x"}}]
    users = [{"name": "x", "user": {"token": "x"}}]
    config = {"clusters": named, "contexts": contexts, "users": users, "current-context": "x"}
    path.write_bytes(msgspec.json.encode({**config, "apiVersion": "v1", "kind": "Config"}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return lambda **fields: KubernetesProvider(options_of(**fields)).provisioner()


def spec_of(provisioner, **fields):
    return pod_of(provisioner, **fields)["spec"]


def pod_of(provisioner, *, market=Market.SPOT, **fields):
    offer = next(
        one for one in plaincalls.offers(provisioner, Resources(accelerator="a10")) if one.market is market
    )
    body = msgspec.convert(provisioner.render(group_of(offer, **fields)).body, PodsRequest)
    return pods_of(body, "token")[0]


def test_a_spot_pod_asks_for_its_type_on_spot_nodes_of_its_zone(provisioner):
    spec = spec_of(provisioner)
    assert spec["nodeSelector"] == {"type": "g5", "spot": "yes", "topology.kubernetes.io/zone": "zone-b"}
    assert spec["tolerations"] == [
        {"key": "team", "operator": "Equal", "value": "", "effect": "NoExecute"},
        {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists"},
    ]
    (container,) = spec["containers"]
    memory = str(30 * 2**30)
    assert container["resources"] == {
        "requests": {"cpu": "8", "memory": memory, "nvidia.com/gpu": "2"},
        "limits": {"memory": memory, "nvidia.com/gpu": "2"},
    }
    volumes = {
        mount["mountPath"]: {name: value for name, value in volume.items() if name != "name"}
        for mount, volume in zip(container["volumeMounts"], spec["volumes"], strict=True)
    }
    assert volumes == {
        "/dev/shm": {"emptyDir": {"medium": "Memory", "sizeLimit": str(15 * 2**30)}},
        "/var/lib/cloudspot": {"emptyDir": {}},
        "/data": {"persistentVolumeClaim": {"claimName": "datasets"}},
    }
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert (spec["priorityClassName"], spec["terminationGracePeriodSeconds"]) == ("low", 100)
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", 60)
    assert spec["enableServiceLinks"] is False, (
        "each service of the namespace would add variables to the training"
    )


def types_with(**fields):
    return {"a10": {**JOB["types"]["a10"], **fields}}


@pytest.mark.parametrize(("cpus", "written"), [(7, "7"), (7.5, "7500m"), (0.1, "100m"), (1.001, "1001m")])
def test_a_pod_may_ask_for_a_fraction_of_a_cpu_and_be_limited_to_another(provisioner_with, cpus, written):
    resources = spec_of(provisioner_with(types=types_with(cpus=cpus, cpu_limit=8.25)))["containers"][0][
        "resources"
    ]
    assert resources["requests"]["cpu"] == written
    assert resources["limits"]["cpu"] == "8250m"


def test_a_type_with_a_fraction_fits_jobs_that_ask_for_no_more(provisioner_with):
    provisioner = provisioner_with(types=types_with(cpus=7.5))
    assert [len(plaincalls.offers(provisioner, Resources(cpus=cpus))) for cpus in (7, 8)] == [2, 0]


def test_the_jobs_labels_and_those_of_the_options_reach_its_pods_but_not_over_cloudspots_own(
    provisioner_with,
):
    provisioner = provisioner_with(
        labels={"kueue.x-k8s.io/queue-name": "gpus", "team": "vision"},
        annotations={"karpenter.sh/do-not-disrupt": "true"},
    )
    labels = {"team": "nlp", "project": "b 7", "stage.": "dev", "cloudspot-job": "other"}
    metadata = pod_of(provisioner, labels=labels)["metadata"]
    ours = {"cloudspot-job", "cloudspot-launch", "cloudspot-rank", "cloudspot-token"}
    assert metadata["labels"]["cloudspot-job"] == "digits-1"
    assert {name: text for name, text in metadata["labels"].items() if name not in ours} == {
        "kueue.x-k8s.io/queue-name": "gpus",
        "team": "vision",
        "stage": "dev",
    }
    assert metadata["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert metadata["annotations"]["project"] == "b 7", "no label can have this value"


def test_a_restricted_pod_has_what_the_standard_asks_for(provisioner_with):
    spec = spec_of(provisioner_with(restricted=True, run_as_user=1000, fs_group=2000))
    assert spec["securityContext"] == {
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 2000,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_without_these_options_the_image_decides_who_runs(provisioner_with):
    spec = spec_of(provisioner_with())
    assert "securityContext" not in spec
    assert "securityContext" not in spec["containers"][0]
    assert spec_of(provisioner_with(run_as_user=0))["securityContext"] == {"runAsUser": 0, "runAsGroup": 0}


def test_a_pod_has_its_accounts_token_only_where_it_needs_one(provisioner_with):
    def has_token(*, drives=False, **fields):
        return spec_of(provisioner_with(**fields), drives=drives)["automountServiceAccountToken"]

    assert has_token() is False
    assert has_token(drives=True) is True
    assert has_token(read_deadline=True) is True
    assert has_token(watch_taints=True) is True


def test_an_on_demand_pod_stays_off_spot_nodes(provisioner):
    spec = spec_of(provisioner, market=Market.ON_DEMAND)
    assert spec["nodeSelector"] == {"type": "g5", "topology.kubernetes.io/zone": "zone-b"}
    assert [one["key"] for one in spec["tolerations"]] == ["team"]


def test_the_same_launch_gives_the_same_request_and_equals_itself_after_it_was_stored(provisioner):
    group = group_of(plaincalls.offers(provisioner, Resources(accelerator_count=2))[0], num_nodes=3)
    first = provisioner.render(group)
    assert first == provisioner.render(group)
    assert msgspec.json.decode(msgspec.json.encode(first), type=type(first)) == first


@pytest.mark.parametrize(
    "script", ["echo $$ $$$ $(date) $(CLOUDSPOT_POD_NAME) ${x} '$(A)$$'", "plain", "$", "$$(X) a$ (b)"]
)
def test_the_kubelet_passes_the_boot_script_unchanged(provisioner, script):
    (container,) = spec_of(provisioner, user_data=script)["containers"]
    assert [_expand(one, {"CLOUDSPOT_POD_NAME": "n", "A": "a", "X": "x"}) for one in container["args"]] == [
        script
    ]


def run(provisioner, tmp_path, script):
    """Start a container's first process with a boot script."""
    (container,) = spec_of(provisioner, user_data=script)["containers"]
    words = [_expand(one, {}) for one in (*container["command"], *container["args"])]
    environ = {"PATH": "/usr/bin:/bin", "CLOUDSPOT_NODE_DIR": str(tmp_path / "node")}
    return subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_the_container_ends_with_its_boot_script_and_its_status(provisioner, tmp_path):
    process = run(provisioner, tmp_path, "exit 7")
    process.communicate(timeout=10)
    assert process.returncode == 7


@pytest.mark.full
def test_the_power_switch_ends_the_container_with_success(provisioner, tmp_path):
    shutdown = ending_command(KubernetesProvider(options_of()).boot_profile())
    process = run(provisioner, tmp_path, f"bash -c {shutdown!r}; exec sleep 3")
    assert process.wait(10) == 0
    process.communicate()


@pytest.mark.full
def test_a_sigterm_leaves_the_file_and_not_the_boot_script(provisioner, tmp_path, wait_until):
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "on-shutdown").touch()
    process = run(provisioner, tmp_path, "trap 'echo told' TERM; echo up; sleep 1; sleep 1; exit 5")
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    wait_until((tmp_path / "node" / TERMINATING).exists)
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert uptime - 10 < float((tmp_path / "node" / TERMINATING).read_text()) <= uptime
    assert process.wait(10) == 5
    assert process.communicate()[0] == ""


@pytest.mark.full
def test_a_sigterm_before_the_agent_runs_ends_the_container_at_once(provisioner, tmp_path):
    process = run(provisioner, tmp_path, "echo up; exec sleep 2")
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(1.5) == 143
    process.communicate()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"namespace": "A b"}, r'providers.kubernetes.namespace: "A b" is not a namespace'),
        ({"spot_tolerations": ["a=b=c"]}, r'providers.kubernetes.spot_tolerations: "a=b=c" is not a taint'),
        ({"types": {"x": {"cpus": 1}}}, r'providers.kubernetes.types: "x" has no price'),
        ({"types": types_with(cpus=0.0001)}, r'types: "a10" asks for a fraction of 0.001 CPUs'),
        ({"types": types_with(cpu_limit=7.5)}, r'types: "a10" may use 7.5 CPUs, fewer than its cpus'),
        ({"labels": {"a b": "c"}}, r'providers.kubernetes.labels: "a b" is not a label\'s name'),
        ({"labels": {"a": "b c"}}, r'providers.kubernetes.labels: "a" cannot have the value "b c"'),
        ({"labels": {"cloudspot-job": "x"}}, r'labels: "cloudspot-job" is reserved'),
        ({"annotations": {"cloudspot-kept": "x"}}, r'annotations: "cloudspot-kept" is reserved'),
        ({"capacity_wait": 601.0}, r"capacity_wait: a launch waits for 10 minutes at most, got 601 seconds"),
        ({"restricted": True, "run_as_user": 0}, r"run_as_user: 0 is root, which restricted forbids"),
        ({"claims": {"data": "x"}}, r'providers.kubernetes.claims: nothing can be mounted at "data"'),
        ({"claims": {"/dev/shm": "x"}}, r"providers.kubernetes.claims: nothing can be mounted at"),
    ],
)
def test_a_wrong_option_is_named(fields, said):
    with pytest.raises(SpecError, match=said):
        KubernetesProvider(options_of(**fields))


@pytest.mark.parametrize("missing", ["image", "types"])
def test_what_has_no_default_is_asked_for_before_there_is_a_job(missing):
    options = msgspec.structs.replace(options_of(), **{missing: {} if missing == "types" else None})
    with pytest.raises(SpecError, match=rf"providers.kubernetes.{missing}: missing"):
        KubernetesProvider(options).pinned_options()


def test_a_missing_kubeconfig_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    lines = plaincalls.check(KubernetesProvider(options_of()))
    assert [(one.name, one.ok) for one in lines] == [("kubeconfig", False)]
    assert "there is no kubeconfig" in lines[0].detail
    assert "set KUBECONFIG" in lines[0].detail
