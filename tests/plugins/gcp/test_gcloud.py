"""Google's own command line drives the emulated Google Cloud: it knows nothing of the emulation."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from cloudspot_gcp_sandbox.cloud import BUCKET
from cloudspot_gcp_sandbox.strict_compute import PROJECT

IMAGE = ("--image-family=ubuntu-2204-lts", "--image-project=ubuntu-os-cloud")


def why_no_gcloud() -> str | None:
    """Return why gcloud cannot be run here, or None; a shim of its name is no gcloud."""
    if shutil.which("gcloud") is None:
        return "there is no gcloud on PATH (Google Cloud CLI)"
    done = subprocess.run(["gcloud", "version"], capture_output=True, text=True, check=False)
    return None if "Google Cloud SDK" in done.stdout else f"gcloud does not run: {done.stderr[-200:]}"


def gcloud(*words: str) -> str:
    done = subprocess.run(
        ["gcloud", *words, "--quiet"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"gcloud {' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def listed(*words: str) -> list[dict]:
    found: list[dict] = json.loads(gcloud(*words, "--format=json"))
    return found


@pytest.mark.soak
@pytest.mark.enclosed
@pytest.mark.timeout(300)
def test_gcloud_makes_lists_and_deletes_machines_keeps_objects_and_reads_the_log(project, tmp_path):
    reason = why_no_gcloud()
    if reason is not None:
        pytest.skip(f"NOT TESTED, {reason}")
    with project() as it:
        machines_by_gcloud(it)
        objects_by_gcloud(tmp_path)
        lines_by_gcloud()


def machines_by_gcloud(it):
    assert {one["name"] for one in listed("compute", "regions", "list")} >= {"us-central1", "europe-west4"}
    assert "ubuntu-2204-lts" in {one.get("family") for one in listed("compute", "images", "list")}
    bulk = ("--name-pattern=vm-#", "--count=2", "--region=us-central1", "--machine-type=n2-standard-2")
    spot = ("--provisioning-model=SPOT", "--instance-termination-action=DELETE", "--labels=kind=test")
    gcloud("compute", "instances", "bulk", "create", *bulk, *spot, *IMAGE, "--metadata=a=b", "--no-service-account",
           "--no-scopes")  # fmt: skip
    instances = listed("compute", "instances", "list", "--filter=labels.kind=test")
    assert [one["name"] for one in instances] == ["vm-1", "vm-2"]
    zone = instances[0]["zone"].rpartition("/")[2]
    shown = json.loads(gcloud("compute", "instances", "describe", "vm-1", f"--zone={zone}", "--format=json"))
    assert shown["scheduling"]["provisioningModel"] == "SPOT"
    assert shown["metadata"]["items"] == [{"key": "a", "value": "b"}]
    gcloud("compute", "instances", "delete", "vm-1", f"--zone={zone}")
    assert [one["name"] for one in listed("compute", "instances", "list")] == ["vm-2"]
    it.host.reclaim("vm-2", notice_seconds=0.0)
    it.wait_until(lambda: listed("compute", "instances", "list") == [])
    kinds = [one["operationType"] for one in listed("compute", "operations", "list")]
    assert sorted(kinds) == ["bulkInsert", "compute.instances.preempted", "delete", "insert", "insert"]


def objects_by_gcloud(tmp_path):
    (tmp_path / "file").write_text("hello\n")
    gcloud("storage", "cp", str(tmp_path / "file"), f"gs://{BUCKET}/some/name")
    assert gcloud("storage", "ls", f"gs://{BUCKET}/**") == f"gs://{BUCKET}/some/name\n"
    assert gcloud("storage", "cat", f"gs://{BUCKET}/some/name") == "hello\n"
    gcloud("storage", "rm", f"gs://{BUCKET}/some/name")
    assert listed("storage", "objects", "list", f"gs://{BUCKET}/**") == []


def lines_by_gcloud():
    gcloud("logging", "write", "my-log", "hello there")
    (entry,) = listed("logging", "read", f'logName="projects/{PROJECT}/logs/my-log"')
    assert entry["textPayload"] == "hello there"
