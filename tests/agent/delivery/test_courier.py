"""The courier: from a sealed slot to a commit, through failures of the store and deaths of the agent."""

import os
import threading
import time
from datetime import datetime, timezone
from functools import partial
from os import utime

import pytest
from support.stores.faultstore import FaultPlan, FaultyStore, Outage

from cloudspot.agent.delivery import courier as courier_module
from cloudspot.agent.delivery.checkpoint_restore import Restored, restore_newest
from cloudspot.agent.delivery.sent_chunks import SentChunks
from cloudspot.agent.leaving import Leaving
from cloudspot.agent.reclaim import Reclaim
from cloudspot.agent.training.launching.preparation import fetch_code
from cloudspot.decoding import convert
from cloudspot.errors import CloudspotError, CorruptData, ObjectMissing
from cloudspot.host.low_priority import NICENESS
from cloudspot.jobstore.checkpoints import fetching, manifests, parts, retention, shared_chunks
from cloudspot.jobstore.layout import keys, seals
from cloudspot.jobstore.layout.records import SaveId, StopRequest, Transfer, new_nonce
from cloudspot.model import PreemptionNotice
from cloudspot.train import handoff as files

FAR = 1e9


def reclaim(seconds):
    now = time.monotonic()
    return Reclaim(PreemptionNotice(deadline=None), now + seconds, now)


def run_rank_0(life, generation):
    """Make the agent one whose script runs, with rank 0."""
    life.context.status.generation = life.context.memory.generation = generation
    life.context.status.ranks = (0,)


@pytest.fixture
def node(bench):
    """A node that runs generation 1."""
    made = bench.life().context.node
    bench.start()
    return made


@pytest.fixture
def carry(bench, node):
    """Start the courier of the node's agent."""

    def start(store=None, **tables):
        life = bench.life(store=store, **tables)
        run_rank_0(life, 1)
        life.context.status.handoff = life.context.node.handoff(1)
        life.courier.start()
        return life

    return start


@pytest.mark.full
def test_a_sealed_slot_becomes_a_commit_and_is_free_again(bench, carry, node, wait_until):
    life = carry()
    seal = bench.seal(node, bench.id(1, 10))
    wait_until(lambda: life.context.status.committed == bench.id(1, 10))
    wait_until(lambda: not seal.exists() and list(seal.parent.iterdir()) == [])
    manifest = manifests.read_manifest(bench.store, "digits-1", bench.id(1, 10))
    fetching.verify(bench.store, "digits-1", manifest)
    commit = bench.journal()[-1]
    assert (commit.id, commit.sealed_at) == (manifest.id, manifest.parts[0].sealed_at)
    assert life.context.status.stall_seconds == 0.01


@pytest.mark.full
def test_what_the_last_checkpoint_holds_is_not_sent_again(bench, carry, node, wait_until, monkeypatch):
    monkeypatch.setattr(shared_chunks, "MIN_BYTES", 4)
    life, frozen = carry(), b"frozen"
    for step, trained in ((10, b"first"), (20, b"second"), (30, b"last")):
        bench.seal(node, bench.id(1, step), data=frozen + trained, cuts=[len(frozen)])
        wait_until(lambda step=step: life.context.status.committed == bench.id(1, step))
    chunks = [
        meta.key for meta in bench.store.list_objects("jobs/digits-1/checkpoints/") if "/chunks/" in meta.key
    ]
    assert sum(key.endswith("/000000") for key in chunks) == 1, "the frozen chunk was sent once"
    manifest = manifests.read_manifest(bench.store, "digits-1", bench.id(1, 30))
    assert manifest.shared == len(frozen)
    fetching.verify(bench.store, "digits-1", manifest)


@pytest.mark.full
def test_saves_beside_the_training_are_compressed_if_the_job_asks_for_it_and_the_first_drain_is_not(
    bench, carry, node, wait_until
):
    """What has to be out by a deadline does not wait for what nobody has measured."""
    life, data, sent = carry(checkpoint={"compression": "zstd"}), b"weights" * 1000, []
    for step, kind in ((10, "drain"), (20, "interval"), (30, "interval")):
        bench.seal(node, bench.id(1, step), data=data, kind=kind)
        wait_until(lambda step=step: life.context.status.committed == bench.id(1, step))
        manifest = manifests.read_manifest(bench.store, "digits-1", bench.id(1, step))
        fetching.verify(bench.store, "digits-1", manifest)
        sent.append(manifest.sent)
    assert sent[0] == len(data)
    assert sent[1] == sent[2] < len(data) / 10
    assert restore_newest(life.context).checkpoint == bench.id(1, 30)


def test_without_being_asked_nothing_is_compressed(bench, carry, node, wait_until):
    life = carry()
    bench.seal(node, bench.id(1, 10), data=b"weights" * 1000)
    wait_until(lambda: life.context.status.committed == bench.id(1, 10))
    manifest = manifests.read_manifest(bench.store, "digits-1", bench.id(1, 10))
    assert manifest.sent == manifest.size == 7000


def test_what_was_restored_is_looked_for_and_what_nobody_has_seen_is_not(bench, node, monkeypatch):
    monkeypatch.setattr(shared_chunks, "MIN_BYTES", 4)
    bench.commit(bench.id(1, 10), b"frozen")
    context = bench.life().context
    restored, sent = restore_newest(context), SentChunks(context)
    (content,) = restored.contents
    context.journal.read()
    sent.begin(frozenset())
    assert sent.sharing(SaveId(1, 20, 0), 0).find(content) is None
    sent.begin(restored.contents)
    assert sent.sharing(SaveId(1, 20, 0), 0).find(content).home.step == 10


def test_what_is_under_way_is_told(bench, carry, node, wait_until, monkeypatch):
    told = []
    life = carry()

    def put(key, data, *, if_absent=False, inner=bench.store.put):
        inner(key, data, if_absent=if_absent)
        told.append((key.rpartition("/")[0], life.context.status.transfer))

    monkeypatch.setattr(bench.store, "put", put)
    bench.seal(node, bench.id(1, 10), data=b"weights")
    wait_until(lambda: life.context.status.committed == bench.id(1, 10))
    chunk, part, manifest, commit = told
    assert chunk[1] == Transfer(what="uploading", done=0, total=7)
    assert part[1] == Transfer(what="uploading", done=7, total=7)
    assert manifest[1] is commit[1] is None


def test_a_node_that_never_brings_the_last_part_knows_what_its_uploads_take(bench, carry, node, wait_until):
    """Its ranks believed that an upload takes no time: the guard of a drain came too late for it."""
    handoff = node.handoff(1)
    handoff.mkdir(parents=True)
    life = carry()
    bench.seal(node, bench.id(1, 10), world_size=2, sealed_monotonic=time.monotonic() - 50.0)
    wait_until(lambda: life.context.status.upload_seconds)
    assert life.context.status.upload_seconds >= 50.0
    wait_until(lambda: (told := files.read_tuning(handoff)) is not None and told.upload_seconds >= 50.0)
    assert bench.commits() == ()


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_during_an_upload_does_not_change_what_it_takes(
    bench, carry, node, wait_until, monkeypatch, step
):
    """An hour more made the interval ten times as long, and the estimate of a stop an hour longer."""
    real = time.time
    bench.seal(node, bench.id(1, 10), sealed_monotonic=time.monotonic() - 50.0)
    monkeypatch.setattr(time, "time", lambda: real() + step)
    life = carry()
    wait_until(lambda: life.context.status.upload_seconds)
    assert 50.0 <= life.context.status.upload_seconds < 110.0


@pytest.mark.full
def test_what_an_upload_takes_whose_seal_is_of_another_boot_is_unknown(bench, carry, node, wait_until):
    bench.seal(node, bench.id(1, 10), boot="0123abcd", sealed_monotonic=1.0)
    life = carry()
    wait_until(lambda: life.context.status.committed == bench.id(1, 10))
    assert life.context.status.upload_seconds is None


@pytest.mark.full
def test_a_seal_that_a_killed_agent_had_taken_is_carried_first(bench, carry, node, wait_until):
    bench.seal(node, bench.id(1, 10))
    bench.seal(node, bench.id(1, 11), taken=True)
    life = carry()
    assert [seal.name.step for seal in life.courier._pending()][:1] in ([11], [10], [])
    assert life.courier.finish(until=lambda: FAR)
    assert bench.commits() == (bench.id(1, 11),)  # 10 comes after it, and counts no more
    assert list(node.directory.glob("generations/*/seals/*")) == []


@pytest.mark.full
def test_where_no_seal_is_left_none_is_looked_for_in_later_generations(bench, node):
    """A node that outlives hundreds of generations looked through all their directories, 50 times a second."""
    life = bench.life()
    left = bench.seal(node, bench.id(1, 10))
    life.courier.begin(bench.start(2), Restored(None))
    bench.seal(node, bench.id(2, 20))
    assert [seal.name.step for seal in life.courier._pending()] == [10, 20]
    left.unlink()
    life.courier.begin(bench.start(3), Restored(None))
    bench.seal(node, bench.id(1, 11))
    bench.seal(node, bench.id(3, 30))
    assert [seal.name.step for seal in life.courier._pending()] == [20, 30]
    assert [seal.name.step for seal in bench.life().courier._pending()] == [11, 20, 30]


def test_taken_seals_come_first_then_by_step(bench, node):
    life = bench.life()
    bench.seal(node, bench.id(1, 10))
    bench.seal(node, bench.id(1, 12))
    bench.seal(node, bench.id(1, 11), taken=True)
    assert [seal.name.step for seal in life.courier._pending()] == [11, 10, 12]


def parts_put(bench, monkeypatch):
    """The parts' records in the order in which they come to be."""
    found = []

    def put(key, data, *, if_absent=False, inner=bench.store.put):
        inner(key, data, if_absent=if_absent)
        if "/parts/" in key:
            found.append((int(key.split("/")[-3].split("-")[1]), int(key.rpartition("/")[2])))

    monkeypatch.setattr(bench.store, "put", put)
    return found


@pytest.mark.full
def test_a_drain_goes_before_all_older_parts_taken_or_not(bench, node, monkeypatch):
    """Eight ranks' parts of an interval save came first; the drain's missed the deadline."""
    found = parts_put(bench, monkeypatch)
    for rank in range(8):
        bench.seal(node, bench.id(1, 40), rank=rank, world_size=8, taken=rank == 0)
        bench.seal(node, bench.id(1, 45), rank=rank, world_size=8, kind="drain")
    bench.life().courier._carry_seals()
    assert found == [(step, rank) for step in (45, 40) for rank in range(8)]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "yields"), [("interval", True), ("drain", False), ("final", False)])
def test_an_upload_beside_the_training_yields_to_it_and_no_other_does(bench, node, monkeypatch, kind, yields):
    monkeypatch.setattr(parts, "MIN_BACKGROUND_BYTES", len(b"weights"))
    bench.seal(node, bench.id(1, 40), kind=kind)
    put, found = bench.store.put, []

    def watched(key, data, **options):
        if "/chunks/" in key:
            found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return put(key, data, **options)

    monkeypatch.setattr(bench.store, "put", watched)
    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    bench.life().courier._carry_seals()
    assert found == [max(usual, NICENESS) if yields else usual]
    monkeypatch.setattr(parts, "MIN_BACKGROUND_BYTES", len(b"weights") + 1)
    bench.seal(node, bench.id(1, 41), kind=kind)
    bench.life().courier._carry_seals()
    assert found[1:] == [usual]


@pytest.mark.parametrize(
    ("kind", "ranks", "num_waits"),
    [("interval", (0, 1), 0), ("interval", (2, 3), 1), ("drain", (2, 3), 0)],
)
def test_the_node_of_rank_0_goes_first_where_nothing_is_urgent(
    bench, node, monkeypatch, kind, ranks, num_waits
):
    """All nodes saw at once that a save was whole, and each asked for all that a commit takes."""
    for rank in ranks:
        bench.seal(node, bench.id(1, 40), rank=rank, world_size=4, kind=kind)
    life, waited = bench.life(), []
    life.context.status.ranks = ranks
    monkeypatch.setattr(life.context.orders, "wait", waited.append)
    life.courier._carry_seals()
    assert len(waited) == num_waits  # before the last of its parts


@pytest.mark.full
def test_a_drain_that_is_sealed_during_an_upload_comes_next(bench, node, monkeypatch):
    for rank in range(8):
        bench.seal(node, bench.id(1, 40), rank=rank, world_size=8)
    found = parts_put(bench, monkeypatch)
    courier = bench.life().courier
    commit = courier._commit

    def seal_drain(*arguments):
        if len(found) == 1:
            for rank in range(8):
                bench.seal(node, bench.id(1, 45), rank=rank, world_size=8, kind="drain")
        commit(*arguments)

    monkeypatch.setattr(courier, "_commit", seal_drain)
    courier._carry_seals()
    assert found == [(40, 0), *((45, rank) for rank in range(8)), *((40, rank) for rank in range(1, 8))]


@pytest.mark.parametrize(
    ("deadline", "took", "gives_way"),
    [(60.0, 1.0, True), (10.0, 9.0, False), (60.0, None, False), (None, None, True)],
)
def test_a_save_under_way_leaves_its_rest_to_a_drain_that_has_the_time(
    bench, node, monkeypatch, deadline, took, gives_way
):
    """A drain came while an interval save was uploaded, and the notice was over before both were."""
    monkeypatch.setattr(parts, "Upload", partial(parts.Upload, chunk_bytes=1, num_threads=1))
    life, put, found = bench.life(), bench.store.put, []
    life.context.status.upload_seconds = took
    bench.seal(node, bench.id(1, 40), world_size=2)

    def watched(key, data, **options):
        if "/chunks/" in key:
            found.append(int(key.split("/")[-4].split("-")[1]))
            if len(found) == 1:
                bench.seal(node, bench.id(1, 45), kind="drain", world_size=2)
                if deadline is not None:
                    life.context.orders.give(reclaim=reclaim(deadline))
        put(key, data, **options)

    monkeypatch.setattr(bench.store, "put", watched)
    put_parts = parts_put(bench, monkeypatch)
    life.courier._carry_seals()
    # No drain of the other node makes it whole: the rest is delivered behind it.
    assert put_parts == ([(45, 0), (40, 0)] if gives_way else [(40, 0), (45, 0)])
    count, first = len(b"weights"), 1 if gives_way else len(b"weights")
    assert found == [40] * first + [45] * count + [40] * (count - first)


@pytest.mark.full
def test_a_save_that_gave_way_waits_for_the_drain_of_every_rank_here(bench, node, draining, monkeypatch):
    """It went on after the first rank's, and was in the way of the second's."""
    monkeypatch.setattr(parts, "Upload", partial(parts.Upload, chunk_bytes=1, num_threads=1))
    draining.context.status.upload_seconds = 55.0  # of one rank alone it would be finished first
    put, found = bench.store.put, []

    def watched(key, data, **options):
        if "/chunks/" in key:
            found.append((int(key.split("/")[-4].split("-")[1]), int(key.split("/")[-2])))
            if len(found) == 1:
                bench.seal(node, bench.id(1, 45), rank=0, world_size=2, kind="drain")
                files.write_json(files.drained_path(node.handoff(1), 0), {"step": 45})
        put(key, data, **options)

    monkeypatch.setattr(bench.store, "put", watched)
    courier, count = draining.courier, len(b"weights")
    courier._carry_seals()
    assert found == [(40, 0)] + [(45, 0)] * count
    bench.seal(node, bench.id(1, 45), rank=1, world_size=2, kind="drain")
    files.write_json(files.drained_path(node.handoff(1), 1), {"step": 45})
    courier._carry_seals()
    drains, rest = [(45, 0)] * count + [(45, 1)] * count, [(40, 0)] * (count - 1) + [(40, 1)] * count
    assert found == [(40, 0), *drains, *rest]  # the bench's two parts do not make one checkpoint


def test_the_text_of_a_seal_is_parsed_once_from_the_trainers_file_to_the_commit(
    bench, carry, node, monkeypatch, tmp_path
):
    parsed = []

    def counting(value, type_):
        parsed.append(value["step"])
        return convert(value, type_)

    monkeypatch.setattr(seals, "convert", counting)
    bench.seal(node, bench.id(1, 10))
    assert carry().courier.finish(until=lambda: FAR)
    assert (bench.commits(), parsed) == ((bench.id(1, 10),), [10])
    manifest = manifests.read_manifest(bench.store, "digits-1", bench.id(1, 10))
    fetching.fetch(bench.store, "digits-1", manifest, tmp_path)
    assert fetching.is_restored(tmp_path, manifest)
    assert parsed == [10, 10], "and once from the manifest"


@pytest.mark.parametrize("num_put", [0, 3])
def test_what_an_outage_cut_off_goes_on_where_it_was(bench, node, monkeypatch, num_put):
    monkeypatch.setattr(parts, "Upload", partial(parts.Upload, chunk_bytes=1, num_threads=1))
    bench.seal(node, bench.id(1, 40))
    put, found = bench.store.put, []

    def broken(key, data, **options):
        if "/chunks/" in key:
            found.append(int(key.rpartition("/")[2]))
            if len(found) == num_put + 1:
                raise CloudspotError("the store does not answer")
        put(key, data, **options)

    monkeypatch.setattr(bench.store, "put", broken)
    life = bench.life()
    with pytest.raises(CloudspotError, match="does not answer"):
        life.courier._carry_seals()
    life.courier._carry_seals()
    assert found == [*range(num_put + 1), *range(num_put, len(b"weights"))]
    assert bench.commits() == (bench.id(1, 40),)
    assert life.context.status.upload_seconds is None  # the next one will not meet an outage


@pytest.fixture
def draining(bench, node):
    """A node whose trainer was asked to leave by a deadline; an interval save waits, a part of it under way."""
    life = bench.life()
    status = life.context.status
    status.generation, status.handoff, status.ranks = 1, node.handoff(1), (0, 1)
    life.courier.begin(bench.generations()[0], Restored(None))
    for rank in range(2):
        bench.seal(node, bench.id(1, 40), rank=rank, world_size=2, taken=rank == 0)
        files.progress_path(node.handoff(1), rank).write_bytes(files.PROGRESS.pack(44, 100, 45))
    life.context.orders.give(reclaim=reclaim(60.0))
    files.write_drain(node.handoff(1), files.Drain(kind="notice", guard=FAR))
    return life


def test_what_nobody_has_begun_to_upload_waits_for_the_drain(bench, node, draining, monkeypatch):
    """It was begun in the last moment before the drain's seals, whose upload then came too late."""
    found = parts_put(bench, monkeypatch)
    courier = draining.courier
    courier._carry_seals()
    assert found == [(40, 0)]
    bench.seal(node, bench.id(1, 45), rank=0, world_size=2, kind="drain")
    files.write_json(files.drained_path(node.handoff(1), 0), {"step": 45})
    courier._carry_seals()
    assert found == [(40, 0), (45, 0)]
    bench.seal(node, bench.id(1, 45), rank=1, world_size=2, kind="drain")
    courier._carry_seals()
    assert found == [(40, 0), (45, 0), (45, 1)]
    files.write_json(files.drained_path(node.handoff(1), 1), {"step": 45})
    courier._carry_seals()
    assert found == [(40, 0), (45, 0), (45, 1), (40, 1)]


@pytest.mark.parametrize(
    "change",
    [
        lambda life, _: life.courier.end_of_trainer(exited_0=False, is_leaving=False),
        lambda _, handoff: (handoff / "drain.json").unlink(),  # a long notice is trained through at first
        lambda _, handoff: [files.progress_path(handoff, rank).unlink() for rank in range(2)],
        lambda _, handoff: [
            files.write_json(files.drained_path(handoff, rank), {"step": None}) for rank in range(2)
        ],
        lambda _, handoff: [files.ended_loop_path(handoff, rank).touch() for rank in range(2)],
    ],
    ids=["trainer dead", "not yet ordered", "no session", "no save", "loop ended"],
)
def test_where_no_drain_will_come_nothing_waits_for_it(bench, node, draining, monkeypatch, change):
    found = parts_put(bench, monkeypatch)
    change(draining, node.handoff(1))
    draining.courier._carry_seals()
    assert found == [(40, 0), (40, 1)]


def test_nothing_waits_for_a_drain_without_a_deadline(bench, node, draining, monkeypatch):
    found = parts_put(bench, monkeypatch)
    draining.context.orders.reclaim = None
    draining.context.orders.give(
        stop=StopRequest(reason="user", at=datetime.now(timezone.utc), writer=new_nonce())
    )
    draining.courier._carry_seals()
    assert found == [(40, 0), (40, 1)]


def test_what_waits_for_a_drain_that_never_came_is_delivered_at_the_end(bench, draining, monkeypatch):
    found = parts_put(bench, monkeypatch)
    draining.courier.start()
    end = time.monotonic() + 20.0
    assert draining.courier.finish(until=lambda: end)
    assert found == [(40, 0), (40, 1)]


def test_a_later_agent_of_the_machine_waits_for_the_drain_too(bench, node, draining, monkeypatch):
    memory = draining.context.memory
    memory.trainer_pid = 1
    memory.save(node)
    found = parts_put(bench, monkeypatch)
    later = bench.life()
    later.context.status.handoff, later.context.status.ranks = node.handoff(1), (0, 1)
    later.context.orders.give(reclaim=reclaim(60.0))
    later.courier._carry_seals()
    assert found == [(40, 0)]


def test_a_drain_goes_before_the_save_of_its_step_that_is_under_way(bench, node):
    bench.seal(node, bench.id(1, 45), round=1, taken=True)
    bench.seal(node, bench.id(1, 45), round=2, kind="drain")
    assert [seal.name.round for seal in bench.life().courier._pending()] == [2, 1]


def test_the_parts_of_those_who_stay_are_all_that_a_drain_needs(bench, carry, node):
    bench.seal(node, bench.id(1, 45), world_size=2, round=1)
    states = {"rank_states": {"0": {}, "1": {}}}
    bench.seal(node, bench.id(1, 45), world_size=2, round=2, kind="drain", relieved=[1], **states)
    assert carry().courier.finish(until=lambda: FAR)
    commit = manifests.read_manifest(bench.store, "digits-1", bench.id(1, 45))
    assert (commit.save, [part.rank for part in commit.parts]) == (SaveId(1, 45, 2), [0])


@pytest.mark.full
def test_a_part_that_this_node_has_put_is_not_read_again(bench, carry, node, wait_until, monkeypatch):
    read = []

    def get(key, inner=bench.store.get):
        if "/parts/" in key:
            read.append(key)
        return inner(key)

    life = carry()
    monkeypatch.setattr(bench.store, "get", get)
    for rank in range(4):
        bench.seal(node, bench.id(1, 40), rank=rank, world_size=4)
    bench.put_part(0, 41)  # anything else, so that the courier is not the only one who reads
    assert life.courier.finish(until=lambda: FAR)
    assert not [key for key in read if "-000000000040-" in key]
    assert life.context.known_parts.keys() == set() or bench.commits() == ()


def test_a_seal_that_the_trainer_withdraws_is_no_error(bench, node, monkeypatch):
    life = bench.life()
    seal = bench.seal(node, bench.id(1, 10))
    found = iter([life.courier._pending(), []])
    seal.unlink()
    monkeypatch.setattr(life.courier, "_pending", lambda: next(found))
    life.courier._carry_seals()
    assert bench.commits() == ()


@pytest.mark.full
def test_an_outage_delays_a_commit_and_loses_none(bench, carry, node, tmp_path):
    now = time.time()
    plan = FaultPlan(outages=(Outage(start=now, end=now + 0.3),), fail_every=5, lose_every=3)
    life = carry(FaultyStore(bench.store, plan, tmp_path / "state"))
    for step in (10, 11):
        bench.seal(node, bench.id(1, step))
    assert life.courier.finish(until=lambda: FAR)
    assert bench.commits() == (bench.id(1, 10), bench.id(1, 11))


@pytest.mark.parametrize(
    "broken",
    [
        lambda seal: seal.write_text("{"),
        lambda seal: seal.write_text("{}"),
        lambda seal: os.truncate(seal, courier_module.MAX_SEAL_BYTES + 1),
        lambda seal: seal.write_text(seal.read_text().replace("/slot-", "/gone-")),
        lambda seal: seal.write_text(seal.read_text().replace('"nbytes": 7', '"nbytes": 7000')),
        lambda seal: seal.write_text(seal.read_text().replace('"rank": 0', '"rank": 3')),
    ],
)
def test_a_seal_that_cannot_be_carried_is_given_up_and_holds_up_no_other(bench, carry, node, broken):
    broken(bench.seal(node, bench.id(1, 10)))
    bench.seal(node, bench.id(1, 11))
    life = carry()
    assert life.courier.finish(until=lambda: FAR)
    assert life.courier._thread.is_alive() or life.courier._stopped.is_set()
    assert bench.commits() == (bench.id(1, 11),)


def test_other_bytes_under_a_part_that_stands_are_given_up(bench, carry, node):
    bench.commit(bench.id(1, 10), b"weights")
    bench.seal(node, bench.id(1, 10), b"others!", taken=True)
    assert carry().courier.finish(until=lambda: FAR)
    assert list(node.directory.glob("generations/*/seals/*")) == []


def test_deleting_old_checkpoints_keeps_no_slot_from_the_trainer(bench, carry, node, wait_until, monkeypatch):
    def failing(*_, **__):
        raise CorruptData("a record of the journal is malformed")

    monkeypatch.setattr(courier_module.retention, "collect", failing)
    life = carry()
    seal = bench.seal(node, bench.id(1, 10))
    wait_until(lambda: life.context.status.committed is not None and list(seal.parent.iterdir()) == [])
    bench.seal(node, bench.id(1, 11))
    assert life.courier.finish(until=lambda: FAR)
    assert bench.id(1, 11) in bench.commits()


@pytest.mark.full
def test_only_as_many_checkpoints_stay_as_the_job_asks_for(bench, carry, node, monkeypatch):
    life = carry(checkpoint={"keep": 2})
    for step in range(10, 15):
        bench.seal(node, bench.id(1, step))
    assert life.courier.finish(until=lambda: FAR)
    assert bench.commits() == (bench.id(1, 13), bench.id(1, 14))


def test_settling_waits_for_what_is_sealed_and_frees_the_slots_that_nobody_resumes_from(bench, carry, node):
    life = carry()
    bench.seal(node, bench.id(1, 10))
    (node.arena / "slot-1-0-1").write_text("of a save in whose middle the training was killed")
    life.courier.settle()
    assert bench.commits() == (bench.id(1, 10),)
    assert [slot.name for slot in node.arena_slots()] == ["slot-1-0-0"]
    life.courier.begin(bench.start(2), Restored(None))
    assert list(node.arena.iterdir()) == []


def test_settling_ends_when_the_node_has_to_leave_and_keeps_the_slots(bench, node):
    life = bench.life()  # its courier does not run
    bench.seal(node, bench.id(1, 10))
    life.context.orders.give(reclaim=reclaim(60.0))
    life.courier.settle()
    assert len(list(node.arena.iterdir())) == 1


@pytest.mark.parametrize("is_outrun", [False, True])
def test_a_node_that_is_not_needed_delivers_until_another_generation_begins(bench, carry, node, is_outrun):
    life = carry()
    for part in (life.artifacts, life.logs):
        part.start()
    with life.courier._busy:  # its thread does not look before the node leaves
        if is_outrun:
            bench.start(2)
        life.context.journal.read()
        bench.seal(node, bench.id(1, 10))
    life._leave(Leaving("superseded", "generation 2 goes on without this node"))
    assert steps(bench) == ([] if is_outrun else [10])


def test_finishing_ends_at_a_deadline_that_comes_nearer(bench, carry, node, tmp_path):
    now = time.time()
    down = FaultyStore(
        bench.store, FaultPlan(outages=(Outage(start=0.0, end=now + 3600.0),)), tmp_path / "state"
    )
    life = carry(down)
    bench.seal(node, bench.id(1, 10))
    moments = iter([FAR, FAR])
    assert not life.courier.finish(until=lambda: next(moments, 0.0))


# --- directories --------------------------------------------------------------------------------

PATTERN = {"directory": "output/*", "complete_file": "done"}


def directory(node, name, text="weights"):
    path = node.work / "output" / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "model").write_text(text)
    (path / "done").write_text("")
    return path


def look_again(life):
    """Let the next look come at once."""
    life.courier._directories._looked_at = float("-inf")


def steps(bench):
    return [checkpoint.step for checkpoint in bench.commits()]


def test_the_newest_complete_directory_is_committed_once(bench, carry, node):
    directory(node, "checkpoint-9")
    directory(node, "checkpoint-10")
    assert carry(checkpoint=PATTERN).courier.finish(until=lambda: FAR)
    assert steps(bench) == [10]


def test_what_was_uploaded_takes_no_room_once_the_script_has_deleted_it(bench, carry, node):
    path = directory(node, "checkpoint-10")
    (path / "model").rename(node.work / "kept")
    (path / "model").hardlink_to(node.work / "kept")
    assert carry(checkpoint=PATTERN).courier.finish(until=lambda: FAR)
    assert steps(bench) == [10]
    assert (node.work / "kept").stat().st_nlink == 2
    assert not (node.staging / "checkpoint-10").exists()


def test_before_the_first_generation_nothing_is_given_up(bench, carry, node):
    """An agent that was restarted between two generations met directories as generation 0's."""
    directory(node, "checkpoint-10")
    life = bench.life(checkpoint=PATTERN)
    life.courier._directories.carry(life.courier._commit)
    run_rank_0(life, 1)
    life.courier._directories.carry(life.courier._commit)
    look_again(life)
    life.courier._directories.carry(life.courier._commit)
    assert steps(bench) == [10]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({}, "it was never quiet for 10 s; set complete_file, or exclude the files that change"),
        ({"complete_file": "done"}, "done is never the newest file there"),
        ({"incomplete_file": "saving"}, "saving is always there"),
    ],
)
def test_a_directory_that_is_never_complete_is_a_warning_until_it_is(bench, node, monkeypatch, table, why):
    for module in ("checkpoint_watch", "directory_uploads"):
        monkeypatch.setattr(f"cloudspot.agent.delivery.{module}.RESTLESS_SECONDS", 60.0)
    now = 1000.0
    monkeypatch.setattr("cloudspot.agent.delivery.directory_uploads.time.monotonic", lambda: now)
    life = bench.life(checkpoint={"directory": "output/*", **table})
    run_rank_0(life, 1)
    uploads = life.courier._directories
    uploads.adopt()
    path = directory(node, "last", "weights")
    (path / "saving").touch()
    utime(path / "done", (1000, 1000))
    uploads.unsent()
    assert life.context.status.warnings == ()
    now += 60.0
    (path / "model").write_text("other weights")
    look_again(life)
    uploads.unsent()
    warning = f"output/last was not complete for 1 minutes, so it is not uploaded: {why}"
    assert life.context.status.warnings == (warning,)
    uploads.end_of_script()
    uploads.unsent()
    assert life.context.status.warnings == ()


@pytest.mark.parametrize(
    ("exited_0", "is_leaving", "committed"), [(True, False, [10]), (True, True, []), (False, False, [])]
)
def test_a_script_that_ends_well_has_completed_what_it_wrote_unless_it_was_told_to_leave(
    bench, node, exited_0, is_leaving, committed
):
    """Status 0 may be that of a handler of SIGTERM, in the middle of a save."""
    life = bench.life(checkpoint={"directory": "output/*"})
    run_rank_0(life, 1)
    uploads = life.courier._directories
    uploads.begin(Restored(None))
    uploads.end_of_script()
    uploads.adopt()
    directory(node, "checkpoint-10")
    uploads.end_of_script(exited_0=exited_0, is_leaving=is_leaving)
    uploads.carry(life.courier._commit)
    assert steps(bench) == committed


@pytest.mark.parametrize(("is_running", "is_asked"), [(True, False), (True, True), (False, False)])
def test_a_directory_yields_to_a_script_that_trains_and_to_none_that_was_asked_to_save(
    bench, node, monkeypatch, is_running, is_asked
):
    monkeypatch.setattr(parts, "MIN_BACKGROUND_BYTES", len(b"weights"))
    put, found = bench.store.put, []

    def watched(key, data, **options):
        if "/chunks/" in key:
            found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return put(key, data, **options)

    monkeypatch.setattr(bench.store, "put", watched)
    life = bench.life(checkpoint=PATTERN)
    run_rank_0(life, 1)
    uploads = life.courier._directories
    uploads.begin(Restored(None))
    uploads.end_of_script()
    if is_running:
        uploads.adopt()
    if is_asked:
        uploads.ask()
    path = directory(node, "checkpoint-10")
    utime(path / "model", (1000, 1000))
    utime(path / "done", (1001, 1001))
    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    look_again(life)
    uploads.carry(life.courier._commit)
    assert {*found} == {max(usual, NICENESS) if is_running and not is_asked else usual}


def test_a_directory_that_is_rewritten_is_committed_again(bench, carry, node):
    life = carry(checkpoint=PATTERN)
    for number in range(3):
        with life.courier._busy:  # its thread does not look between the two writes
            directory(node, "last", f"weights {number}")
            life.courier._directories.end_of_script()
        life.courier.settle()
    assert steps(bench) == [1, 2, 3]
    manifest = manifests.read_manifest(bench.store, "digits-1", bench.id(1, 3))
    assert {file.path for file in manifest.parts[0].files} == {"output/last/model", "output/last/done"}
    data = bench.store.get(keys.chunk("digits-1", SaveId(1, 3, 0), 0, 0))
    assert data == b"weights 2"


def test_a_restarted_agent_finds_the_next_free_step(bench, carry, node):
    directory(node, "checkpoint-10", "old weights")
    assert carry(checkpoint=PATTERN).courier.finish(until=lambda: FAR)
    directory(node, "checkpoint-10", "new weights")
    assert carry(checkpoint=PATTERN).courier.finish(until=lambda: FAR)
    assert steps(bench) == [10, 11]
    assert carry(checkpoint=PATTERN).courier.finish(until=lambda: FAR)
    assert steps(bench) == [10, 11]


def test_a_restarted_agent_goes_on_behind_the_newest_commit(bench, carry, node):
    """Its first steps were free again, as they had been collected: what it uploaded there counted for nothing."""
    tables = {"checkpoint": {**PATTERN, "keep": 1}}
    life = carry(**tables)
    for number in range(3):
        with life.courier._busy:
            directory(node, "last", f"weights {number}")
            life.courier._directories.end_of_script()
        life.courier.settle()
    retention.collect(bench.store, life.context.journal, "digits-1", 1, orphan_grace_seconds=-60.0)
    assert life.courier.finish(until=lambda: FAR)
    directory(node, "last", "weights of the next agent")
    assert carry(**tables).courier.finish(until=lambda: FAR)
    assert bench.journal()[-1].id == bench.id(1, 4)
    data = bench.store.get(keys.chunk("digits-1", SaveId(1, 4, 0), 0, 0))
    assert data == b"weights of the next agent"


def test_a_directory_of_a_generation_that_others_have_left_is_given_up_at_once(bench, carry, node):
    directory(node, "checkpoint-10")
    bench.start(2)
    assert carry(checkpoint=PATTERN).courier.finish(until=lambda: FAR)
    assert steps(bench) == []


def test_a_save_of_a_step_that_is_committed_already_is_not_uploaded(bench, carry, node, monkeypatch):
    """A drain at a boundary that is saved already has a save of its own, in case that one needs a doomed node."""
    life = carry()
    bench.seal(node, bench.id(1, 10), round=1)
    life.courier.settle()
    put = parts_put(bench, monkeypatch)
    seal = bench.seal(node, bench.id(1, 10), round=2, kind="drain")
    assert life.courier.finish(until=lambda: FAR)
    assert (put, seal.exists()) == ([], False)


def test_a_directory_that_changes_while_it_is_uploaded_leaves_no_part(bench, node, monkeypatch):
    model = directory(node, "checkpoint-10") / "model"
    life = bench.life(checkpoint=PATTERN)
    run_rank_0(life, 1)
    put = bench.store.put

    def put_and_tear(key, data, *, if_absent=False):
        put(key, data, if_absent=if_absent)
        if "/chunks/" in key:
            model.write_text("other weights")

    monkeypatch.setattr(bench.store, "put", put_and_tear)
    life.courier._directories.carry(life.courier._commit)
    assert steps(bench) == []
    with pytest.raises(ObjectMissing):
        bench.store.get(keys.part("digits-1", SaveId(1, 10, 0), 0))


def test_settling_waits_for_directories_too(bench, carry, node):
    """Else one is committed to a generation whose successor has chosen an older one: nobody resumes from it."""
    directory(node, "checkpoint-10")
    life = carry(checkpoint=PATTERN)
    life.courier.end_of_trainer(exited_0=False, is_leaving=False)
    life.courier.settle()
    assert steps(bench) == [10]


def test_what_was_restored_is_not_uploaded_again(bench, carry, node):
    directory(node, "checkpoint-10")
    life = bench.life(checkpoint=PATTERN)
    run_rank_0(life, 2)
    life.courier._directories.begin(Restored(bench.id(1, 10), directory_name="output/checkpoint-10"))
    assert life.courier._directories.unsent() == []
    directory(node, "checkpoint-20")
    look_again(life)
    assert [found.step for found in life.courier._directories.unsent()] == [20]


def test_torn_directories_are_set_aside_and_none_that_is_in_the_bucket(bench, carry, node):
    life = carry(checkpoint=PATTERN)
    uploads = life.courier._directories
    uploads.begin(Restored(None))
    with life.courier._busy:  # its thread does not look before the file is gone
        directory(node, "checkpoint-10")
        torn = directory(node, "checkpoint-20")
        (torn / "done").unlink()
    life.courier.end_of_trainer(exited_0=False, is_leaving=False)
    life.courier.settle()
    life.courier.set_aside_torn()
    assert [path.name for path in (node.work / "output").iterdir()] == ["checkpoint-10"]
    assert steps(bench) == [10]
    with life.courier._busy:
        directory(node, "checkpoint-20")
        (torn / "done").unlink()
    life.courier.set_aside_torn()
    found = sorted(path.relative_to(node.torn).as_posix() for path in node.torn.glob("*/*"))
    assert found == ["output/checkpoint-20", "output/checkpoint-20.2"]


def test_a_newcomer_commits_nothing_that_it_has_restored_before_its_script_runs(bench, carry, node):
    """An older checkpoint that it had restored ahead of time became the job's newest one."""
    life = carry(checkpoint=PATTERN)
    life.context.memory.generation, life.context.status.ranks = 0, ()
    directory(node, "checkpoint-10")
    assert life.courier._directories.unsent() == []
    life.context.status.ranks = (0,)
    assert life.courier._directories.unsent() == []
    run_rank_0(life, 1)
    look_again(life)
    assert [one.step for one in life.courier._directories.unsent()] == [10]


def test_a_directory_that_is_passed_over_for_its_name_is_a_warning(bench, carry, node):
    life = carry(checkpoint=PATTERN)
    uploads = life.courier._directories
    with life.courier._busy:
        uploads.begin(Restored(None))
        directory(node, "step_100_loss_0.53")
        time.sleep(0.02)
        directory(node, "step_200_loss_0.48")
        look_again(life)
        assert [one.name for one in uploads.unsent()] == ["output/step_100_loss_0.53"]
        (warning,) = life.context.status.warnings
        assert warning.startswith(
            "output/step_200_loss_0.48 was completed after output/step_100_loss_0.53, but"
        )
        directory(node, "step_300")
        look_again(life)
        assert [one.name for one in uploads.unsent()] == ["output/step_300"]
        assert life.context.status.warnings == ()


def test_of_directories_without_a_step_the_one_that_was_written_last_is_committed(bench, node):
    life = bench.life(checkpoint=PATTERN)
    run_rank_0(life, 1)
    for name in ("epoch=9.ckpt", "epoch=10.ckpt"):
        directory(node, name)
        time.sleep(0.02)
    assert [one.name for one in life.courier._directories.unsent()] == ["output/epoch=10.ckpt"]


@pytest.mark.parametrize("was_told", [False, True])
def test_the_files_of_other_ranks_are_no_checkpoint_though_the_script_ends_with_0(
    bench, carry, node, was_told
):
    """They became the newest one as soon as their node had rank 0, from which nothing could resume."""
    life = carry(checkpoint={"directory": "output/*", "on_notice": "SIGTERM"})
    life.context.status.ranks = (1,)
    life.courier._directories.begin(Restored(None))
    if was_told:
        life.courier.ask_script()
    (node.work / "output" / "checkpoint-20").mkdir(parents=True)
    (node.work / "output" / "checkpoint-20" / "rng_state_1.pth").write_text("its own")
    life.courier.end_of_trainer(exited_0=True, is_leaving=False)
    life.courier.settle()
    life.courier.set_aside_torn()
    assert (node.torn / "output" / "checkpoint-20" / "rng_state_1.pth").exists()
    life.context.status.ranks = (0,)
    life.courier._directories.begin(Restored(None))
    assert life.courier.finish(until=lambda: FAR)
    assert steps(bench) == []


def tear_what_came_with_the_code(bench, node):
    """A script that rewrites a directory of the code dies in the middle."""
    code = bench.root / "code" / "output" / "last"
    code.mkdir(parents=True)
    (code / "model").write_text("of the code")
    life = bench.life(checkpoint=PATTERN)
    fetch_code(life.context)
    life.courier._directories.begin(Restored(None))
    (directory(node, "last", "half of the wei") / "done").unlink()
    life.courier.end_of_trainer(exited_0=False, is_leaving=False)
    return life


def models(root):
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("model")}


def test_what_came_with_the_code_is_put_back_when_it_was_rewritten_by_half(bench, node):
    """It was gone for good: before the first commit nothing else brings it back."""
    tear_what_came_with_the_code(bench, node)
    directory(node, "checkpoint-20")
    (node.work / "output" / "checkpoint-20" / "done").unlink()
    bench.life(checkpoint=PATTERN).courier.set_aside_torn()
    assert list((node.work / "output").iterdir()) == []
    uploads = bench.life(checkpoint=PATTERN).courier._directories
    uploads.begin(Restored(None))
    assert models(node.work) == {"output/last/model": "of the code"}
    assert models(node.torn) == {
        "output/last/model": "half of the wei",
        "output/checkpoint-20/model": "weights",
    }
    uploads.set_aside_torn()  # the next script fails in its first second
    assert models(node.work) == {"output/last/model": "of the code"}


def test_what_came_with_the_code_replaces_nothing_that_was_restored(bench, node):
    life = tear_what_came_with_the_code(bench, node)
    life.courier.set_aside_torn()
    directory(node, "last", "restored")
    life.courier._directories.begin(Restored(bench.id(1, 10), directory_name="output/last"))
    assert models(node.work) == {"output/last/model": "restored"}


def test_what_was_restored_here_and_never_touched_stays(bench, carry, node):
    """On a node without rank 0 no scan proves anything complete."""
    life = carry(checkpoint={"directory": "output/*"})
    life.context.status.ranks = (1,)
    directory(node, "checkpoint-10")
    life.courier._directories.begin(Restored(bench.id(1, 10), directory_name="output/checkpoint-10"))
    directory(node, "checkpoint-20")
    life.courier.end_of_trainer(exited_0=False, is_leaving=False)
    life.courier.set_aside_torn()
    assert [path.name for path in (node.work / "output").iterdir()] == ["checkpoint-10"]
