"""From an account with nothing but an administrator to all that a submitter does, and back to nothing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.clouds.sandboxed import rights_taken
from support.jobs.acting_user import COMMAND, JOBS
from support.jobs.isolated_machines import needs_isolated_machines

from cloudspot_aws import permissions as aws
from cloudspot_gcp import permissions as gcp

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600), needs_isolated_machines]

SCRIPT = Path(__file__).parents[1] / "support" / "clouds" / "bare_account.py"
UNTRIED = {
    "aws": {
        "ec2:DescribeKeyPairs": "providers.aws.key_name",
        "ec2:DescribePlacementGroups": "a placement group of one's own",
        "fis:CreateExperimentTemplate": "cloudspot preempt: test_policies.py",
        "fis:DeleteExperimentTemplate": "as above",
        "fis:StartExperiment": "as above",
        "iam:CreateServiceLinkedRole": "taken by EC2 at the first launch: it is in no request of its own",
        "sts:DecodeAuthorizationMessage": "a refused launch: test_check.py",
        "ec2:DeleteVolume": "a volume that is left behind: test_reap.py",
        "scheduler:GetSchedule": "a schedule that is left behind",
        "events:ListTagsForResource": "a driver of another store: test_reap.py",
        "iam:ListRoleTags": "as above",
        "lambda:ListTags": "as above",
        "logs:ListTagsLogGroup": "as above",
        "lambda:UpdateFunctionCode": "a second deployment",
        "lambda:UpdateFunctionConfiguration": "as above",
        "logs:DeleteLogStream": "cloudspot logs --prune",
    },
    "gcp": {
        "compute.instances.setServiceAccount": "a part of the launch",
        "compute.instances.simulateMaintenanceEvent": "cloudspot preempt: test_roles.py",
    },
}
"""The rights that the steps here do not take, with what does."""


def granted_on_aws():
    found = set()
    for name in ("submitter", "deploy", "reap"):
        for one in aws.policy(name, partition="aws", bucket="b")["Statement"]:
            found |= {one["Action"]} if isinstance(one["Action"], str) else {*one["Action"]}
    return found


def granted_on_gcp():
    return {one for name in ("submitter", "deployer", "bucket") for one in gcp.role(name).permissions}


GRANTED = {"aws": granted_on_aws, "gcp": granted_on_gcp}
"""Each cloud's rights that a submitter is given."""


@pytest.mark.parametrize("cloud", GRANTED)
def test_a_submitter_can_do_everything_with_what_the_setup_grants_and_nothing_is_left(user, cloud):
    options = ("--bare", "--keep", "--reclaim", "launch=1,rank=0,after_share=0.8,notice=20s")
    job = JOBS / "tiny" / "job.toml"
    command = [*COMMAND, "sandbox", cloud, *options, "--", sys.executable, str(SCRIPT), cloud, str(job)]
    done = subprocess.run(command, env=user.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-8000:]
    seen = json.loads(done.stdout)
    failed = [one for one in seen["steps"] if one["status"] != 0]
    assert failed == [], json.dumps(failed, indent=1)
    assert seen["show"]["state"] == "succeeded"
    assert len({node["launch"] for node in seen["show"]["nodes"]}) == 2  # the first was reclaimed
    assert seen["set_up"] != seen["before"]
    assert seen["after"] == seen["before"]
    kept = Path(re.findall(r"kept in (\S+)", done.stderr)[-1]) / "state" / "cloud" / "requests.jsonl"
    requests = [json.loads(line) for line in kept.read_text().splitlines()]
    trail = [one for one in requests if seen["granted_at"] < one["at"] < seen["left_at"]]
    # Each was taken, and so was granted: without it, a step would have failed.
    taken = {right for right, _ in rights_taken(trail, "user")}
    assert GRANTED[cloud]() - taken == UNTRIED[cloud].keys()
