"""Submit a prepared job from the command line."""

from __future__ import annotations

import os

from cloudspot.cli.jobs import new_job_id
from cloudspot.cli.preparing.preparedjob import PreparedJob, agent_archive
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.cli.stored.trust import noting
from cloudspot.errors import JobExists
from cloudspot.jobstore.jobs.submission import submit
from cloudspot.jobstore.layout.records import Submission

MAX_ID_TRIES = 5


def submit_prepared(prepared: PreparedJob, name: str | None, *, bakes: bool = False) -> Submission:
    """Submit the job under the given name, or under a name with a random suffix; see ``submit``."""
    agent = agent_archive(prepared.provider, prepared.store, prepared.spec)
    for number in range(1, MAX_ID_TRIES + 1):
        job_id = name or new_job_id(prepared.spec.name)
        try:
            return submit(
                prepared.store,
                spec=prepared.spec,
                provider=prepared.provider.name,
                workdir=prepared.workdir,
                environ=os.environ,
                job_id=job_id,
                agent=agent,
                adopt=noting(prepared.store, prepared.provider),
                open_progress=transfer,
                bakes=bakes,
            )
        except JobExists:
            # Two random suffixes may collide; a name that the user chose is never changed.
            if name is not None or number == MAX_ID_TRIES:
                raise
    raise AssertionError("the loop returns or raises")
