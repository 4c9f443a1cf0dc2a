"""What commands ask of a store that holds many jobs, counted; the limits are the same for every store."""

from __future__ import annotations

import collections
from pathlib import Path
from unittest import mock

from click.testing import CliRunner
from support.records.many_jobs import ManyJobs
from support.stores.faultstore import FaultPlan, FaultyStore

from cloudspot.cli.commands import cost, ps, show
from cloudspot.cli.jobs import Job
from cloudspot.cli.main import program
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access import store_clock
from cloudspot.jobstore.jobs.job_lists import list_jobs, list_live

MOST_A_LIVE_JOB, MOST_BESIDES, MOST_OF_PS, MOST_OF_SHOW = 20, 30, 20, 60


class RequestCounts:
    """Counts the requests of whole commands on a town's store."""

    def __init__(self, town: ManyJobs, directory: Path):
        self.town, self._directory = town, directory

    def counted(self) -> FaultyStore:
        """Return another face of the store, which counts."""
        return FaultyStore(self.town.store, FaultPlan(), self._directory)

    def of_pass(self) -> collections.Counter:
        """Return the requests of a ``reconcile`` by a new process; every live job was driven, and no other."""
        store = self.counted()
        store_clock._clocks.clear()
        done = self.town.run_pass(store)
        # Whose turn is first depends on the time.
        assert sorted(one.job_id for one in done) == list(list_live(self.town.store))
        assert all(one.error is None and not one.tick.problems for one in done)
        return collections.Counter(store.calls)

    def of_ps(self) -> tuple[collections.Counter, list[str]]:
        """Return the requests of ``ps``, and the ids that it showed."""
        store = self.counted()
        with mock.patch.object(ps, "open_named_store", return_value=store):
            lines = self._run("ps")
        return collections.Counter(store.calls), [line.split()[0] for line in lines[1:]]

    def of_cost(self, *arguments: str) -> tuple[collections.Counter, list[str]]:
        """Return the requests of ``cost``, and what it printed."""
        store = self.counted()
        with mock.patch.object(cost, "open_named_store", return_value=store):
            lines = self._run("cost", *arguments)
        return collections.Counter(store.calls), lines

    def of_show(self, job_id: str) -> tuple[collections.Counter, list[str]]:
        """Return the requests of ``show``, and what it printed."""
        store = self.counted()

        def open_job(_url: str | None, text: str) -> Job:
            found: ObjectStore = store
            return Job(found, text)

        with mock.patch.object(show, "open_job", open_job):
            lines = self._run("show", job_id)
        return collections.Counter(store.calls), lines

    def _run(self, *arguments: str) -> list[str]:
        result = CliRunner().invoke(program, arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()


def check_limits(counts: RequestCounts, *, num_live: int, long_job: str) -> None:
    """Check every limit; the last pass may have been long ago, but nothing ended since."""
    in_pass = counts.of_pass()
    assert in_pass.total() <= MOST_A_LIVE_JOB * num_live + MOST_BESIDES, in_pass
    in_ps, shown = counts.of_ps()
    assert in_ps.total() <= MOST_OF_PS, in_ps
    assert len(shown) == min(ps.PAGE, len(list_jobs(counts.town.store)))
    in_show, lines = counts.of_show(long_job)
    assert in_show.total() <= MOST_OF_SHOW, in_show
    assert lines[0].startswith(f"job {long_job} running")
