"""A store with jobs in it, as the tests of the commands have."""

from cli.conftest import job_file, jobs

__all__ = ["job_file", "jobs"]
