"""A whole job on local machines whose bucket is in (an emulated) S3."""

from __future__ import annotations

import json

import boto3
import pytest

from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot_aws.s3 import S3Store

pytest.importorskip("torch")

from support.jobs.acting_user import User

pytestmark = pytest.mark.full


NUM_STEPS = 6 * 20
NAMES = (
    "AWS_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "AWS_EC2_METADATA_DISABLED",
)


@pytest.mark.soak
def test_a_job_is_reclaimed_resumed_and_finished_with_all_of_it_in_s3(aws, local_home):
    bucket = "bucket-of-a-job"
    boto3.session.Session().client("s3", region_name="eu-central-1").create_bucket(
        Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
    )
    url = f"s3://{bucket}/team"
    user = User(local_home)
    try:
        user.run_tiny(
            "tiny",
            "--store",
            url,
            sets=(
                f"providers.local.pass_environment={json.dumps(NAMES)}",
                'providers.local.reclaims=[{launch=1, after_steps=50, notice="15s"}]',
                'run.env.TINY_STEP_SECONDS="0.05"',
            ),
        )
        shown = user.show("tiny", "--verify", "--store", url)
    finally:
        user.close()
    assert shown["state"] == "succeeded"
    assert len(shown["launches"]) == 2
    assert shown["steps_lost"] == 0
    assert (shown["last_commit"]["step"], shown["last_commit"]["verified"]) == (NUM_STEPS, True)
    sink = ObjectStoreLogSink(S3Store(url), "tiny")
    lines = [record.text for stream in sink.streams() for record in sink.read(stream)]
    steps = [int(text.split()[1]) for text in lines if text.startswith("step ")]
    assert steps == list(range(NUM_STEPS))
    # The store did all of it, as S3 demands: nothing was refused but creates that came second.
    assert {call.error for call in aws.faults.calls} <= {None, "404", "NoSuchKey", "PreconditionFailed"}
    assert not list((local_home / "machines").glob("*/environment.json"))


def test_a_variable_that_is_not_there_is_named_before_anything_runs(aws, local_home):
    user = User(local_home)
    try:
        done = user.run_tiny(
            "tiny",
            "--store",
            f"file://{local_home}/store",
            sets=('providers.local.pass_environment=["AWS_NOT_SET_ANYWHERE"]',),
            status=4,
        )
    finally:
        user.close()
    message = (
        "providers.local.pass_environment: AWS_NOT_SET_ANYWHERE is not set in the environment; export it"
    )
    assert message in done.stderr
    assert user.machines() == []
