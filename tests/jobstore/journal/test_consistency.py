"""Records that contradict each other or their keys."""

import pytest
from support.records.made_records import Records
from support.stores.directorystore import directory_store

from cloudspot.errors import CorruptData
from cloudspot.jobstore.jobs.reader import HistoryReader, read_summary
from cloudspot.jobstore.journal.consistency import JournalOrder
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Summary

MADE = Records()


@pytest.mark.parametrize(
    "journal",
    [
        [],
        [MADE.intent(1)],
        [MADE.intent(1), MADE.intent(2), MADE.finished()],
        [MADE.finished()],
        [MADE.finished(), MADE.moved(), MADE.resumed(1), MADE.finished(), MADE.moved()],
        [MADE.finished(), MADE.resumed(1), MADE.suspended(), MADE.resumed(2), MADE.intent(1)],
        [MADE.intent(1), MADE.finished(), MADE.resumed(1), MADE.intent(2), MADE.generation(1, launch=2)],
        # A launch while another trains, then a generation over both, then one without the first node.
        [
            MADE.intent(1, num_nodes=2),
            MADE.generation(1, ranks=(0, 1)),
            MADE.intent(2, stands_in_for=[(1, 0)]),
            MADE.generation(2, seats=[(1, 1), (2, 0)]),
            MADE.intent(3, num_nodes=2, stands_in_for=[None, (1, 1)]),
            MADE.generation(3, seats=[(2, 0), (3, 1), (3, 0)]),
        ],
        # A generation without a node that comes later: it was in none before.
        [
            MADE.intent(1, num_nodes=2),
            MADE.generation(1, ranks=(0,)),
            MADE.generation(2, ranks=(0, 1)),
        ],
        # For the same node again, as the first stand-in was lost.
        [MADE.intent(1), MADE.intent(2, stands_in_for=[(1, 0)]), MADE.intent(3, stands_in_for=[(1, 0)])],
        [MADE.commit(0, 7), MADE.intent(1), MADE.generation(1, restored=(0, 7)), MADE.commit(1, 8)],
        [
            MADE.intent(1),
            MADE.generation(1),
            MADE.commit(1, 5),
            MADE.commit(1, 9),
            MADE.generation(2, restored=(1, 5)),  # 1-9 did not verify
            MADE.commit(2, 7),
            MADE.intent(2),
            MADE.commit(2, 8),
        ],
        [MADE.intent(1), MADE.repriced(2.0), MADE.repriced(2.0), MADE.generation(1), MADE.repriced(1.0)],
        # A machine is kept for inspection; what was uploaded before is committed, and the job ends.
        [
            MADE.intent(1),
            MADE.generation(1),
            MADE.kept(),
            MADE.commit(1, 5),
            MADE.repriced(2.0),
            MADE.finished("failed"),
            MADE.resumed(1),
            MADE.intent(2),
            MADE.kept(launch=2),
        ],
    ],
)
def test_a_journal_in_order_is_accepted(journal):
    JournalOrder("x").extend(journal)


@pytest.mark.parametrize(
    ("journal", "number", "what"),
    [
        ([MADE.intent(2)], 1, "it opens launch 2"),
        ([MADE.intent(1), MADE.intent(1)], 2, "it opens launch 1"),
        ([MADE.intent(1), MADE.intent(3)], 2, "it opens launch 3"),
        (
            [MADE.intent(1), MADE.intent(2, num_nodes=2, stands_in_for=[(1, 0)])],
            2,
            r"its 2 nodes stand in for 1\.0$",
        ),
        (
            [MADE.intent(1), MADE.intent(2, num_nodes=2, stands_in_for=[(1, 0), (1, 0)])],
            2,
            r"its 2 nodes stand in for 1\.0, 1\.0",
        ),
        (
            [MADE.intent(1), MADE.intent(2, stands_in_for=[(1, 1)])],
            2,
            r"it stands in for node 1\.1, which is in no launch",
        ),
        (
            [MADE.intent(1, stands_in_for=[(1, 0)])],
            1,
            r"it stands in for node 1\.0, which is in no launch",
        ),
        ([MADE.finished(), MADE.resumed(1), MADE.intent(2)], 3, "it opens launch 2"),
        ([MADE.finished(), MADE.intent(1)], 2, "it opens launch 1"),
        ([MADE.finished(), MADE.finished()], 2, "it ends the job"),
        ([MADE.finished(), MADE.suspended()], 2, "it suspends the job"),
        ([MADE.moved()], 1, "it moves the job"),
        ([MADE.kept()], 1, r"it keeps node 1\.0"),
        ([MADE.intent(1), MADE.kept(rank=1)], 2, r"it keeps node 1\.1"),
        ([MADE.intent(1), MADE.finished(), MADE.kept()], 3, r"it keeps node 1\.0"),
        ([MADE.intent(1, num_nodes=2), MADE.kept(), MADE.kept(rank=1)], 3, r"it keeps node 1\.1"),
        ([MADE.intent(1), MADE.kept(), MADE.intent(2)], 3, "it opens launch 2"),
        ([MADE.intent(1), MADE.kept(), MADE.generation(1)], 3, "it is generation 1"),
        ([MADE.finished(), MADE.moved(), MADE.intent(1)], 3, "it opens launch 1"),
        ([MADE.intent(1), MADE.resumed(2)], 2, "it is resumption 2"),
        ([MADE.finished(), MADE.resumed(2)], 2, "it is resumption 2"),
        ([MADE.finished(), MADE.resumed(1), MADE.finished(), MADE.resumed(1)], 4, "it is resumption 1"),
        ([MADE.generation(1)], 1, "it names node 1.0, which is in no launch"),
        ([MADE.intent(1), MADE.generation(0)], 2, "it is generation 0"),
        ([MADE.intent(1), MADE.generation(2)], 2, "it is generation 2"),
        (
            [MADE.intent(1), MADE.generation(1, launch=2)],
            2,
            r"it names node 2\.0, which is in no launch of this run",
        ),
        (
            [MADE.intent(1), MADE.finished(), MADE.resumed(1), MADE.intent(2), MADE.generation(1)],
            5,
            r"it names node 1\.0, which is in no launch of this run",
        ),
        ([MADE.intent(1), MADE.finished(), MADE.generation(1)], 3, "it is generation 1"),
        ([MADE.intent(1), MADE.generation(1, ranks=())], 2, "it names no nodes"),
        (
            [MADE.intent(1, num_nodes=2), MADE.generation(1, ranks=(1, 1))],
            2,
            "it names no nodes, or one of them twice",
        ),
        (
            [MADE.intent(1, num_nodes=2), MADE.generation(1, ranks=(0, 7))],
            2,
            r"it names node 1\.7, which is in no launch of this run",
        ),
        (
            [
                MADE.intent(1, num_nodes=2),
                MADE.generation(1, ranks=(0, 1)),
                MADE.generation(2, ranks=(1,)),
                MADE.intent(2),
                MADE.generation(3, seats=[(1, 1), (1, 0), (2, 0)]),
            ],
            5,
            r"it names node 1\.0, which an earlier generation has left out",
        ),
        (
            [MADE.intent(1), MADE.generation(1, restored=(0, 5))],
            2,
            "it resumes from checkpoint 0-5, which was not committed",
        ),
        ([MADE.intent(1), MADE.commit(1, 5)], 2, "it commits checkpoint 1-5"),
        (
            [MADE.intent(1), MADE.generation(1), MADE.generation(2), MADE.commit(1, 5)],
            4,
            "it commits checkpoint 1-5",
        ),
        ([MADE.commit(0, 5), MADE.commit(0, 5)], 2, "it commits checkpoint 0-5"),
        (
            [
                *(MADE.commit(0, 5), MADE.intent(1), MADE.generation(1, restored=(0, 5))),
                *(MADE.commit(1, 5), MADE.commit(1, 5)),
            ],
            5,
            "it commits checkpoint 1-5",
        ),
        (
            [
                MADE.commit(0, 5),
                MADE.intent(1),
                MADE.generation(1, restored=(0, 5)),
                MADE.commit(1, 5, number=1),
            ],
            4,
            "it commits checkpoint 1-5",
        ),
        (
            [MADE.commit(0, 5), MADE.intent(1), MADE.generation(1, restored=(0, 5)), MADE.commit(1, 4)],
            4,
            "it commits checkpoint 1-4",
        ),
        ([MADE.finished(), MADE.commit(0, 5)], 2, "it commits checkpoint 0-5"),
        ([MADE.intent(1), MADE.repriced(1.0, launch=2)], 2, "it prices launch 2"),
        ([MADE.intent(1), MADE.finished(), MADE.repriced(1.0)], 3, "it prices launch 1"),
    ],
)
def test_a_journal_out_of_order_names_the_record_that_does_not_follow(journal, number, what):
    with pytest.raises(
        CorruptData, match=f"jobs/x/journal/{number:08d} contradicts the records before it: {what}"
    ):
        JournalOrder("x").extend(journal)


@pytest.fixture
def store(tmp_path):
    """A job with one launch of one node."""
    store = directory_store(tmp_path / "store")
    submission = MADE.history().submission
    store.put(keys.spec("digits-1"), codec.encode(submission))
    store.put(keys.journal("digits-1", 1), codec.encode(MADE.intent(1)))
    store.put(keys.slot("digits-1", 1, 0), codec.encode(MADE.slot("i-1-0")))
    return store


def test_a_record_under_another_key_than_its_own_is_corrupt(store):
    store.put(keys.exit_record("digits-1", 1, 0), codec.encode(MADE.exit("failed", rank=3)))
    with pytest.raises(
        CorruptData, match=r"nodes/000001/0000/exit\.json holds a record of another node: node 3 of launch 1"
    ):
        HistoryReader(store, "digits-1").read()
    store.put(keys.spec("other-1"), store.get(keys.spec("digits-1")))
    with pytest.raises(
        CorruptData, match="jobs/other-1/spec holds the submission of another job: 'digits-1'"
    ):
        HistoryReader(store, "other-1").read()
    summary = Summary(
        job_id="digits-1", provider="sim", state="queued", step=0, steps_total=None, starts=0, spent=0.0,
        currency="USD", submitted_at=MADE.start, metrics={}, detail="", at=MADE.start,
    )  # fmt: skip
    store.put(keys.summary("other-1"), codec.encode(summary))
    with pytest.raises(
        CorruptData, match="jobs/other-1/summary holds the summary of another job: 'digits-1'"
    ):
        read_summary(store, "other-1")


@pytest.mark.parametrize(
    "name",
    [
        "i-0abc",
        "a/b",
        "../../../x",
        "..",
        ".",
        "projects/p/zones/z/x",
        "Maschine ü 機",
        "%2e%2E",
        "a\nb",
        "~x_y-z",
    ],
)
def test_a_certificate_lies_under_its_machines_name_whatever_that_is(store, name):
    """Each has a key of its own, which every store accepts and the listing of the launch shows."""
    key = keys.certificate("digits-1", 1, name)
    assert key.rpartition("/")[0] == "jobs/digits-1/launches/000001/machines"
    assert key not in {
        keys.certificate("digits-1", 1, other) for other in ("x", f"{name}/", f"{name}%", "%2E")
    }
    proof = MADE.certificate(name, rank=None)
    store.put(key, codec.encode(proof), if_absent=True)
    assert HistoryReader(store, "digits-1").read().launches[0].certificates == {name: proof}


def test_a_certificate_under_another_key_than_its_own_is_corrupt(store):
    key = keys.certificate("digits-1", 1, "i-1-0")
    for proof in (MADE.certificate("i-1-1"), MADE.certificate("i-1-0", launch=2)):
        store.put(key, codec.encode(proof))
        with pytest.raises(
            CorruptData,
            match=rf"{key} holds the certificate of another machine: {proof.instance_id} of launch {proof.launch}",
        ):
            HistoryReader(store, "digits-1").read()
    store.put(key, b"{}")
    with pytest.raises(CorruptData, match=rf"{key} is malformed"):
        HistoryReader(store, "digits-1").read()


@pytest.mark.parametrize(
    "name",
    [
        "launches/000001/nodes/0001",
        "launches/000001/machines/.DS_Store",
        "launches/000001/machines/i-1/x",
        "launches/0000001/machines/i-1-0",
        "launches/000002/machines/i-1-0",
        "launches/0000001/nodes/0000",
        "launches/000002/nodes/0000",
        "nodes/000001/0001/heartbeat",
        "nodes/000009/0000/exit.json",
        "manifests/0000001-000000000001",
        "manifests/1-1",
    ],
)
def test_a_key_that_no_node_of_the_job_writes_is_passed_over(store, name):
    before = HistoryReader(store, "digits-1").read()
    store.put(keys.job_prefix("digits-1") + name, b"\0")
    assert HistoryReader(store, "digits-1").read() == before
