"""The limits of ``reconcile``, ``ps`` and ``show`` on S3, in requests that the bucket really gets."""

import pytest
from support.records.many_jobs import ManyJobs
from support.stores.request_counts import RequestCounts, check_limits

pytestmark = pytest.mark.full


def test_the_limits_hold_on_s3(aws, store, tmp_path):
    town = ManyJobs(store, tmp_path / "work")
    for _ in range(4):
        town.add_ended()
    live = [town.add_live(num_launches=2) for _ in range(2)]
    long_job = town.add_long(num_launches=6, num_commits=20)
    town.settle()
    counts = RequestCounts(town, tmp_path / "faults")
    check_limits(counts, num_live=len(live) + 1, long_job=long_job)
    # None of the store's calls is more than one request.
    aws.faults.calls.clear()
    in_pass = counts.of_pass()
    assert in_pass.total() <= len(aws.faults.calls) <= in_pass.total() + 2
