"""Messages are sent beside their job, and none holds up another."""

import threading

from cloudspot.controller import outbox
from cloudspot.controller.outbox import MAX_ON_THE_WAY, Outbox
from cloudspot.model import Message, Severity

URLS = {"urls[0] (json://)": "json://secret"}
OWN = frozenset(URLS)


def message(title, job_id="a"):
    return Message(job_id=job_id, title=title, body="b", severity=Severity.INFO)


class Post:
    """Sends by remembering; holds up messages of these titles until they are let go."""

    def __init__(self, held=()):
        self.sent = []
        self.has_sent = threading.Event()
        self.errors = {}
        self.gates = {title: threading.Event() for title in held}

    def __call__(self, through, sent, urls, *, own):
        if sent.title in self.gates:
            assert self.gates[sent.title].wait(30)
        self.sent.append((through, sent.job_id, sent.title, dict(urls)))
        assert own == OWN
        self.has_sent.set()
        return self.errors


def test_a_message_that_takes_long_holds_up_no_other():
    post = Post(held=["slow"])
    box = Outbox(post)
    box.put("apprise", message("slow"), URLS, own=OWN)
    box.put("apprise", message("quick"), URLS, own=OWN)
    assert post.has_sent.wait(30)
    assert post.sent == [("apprise", "a", "quick", URLS)]
    post.gates["slow"].set()
    box.wait(30)
    assert [title for _, _, title, _ in post.sent] == ["quick", "slow"]
    assert box.take_failures() == ()


def test_what_is_not_accepted_is_told_once_without_the_url():
    post = Post()
    post.errors = {"urls[0] (json://)": "answered 500"}
    box = Outbox(post)
    box.put("apprise", message("a: failed"), URLS, own=OWN)
    box.put("apprise", message("b: failed", "b"), URLS, own=OWN)
    box.wait(30)
    assert box.take_failures("a") == (
        ("a", "notify: urls[0] (json://) answered 500; not delivered: a: failed"),
    )
    assert box.take_failures() == (("b", "notify: urls[0] (json://) answered 500; not delivered: b: failed"),)
    assert box.take_failures() == ()


def test_of_too_many_messages_the_newest_are_lost_and_that_is_told():
    titles = [str(number) for number in range(MAX_ON_THE_WAY)]
    post = Post(held=titles)
    box = Outbox(post)
    for title in [*titles, "one more"]:
        box.put("apprise", message(title), URLS, own=OWN)
    for gate in post.gates.values():
        gate.set()
    box.wait(30)
    assert box.take_failures() == (("a", "notify: too many messages are waiting, so one is lost: one more"),)
    assert sorted(title for _, _, title, _ in post.sent) == sorted(titles)


def test_whoever_waits_does_not_wait_for_long(monkeypatch):
    monkeypatch.setattr(outbox, "CHECK_SECONDS", 0.001)
    post = Post(held=["1"])
    box = Outbox(post)
    box.put("apprise", message("1"), URLS, own=OWN)
    box.wait(0.01)
    assert post.sent == []
    post.gates["1"].set()
    box.wait(30)
    assert len(post.sent) == 1
