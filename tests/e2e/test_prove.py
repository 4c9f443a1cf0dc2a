"""The first run as one command, in the sandboxes: it passes, finds what a cloud does otherwise, and survives kills."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs.acting_user import COMMAND
from support.jobs.isolated_machines import needs_isolated_machines

from cloudspot.emulation.cloud import EmulatedCloud
from cloudspot.registry import sandbox_class
from cloudspot_prove.clouds import CLOUDS
from cloudspot_prove.questions import questions_of
from cloudspot_prove.recording import read_head

pytestmark = [needs_isolated_machines, pytest.mark.timeout(7200)]

SETS = {
    "aws": ["--set", 'providers.aws.instance_types=["m6a.large"]'],
    "gcp": ["--set", 'providers.gcp.machine_types=["e2-standard-2"]'],
    "aliyun": [
        "--image-has-torch",
        *("--set", 'providers.aliyun.image_family="cloudspot-torch"'),
        *("--set", 'providers.aliyun.instance_types=["ecs.c7.large"]'),
    ],
    "kubernetes": [
        *("--set", 'providers.kubernetes.image="registry.example.com/any:1"'),
        *("--set", 'providers.kubernetes.spot_selector={"karpenter.sh/capacity-type" = "spot"}'),
        *("--set", 'providers.kubernetes.spot_tolerations=["spot"]'),
        *(
            "--set",
            'providers.kubernetes.types.s={cpus=2, memory="4GiB", spot_price=0.03, on_demand_price=0.1}',
        ),
    ],
}
"""Options without which a run would cost time that the tests have not."""
SECRETS = ("123456789012", "cloudspot-sandbox", "AKIA", "LTAI5t", "172.31.", "10.128.", "172.16.", "10.88.")
"""What belongs to the sandboxes' accounts: their numbers, buckets, keys and addresses."""
RECORDINGS = sorted(
    (Path(__file__).parents[1] / "plugins" / "prove" / "recordings").glob("*.recording.jsonl")
)
"""Those that people have sent in, and one of the emulated AWS."""
NOTICED = {"aliyun": ["--reclaim", "launch=1,after_share=0.4"]}
"""Where no reclaim can be requested, the sandbox plans one."""


def prove(user, tmp_path, cloud, *arguments, options=(), seconds=90):
    """Run the command in the cloud's sandbox; return the report, what is on the disk, and what was printed."""
    words = [
        *COMMAND,
        "prove",
        cloud,
        "--yes",
        "--train-seconds",
        str(seconds),
        "-o",
        str(tmp_path),
        *SETS[cloud],
    ]
    reclaims = () if "--reclaim" in options else ("--reclaim", "none")
    command = [*COMMAND, "sandbox", cloud, *reclaims, *options, "--", *words, *arguments]
    done = subprocess.run(command, env=user.environ, capture_output=True, text=True, check=False)
    reports = list(tmp_path.glob("*.json"))
    assert reports, f"{done.stdout[-6000:]}\n{done.stderr[-4000:]}"
    return json.loads(reports[0].read_text()), done


def saved(tmp_path):
    """Return the texts that a run has saved for others."""
    return {path.name.partition(".")[2]: path.read_text() for path in tmp_path.glob("cloudspot-prove-*")}


def check_nothing_is_told(user, tmp_path):
    recordings = list(Path(user.environ["CLOUDSPOT_LOCAL_HOME"]).glob("prove/*/recordings/*"))
    assert recordings
    texts = [*saved(tmp_path).values(), *(path.read_text() for path in recordings)]
    assert [one for one in SECRETS if any(one in text for text in texts)] == []


@pytest.mark.full
def test_a_machine_of_the_sandbox_is_proven_and_its_recording_replays_clean(user, tmp_path):
    report, done = prove(user, tmp_path, "aws", "--step", "launch", seconds=20)
    assert report["passed"], done.stdout[-6000:]
    assert {name: one["status"] for name, one in report["steps"].items()} == {
        "check": "passed",
        "price": "passed",
        "launch": "passed",
    }
    assert set(saved(tmp_path)) == {"html", "json", "recording.jsonl"}
    check_nothing_is_told(user, tmp_path)
    assert (report["different_from_the_emulation"], report["not_compared"]) == ([], "")


@pytest.mark.soak
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_a_recording_that_was_sent_in_replays_as_it_did(user, recording):
    """Beside a recording whose answers differ stands what differs: FILE.differences.json."""
    cloud = read_head(recording).provider
    command = [*COMMAND, "sandbox", cloud, "--", *COMMAND, "replay", str(recording), "--json"]
    done = subprocess.run(command, env=user.environ, capture_output=True, text=True, check=False)
    known = recording.with_suffix(".differences.json")
    expected = json.loads(known.read_text()) if known.exists() else []
    assert json.loads(done.stdout)["differences"] == expected, done.stderr[-4000:]


@pytest.mark.soak
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_run_passes_in_each_sandbox_and_leaves_nothing(user, tmp_path, cloud):
    report, done = prove(user, tmp_path, cloud, options=NOTICED.get(cloud, ()))
    assert report["passed"], done.stdout[-8000:]
    statuses = {name: one["status"] for name, one in report["steps"].items()}
    skipped = {"gpu", "other-region"} | ({"driver"} if cloud == "kubernetes" else set())
    assert statuses == {name: "skipped" if name in skipped else "passed" for name in statuses}
    assert report["left_behind"] == []
    assert (report["different_from_the_emulation"], report["not_compared"]) == ([], "")
    assert set(report["questions"]) == {one.id for one in questions_of(cloud)}
    check_nothing_is_told(user, tmp_path)


CONTRARIES = [(cloud, name) for cloud in CLOUDS for name in sandbox_class(cloud, EmulatedCloud).contraries]


@pytest.mark.soak
@pytest.mark.parametrize(("cloud", "name"), CONTRARIES)
def test_what_a_cloud_does_otherwise_is_found_by_its_question_and_jobs_survive_it(
    user, tmp_path, cloud, name
):
    asked = sandbox_class(cloud, EmulatedCloud).contraries[name].question
    (question,) = (one for one in questions_of(cloud) if one.id == asked)
    steps = [word for step in question.steps for word in ("--step", step)]
    options = ["--contrary", name, *NOTICED.get(cloud, ())]
    report, done = prove(user, tmp_path, cloud, *steps, options=options)
    found = {one: told["verdict"] for one, told in report["questions"].items()}
    assert found[asked] == "otherwise", done.stdout[-8000:]
    assert [one for one, verdict in found.items() if verdict == "otherwise"] == [asked]
    assert report["left_behind"] == []
    statuses = {name: one["status"] for name, one in report["steps"].items()}
    if name == "grace-cut":  # the job survives, but the step asks for a notice
        assert statuses.pop("notice") == "failed"
    # A store that is refused at its first use runs no job.
    if name != "creates-twice":
        assert {*statuses.values()} == {"passed"}


@pytest.mark.soak
def test_a_run_that_is_killed_at_twenty_random_moments_goes_on_and_leaves_nothing(user, tmp_path):
    moments = random.Random(20)
    waits = " ".join(f"{moments.uniform(1, 40):.1f}" for _ in range(20))
    words = [*COMMAND, "prove", "aws", "--yes", "--train-seconds", "40", "-o", str(tmp_path), *SETS["aws"]]
    look = (
        "import boto3, json; found = boto3.client('ec2').describe_instances()['Reservations'];"
        "print(json.dumps([i['State']['Name'] for r in found for i in r['Instances']]))"
    )
    script = f"""
for wait in {waits}; do
    {shlex.join(words)} --step launch --step resume --step alone > {tmp_path}/out 2>&1 &
    sleep $wait; kill -9 $! && wait $!
done
{shlex.join(words)}
{shlex.quote(sys.executable)} -c {shlex.quote(look)} > {tmp_path}/machines
"""
    command = [*COMMAND, "sandbox", "aws", "--reclaim", "none", "--", "bash", "-c", script]
    done = subprocess.run(command, env=user.environ, capture_output=True, text=True, check=False)
    (path,) = tmp_path.glob("*.json")
    report = json.loads(path.read_text())
    assert report["passed"], done.stdout[-8000:]
    assert set(report["questions"]) == {one.id for one in questions_of("aws")}
    assert set(json.loads((tmp_path / "machines").read_text())) <= {"terminated"}
