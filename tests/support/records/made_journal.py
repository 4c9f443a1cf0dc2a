"""Appends to a job's journal what a test needs, and first what has to stand before it."""

from __future__ import annotations

from datetime import datetime, timezone

from support.records.made_records import Records

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.checkpoints.manifests import commit_whole
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import generations_of
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import (
    CheckpointId,
    Commit,
    Generation,
    Intent,
    JournalRecord,
    Member,
    Seat,
    new_nonce,
)
from cloudspot.model import LaunchRequest

AT = datetime(2026, 11, 20, 6, 30, tzinfo=timezone.utc)


def forget_copies(store: ObjectStore, job_id: str) -> None:
    """Delete the copies of the journal, from which its records would be read."""
    for meta in [*store.list_objects(keys.journal_copies_prefix(job_id))]:
        store.delete(meta.key)


def append(store: ObjectStore, job_id: str, record: JournalRecord) -> JournalRecord:
    """Append the record to what stands."""
    journal = Journal(store, job_id)
    assert journal.append(record, len(journal.read()) + 1)
    journal.read()  # which checks that it follows
    return record


def open_launch(
    store: ObjectStore,
    job_id: str,
    launch: int = 1,
    *,
    num_nodes: int = 1,
    stands_in_for: tuple[tuple[int, int], ...] = (),
) -> None:
    """Append intents up to that launch, which stands in for those nodes."""
    known = Journal(store, job_id).read()
    num_opened = sum(1 for record in known if isinstance(record, Intent))
    for number in range(num_opened + 1, launch + 1):
        request = LaunchRequest(provider="sim", body={"launch": number})
        intent = Intent(
            launch=number, offer=Records.offer(), token=f"token-{number}", request=request, num_nodes=num_nodes,
            stands_in_for=tuple(Seat(*seat) for seat in stands_in_for) if number == launch else (),
            why="first", at=AT, writer=new_nonce(),
        )  # fmt: skip
        append(store, job_id, intent)


def start_generation(
    store: ObjectStore,
    number: int,
    restore_from: CheckpointId | None = None,
    *,
    job_id: str = "x",
    launch: int = 1,
    ranks: tuple[int, ...] = (0,),
) -> Generation:
    """Append a generation of that launch, which is opened first."""
    open_launch(store, job_id, launch, num_nodes=max(ranks) + 1)
    members = tuple(
        Member(launch=launch, rank=rank, instance_id=f"m-{rank + 1}", address="127.0.0.1") for rank in ranks
    )
    generation = Generation(
        number=number, members=members, endpoint="a:1", restore_from=restore_from, why="first",
        at=AT, writer=new_nonce(),
    )  # fmt: skip
    append(store, job_id, generation)
    return generation


def commit(store: ObjectStore, job_id: str, checkpoint: CheckpointId, **options) -> Commit | None:
    """Commit the checkpoint, whose parts are there; if there is no generation yet, one is started first."""
    journal = Journal(store, job_id)
    for number in range(len(generations_of(journal.read())) + 1, checkpoint.generation + 1):
        newest = next((one.id for one in reversed(journal.read()) if isinstance(one, Commit)), None)
        start_generation(store, number, newest, job_id=job_id)
    return commit_whole(store, journal, job_id, checkpoint, **options)
