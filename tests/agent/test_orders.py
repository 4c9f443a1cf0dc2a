"""What others have decided for a node."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

from cloudspot.agent.orders import Orders
from cloudspot.agent.reclaim import understand
from cloudspot.model import PreemptionNotice


def test_a_nearer_end_replaces_the_order_and_a_later_one_does_not() -> None:
    orders = Orders()
    now = datetime.now(timezone.utc)
    for left in (60.0, 90.0, 20.0, 30.0):
        notice = PreemptionNotice(deadline=None)
        orders.give(reclaim=understand(notice, notice_seconds=left, now=1000.0, wall=now))
    assert orders.deadline(otherwise=5000.0) == 1020.0
    assert orders.deadline(otherwise=1001.0) == 1001.0


def test_whoever_waits_for_news_is_woken_by_each_order(wait_until) -> None:
    orders, heard = Orders(), []

    def listen() -> None:
        orders.wait_for_news(60.0)
        heard.append(orders.superseded)

    thread = threading.Thread(target=listen)
    thread.start()
    wait_until(lambda: orders._changed._waiters)
    orders.give(superseded="launch 2 runs the job")
    thread.join(10.0)
    assert heard == ["launch 2 runs the job"]
