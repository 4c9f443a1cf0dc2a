"""The real apprise, against real servers on this machine."""

from __future__ import annotations

import pytest
from support.clouds.messagesink import dead_url, open_sink

from cloudspot.controller.sending import REFUSED, send
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.model import Message, Severity
from cloudspot.registry import open_notifier
from cloudspot_apprise.notifier import AppriseNotifier

MESSAGE = Message(job_id="a-1", title="a-1: failed", body="one\ntwo", severity=Severity.FAILURE)


@pytest.fixture
def sink():
    with open_sink() as server:
        yield server


@pytest.fixture(scope="module")
def dead():
    with dead_url() as url:
        yield url


def test_it_is_found_by_its_name():
    assert isinstance(open_notifier("apprise"), AppriseNotifier)


def test_a_message_arrives_once_with_its_gravity(sink):
    AppriseNotifier().send(f"{sink.url}/200", MESSAGE)
    ((path, body),) = sink.got
    assert path == "/200"
    assert (body["title"], body["message"], body["type"]) == ("a-1: failed", "one\ntwo", "failure")


def test_an_answer_that_refuses_is_named_and_a_host_that_is_not_there_is_none(sink, dead):
    for status in ("500", "403"):
        with pytest.raises(CloudspotError, match=f"^answered {status}$"):
            AppriseNotifier().send(f"{sink.url}/{status}", MESSAGE)
    with pytest.raises(CloudspotError, match=r"^could not be reached, or did not accept it$"):
        AppriseNotifier().send(dead, MESSAGE)


@pytest.mark.parametrize(
    ("url", "is_secret"),
    [
        ("json://localhost/a", False),
        ("json://user:word@localhost/a", True),
        ("slack://TokenA12345/TokenB1234567/abcdefghijklmnopqrstuvwx/#ops", True),
        ("https://hooks.slack.com/services/T0000000/B00000000/abcdefghijklmnopqrstuvwx", True),
        ("dingtalk://abcdef0123456789abcdef0123456789", True),
        ("feishu://abcdef-0123/", True),
        ("mailto://me:word@example.org", True),
    ],
)
def test_a_url_that_holds_a_credential_is_known(url, is_secret):
    assert AppriseNotifier().holds_credential(url) is is_secret


@pytest.mark.parametrize(
    "url",
    [
        "moon://host/word",
        "slack://word",
        # Whoever may write to the bucket would have a driver read its own files, and send them.
        "slack://TokenA12345/TokenB1234567/abcdefghijklmnopqrstuvwx/?template=/home/word",
        "fcm://project/word/?keyfile=%2Fhome",
        "json://host/?x=%252Fhome",
        "json://host/?x=file:word",
    ],
)
def test_what_apprise_does_not_know_and_what_could_name_a_file_is_refused_without_showing_it(url):
    with pytest.raises(SpecError) as caught:
        AppriseNotifier().holds_credential(url)
    with pytest.raises(SpecError):
        AppriseNotifier().send(url, MESSAGE)
    assert "word" not in str(caught.value)


@pytest.mark.full
def test_all_urls_are_tried_at_once_and_one_that_never_answers_ends_at_the_limit(sink, dead):
    urls = {
        "good": f"{sink.url}/200",
        "bad": f"{sink.url}/500",
        "dead": dead,
        "slow": f"{sink.url}/drip",
        "wrong": "moon://word",
    }
    assert send("apprise", MESSAGE, urls, own=urls, seconds=5.0) == {
        "bad": "answered 500",
        "dead": "could not be reached, or did not accept it",
        "slow": "did not answer within 5 s",
        "wrong": "is not a URL that apprise knows, or lacks a part that its service needs",
    }
    assert [path for path, _ in sink.got].count("/200") == 1


@pytest.mark.full
def test_a_notifier_that_is_not_there_is_told_as_a_failure_of_each_url(sink):
    failed = {"good": "could not be asked: its process failed"}
    assert send("pager", MESSAGE, {"good": f"{sink.url}/200"}, own=()) == failed
    assert sink.got == []


@pytest.mark.full
def test_what_only_the_record_names_is_sent_to_public_addresses_alone(sink):
    """A training may have changed the record: to a metadata service, or to a server of the driver's network."""
    port = sink.server_port
    hosts = ["127.0.0.1", "localhost", "[::1]", "2130706433"]
    urls = {host: f"json://{host}:{port}/200" for host in hosts} | {"mail": f"mailto://a:b@localhost:{port}"}
    assert send("apprise", MESSAGE, urls, own=()) == dict.fromkeys(urls, REFUSED)
    assert sink.got == []
    assert send("apprise", MESSAGE, urls, own=["localhost"]).keys() == urls.keys() - {"localhost"}
    assert [path for path, _ in sink.got] == ["/200"]


@pytest.mark.full
@pytest.mark.parametrize("own", [(), ("hook",)])
@pytest.mark.parametrize("target", ["http://127.0.0.1:{}/200", "http://169.254.169.254/latest/"])
def test_no_public_service_redirects_a_message_to_an_address_of_the_drivers_network(
    sink, monkeypatch, target, own
):
    """What stands for the internet is a proxy that the environment names: it may have any address itself."""
    with open_sink() as internet:
        internet.location = target.format(sink.server_port)
        monkeypatch.setenv("http_proxy", internet.url.replace("json", "http"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        urls = {"hook": "json://8.8.8.8/307", "fine": "json://8.8.4.4/200"}
        assert send("apprise", MESSAGE, urls, own=own) == {"hook": REFUSED}
        assert sorted(path for path, _ in internet.got) == ["http://8.8.4.4/200", "http://8.8.8.8/307"]
    assert sink.got == []


@pytest.mark.full
def test_no_proxy_is_asked_for_an_address_of_its_network(sink, monkeypatch):
    monkeypatch.setenv("http_proxy", sink.url.replace("json", "http"))
    monkeypatch.setenv("https_proxy", sink.url.replace("json", "http"))
    monkeypatch.setenv("no_proxy", "")
    urls = {"a": "json://169.254.169.254/200", "b": "jsons://10.0.0.1/200", "c": "json://[fd00:ec2::254]/200"}
    assert send("apprise", MESSAGE, urls, own=()) == dict.fromkeys(urls, REFUSED)
    assert sink.got == []
