"""What AWS's own command line shows of the emulated account when a job is over: nothing that costs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from support.jobs.acting_user import COMMAND, JOBS
from support.jobs.documented_layout import check_layout
from support.jobs.isolated_machines import needs_isolated_machines

BUCKET = "cloudspot-sandbox"
STREAMS = ("1-0", "1-1", "2-0")

SCRIPT = f"""
set -eu
cloudspot run "$@" --provider aws --name tiny >&2
mkdir seen && cd seen
aws ec2 describe-instances >instances
aws ec2 describe-volumes >volumes
aws ec2 describe-placement-groups >groups
aws logs describe-log-streams --log-group-name /cloudspot/tiny >streams
for stream in {" ".join(STREAMS)}; do
    name=$(grep -o "[0-9a-f]*/$stream" streams | head -n 1)
    aws logs get-log-events --log-group-name /cloudspot/tiny --log-stream-name "$name" --start-from-head >"log $stream"
done
aws s3 ls --recursive s3://{BUCKET} >objects
cloudspot logs tiny --json >logs
cloudspot show tiny --json >show
"""


# Of the documented keys those that such a job leaves no object at: CloudWatch has the log.
ABSENT = {
    "code/<sha256>.removals/<id>",
    "jobs/<id>/agents/<sha256>",
    "jobs/<id>/code",
    "jobs/<id>/image",
    "jobs/<id>/manifests/<generation>-<step>.begun",
    "jobs/<id>/manifests/<generation>-<step>.damaged",
    "jobs/<id>/outputs/<name>",
    "jobs/<id>/inputs/<name>.<resumption>",
    "live/<id>.<nonce>",
    "drivers/<name>",
    "probe/<nonce>",
    "jobs/<id>/secrets.<resumption>",
    "jobs/<id>/nodes/stop.<resumption>",
    "jobs/<id>/submissions/<sha256>",
    "jobs/<id>/told/<event>",
    "jobs/<id>/suspicions",
    "jobs/<id>/logs/<stream>/<date>/<number>",
    "jobs/<id>/checkpoints/<generation>-<step>-<round>/bases/<rank>/<base>",  # nothing of 1 MiB is shared
    "store-id",
}


@needs_isolated_machines
@pytest.mark.skipif(
    shutil.which("aws") is None, reason="NOT TESTED, there is no aws on PATH (pip install awscli)"
)
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_aws_cli_sees_nothing_left_the_whole_log_and_the_documented_layout(user, tmp_path):
    words = ["--set", "nodes=2", "--set", 'run.env.TINY_STEP_SECONDS="0.1"']
    words += ["--set", 'providers.aws.placement_group="auto"']
    inside = ["bash", "-c", SCRIPT, "bash", str(JOBS / "tiny" / "job.toml"), *words]
    command = [*COMMAND, "sandbox", "aws", "--reclaim", "rank=0,after_share=0.4,notice=60", "--", *inside]
    done = subprocess.run(command, env=user.environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-4000:], done.stderr[-8000:])
    seen = {path.name: path.read_text() for path in (tmp_path / "seen").iterdir()}

    instances = [one for group in json.loads(seen["instances"])["Reservations"] for one in group["Instances"]]
    assert [one["State"]["Name"] for one in instances] == ["terminated"] * 3
    groups = {one["Placement"]["GroupName"] for one in instances}
    assert len(groups) == 1  # there was one, and it is gone
    assert json.loads(seen["groups"])["PlacementGroups"] == []
    assert json.loads(seen["volumes"])["Volumes"] == []

    names = [one["logStreamName"] for one in json.loads(seen["streams"])["logStreams"]]
    store = names[0].partition("/")[0]
    assert sorted(names) == [f"{store}/{stream}" for stream in STREAMS]
    ours = [json.loads(line) for line in seen["logs"].splitlines()]
    for stream in STREAMS:
        events = [json.loads(event["message"]) for event in json.loads(seen[f"log {stream}"])["events"]]
        # A batch that was sent again shows its lines twice; never in another order.
        texts = {event["seq"]: event["text"] for event in events}
        assert list(texts) == list(range(len(texts)))
        mine = [one for one in ours if f"{one['launch']}-{one['rank']}" == stream]
        assert [texts[number] for number in sorted(texts)] == [one["text"] for one in mine]
    steps = [int(found[1]) for one in ours if (found := re.match(r"step (\d+) loss", one["text"]))]
    assert list(dict.fromkeys(steps)) == list(range(json.loads(seen["show"])["steps_total"]))

    keys = [line.split(maxsplit=3)[3] for line in seen["objects"].splitlines()]
    check_layout(keys, absent=ABSENT)
    assert not any(key.startswith("jobs/tiny/logs/") for key in keys)
