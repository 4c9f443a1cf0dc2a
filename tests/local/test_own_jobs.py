"""What may run on this computer: the notes of the local provider, and its signatures."""

import os
from pathlib import Path

import msgspec
import pytest

from cloudspot.errors import NotAdopted, ProvisionError, SpecError
from cloudspot.local import own_jobs
from cloudspot.local.provider import LocalProvider
from cloudspot.model import LaunchRequest

JOB, URL = "digits-1", "memory://test"


def test_a_request_that_was_made_here_is_granted_and_one_that_was_changed_is_not(host):
    request = host.render("true")
    body = {**request.body, "user_data": "touch mark"}
    with pytest.raises(ProvisionError, match="was not requested from here"):
        LocalProvider().provisioner().create(msgspec.structs.replace(request, body=body), token="token")
    stored = msgspec.json.decode(msgspec.json.encode(request), type=LaunchRequest)
    assert len(LocalProvider().provisioner().create(stored, token="token")) == 1


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_notes_that_others_may_have_written_count_for_nothing(local_home: Path, mode):
    provider = LocalProvider()
    provider.adopt(JOB, store_url=URL, sha256="5" * 64)
    provider.check_adopted(JOB, store_url=URL, sha256="5" * 64)
    (local_home / "own-jobs").chmod(mode)
    with pytest.raises(SpecError, match=rf"own-jobs has mode {mode:o}, not 700"):
        provider.check_adopted(JOB, store_url=URL, sha256="5" * 64)


def test_what_is_noted_is_for_the_user_alone_whatever_the_umask(local_home: Path):
    before = os.umask(0)
    try:
        LocalProvider().adopt(JOB, store_url=URL, sha256="5" * 64)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (local_home / "own-jobs").iterdir()} == {0o600}


def test_a_job_that_has_ended_runs_again_only_where_it_is_resumed(local_home: Path):
    where = {"store_url": "file:///s"}
    own_jobs.note_job("a", sha256="1" * 64, **where)
    own_jobs.end_job("a", **where)
    own_jobs.end_job("a", **where)
    with pytest.raises(NotAdopted, match="has ended here, and was not resumed from here"):
        own_jobs.check_job("a", sha256="1" * 64, **where)
    own_jobs.check_job("a", sha256="1" * 64, is_resumed=True, **where)
    with pytest.raises(NotAdopted, match="is not as it was submitted from here"):
        own_jobs.check_job("a", sha256="2" * 64, is_resumed=True, **where)
    own_jobs.note_job("a", sha256="2" * 64, **where)
    own_jobs.check_job("a", sha256="2" * 64, **where)
    own_jobs.end_job("b", **where)
    with pytest.raises(NotAdopted, match="was not submitted from here"):
        own_jobs.check_job("b", sha256="1" * 64, is_resumed=True, **where)
