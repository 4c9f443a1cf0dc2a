"""Machines of another store's job of the same id are told from ours by what they carry."""

from datetime import timedelta

import pytest
from memorystore import InMemoryStore

from cloudspot.controller.ownership import MAX_LABEL, is_ours, store_label
from cloudspot.jobstore.patience import patient
from cloudspot.local.filestore import FileStore
from cloudspot.model import InstanceState


def test_a_store_has_one_label_however_its_url_is_spelled(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "store")
    urls = [f"file://{tmp_path}/store", f"file://{tmp_path}/x/../store/", f"file://{tmp_path}/link"]
    assert {store_label(FileStore(url)) for url in urls} == {f"file://{tmp_path}/store"}
    assert store_label(patient(FileStore(urls[2]))) == f"file://{tmp_path}/store"
    assert store_label(InMemoryStore("MEM://Bucket/p//")) == "mem://Bucket/p"


def test_a_long_url_is_cut_and_still_another_than_its_neighbours():
    first, second = (store_label(InMemoryStore("memory://" + "x" * 300 + end)) for end in "ab")
    assert len(first) == len(second) == MAX_LABEL
    assert first != second


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
