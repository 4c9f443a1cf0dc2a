"""The one notice on a machine's disk, whoever writes it; what an agent makes of it: test_life."""

import threading
from datetime import datetime, timezone

from cloudspot.agent.noticefile import NoticeFile
from cloudspot.agent.watcher import Reclaim, understand
from cloudspot.model import PreemptionNotice


def reclaim(*, seconds: float, source: str = "hook", now: float) -> Reclaim:
    notice = PreemptionNotice(deadline=None, action="stop", source=source)
    return understand(notice, notice_seconds=seconds, now=now, wall=datetime.now(timezone.utc))


def test_the_first_notice_stands_and_only_an_earlier_end_replaces_it(tmp_path):
    first, later = reclaim(seconds=30.0, now=100.0), reclaim(seconds=60.0, source="later", now=101.0)
    earlier = reclaim(seconds=5.0, source="earlier", now=102.0)
    standing = NoticeFile(tmp_path)
    assert standing.read() is None
    assert standing.give(first) == first
    assert standing.give(later).notice.source == "hook"
    assert standing.give(reclaim(seconds=29.8, source="the same", now=100.0)).deadline == first.deadline
    assert standing.give(earlier) == earlier
    found = NoticeFile(tmp_path).read()
    assert (found.deadline, found.seen, found.notice) == (earlier.deadline, earlier.seen, earlier.notice)


def test_of_two_who_tell_at_once_one_stands(tmp_path):
    notices = [reclaim(seconds=30.0, source=str(number), now=100.0) for number in range(8)]
    found = []
    threads = [
        threading.Thread(target=lambda one=one: found.append(NoticeFile(tmp_path).give(one).notice.source))
        for one in notices
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [NoticeFile(tmp_path).read().notice.source] * 8


def test_who_watches_hears_what_stands_and_what_replaces_it(tmp_path, wait_until):
    standing, heard = NoticeFile(tmp_path), []
    standing.give(reclaim(seconds=30.0, source="first", now=100.0))
    stopped = threading.Event()
    standing.watch(lambda one: heard.append(one.notice.source), stopped)
    wait_until(lambda: heard == ["first"])
    standing.give(reclaim(seconds=5.0, source="second", now=100.0))
    wait_until(lambda: heard == ["first", "second"])
    stopped.set()
