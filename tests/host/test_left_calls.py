"""Calls in threads that can be left alone."""

from __future__ import annotations

import contextvars
import os
import threading

import pytest

from cloudspot.host import left_calls
from cloudspot.host.left_calls import LeftAloneError, call_within, is_any_under_way, num_hanging

SEEN = contextvars.ContextVar("seen", default="nothing")


def test_a_call_has_the_context_of_its_caller_and_leaves_it_alone():
    token = SEEN.set("the caller's")
    try:
        assert call_within(60.0, SEEN.get, owner=None) == "the caller's"
        call_within(60.0, lambda: SEEN.set("the call's"), owner=None)
        assert SEEN.get() == "the caller's"
    finally:
        SEEN.reset(token)


def test_its_error_is_raised_where_it_is_waited_for():
    with pytest.raises(ZeroDivisionError):
        call_within(60.0, lambda: 1 / 0, owner=None)


def test_calls_that_go_on_are_counted_by_owner_until_they_end():
    released, ended = threading.Event(), threading.Event()

    def hang():
        released.wait()
        ended.set()

    with pytest.raises(LeftAloneError):
        call_within(0.01, hang, owner="acme")
    assert (num_hanging("acme"), num_hanging("other"), is_any_under_way()) == (1, 0, True)
    released.set()
    assert ended.wait(60.0)
    while is_any_under_way():
        pass


def test_a_forked_process_has_threads_of_its_own():
    released = threading.Event()
    with pytest.raises(LeftAloneError):
        call_within(0.01, released.wait, owner="acme")
    call_within(60.0, lambda: None, owner=None)  # leaves an idle thread, which no child has
    with left_calls._lock:  # as by another thread at that moment
        child = os.fork()
        if child == 0:
            os._exit(call_within(60.0, lambda: 7, owner=None) + is_any_under_way() + num_hanging("acme"))
    released.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    while is_any_under_way():
        pass
