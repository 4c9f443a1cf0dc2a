"""What an agent remembers for the one after it."""

import threading
from pathlib import Path

import pytest

from cloudspot.agent.node import Node, NodeMemory
from cloudspot.errors import CloudspotError


def from_environment(directory, **more):
    return Node.from_environment(
        {
            "CLOUDSPOT_JOB": "digits", "CLOUDSPOT_LAUNCH": "1", "CLOUDSPOT_STORE": "file:///store",
            "CLOUDSPOT_PROVIDER": "local", "CLOUDSPOT_SUBMISSION": "5" * 64, "CLOUDSPOT_TRAIN_PYTHON": "x",
            "CLOUDSPOT_NODE_DIR": str(directory), **more,
        }
    )  # fmt: skip


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no directory in memory")
def test_the_arena_has_a_name_that_nobody_can_guess_and_each_agent_of_the_machine_knows(tmp_path):
    first, again = from_environment(tmp_path / "node"), from_environment(tmp_path / "node")
    other = from_environment(tmp_path / "other")
    assert first.arena == again.arena != other.arena
    assert first.arena.parent == Path("/dev/shm")
    assert first.arena.name.startswith("cloudspot-")
    assert len(first.arena.name) == len("cloudspot-") + 16
    assert not first.arena.exists()


def test_a_store_has_an_id_if_the_boot_script_says_so(tmp_path):
    assert from_environment(tmp_path).store_id is None
    assert from_environment(tmp_path, CLOUDSPOT_STORE_ID="0a" * 16).store_id == "0a" * 16


def test_an_arena_that_another_made_is_refused_by_name(tmp_path):
    (tmp_path / "arena").mkdir()
    (tmp_path / "arena").chmod(0o777)
    node = from_environment(tmp_path / "node", CLOUDSPOT_ARENA=str(tmp_path / "arena"))
    with pytest.raises(CloudspotError, match="arena has mode 777, not 700: it must be private; remove it"):
        node.create_directories()


def test_what_was_saved_is_there_for_the_next_agent(bench):
    node = bench.node()
    assert NodeMemory.load(node) == NodeMemory()
    NodeMemory(generation=3, failed_at_step=12).save(node)
    assert NodeMemory.load(node) == NodeMemory(generation=3, failed_at_step=12)


def test_what_an_agent_of_an_earlier_version_remembered_is_read(tmp_path):
    node = from_environment(tmp_path)
    old = b'{"code_ready":true,"generation":3,"trainer_pid":7,"failure_streak":1,"failed_at_step":12}'
    (tmp_path / "agent.json").write_bytes(old)
    memory = NodeMemory.load(node)
    assert memory == NodeMemory(code_ready=True, generation=3, trainer_pid=7, failed_at_step=12)


@pytest.mark.full
def test_two_threads_may_save_at_once(bench):
    """A notice is remembered by the watcher's thread while the main thread notes a start."""
    node, memory, failures = bench.node(), NodeMemory(), []

    def save():
        try:
            for _ in range(300):
                memory.save(node)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert NodeMemory.load(node) == memory
