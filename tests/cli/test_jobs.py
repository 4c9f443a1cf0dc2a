"""Ids of new jobs, and the command lines that messages name."""

import pytest

from cloudspot.cli.jobs import Job, check_job_id, new_job_id
from cloudspot.errors import SpecError
from cloudspot.jobstore.jobs.state_home import state_home
from cloudspot.jobstore.layout import keys
from cloudspot.local.filestore import FileStore


def test_an_id_is_the_name_and_a_random_suffix():
    ids = {new_job_id("digits") for _ in range(50)}
    assert len(ids) > 45
    assert all(each.startswith("digits-") and len(each) == len("digits-") + 4 for each in ids)
    assert all(keys.JOB_ID.fullmatch(each) for each in ids)


def test_a_long_name_is_cut_to_fit_a_label():
    job_id = new_job_id("a" * 57 + "-bcdef")
    assert keys.JOB_ID.fullmatch(job_id)
    assert job_id[:58] == "a" * 57 + "-"


@pytest.mark.parametrize("text", ["", "Upper", "a_b", "-a", "a-", "a/b", "a" * 64])
def test_a_name_that_is_no_label_is_refused(text):
    with pytest.raises(SpecError, match="--name must be"):
        check_job_id(text)


def test_a_command_to_type_names_the_store_only_where_it_must(local_home, tmp_path):
    assert Job(FileStore(f"file://{state_home()}/store"), "a-1").command("attach") == "cloudspot attach a-1"
    other = f"file://{tmp_path}/other"
    assert Job(FileStore(other), "a-1").command("attach") == f"cloudspot attach a-1 --store {other}"
