"""What an agent remembers for the one after it."""

import threading

from cloudspot.agent.node import NodeMemory


def test_what_was_saved_is_there_for_the_next_agent(bench):
    node = bench.node()
    assert NodeMemory.load(node) == NodeMemory()
    NodeMemory(generation=3, failed_at_step=12).save(node)
    assert NodeMemory.load(node) == NodeMemory(generation=3, failed_at_step=12)


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
