"""Notes a job on this computer, as its submission does."""

from datetime import datetime, timezone

from cloudspot.jobstore.jobs import own_jobs
from cloudspot.jobstore.layout.records import Submission, new_nonce


def note(job_id: str, *, store_url: str, sha256: str = "5" * 64, **fields) -> Submission:
    """Note a submission with these fields; return it."""
    default = {
        "provider": "local",
        "spec": {"name": "job", "run": {"command": ["true"]}},
        "code_sha256": "c" * 64,
        "code_bytes": 1,
        "secret_names": (),
        "version": "0",
        "at": datetime(2026, 11, 1, tzinfo=timezone.utc),
        "writer": new_nonce(),
    }
    submission = Submission(job_id=job_id, **{**default, **fields})
    own_jobs.note_job(submission, store_url=store_url, sha256=sha256)
    return submission
