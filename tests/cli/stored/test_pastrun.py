"""What an earlier run tells of the next one."""

from __future__ import annotations

import pytest
from support.records.jobclock import at

from cloudspot.cli.stored.pastrun import find_past_run
from cloudspot.errors import JobNotFound, SpecError


def test_it_has_the_times_the_prices_and_the_deadline_of_the_job(jobs):
    jobs.job_file.write_text(jobs.job_file.read_text() + '[spot]\npolicy = "deadline"\ndeadline = "6h"\n')
    job_id = jobs.reclaimed_and_finished()
    found = find_past_run(jobs.store.url, job_id, at(60))
    assert (found.job_id, found.overhead, found.deadline) == (job_id, 72.0, 21600.0)
    assert (found.spot_price, found.on_demand_price, found.currency) == (0.3, 1.0, "USD")


def test_a_job_file_of_another_name_finds_nothing(jobs):
    jobs.reclaimed_and_finished()
    jobs.job_file.write_text(jobs.job_file.read_text().replace('"digits"', '"digit"'))
    with pytest.raises(JobNotFound, match=r"no job 'digit' in .* shows how long it trains"):
        find_past_run(jobs.store.url, str(jobs.job_file), at(60))


def test_a_success_without_any_record_of_training_is_refused(jobs):
    jobs.submit("digits-zzzz", minutes=0)
    jobs.add_finished("digits-zzzz", "succeeded", minutes=5)
    with pytest.raises(SpecError, match="do not show how long it trains"):
        find_past_run(jobs.store.url, "digits-zzzz", at(60))
