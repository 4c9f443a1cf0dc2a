"""The thread that waits for the provider's notice."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

from cloudspot.agent.notices import notice_poller
from cloudspot.agent.notices.notice_poller import poll_notices
from cloudspot.model import PreemptionNotice


def test_of_two_notices_the_one_of_the_nearer_end_counts(bench, wait_until) -> None:
    source, heard = bench.provider.notices, []
    source.notice = PreemptionNotice(deadline=datetime.now(timezone.utc) + timedelta(seconds=100))
    stopped = threading.Event()
    polled = (source, heard.append, lambda: None, stopped)
    threading.Thread(target=poll_notices, args=polled, daemon=True).start()
    try:
        wait_until(lambda: len(heard) == 1)
        source.notice = PreemptionNotice(deadline=datetime.now(timezone.utc) + timedelta(seconds=110))
        wait_until(lambda: source.polls_since_change() > 3)
        source.notice = PreemptionNotice(deadline=datetime.now(timezone.utc) + timedelta(seconds=10))
        wait_until(lambda: len(heard) == 2)
        assert heard[1].deadline < heard[0].deadline - 80
    finally:
        stopped.set()


def test_a_hint_is_passed_on_and_is_no_notice(bench, wait_until, monkeypatch) -> None:
    source, hints, stopped = bench.provider.notices, threading.Event(), threading.Event()
    monkeypatch.setattr(notice_poller, "WAIT_SECONDS", 0.05)
    heard = []
    polled = (source, heard.append, hints.set, stopped)
    threading.Thread(target=poll_notices, args=polled, daemon=True).start()
    try:
        wait_until(lambda: source.polls_since_change() > 3)
        assert not hints.is_set()
        monkeypatch.setattr(source, "is_at_risk", lambda: True)
        wait_until(hints.is_set)
        assert heard == []
    finally:
        stopped.set()
