"""Requests side by side."""

import threading
import time

import pytest

from cloudspot.jobstore.access.parallel import map_parallel


def test_results_are_in_the_order_of_the_items():
    assert map_parallel(lambda number: number * 2, range(100), num_threads=4) == list(range(0, 200, 2))
    assert map_parallel(lambda number: number, [], num_threads=4) == []


def test_calls_run_at_the_same_time_up_to_the_limit():
    together = threading.Barrier(3, timeout=30)
    running, most, lock = [0], [0], threading.Lock()

    def call(number):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        if number < 3:
            together.wait()
        with lock:
            running[0] -= 1

    map_parallel(call, range(20), num_threads=3)
    assert most == [3]


def test_one_item_or_one_thread_needs_no_pool():
    here = threading.get_ident()
    assert map_parallel(lambda _: threading.get_ident(), [1], num_threads=4) == [here]
    assert map_parallel(lambda _: threading.get_ident(), [1, 2], num_threads=1) == [here, here]


def test_each_thread_begins_as_it_is_told_and_the_callers_is_not_one_of_them():
    begun = []

    def begin():
        begun.append(threading.get_ident())

    here = threading.get_ident()
    assert (
        map_parallel(lambda _: threading.get_ident(), [1], num_threads=4, begin_thread=begin)
        == begun
        != [here]
    )
    assert map_parallel(lambda _: threading.get_ident(), [], begin_thread=begin) == []


def test_after_an_error_no_further_call_is_started_and_it_is_raised():
    started, release = [], threading.Event()

    def call(number):
        started.append(number)
        if number == 0:
            release.wait(30)
        if number == 1:
            release.set()
            raise KeyError(number)
        release.wait(30)
        time.sleep(0.001)  # Far longer than it takes to raise an error.

    with pytest.raises(KeyError):
        map_parallel(call, range(500), num_threads=2)
    assert len(started) < 500
