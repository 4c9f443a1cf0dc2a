"""Messages are sent beside their job, in order, and none holds up another job's."""

import threading

from cloudspot.controller import outbox
from cloudspot.controller.outbox import MAX_WAITING, Outbox
from cloudspot.model import Message, Severity

URLS = {"urls[0] (json://)": "json://secret"}


def message(title, job_id="a"):
    return Message(job_id=job_id, title=title, body="b", severity=Severity.INFO)


class Post:
    """Sends by remembering; holds up messages of a job until it is let go."""

    def __init__(self, held=()):
        self.sent = []
        self.has_sent = threading.Event()
        self.errors = {}
        self.gates = {job_id: threading.Event() for job_id in held}

    def __call__(self, through, sent, urls):
        if sent.job_id in self.gates:
            assert self.gates[sent.job_id].wait(30)
        self.sent.append((through, sent.job_id, sent.title, dict(urls)))
        self.has_sent.set()
        return self.errors


def test_messages_of_a_job_are_sent_in_order_and_wait_for_no_other_job():
    post = Post(held=["a"])
    box = Outbox(post)
    for number in range(3):
        box.put("apprise", message(str(number)), URLS)
    box.put("apprise", message("other", "b"), URLS)
    assert post.has_sent.wait(30)
    assert post.sent == [("apprise", "b", "other", URLS)]
    post.gates["a"].set()
    box.wait(30)
    assert [title for _, _, title, _ in post.sent] == ["other", "0", "1", "2"]
    assert box.take_failures() == ()
    box.put("apprise", message("later"), URLS)
    box.wait(30)
    assert post.sent[-1][2] == "later"


def test_what_is_not_accepted_is_told_once_without_the_url():
    post = Post()
    post.errors = {"urls[0] (json://)": "answered 500"}
    box = Outbox(post)
    box.put("apprise", message("a: failed"), URLS)
    box.put("apprise", message("b: failed", "b"), URLS)
    box.wait(30)
    assert box.take_failures("a") == (("a", "notify: urls[0] (json://) answered 500; not told: a: failed"),)
    assert box.take_failures() == (("b", "notify: urls[0] (json://) answered 500; not told: b: failed"),)
    assert box.take_failures() == ()


def test_a_job_with_too_much_to_tell_loses_the_newest_and_says_so():
    post = Post(held=["a"])
    box = Outbox(post)
    for number in range(MAX_WAITING + 2):
        box.put("apprise", message(str(number)), URLS)
    lost = box.take_failures()
    post.gates["a"].set()
    box.wait(30)
    assert 1 <= len(lost) <= 2
    assert lost[-1] == ("a", f"notify: too many messages wait, so one is lost: {MAX_WAITING + 1}")
    assert len(post.sent) + len(lost) == MAX_WAITING + 2


def test_whoever_waits_does_not_wait_for_long(monkeypatch):
    monkeypatch.setattr(outbox, "CHECK_SECONDS", 0.001)
    post = Post(held=["a"])
    box = Outbox(post)
    box.put("apprise", message("1"), URLS)
    box.wait(0.01)
    assert post.sent == []
    post.gates["a"].set()
    box.wait(30)
    assert len(post.sent) == 1
