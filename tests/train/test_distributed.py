"""The ranks' common store."""

import os
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from cloudspot.train import SessionError, distributed, handoff
from cloudspot.train.rounds.rounds import Rounds


@pytest.fixture
def server():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.mark.parametrize("clones", [True, False])
def test_each_rank_has_a_connection_of_its_own(server, clones):
    default = dist.PrefixStore("default_pg", server)
    if not clones:  # as in older torch
        bare = types.SimpleNamespace(host=server.host, port=server.port)
        default = types.SimpleNamespace(underlying_store=bare)
    one, other = (distributed._connect_again(default) for _ in range(2))
    assert one is not other
    one.set("a", "1")  # returns before the server has it
    assert other.get("a") == b"1"
    assert other.check(["a"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("gpus", "expected"),
    [(["a"], False), (["a", "b", "c"], False), (["a", "b", "a"], True), (["a", "a", "a"], True)],
)
def test_ranks_hear_alike_whether_they_share_a_gpu(server, gpus, expected):
    def ask(rank):
        store = dist.PrefixStore("gpus", server.clone())
        return distributed.is_any_shared(store, rank, len(gpus), gpus[rank])

    for _ in range(2):  # torchrun may start the ranks again with the same store
        with ThreadPoolExecutor(len(gpus)) as ranks:
            assert list(ranks.map(ask, range(len(gpus)))) == [expected] * len(gpus)


def test_a_store_that_cannot_be_shared_is_named():
    with pytest.raises(SessionError, match="uses a SimpleNamespace, to which the session cannot connect"):
        distributed._connect_again(types.SimpleNamespace())


@pytest.mark.parametrize("kind", ["hash", "tcp"])
def test_the_stores_of_one_rank_and_of_several_answer_alike(server, kind):
    store = dist.HashStore() if kind == "hash" else dist.PrefixStore("cloudspot", server)
    assert not store.check(["a"])
    assert store.compare_set("a", "", "first") == b"first"
    assert store.compare_set("a", "", "second") == b"first"
    assert store.compare_set("a", "first", "third") == b"third"
    store.set("b", "x")
    assert store.check(["a", "b"])
    assert not store.check(["a", "c"])
    assert store.get("b") == b"x"


def test_ranks_agree_over_tcp(server, wait_until):
    ranks = [
        Rounds(
            dist.PrefixStore("cloudspot", server.clone()), rank=rank, world_size=3, start=5, clock=lambda: 0.0
        )
        for rank in range(3)
    ]
    ranks[2].request_drain(guard=60.0, notice=True)

    def agreed():
        for rank in ranks:
            rank.poll()
        return all(rank._order is not None for rank in ranks)

    # Before the first promise a rank may pass the boundary: none of them is held yet.
    while not all(rank._hold is not None for rank in ranks):
        for rank in ranks:
            rank.poll()
    wait_until(agreed)
    orders = [rank.begin(5) for rank in ranks]
    assert {(order.kind, order.step, order.avoid) for order in orders} == {("drain", 5, frozenset({2}))}


def test_a_lost_host_is_noticed_without_an_error():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rank = Rounds(
        dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False),
        rank=1,
        world_size=2,
        start=0,
        clock=lambda: 0.0,
    )
    rank.poll()
    assert not rank.is_lost
    del server
    rank.poll()
    assert rank.is_lost
    assert rank.begin(0) is None


ENDS = """
import torch.distributed as dist
import torch.distributed.fsdp
from cloudspot.train.distributed import start_process_group
start_process_group()
dist.destroy_process_group()
print("ended")
"""


@pytest.mark.full
def test_a_process_group_ends_without_a_warning_of_torch():
    """The last lines of README's example were "No backend of type 0 found for Process Group ..."."""
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ""}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, "-c", ENDS]
    done = subprocess.run(
        command, env={**os.environ, **ranks, **place}, capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")


@pytest.mark.parametrize(
    ("rescue", "given", "found"), [("1", None, "0"), ("1", "1", "0"), ("1", "3", "3"), ("0", "1", "1")]
)
def test_nccl_ends_no_process_whose_state_may_be_saved_unless_it_is_told_to(
    monkeypatch, rescue, given, found
):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv(handoff.RESCUE, rescue)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", given or "")
    if given is None:
        monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING")
    distributed.start_process_group()
    assert os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == found
