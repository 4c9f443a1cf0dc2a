"""Machines of another store's job of the same id are told from ours by what they carry."""

from datetime import timedelta

import pytest
from support.records.own_notes import note
from support.stores.memorystore import InMemoryStore

from cloudspot.controller.ownership import MAX_LABEL, check_adopted, is_ours, open_to_drive, store_label
from cloudspot.errors import NotAdopted, SpecError
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.jobs import own_jobs
from cloudspot.local.filestore import FileStore
from cloudspot.local.provider import LocalProvider
from cloudspot.model import InstanceState


def test_a_store_has_one_label_however_its_url_is_spelled(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "store")
    urls = [f"file://{tmp_path}/store", f"file://{tmp_path}/x/../store/", f"file://{tmp_path}/link"]
    assert {store_label(FileStore(url)) for url in urls} == {f"file://{tmp_path}/store"}
    assert store_label(with_retries(FileStore(urls[2]))) == f"file://{tmp_path}/store"
    assert store_label(InMemoryStore("MEM://Bucket/p//")) == "mem://Bucket/p"


def test_a_long_url_is_cut_and_still_another_than_its_neighbours():
    first, second = (store_label(InMemoryStore("memory://" + "x" * 300 + end)) for end in "ab")
    assert len(first) == len(second) == MAX_LABEL
    assert first != second


def test_a_url_that_just_fits_is_its_own_label():
    url = "memory://".ljust(MAX_LABEL, "x")
    assert store_label(InMemoryStore(url)) == url
    assert len(store_label(InMemoryStore(f"{url}x"))) == MAX_LABEL


@pytest.mark.parametrize(("url", "ours"), [("", True), ("memory://a", True), ("memory://b", False)])
def test_a_machine_is_ours_unless_it_carries_another_stores_label(records, url, ours):
    machine = records.change(records.instance("i-9"), store_url=url)
    assert is_ours(machine, "memory://a", records.history(records.launch())) is ours
    assert is_ours(machine, "memory://a", None) is ours


def test_a_machine_that_has_claimed_a_rank_here_is_ours_whatever_it_carries(records):
    machine = records.change(records.instance("i-1-0"), store_url="memory://alias")
    assert is_ours(machine, "memory://a", records.history(records.launch()))


def test_a_machine_that_had_ended_when_the_job_was_submitted_is_one_of_an_earlier_job_of_its_id(records):
    history = records.history(records.launch())
    ended = {
        after: records.change(
            records.instance("i-old"),
            state=InstanceState.ENDED,
            ended_at=history.submission.at + timedelta(seconds=after),
        )
        for after in (-1, 1)
    }
    assert [is_ours(one, "memory://a", history) for one in ended.values()] == [False, True]
    assert is_ours(ended[-1], "memory://a", None)
    assert is_ours(records.change(ended[-1], state=InstanceState.RUNNING), "memory://a", history)


# --- which jobs are driven here -------------------------------------------------------------------

STORE = InMemoryStore("memory://a")
ADVICE = r"; if you trust its code, run it here with: cloudspot attach --adopt digits-1 --store memory://a$"


class Elsewhere(LocalProvider):
    """A provider whose machines are others than this computer."""

    capabilities = frozenset()


def test_a_job_that_nobody_has_submitted_here_is_not_driven_on_this_computer(records, local_home):
    with pytest.raises(
        NotAdopted, match=rf"^job 'digits-1' in memory://a was not submitted from here .*{ADVICE}"
    ):
        check_adopted(STORE, LocalProvider(), records.history())
    check_adopted(STORE, Elsewhere(), records.history())
    check_adopted(STORE, LocalProvider(), records.history(finished=records.finished()))


def test_only_the_submissions_that_were_noted_here_are_driven(records, local_home):
    note("digits-1", store_url="memory://a", sha256="4" * 64)
    note("digits-1", store_url="memory://b", sha256="5" * 64)
    with pytest.raises(NotAdopted, match="is not as it was submitted from here"):
        check_adopted(STORE, LocalProvider(), records.history())
    note("digits-1", store_url="memory://a", sha256="5" * 64)
    note("digits-1", store_url="memory://a", sha256="6" * 64)
    check_adopted(STORE, LocalProvider(), records.history())


def test_a_job_that_has_ended_here_is_not_driven_again_because_its_end_is_gone(records, local_home):
    """Whoever can write to the store could take its end back."""
    note("digits-1", store_url="memory://a")
    own_jobs.end_job("digits-1", store_url="memory://a")
    with pytest.raises(NotAdopted, match="has ended here, and was not resumed from here"):
        check_adopted(STORE, LocalProvider(), records.history())


def test_an_option_counts_only_where_it_was_noted_for_that_provider(records, local_home):
    """A job's submissions may name several providers, whose options may have the same names."""
    pod = {"image": "train:1", "types": {"a": {"spot_price": 1}}, "kubeconfig": "/mine"}
    job = {"name": "digits", "run": {"entrypoint": "train.py"}, "providers": {"kubernetes": pod}}
    submission = records.change(records.history().submission, provider="kubernetes", spec=job)
    for provider, is_used in (("sim", False), ("kubernetes", True)):
        own_jobs.note_job(
            records.change(submission, provider=provider), store_url="memory://a", sha256="5" * 64
        )
        if is_used:
            assert (
                open_to_drive(STORE, submission, spec_from_json(job), lambda _: {}).options.kubeconfig
                == "/mine"
            )
        else:
            with pytest.raises(SpecError, match=r"its record sets providers\.kubernetes\.kubeconfig"):
                open_to_drive(STORE, submission, spec_from_json(job), lambda _: {})
