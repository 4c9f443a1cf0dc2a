"""The cost of ``reconcile``, ``ps`` and ``show`` where many jobs have ended: that of the live ones."""

import pytest
from support.records.many_jobs import ManyJobs
from support.stores.memorystore import InMemoryStore
from support.stores.request_counts import MOST_A_LIVE_JOB, RequestCounts, check_limits

from cloudspot.cli.commands import ps
from cloudspot.jobstore.jobs.job_lists import list_live


@pytest.fixture
def town(tmp_path):
    return ManyJobs(InMemoryStore(), tmp_path / "work")


@pytest.fixture
def counts(town, tmp_path):
    return RequestCounts(town, tmp_path / "faults")


@pytest.mark.full
def test_the_limits_hold_where_most_jobs_have_ended(town, counts):
    """A pass asked 39 times for each job that had ever ended, and ``ps`` once."""
    for _ in range(120):
        town.add_ended()
    live = [town.add_live() for _ in range(20)]
    long_job = town.add_long(num_launches=60, num_commits=2500)
    town.settle()
    assert set(list_live(town.store)) == {*live, long_job}
    check_limits(counts, num_live=len(live) + 1, long_job=long_job)


@pytest.mark.full
def test_a_job_that_has_ended_adds_no_request(town, counts):
    town.add_live()
    costs = []
    for num_more in (0, 1, 30):
        for _ in range(num_more):
            town.add_ended()
        town.settle()
        town.run_pass()
        costs.append(counts.of_pass())
    assert costs[0] == costs[1] == costs[2]


@pytest.mark.full
def test_a_settled_job_costs_one_request_to_add_up_and_only_live_jobs_are_read(town, counts):
    for _ in range(40):
        town.add_ended()
    town.settle()
    town.run_pass()
    ended, lines = counts.of_cost("--by", "market")
    assert ended.total() == 2 + 40, ended  # the two lists of jobs
    assert lines[-1].split()[:2] == ["total", "40"]
    live = town.add_live()
    town.run_pass()
    with_live, lines = counts.of_cost("--all")
    assert with_live.total() <= ended.total() + MOST_A_LIVE_JOB, with_live
    assert [line.split()[0] for line in lines].count(live) == 1


@pytest.mark.full
def test_all_that_is_live_is_driven_and_the_newest_of_it_shown(town, counts):
    live = [town.add_live() for _ in range(ps.PAGE + 4)]
    for _ in range(5):
        town.add_ended()
    town.settle()
    assert counts.of_ps()[1] == live[::-1][: ps.PAGE]
    assert {one.job_id for one in town.run_pass()} == set(live)


def test_each_further_node_of_a_live_job_adds_two_requests_to_a_pass(town, counts):
    """docs/controller.md says so: its seat and its heartbeat are read, and all else is shared.

    The journal is read from two copies, and one record has come since.
    """
    # As soon as a job is live, a new process asks for the store's time, once for all jobs.
    costs = {0: counts.of_pass().total() + 3}
    for num_nodes in (1, 3, 8):
        town.add_live(num_nodes=num_nodes)
        town.run_pass()  # copies what has settled
        costs[num_nodes] = counts.of_pass().total() - sum(costs.values())
    del costs[0]
    assert costs == {1: 10 + 2 + 2 + 1, 3: 10 + 6 + 2 + 1, 8: 10 + 16 + 2 + 1}
