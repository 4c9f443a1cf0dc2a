"""A job's keys are told from those that strangers may have in the same bucket."""

import inspect

import pytest

from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, SaveId

JOB = "digits-1"
ARGUMENTS = {
    "checkpoint": CheckpointId(1, 10),
    "job_id": JOB, "sha256": "0a" * 32, "resumption": 1, "number": 1, "event": "finished.1", "launch": 1,
    "rank": 0, "instance_id": "us-a/cs.1/2", "generation": 1, "step": 10, "save": SaveId(1, 10, 0),
    "stream": "1-0", "date": "2026-11-24", "first_seq": 1, "writer": "0badcafe",
    "milliseconds": 1, "first": 1, "last": 4, "name": "images", "base": CheckpointId(1, 5), "is_compressed": True,
}  # fmt: skip


def keys_of_a_job():
    """Return what each function returns that names a key below the prefix of a job."""
    for name, function in inspect.getmembers(keys, inspect.isfunction):
        names = list(inspect.signature(function).parameters)
        if names[:1] == ["job_id"] and not name.endswith("_prefix"):
            yield function(**{one: ARGUMENTS[one] for one in names})


def test_every_key_of_a_job_is_known_as_its():
    found = [key for key in keys_of_a_job() if key.startswith(keys.job_prefix(JOB))]
    found += [
        keys.secrets(JOB, 0),
        keys.stop(JOB, 0),
        keys.input_version(JOB, "a-b_2", 0),
        keys.artifacts_prefix(JOB) + "node-2.0/out/a%20b.txt",
    ]
    assert len(found) > 20
    assert {key: keys.job_of(key) for key in found} == dict.fromkeys(found, JOB)


@pytest.mark.parametrize(
    "key",
    [
        "jobs/digits-1", "jobs/digits-1/", "jobs/digits-1/x", "jobs/digits-1/data.csv", "jobs/digits-1/code/x.py",
        "jobs/digits-1/spec.json", "jobs/digits-1/checkpoints/epoch-3.pt", "jobs/digits-1/checkpoints/x",
        "jobs/digits-1/checkpoints/000001-000000000010-000000/chunks/x", "jobs/digits-1/logs/2026/app.log",
        "jobs/digits-1/nodes/1/0/heartbeat", "jobs/digits-1/artifacts/", "jobs/digits-1/artifacts/a b",
        "jobs/No id/spec", "x/jobs/digits-1/spec", "jobs/digits-1/spec\n",
    ],
)  # fmt: skip
def test_a_key_that_cloudspot_gives_to_nothing_is_no_jobs(key):
    assert keys.job_of(key) is None
