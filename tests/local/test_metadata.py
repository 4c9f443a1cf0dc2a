"""The metadata service of a machine, over HTTP as the node sees it."""

from __future__ import annotations

import errno
import re
import socket
import threading
import urllib.error
import urllib.request
from datetime import timedelta

import pytest

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.host.locks import try_lock
from cloudspot.local import machines
from cloudspot.local.machines import now_utc
from cloudspot.local.metadata import HEADER, HEADER_VALUE, METADATA, LocalPreemptionSource, fetch
from cloudspot.local.options import LocalOptions
from cloudspot.local.provider import LocalProvider
from cloudspot.testing import plaincalls


@pytest.fixture
def machine(host, monkeypatch):
    """A machine, seen from its inside."""
    machine = host.launch("sleep 1000", num_nodes=2, options=LocalOptions(notice=3600.0))[1]
    monkeypatch.setenv(METADATA, machine.supervisor().metadata_url)
    return machine


@pytest.mark.full
def test_it_answers_at_the_machines_own_address(machine):
    assert machine.supervisor().metadata_url.startswith(f"http://{machine.record().address}:")


@pytest.mark.full
def test_a_reclaim_is_noticed_with_its_deadline(machine, host):
    asked = now_utc()
    plaincalls.preempt(LocalProvider(), machine.id)
    notice = LocalPreemptionSource(notice_seconds=10.0).wait(60)
    assert notice.action == "terminate"
    assert timedelta(seconds=3600) <= notice.deadline - asked <= timedelta(seconds=3660)
    assert LocalPreemptionSource(notice_seconds=10.0).poll() == notice


@pytest.mark.full
def test_a_second_sooner_notice_replaces_the_first(machine, host):
    source = LocalPreemptionSource(notice_seconds=10.0)
    plaincalls.preempt(LocalProvider(), machine.id)
    first = source.wait(60)
    plaincalls.preempt(LocalProvider(), machine.id, notice_seconds=1800)
    host.wait_until(lambda: source.poll() != first)
    assert source.poll().deadline < first.deadline


@pytest.mark.full
def test_a_full_disk_is_tried_again_and_ends_no_driver(machine, monkeypatch):
    """``run`` ended with a traceback when the tags of a machine could not be written."""
    provisioner = LocalProvider().provisioner()

    def fail(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(machines, "write_whole", fail)
    with pytest.raises(TransientError, match=r"provider .local.: .*No space left"):
        provisioner.announce(plaincalls.instances(provisioner), {"MASTER_ADDR": "10.0.0.1"})


@pytest.mark.full
def test_announced_facts_are_tags(machine):
    provisioner = LocalProvider().provisioner()
    assert fetch("/tags/MASTER_ADDR") is None
    provisioner.announce(plaincalls.instances(provisioner), {"MASTER_ADDR": "10.0.0.1", "a b": "ü"})
    provisioner.announce(plaincalls.instances(provisioner), {"MASTER_ADDR": "10.0.0.2"})
    assert fetch("/tags/MASTER_ADDR") == "10.0.0.2"
    assert fetch("/tags/a%20b") == "ü"
    provisioner.announce(plaincalls.instances(provisioner), {"NUM_NODES": "2"})
    assert (fetch("/tags/MASTER_ADDR"), fetch("/tags/NUM_NODES")) == ("10.0.0.2", "2")


@pytest.mark.full
def test_an_unknown_path_is_not_found(machine):
    for path in ("/", "/identity/", "/tags", "/tags/", "/tags/a/b", "/latest/meta-data", "/../identity"):
        assert fetch(path) is None, path


@pytest.mark.full
def test_a_request_without_the_header_is_refused(machine):
    url = machine.supervisor().metadata_url + "/identity"
    for headers in ({}, {HEADER: "Google"}):
        with pytest.raises(urllib.error.HTTPError, match="403") as caught:
            urllib.request.urlopen(urllib.request.Request(url, headers=headers))
        assert HEADER_VALUE.encode() in caught.value.read()


@pytest.mark.full
def test_other_methods_are_refused(machine):
    url = machine.supervisor().metadata_url + "/tags/a"
    request = urllib.request.Request(url, data=b"x", headers={HEADER: HEADER_VALUE}, method="PUT")
    with pytest.raises(urllib.error.HTTPError, match="501") as caught:
        urllib.request.urlopen(request)
    caught.value.close()


@pytest.mark.full
def test_a_service_that_does_not_answer_leaves_everything_open(machine, host):
    plaincalls.terminate(LocalProvider().provisioner(), [machine.id])
    host.wait_for_end(machine)

    def supervisor_is_gone() -> bool:
        with try_lock(machine.lock) as is_free:
            return is_free

    host.wait_until(supervisor_is_gone)
    with pytest.raises(TransientError, match="does not answer"):
        LocalPreemptionSource(notice_seconds=10.0).poll()


@pytest.fixture
def answering(monkeypatch):
    """``answering(data)``: a metadata service that answers any request with these bytes, and hangs up."""
    servers, threads = [], []

    def answering(data):
        server = socket.create_server(("127.0.0.1", 0))

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(data)

        servers.append(server)
        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        monkeypatch.setenv(METADATA, f"http://127.0.0.1:{server.getsockname()[1]}")

    yield answering
    for thread, server in zip(threads, servers, strict=True):
        thread.join()
        server.close()


@pytest.mark.parametrize("data", [b"nonsense\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"])
def test_an_answer_that_breaks_off_leaves_everything_open(answering, data):
    answering(data)
    with pytest.raises(TransientError, match=r"does not answer|is truncated"):
        LocalPreemptionSource(notice_seconds=10.0).poll()


@pytest.mark.parametrize("body", [b"{", b"{}", b'{"deadline": "soon"}', b"\xff"])
def test_a_malformed_answer_leaves_everything_open(answering, body):
    for ask, path in (
        (LocalPreemptionSource(notice_seconds=10.0).poll, "/notice"),
        (LocalProvider().node_identity, "/identity"),
    ):
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        with pytest.raises(TransientError, match=f"sent a malformed answer to {re.escape(path)}"):
            ask()


def test_outside_a_machine_it_says_so(monkeypatch):
    monkeypatch.delenv(METADATA, raising=False)
    with pytest.raises(CloudspotError, match="is not on a machine of provider 'local'"):
        LocalProvider().node_identity()
