"""What ranks read of a sharded checkpoint comes when they ask for it, and damage that is found then is told."""

import errno
import json
import threading
import time
from unittest import mock

import pytest
from support.stores.faultstore import FaultPlan, FaultyStore, Outage

from cloudspot.agent.delivery import checkpoint_restore, on_demand_fetch
from cloudspot.agent.delivery.checkpoint_restore import on_demand_here, restore_newest, restore_this
from cloudspot.agent.delivery.early_restore import EarlyRestore
from cloudspot.agent.delivery.on_demand_fetch import OnDemandFetch
from cloudspot.agent.leaving import LeavingError
from cloudspot.errors import CorruptData
from cloudspot.jobstore.checkpoints import fetching, retention
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import SaveId
from cloudspot.train import handoff as files

JOB = "digits-1"
DATAS = [b"weights of 0", b"weights of 1"]


@pytest.fixture
def two_nodes(bench):
    """A node of two, whose rank is 0, and a checkpoint that is sharded over both."""
    life = bench.life(nodes=2)
    life.context.status.ranks = (0,)
    bench.commit_sharded(bench.id(1, 10), DATAS)
    return life


def ask(life, rank, ranges, nonce="1"):
    """Say what a rank reads."""
    handoff = life.context.node.handoff(2)
    handoff.mkdir(parents=True, exist_ok=True)
    files.write_json(files.wanted_path(handoff, rank), {"nonce": nonce, "ranges": ranges})
    return handoff


def is_answered(handoff, rank, nonce="1"):
    path = files.fetched_path(handoff, rank)
    return path.exists() and path.read_text() == nonce


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_node_of_several_makes_only_the_files_of_a_sharded_checkpoint(bench, two_nodes):
    restored = restore_newest(two_nodes.context)
    assert restored.checkpoint == bench.id(1, 10)
    assert restored.on_demand.id == bench.id(1, 10)
    assert (restored.directory / "part-1.bin").read_bytes() == bytes(len(DATAS[1]))
    assert json.loads((restored.directory / "restore.json").read_text())["on_demand"] is True
    assert restore_this(two_nodes.context, bench.id(1, 10), None).on_demand.id == bench.id(1, 10)


@pytest.mark.parametrize("why", ["one node", "all shards on each node", "little of it is sharded"])
def test_what_a_node_reads_all_of_is_fetched_ahead_of_time(bench, why):
    if why == "little of it is sharded":
        bench.commit_sharded(bench.id(1, 10), [*DATAS, b"weights that every rank has"], num_shards=2)
    else:
        bench.commit_sharded(bench.id(1, 10), DATAS)
    life = bench.life(nodes=1 if why == "one node" else 2, procs_per_node=2 if why.startswith("all") else 1)
    restored = restore_newest(life.context)
    assert restored.on_demand is None
    assert (restored.directory / "part-1.bin").read_bytes() == DATAS[1]


def test_each_rank_gets_what_it_asks_for(bench, two_nodes):
    restored = restore_newest(two_nodes.context)
    handoff = ask(two_nodes, 0, {"part-0.bin": [[0, 5]]})
    with OnDemandFetch(two_nodes.context, lambda: restored, handoff) as fetch:
        wait_until(lambda: is_answered(handoff, 0))
        assert (restored.directory / "part-0.bin").read_bytes() == DATAS[0]  # chunks come whole
        assert (restored.directory / "part-1.bin").read_bytes() == bytes(len(DATAS[1]))
        assert not files.fetched_path(handoff, 1).exists()
        ask(two_nodes, 1, {})
        wait_until(lambda: is_answered(handoff, 1))
        # Restarted by its own launcher, and sharded otherwise.
        ask(two_nodes, 0, {"part-1.bin": [[0, 1]]}, nonce="2")
        wait_until(lambda: is_answered(handoff, 0, nonce="2"))
        assert (restored.directory / "part-1.bin").read_bytes() == DATAS[1]
        assert fetch.error is None


def test_the_next_agent_of_the_machine_answers_who_waits(bench, two_nodes):
    restore_newest(two_nodes.context)
    handoff = ask(two_nodes, 0, {"part-0.bin": [[0, 5]]})
    later = bench.life(nodes=2)
    later.context.status.ranks = (0,)
    with OnDemandFetch(later.context, lambda: on_demand_here(later.context, bench.id(1, 10)), handoff):
        wait_until(lambda: is_answered(handoff, 0))
    restored = on_demand_here(later.context, bench.id(1, 10))
    assert (restored.directory / "part-0.bin").read_bytes() == DATAS[0]


def test_what_was_fetched_whole_is_not_fetched_on_demand_by_the_next_agent(bench):
    bench.commit(bench.id(1, 10))
    life = bench.life()
    restore_newest(life.context)
    assert on_demand_here(life.context, bench.id(1, 10)) is None


def test_a_chunk_that_is_found_damaged_makes_all_nodes_take_an_older_checkpoint(bench, two_nodes):
    bench.commit_sharded(bench.id(1, 20), DATAS)
    bench.spoil(bench.id(1, 20))
    restored = restore_newest(two_nodes.context)
    assert restored.checkpoint == bench.id(1, 20)  # nobody has read it yet
    handoff = ask(two_nodes, 0, {"part-0.bin": [[0, 1]]})
    with OnDemandFetch(two_nodes.context, lambda: restored, handoff) as fetch:
        wait_until(lambda: fetch.error is not None)
    assert isinstance(fetch.error, CorruptData)
    assert fetch.may_succeed_otherwise
    assert not files.fetched_path(handoff, 0).exists()
    other = bench.life(nodes=2, machine="another", rank=1)
    restored = restore_newest(other.context)
    assert restored.checkpoint == bench.id(1, 10)
    [skipped] = restored.skipped
    assert skipped.checkpoint == bench.id(1, 20)
    assert "does not match its checksum" in skipped.reason


def test_a_checkpoint_that_is_known_to_be_damaged_is_read_whole_before_it_is_taken(bench, two_nodes):
    bench.commit_sharded(bench.id(1, 20), DATAS)
    for step in (10, 20):
        retention.note_damage(bench.store, JOB, bench.id(1, step), "a chunk")
    restored = restore_newest(two_nodes.context)  # what was wrong has passed
    assert (restored.checkpoint, restored.on_demand, restored.skipped) == (bench.id(1, 20), None, ())
    for step in (10, 20):
        bench.spoil(bench.id(1, step))
    other = bench.life(nodes=2, machine="another", rank=1)
    with pytest.raises(LeavingError, match="none of the 2 checkpoints verifies"):
        restore_newest(other.context)


def test_a_checkpoint_that_was_deleted_meanwhile_is_not_called_damaged(bench, two_nodes):
    restored = restore_newest(two_nodes.context)
    bench.store.delete(keys.manifest(JOB, 1, 10))
    bench.store.delete(keys.chunk(JOB, SaveId(1, 10, 0), 0, 0))
    handoff = ask(two_nodes, 0, {"part-0.bin": [[0, 1]]})
    with OnDemandFetch(two_nodes.context, lambda: restored, handoff) as fetch:
        wait_until(lambda: fetch.error is not None)
    assert retention.read_damage(bench.store, JOB, bench.id(1, 10)) == ""


def test_one_bad_reading_is_no_damage(bench, two_nodes):
    restored = restore_newest(two_nodes.context)
    handoff = ask(two_nodes, 0, {"part-0.bin": [[0, 1]]})
    read, readings = bench.store.get_range_into, []

    def misread(key, start, buffer):
        count = read(key, start, buffer)
        readings.append(key)
        if len(readings) == 1:
            buffer[0] ^= 1
        return count

    bench.store.get_range_into = misread
    with OnDemandFetch(two_nodes.context, lambda: restored, handoff) as fetch:
        wait_until(lambda: is_answered(handoff, 0) or fetch.error)
    assert fetch.error is None
    assert len(readings) == 2
    assert (restored.directory / "part-0.bin").read_bytes() == DATAS[0]
    assert retention.read_damage(bench.store, JOB, bench.id(1, 10)) == ""


@pytest.mark.parametrize("place", ["restore_in_memory", "restore"])
def test_only_where_memory_has_no_room_the_disk_may_have_it(bench, two_nodes, monkeypatch, place):
    if place == "restore":
        monkeypatch.setattr(checkpoint_restore, "free_memory_bytes", lambda: 0)
    restored = restore_newest(two_nodes.context)
    assert restored.directory == getattr(two_nodes.context.node, place)
    monkeypatch.setattr(fetching, "write_at", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    handoff = ask(two_nodes, 0, {"part-0.bin": [[0, 1]]})
    with OnDemandFetch(two_nodes.context, lambda: restored, handoff) as fetch:
        wait_until(lambda: fetch.error is not None)
    assert "No space left" in str(fetch.error)
    assert fetch.may_succeed_otherwise == (place == "restore_in_memory")


def test_no_error_leaves_a_rank_waiting_for_ever(bench, two_nodes, monkeypatch):
    restored = restore_newest(two_nodes.context)
    monkeypatch.setattr(on_demand_fetch, "write_whole", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")))
    handoff = ask(two_nodes, 0, {"part-0.bin": [[0, 1]]})
    with OnDemandFetch(two_nodes.context, lambda: restored, handoff) as fetch:
        wait_until(lambda: fetch.error is not None)
    assert isinstance(fetch.error, OSError)


def test_what_the_ranks_in_this_nodes_place_have_sent_comes_while_it_prepares(bench, two_nodes):
    with EarlyRestore(two_nodes.context) as early:
        restored = early.finish()
    assert restored.on_demand.id == bench.id(1, 10)
    assert (restored.directory / "part-0.bin").read_bytes() == DATAS[0]
    assert (restored.directory / "part-1.bin").read_bytes() == bytes(len(DATAS[1]))
    # The only newcomer takes the last place.
    later = bench.life(nodes=2, machine="later", launch=2, num_seats=1)
    with EarlyRestore(later.context) as early:
        restored = early.finish()
    assert (restored.directory / "part-0.bin").read_bytes() == bytes(len(DATAS[0]))
    assert (restored.directory / "part-1.bin").read_bytes() == DATAS[1]


def test_damage_that_is_found_while_a_node_prepares_makes_it_look_for_another_checkpoint(bench, two_nodes):
    bench.commit_sharded(bench.id(1, 20), DATAS)
    bench.spoil(bench.id(1, 20))
    with EarlyRestore(two_nodes.context) as early:
        restored = early.finish()
    assert restored.checkpoint == bench.id(1, 10)
    assert [one.checkpoint for one in restored.skipped] == [bench.id(1, 20)]


def test_a_malformed_wish_is_an_error_and_nobodys_damage(bench, two_nodes):
    restored = restore_newest(two_nodes.context)
    handoff = ask(two_nodes, 0, {"part-0.bin": [[-1, 1]]})
    with OnDemandFetch(two_nodes.context, lambda: restored, handoff) as fetch:
        wait_until(lambda: fetch.error is not None)
    assert not fetch.may_succeed_otherwise
    assert "malformed" in str(fetch.error)


@pytest.mark.full
def test_it_ends_in_the_middle_of_an_outage(bench, two_nodes):
    """The next generation's files may take the place of these."""
    restored = restore_newest(two_nodes.context)
    faulty = FaultyStore(bench.store, FaultPlan(outages=(Outage(start=0.0, end=4e9),)), bench.root)
    life = bench.life(nodes=2, store=faulty)
    life.context.status.ranks = (0,)
    handoff = ask(life, 0, {"part-0.bin": [[0, 1]]})
    with OnDemandFetch(life.context, lambda: restored, handoff) as fetch:
        wait_until(lambda: faulty.calls)
        ended = threading.Timer(0.0, fetch.__exit__)
        ended.start()
        wait_until(lambda: not fetch._thread.is_alive())
        ended.join()
    assert fetch.error is None
    assert not files.fetched_path(handoff, 0).exists()
