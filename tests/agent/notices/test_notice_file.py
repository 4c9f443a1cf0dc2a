"""The one notice on a machine's disk, whoever writes it; what an agent makes of it: test_life."""

import threading
from datetime import datetime, timezone

from cloudspot.agent.notices.notice_file import NoticeFile
from cloudspot.agent.reclaim import Reclaim, understand
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
