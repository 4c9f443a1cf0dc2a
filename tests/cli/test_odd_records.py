"""One odd object in a store of several jobs: every command names its job, serves the others, shows no traceback."""

import itertools
import os
import shutil
import time

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from support.records.made_journal import forget_copies
from support.records.odd_values import odd_bytes
from support.records.own_notes import note
from support.records.record_kinds import HEALTHY, ODD, kind_of

from cloudspot.cli.main import program
from cloudspot.controller.ownership import store_label
from cloudspot.jobstore.jobs.submission import hash_of
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Removal, SettledLaunches
from cloudspot.local.filestore import FileStore
from cloudspot.model import LogRecord

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore:constrained_layout not applied")]
"""A plot of a year beside an hour has no room for its labels."""


def spoilable(store):
    """The keys of the records of the jobs that are spoilt."""
    prefixes = [f"jobs/{job_id}/" for job_id in ODD] + [f"index/{job_id}" for job_id in ODD]
    found = [meta.key for prefix in prefixes for meta in store.list_objects(prefix)]
    return sorted(key for key in found if kind_of(key) is not None)


class OddStore:
    """A copy of the four_jobs in which one record is odd; runs commands on it."""

    def __init__(self, four_jobs, directory, key, data):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(four_jobs.url.removeprefix("file://"), directory / "bucket")
        self.directory = directory
        self.store = FileStore(f"file://{directory}/bucket")
        self.job_id = key.split("/")[1]
        self.other = next(one for one in ODD if one != self.job_id)
        for job_id in (*ODD, *HEALTHY):
            note(job_id, store_url=store_label(self.store), sha256=hash_of(self.store.get(keys.spec(job_id))))
        self.store.put(key, data)
        if key.startswith(keys.journal_prefix(self.job_id)):
            forget_copies(self.store, self.job_id)  # else the record is not read
        if kind_of(key) not in {SettledLaunches, None}:
            self.store.delete(keys.settled_launches(self.job_id))  # else a settled launch's are not read

    def run(self, *arguments):
        """Run a command; whatever it met, it ends with a status and shows no traceback."""
        result = CliRunner().invoke(program, [*arguments], env={"CLOUDSPOT_STORE": self.store.url})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.output
        assert "a bug in cloudspot" not in result.output, result.output
        return result

    def check_commands(self):
        job_id, export = self.job_id, self.directory / "export"
        for arguments in (
            ("show", job_id),
            ("show", job_id, "--json", "--verify"),
            ("logs", job_id),
            ("logs", job_id, "--json", "--tail", "1"),
            ("logs", job_id, "--list"),
            ("checkpoints", "ls", job_id),
            ("checkpoints", "verify", job_id),
            ("checkpoints", "export", job_id, "--to", str(export)),
            ("artifacts", "ls", job_id),
            ("show", job_id, "--plot", str(self.directory / "plot.svg")),
            ("cost", "--by", "zone", "--plot", str(self.directory / "cost.svg")),
            ("compare", job_id, HEALTHY[0]),
            ("compare", HEALTHY[0], job_id),
            ("attach", "--plain", job_id),
            ("preempt", job_id),
            ("stop", job_id),
        ):
            result = self.run(*arguments)
            if result.exit_code == 8:
                assert job_id in result.output, (arguments, result.output)
            self.check_is_one_line(result)

    def check_is_one_line(self, result):
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) <= 1, result.stderr

    def check_list(self):
        listed = self.run("ps", "--all")
        lines = {line.split()[0]: line for line in listed.stdout.splitlines()}
        assert "succeeded" in lines[HEALTHY[0]]
        assert HEALTHY[1] in lines
        assert self.other in lines
        assert self.job_id in listed.output or listed.exit_code == 0

    def check_pass(self):
        """One pass drives the healthy jobs, whatever it meets in the odd one."""
        done = self.run("reconcile")
        told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert all(line.startswith(f"error: {self.job_id}: ") for line in told), done.output
        assert bool(told) == (done.exit_code == 1), done.output
        assert self.store.head(keys.summary(HEALTHY[1])).size > 0
        assert self.store.head(keys.summary(self.other)).size > 0

    def check_removal(self):
        done = self.run("rm", "--yes", HEALTHY[0], self.job_id)
        is_refused = done.exit_code not in (0, 8)
        assert (self.store.list_page(f"jobs/{HEALTHY[0]}/", limit=1).objects != ()) == is_refused, done.output
        if done.exit_code:
            assert self.job_id in done.output


def check(four_jobs, directory, key, data):
    odd = OddStore(four_jobs, directory, key, data)
    odd.check_list()
    odd.check_commands()
    odd.check_pass()
    odd.check_list()
    odd.check_removal()


def given_odd_records(four_jobs, directory):
    """The check as a test of hypothesis, to be called without arguments."""
    key_of = st.sampled_from(spoilable(four_jobs))

    @given(st.data())
    def check_odd(data):
        key = data.draw(key_of, label="key")
        healthy = four_jobs.get(key)
        if key.startswith("index/"):
            odd = (
                b"{" + data.draw(odd_bytes(codec.encode(Removal(shared=(f"code/{'0' * 64}",))), Removal))[1:]
            )
        elif kind_of(key) is LogRecord:
            lines = healthy.splitlines()
            odd = b"\n".join([data.draw(odd_bytes(lines[0], LogRecord)), *lines[1:]])
        else:
            odd = data.draw(odd_bytes(healthy, kind_of(key)), label="record")
        check(four_jobs, directory, key, odd)

    return check_odd


CALM = settings(
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # Shrinking would take minutes.
    print_blob=True,
    max_examples=10,
)


def test_one_odd_record_harms_no_other_job(four_jobs, tmp_path):
    settings(CALM, derandomize=True)(given_odd_records(four_jobs, tmp_path / "odd"))()


SOAK_SECONDS = float(os.environ.get("CLOUDSPOT_SOAK_ODD_SECONDS", "600"))
SOAK_FIRST_SEED = int(os.environ.get("CLOUDSPOT_SOAK_ODD_SEED", "0"))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_no_odd_record_of_very_many_harms_another_job(four_jobs, tmp_path):
    end = time.monotonic() + SOAK_SECONDS
    for number in itertools.count(SOAK_FIRST_SEED):
        if time.monotonic() > end:
            return
        print(f"seed {number}", flush=True)
        seed(number)(settings(CALM, max_examples=20)(given_odd_records(four_jobs, tmp_path / "odd")))()
