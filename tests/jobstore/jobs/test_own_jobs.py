"""This computer's notes of its user's jobs."""

import os
from pathlib import Path

import pytest
from support.records.own_notes import note

from cloudspot.errors import SpecError
from cloudspot.host.locks import try_lock
from cloudspot.jobstore.jobs import own_jobs

JOB, URL = "digits-1", "memory://test"


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_notes_that_others_may_have_written_count_for_nothing(local_home: Path, mode):
    note(JOB, store_url=URL)
    assert own_jobs.find_note(JOB, store_url=URL) is not None
    (local_home / "own-jobs").chmod(mode)
    with pytest.raises(SpecError, match=rf"own-jobs has mode {mode:o}, not 700"):
        own_jobs.find_note(JOB, store_url=URL)


def test_what_is_noted_is_for_the_user_alone_whatever_the_umask(local_home: Path):
    before = os.umask(0)
    try:
        note(JOB, store_url=URL)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (local_home / "own-jobs").iterdir()} == {0o600}


def test_a_note_has_each_submission_the_newest_last(local_home: Path):
    first = note(JOB, store_url=URL, sha256="1" * 64, secret_names=("TOKEN",))
    note(JOB, store_url=URL, sha256="2" * 64, code_sha256="d" * 64)
    found = own_jobs.find_note(JOB, store_url=URL)
    assert list(found.submissions) == ["1" * 64, "2" * 64]
    assert found.newest["code_sha256"] == "d" * 64
    assert found.submissions["1" * 64]["secret_names"] == ["TOKEN"]
    assert found.submissions["1" * 64]["spec"] == first.spec
    assert own_jobs.find_note(JOB, store_url="memory://other") is None


def test_a_submission_that_is_noted_again_is_the_newest(local_home: Path):
    """As where a job goes back to an earlier record: what differs is told from that one."""
    for number in (1, 2, 1):
        note(JOB, store_url=URL, sha256=str(number) * 64, code_sha256=str(number) * 64)
    found = own_jobs.find_note(JOB, store_url=URL)
    assert list(found.submissions) == ["2" * 64, "1" * 64]
    assert found.newest["code_sha256"] == "1" * 64


def test_a_job_is_not_taken_for_one_of_a_store_whose_url_goes_on_as_its_name(local_home: Path):
    note("adigits-1", store_url=URL)
    assert own_jobs.find_note("digits-1", store_url=f"{URL}a") is None


def test_the_key_stays_and_signs_all_of_a_statement(local_home: Path):
    statements = [b"x" * 100 + end for end in (b"a", b"b")]
    assert [own_jobs.signature(one) for one in statements] == ["", ""]
    note(JOB, store_url=URL)
    before = [own_jobs.signature(one) for one in statements]
    assert len({*before}) == 2
    note("another-1", store_url=URL)
    assert [own_jobs.signature(one) for one in statements] == before


def test_an_end_stands_until_the_job_is_submitted_again_and_a_removal_forgets_all(local_home: Path):
    own_jobs.end_job(JOB, store_url=URL)
    assert own_jobs.find_note(JOB, store_url=URL) is None
    note(JOB, store_url=URL, sha256="1" * 64)
    for _ in range(2):
        own_jobs.end_job(JOB, store_url=URL)
        assert own_jobs.find_note(JOB, store_url=URL).has_ended
    note(JOB, store_url=URL, sha256="2" * 64)
    assert not own_jobs.find_note(JOB, store_url=URL).has_ended
    for _ in range(2):
        own_jobs.forget_job(JOB, store_url=URL)
        assert own_jobs.find_note(JOB, store_url=URL) is None


def test_a_note_is_read_and_written_under_one_lock(local_home: Path, monkeypatch):
    """A driver that noted the job's end lost the submission with which its user had just resumed it."""
    write, found = own_jobs._write, []

    def watched(*arguments):
        with try_lock(local_home / "own-jobs" / "lock") as is_free:
            found.append(is_free)
        write(*arguments)

    monkeypatch.setattr(own_jobs, "_write", watched)
    note(JOB, store_url=URL)
    own_jobs.end_job(JOB, store_url=URL)
    assert own_jobs.find_note(JOB, store_url=URL).has_ended
    assert found == [False, False]


def test_a_note_of_an_earlier_version_is_none(local_home: Path):
    note(JOB, store_url=URL)
    (path,) = (one for one in (local_home / "own-jobs").iterdir() if len(one.name) == 64)
    for data in (b"5" * 64 + b"\nended", b'{"submissions": {}}', b"", b"\xff"):
        path.write_bytes(data)
        assert own_jobs.find_note(JOB, store_url=URL) is None
