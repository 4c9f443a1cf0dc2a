"""Notices from all sides, while the store is down; in a whole life: test_life."""

import time
from datetime import datetime, timedelta, timezone

from support.stores.faultstore import FaultPlan, FaultyStore, Outage

from cloudspot.agent.notices.notice_file import NoticeFile
from cloudspot.agent.notices.notice_pipe import wake_agent
from cloudspot.agent.reclaim import understand
from cloudspot.jobstore.access.stored_records import find_bytes
from cloudspot.jobstore.layout import keys
from cloudspot.model import PreemptionNotice


def test_an_earlier_end_gets_through_while_the_first_notice_waits_for_the_store(
    bench, wait_until, tmp_path, monkeypatch
):
    monkeypatch.setattr("cloudspot.agent.store_retry.MAX_WAIT_SECONDS", 0.1)
    down = FaultyStore(bench.store, FaultPlan(outages=(Outage(start=0.0, end=1e12),)), tmp_path / "state")
    life = bench.life(store=down)
    life.notices.start()
    now = datetime.now(timezone.utc)
    directory = life.context.node.directory
    for source, seconds in (("first", 100.0), ("second", 50.0), ("third", 10.0)):
        notice = PreemptionNotice(deadline=now + timedelta(seconds=seconds), source=source)
        NoticeFile(directory).give(understand(notice, notice_seconds=120.0, now=time.monotonic(), wall=now))
        wake_agent(directory)
        wait_until(
            lambda source=source: (reclaim := life.context.orders.reclaim) and reclaim.notice.source == source
        )
    bench.provider.notices.notice = PreemptionNotice(deadline=now + timedelta(seconds=5), source="provider")
    wait_until(lambda: life.context.orders.reclaim.notice.source == "provider")
    assert NoticeFile(directory).read().notice.source == "provider"
    down.plan = FaultPlan()
    wait_until(lambda: find_bytes(bench.store, keys.notice("digits-1", 1, 0)))
