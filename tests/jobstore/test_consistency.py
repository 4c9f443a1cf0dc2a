"""Records that contradict each other or their keys."""

import pytest
from made_records import Records

from cloudspot.errors import CorruptData
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.consistency import JournalOrder
from cloudspot.jobstore.reader import HistoryReader, read_summary
from cloudspot.jobstore.records import Summary
from cloudspot.local.filestore import FileStore

MADE = Records()


@pytest.mark.parametrize(
    "journal",
    [
        [],
        [MADE.intent(1)],
        [
            MADE.intent(1),
            MADE.closed("reclaimed", 1),
            MADE.intent(2),
            MADE.closed("succeeded", 2),
            MADE.finished(),
        ],
        [MADE.finished()],
        [MADE.finished(), MADE.moved(), MADE.resumed(1), MADE.finished(), MADE.moved()],
        [MADE.finished(), MADE.resumed(1), MADE.suspended(), MADE.resumed(2), MADE.intent(1)],
        [MADE.intent(1), MADE.closed("lost", 1), MADE.finished(), MADE.resumed(1), MADE.intent(2)],
        [MADE.commit(0, 7), MADE.intent(1), MADE.generation(1, restored=(0, 7)), MADE.commit(1, 8)],
        [
            MADE.intent(1),
            MADE.generation(1),
            MADE.commit(1, 5),
            MADE.commit(1, 9),
            MADE.generation(2, restored=(1, 5)),  # 1-9 did not verify
            MADE.commit(2, 7),
            MADE.closed("lost", 1),
            MADE.commit(2, 8),
        ],
    ],
)
def test_a_journal_in_order_is_accepted(journal):
    JournalOrder("x").extend(journal)


@pytest.mark.parametrize(
    ("journal", "number", "what"),
    [
        ([MADE.intent(2)], 1, "it opens launch 2"),
        ([MADE.closed("lost", 1)], 1, "it closes launch 1"),
        ([MADE.intent(1), MADE.intent(2)], 2, "it opens launch 2"),
        ([MADE.intent(1), MADE.closed("lost", 7)], 2, "it closes launch 7"),
        ([MADE.intent(1), MADE.closed("lost", 1), MADE.closed("lost", 1)], 3, "it closes launch 1"),
        ([MADE.finished(), MADE.intent(1)], 2, "it opens launch 1"),
        ([MADE.finished(), MADE.finished()], 2, "it ends the job"),
        ([MADE.finished(), MADE.suspended()], 2, "it suspends the job"),
        ([MADE.intent(1), MADE.suspended()], 2, "it suspends the job"),
        ([MADE.moved()], 1, "it moves the job"),
        ([MADE.finished(), MADE.moved(), MADE.intent(1)], 3, "it opens launch 1"),
        ([MADE.intent(1), MADE.resumed(1)], 2, "it is resumption 1"),
        ([MADE.finished(), MADE.resumed(2)], 2, "it is resumption 2"),
        ([MADE.finished(), MADE.resumed(1), MADE.finished(), MADE.resumed(1)], 4, "it is resumption 1"),
        ([MADE.generation(1)], 1, "it is generation 1"),
        ([MADE.intent(1), MADE.generation(2)], 2, "it is generation 2"),
        (
            [MADE.intent(1), MADE.generation(1, launch=2)],
            2,
            "it names node 2.0; launch 1 is open, with 1 nodes",
        ),
        ([MADE.intent(1), MADE.closed("lost", 1), MADE.generation(1)], 3, "it is generation 1"),
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
            "it names node 1.7; launch 1 is open, with 2 nodes",
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
            [MADE.commit(0, 5), MADE.intent(1), MADE.generation(1, restored=(0, 5)), MADE.commit(1, 5)],
            4,
            "it commits checkpoint 1-5",
        ),
        ([MADE.finished(), MADE.commit(0, 5)], 2, "it commits checkpoint 0-5"),
    ],
)
def test_a_journal_out_of_order_names_the_record_that_does_not_follow(journal, number, what):
    with pytest.raises(CorruptData, match=f"jobs/x/journal/{number:08d} does not follow .*: {what}"):
        JournalOrder("x").extend(journal)


@pytest.fixture
def store(tmp_path):
    """A job with one launch of one node."""
    store = FileStore(f"file://{tmp_path}/store")
    submission = MADE.history().submission
    store.put(keys.spec("digits-1"), codec.encode(submission))
    store.put(keys.journal("digits-1", 1), codec.encode(MADE.intent(1)))
    store.put(keys.slot("digits-1", 1, 0), codec.encode(MADE.slot("i-1-0")))
    return store


def test_a_record_under_another_key_than_its_own_is_corrupt(store):
    store.put(keys.exit_record("digits-1", 1, 0), codec.encode(MADE.exit("failed", rank=3)))
    with pytest.raises(
        CorruptData, match=r"nodes/000001/0000/exit\.json holds a record of node 3 of launch 1"
    ):
        HistoryReader(store, "digits-1").read()
    store.put(keys.spec("other-1"), store.get(keys.spec("digits-1")))
    with pytest.raises(CorruptData, match="jobs/other-1/spec holds the submission of job 'digits-1'"):
        HistoryReader(store, "other-1").read()
    summary = Summary(
        job_id="digits-1", provider="sim", state="queued", step=0, steps_total=None, attempts=0, spent=0.0,
        currency="USD", submitted_at=MADE.start, metrics={}, detail="", at=MADE.start,
    )  # fmt: skip
    store.put(keys.summary("other-1"), codec.encode(summary))
    with pytest.raises(CorruptData, match="jobs/other-1/summary holds the summary of job 'digits-1'"):
        read_summary(store, "other-1")


@pytest.mark.parametrize(
    "name",
    [
        "launches/000001/nodes/0001",
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
