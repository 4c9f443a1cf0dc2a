"""What the record of a setup knows after it was cut short."""

from types import SimpleNamespace

import pytest

from cloudspot.calls import SetupRequest
from cloudspot.cli.account.record import INTENDED, MADE, REMOVED, SetupRecord
from cloudspot.jobstore.jobs.state_home import HOME

BUCKET = SimpleNamespace(kind="bucket", name="b")
ROLE = SimpleNamespace(kind="role", name="cloudspot-node")


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME, str(tmp_path / "state"))


def record():
    return SetupRecord("aws", "123456789012 us-east-1")


def test_each_account_has_a_file_of_its_own_that_only_its_user_reads():
    first = record()
    assert first.path.name == "aws-123456789012-us-east-1.jsonl"
    assert not first.path.exists()
    first.note(BUCKET, INTENDED)
    assert first.path.stat().st_mode & 0o777 == 0o600
    assert not SetupRecord("gcp", "123456789012 us-east-1").has(BUCKET)


def test_what_was_about_to_be_made_is_its_own_until_it_is_removed():
    first = record()
    assert not first.has(BUCKET)
    first.note(BUCKET, INTENDED)
    assert record().has(BUCKET)
    first.note(BUCKET, MADE)
    first.note(ROLE, INTENDED)
    assert record().parts == [("bucket", "b"), ("role", "cloudspot-node")]
    first.note(BUCKET, REMOVED)
    assert record().parts == [("role", "cloudspot-node")]
    first.close()
    assert first.path.exists()
    first.note(ROLE, REMOVED)
    first.close()
    assert not first.path.exists()


def test_a_line_that_was_cut_short_is_about_nothing_that_was_begun():
    first = record()
    first.note(BUCKET, MADE)
    whole = first.path.read_bytes()
    first.note(ROLE, INTENDED)
    for length in range(len(whole), len(first.path.read_bytes()) - 1):
        first.path.write_bytes(first.path.read_bytes()[:length])
        again = record()
        assert again.parts == [("bucket", "b")]
        again.note(ROLE, INTENDED)
        assert record().parts == [("bucket", "b"), ("role", "cloudspot-node")]


def test_a_request_is_kept_once_and_the_newest_is_last():
    asked = SetupRequest(store_url="s3://b", grant_to=("user/ada",), deadline=7.0)
    record().ask(asked)
    record().ask(SetupRequest(store_url="s3://b", grant_to=("user/ada",)))
    record().ask(SetupRequest(grant_to=("user/bob",)))
    assert [one.grant_to for one in record().requests] == [("user/ada",), ("user/bob",)]
    assert record().requests[0].store_url == "s3://b"
