"""Tests of the promises about notices and a machine's identity, which a plugin's author subclasses.

::

    from cloudspot.testing.nodekit import NodeIdentityTests, PreemptionSourceTests

    class TestMyNotices(PreemptionSourceTests, NodeIdentityTests):
        @pytest.fixture
        def machine(self, monkeypatch):
            return MyMachine()  # a cloudspot.testing.machine.Machine
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

import pytest

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.model import PreemptionNotice
from cloudspot.testing.kit import Kit, cases
from cloudspot.testing.machine import Machine, OtherEvent, Trouble

ANSWER_SECONDS = 10.0
"""The time after which a metadata service that has not answered counts as silent."""


class PreemptionSourceTests(Kit):
    """A test for each promise of PreemptionSource; the fixture ``machine`` is a Machine."""

    states_deadline: ClassVar[bool] = True
    """Whether a notice states when the machine will be reclaimed; if not, its deadline is None, and the full
    ``notice_seconds`` remain."""

    def test_without_notice_there_is_none(self, machine: Machine) -> None:
        source = machine.provider().preemption_source()
        assert source.poll() is None
        assert source.is_at_risk() is False

    def test_a_notice_is_heard_with_its_deadline(self, machine: Machine) -> None:
        source = machine.provider().preemption_source()
        assert source.poll() is None
        deadline = _in(90)
        given = time.monotonic()
        machine.give_notice(deadline)
        notice = source.wait(ANSWER_SECONDS)
        assert notice is not None
        if notice.deadline_monotonic is not None:
            assert abs(notice.deadline_monotonic - given - 90) <= 2
        assert notice.action in {"terminate", "stop", "hibernate"}
        assert notice.source
        if not self.states_deadline:
            assert notice.deadline is None
            return
        assert notice.deadline is not None
        assert notice.deadline.utcoffset() == timedelta(0), "the deadline is not in UTC"
        assert abs(notice.deadline - deadline) <= timedelta(seconds=2)

    def test_a_notice_stands_and_every_process_hears_it(self, machine: Machine) -> None:
        machine.give_notice(_in(90))
        source = machine.provider().preemption_source()
        first = source.wait(ANSWER_SECONDS)
        assert first is not None
        assert source.poll() == first
        assert source.wait(0) == first
        assert machine.provider().preemption_source().wait(ANSWER_SECONDS) == first

    def test_who_waits_is_woken_by_a_notice(self, machine: Machine) -> None:
        source = machine.provider().preemption_source()
        heard: list[tuple[PreemptionNotice | None, float]] = []
        waiter = threading.Thread(target=lambda: heard.append((source.wait(60.0), time.monotonic())))
        waiter.start()
        time.sleep(0.3)
        assert heard == [], "it did not wait"
        given = time.monotonic()
        machine.give_notice(_in(90))
        waiter.join(ANSWER_SECONDS)
        assert heard, "it still waits"
        assert heard[0][0] is not None
        assert heard[0][1] - given <= source.poll_seconds + 1.0

    def test_who_waits_in_vain_is_told_so_in_time(self, machine: Machine) -> None:
        source = machine.provider().preemption_source()
        began = time.monotonic()
        assert source.wait(0.5) is None
        assert 0.4 <= time.monotonic() - began <= 0.5 + source.poll_seconds + 1.0

    def test_many_threads_may_ask(self, machine: Machine) -> None:
        machine.give_notice(_in(90))
        source = machine.provider().preemption_source()
        assert source.wait(ANSWER_SECONDS) is not None
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(lambda _: source.poll(), range(16)))) == 1

    def test_silence_is_no_absence_of_a_notice(self, machine: Machine) -> None:
        source = machine.provider().preemption_source()
        source.poll()
        machine.silence()
        _check_transient(source.poll)

    @cases("trouble", {one.value: one for one in Trouble})
    def test_trouble_is_no_absence_of_a_notice(self, machine: Machine, trouble: Trouble) -> None:
        source = machine.provider().preemption_source()
        source.poll()
        machine.trouble_with(trouble)
        _check_transient(source.poll)

    @cases("event", {one.value: one for one in OtherEvent})
    def test_what_does_not_take_the_machine_is_no_notice(self, machine: Machine, event: OtherEvent) -> None:
        machine.give_other_event(event)
        source = machine.provider().preemption_source()
        assert source.poll() is None
        assert machine.provider().preemption_source().wait(0) is None

    @cases("event", {one.value: one for one in OtherEvent})
    def test_a_notice_is_heard_behind_what_does_not_take_the_machine(
        self, machine: Machine, event: OtherEvent
    ) -> None:
        machine.give_other_event(event)
        deadline = _in(90)
        machine.give_notice(deadline)
        notice = machine.provider().preemption_source().wait(ANSWER_SECONDS)
        assert notice is not None
        if self.states_deadline:
            assert notice.deadline is not None
            assert abs(notice.deadline - deadline) <= timedelta(seconds=2)

    def test_a_notice_without_a_time_is_heard_without_one(self, machine: Machine) -> None:
        machine.give_notice(None)
        notice = machine.provider().preemption_source().wait(ANSWER_SECONDS)
        assert notice is not None
        assert (notice.deadline, notice.deadline_monotonic) == (None, None)

    def test_the_length_of_a_notice_is_that_of_the_clouds(self, machine: Machine) -> None:
        source = machine.provider().preemption_source()
        assert source.notice_seconds == machine.notice_seconds
        assert 0 < source.notice_seconds <= 3600
        assert 0 < source.poll_seconds <= 5


class NodeIdentityTests(Kit):
    """A test for each promise of ``Provider.node_identity``; the fixture ``machine`` is a Machine."""

    def test_a_machine_knows_who_it_is(self, machine: Machine) -> None:
        identity, instance = machine.provider().node_identity(), machine.instance
        assert (identity.instance_id, identity.rank) == (instance.id, instance.rank)
        assert identity.address
        assert instance.address in {None, identity.address}
        for told, known in (
            (identity.zone, instance.zone),
            (identity.instance_type, instance.instance_type),
            (identity.market, instance.market),
        ):
            assert told in {None, known}

    def test_each_process_of_a_machine_is_told_the_same(self, machine: Machine) -> None:
        assert machine.provider().node_identity() == machine.provider().node_identity()

    def test_no_proxy_of_the_environment_is_asked(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9/")
        assert machine.provider().node_identity().instance_id == machine.instance.id
        machine.provider().preemption_source().poll()

    def test_who_is_not_answered_has_to_ask_again(self, machine: Machine) -> None:
        machine.silence()
        _check_transient(machine.provider().node_identity)

    @cases("trouble", {one.value: one for one in Trouble})
    def test_who_meets_trouble_has_to_ask_again(self, machine: Machine, trouble: Trouble) -> None:
        machine.trouble_with(trouble)
        _check_transient(machine.provider().node_identity)


def _in(seconds: float) -> datetime:
    """Return a time in whole seconds, as in most clouds' notices."""
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).replace(microsecond=0)


def _check_transient(ask: Callable[[], Any]) -> None:
    began = time.monotonic()
    with pytest.raises(CloudspotError) as caught:
        ask()
    assert type(caught.value) is TransientError
    assert time.monotonic() - began <= ANSWER_SECONDS
