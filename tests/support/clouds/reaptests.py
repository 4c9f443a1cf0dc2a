"""Jobs of which a reaper is asked, and the command as people run it."""

import json
from datetime import datetime, timezone

from click.testing import CliRunner

from cloudspot.cli.main import program
from cloudspot.jobfile.spec import load_job
from cloudspot.jobstore.jobs.job_lists import unmark_live
from cloudspot.jobstore.jobs.submission import submit
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Finished, SaveId, new_nonce


def chunk_of(job_id):
    """Return the key of a chunk of a job's checkpoint."""
    return keys.chunk(job_id, SaveId(1, 10, 0), 0, 0)


OVER, LIVE = "over-1", "live-1"
REMOVED = "removed-1"
"""The id of a job that the store does not have."""
STRANGE_OBJECT = "code/x/README"
STRANGE_UPLOADS = (
    "elsewhere/jobs/over-1/spec",
    "x/datasets/big.tar",
    "x/code/x/README",
    "x/jobs/over-1/epoch-3.pt",
    f"x/team/{chunk_of(OVER)}",
)
"""Of strangers, beside the store ``x`` and in it; the last is of a store ``x/team``."""


def add_jobs(store, directory, provider):
    """Put a job that has ended and one that is live into the store."""
    (directory / "train.py").write_text("print('hello')\n")
    (directory / "job.toml").write_text('name = "x"\n[run]\nentrypoint = "train.py"\n')
    for job_id in (OVER, LIVE):
        submission = submit(
            store,
            spec=load_job(directory / "job.toml"),
            provider=provider,
            workdir=directory,
            environ={},
            job_id=job_id,
        )
        if job_id == OVER:
            end_job(store, submission)


def end_job(store, submission):
    """Finish the job as a driver does that has found all its machines gone."""
    at = datetime.now(timezone.utc)
    journal = Journal(store, submission.job_id)
    assert journal.append(Finished(outcome="succeeded", detail="", exit_code=0, at=at, writer=new_nonce()), 1)
    unmark_live(store, submission.job_id, submission.writer)


class Reaping:
    """The command, on one provider and with any age."""

    def __init__(self, provider, store):
        self.provider = provider
        self.store = store
        self.priced = set()
        """The kinds of which ``found`` last told what they cost a day."""

    def run(self, *arguments, status=0):
        """Run ``cloudspot reap`` and return what it prints on both streams."""
        command = ["reap", "--provider", self.provider, "--store", self.store.url, "--older-than", "0s"]
        done = CliRunner().invoke(program, [*command, *arguments])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == status, done.output
        return done

    def found(self, *arguments, status=0):
        """Return what it would end, what belongs to other stores, and what is kept: the ids, sorted."""
        said = json.loads(self.run("--dry-run", "--json", *arguments, status=status).stdout)
        assert said["unlisted"] == []
        self.priced = {one["kind"] for one in said["assets"] if one["price_per_day"]}
        return tuple(
            sorted(one["id"] for one in said["assets"] if one["fate"] == fate)
            for fate in ("orphan", "of another store", "kept")
        )
