"""A notifier of any plugin, in a process of its own: what it prints, raises or breaks stays there."""

import importlib
import json
import socket
import subprocess
import sys
import textwrap

import pytest
from support.jobs.process_portrait import left_open

from cloudspot.controller.sending import send
from cloudspot.errors import PluginError
from cloudspot.model import Message, Severity
from cloudspot.registry import open_notifier

PLUGIN = """
    import json, os, pathlib, signal, socket, subprocess, threading, time
    from cloudspot.errors import CloudspotError
    from cloudspot.hookspecs import hookimpl
    from cloudspot.interfaces import Notifier

    class Pager(Notifier):
        name = "pager"

        def holds_credential(self, url):
            return True

        def send(self, url, message):
            print('{"name": "raises", "error": null}', flush=True)
            what, _, word = url.partition(":")
            if what == "raise":
                raise ValueError(word)
            if what == "refuse":
                raise CloudspotError("answered 403")
            if what == "die":
                os._exit(0)
            if what == "hang":
                if word != "secret":
                    pathlib.Path(word).write_text(str(subprocess.Popen(["sleep", "3600"]).pid))
                time.sleep(3600)
            if what == "thread":
                reached = []
                address = ("127.0.0.1", int(word))
                thread = threading.Thread(target=lambda: reached.append(socket.create_connection(address)))
                thread.start()
                thread.join()
                if not reached:
                    raise CloudspotError("not reached")
                return
            if what == "tell":
                os.write(2, b"secret")
                seen = [os.getpid(), os.getpgrp(), os.getsid(0), signal.alarm(0), os.path.realpath("/dev/fd/2")]
                seen.append([os.path.realpath(f"/dev/fd/{one}") for one in os.listdir("/dev/fd")])
                pathlib.Path(word).write_text(json.dumps(seen))
                return
            pathlib.Path(word).write_text(f"{message.title}: {message.severity.value} in {os.getcwd()}")

    @hookimpl
    def cloudspot_notifier(name):
        return Pager if name == "pager" else None
"""
MESSAGE = Message(job_id="a-1", title="a-1: failed", body="b", severity=Severity.FAILURE)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory with the plugin, as pip would have installed it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "cloudspot_pager.py").write_text(textwrap.dedent(PLUGIN))
    info = tmp_path / "cloudspot_pager-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cloudspot-pager\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cloudspot.notifiers]\npager = cloudspot_pager\n")
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("cloudspot_pager", None)


@pytest.mark.full
def test_each_url_has_its_own_outcome_and_no_url_is_in_it(site):
    urls = {
        "good": f"good:{site}/got",
        "raises": "raise:secret",
        "refuses": "refuse:secret",
        "hangs": "hang:secret",
    }
    assert send("pager", MESSAGE, urls, own=(), seconds=2.0) == {
        "raises": 'notifier "pager" of cloudspot-pager 1.0 is broken: Notifier.send() raised ValueError',
        "refuses": "answered 403",
        "hangs": "did not answer within 2 s",
    }
    assert (site / "got").read_text() == "a-1: failed: failure in /"


@pytest.mark.full
def test_a_notifiers_process_is_away_from_the_drivers_terminal_and_files_and_ends_without_it(site, capfd):
    """Ctrl-C is for the driver, what a library prints may hold the URL, and nobody may be left to kill it."""
    with left_open(site / "of-the-driver"):
        assert send("pager", MESSAGE, {"good": f"tell:{site}/seen"}, own=(), seconds=300.0) == {}
    pid, group, session, alarm_seconds, errors, files = json.loads((site / "seen").read_text())
    assert pid == group == session
    assert 0 < alarm_seconds <= 305
    assert errors == "/dev/null"
    assert str(site / "of-the-driver") not in files
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
def test_what_a_notifier_has_started_ends_with_it(site, wait_until, monkeypatch):
    class TooLate(subprocess.Popen):
        """Its time is over as soon as the notifier has started something."""

        def communicate(self, order=None, timeout=None):
            if timeout is None:
                return super().communicate()
            with self.stdin as stdin:
                stdin.write(order)
            self.stdin = None
            wait_until(lambda: (site / "pid").exists() and (site / "pid").read_text())
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", TooLate)
    failed = send("pager", MESSAGE, {"hangs": f"hang:{site}/pid"}, own=(), seconds=300.0)
    monkeypatch.undo()
    assert failed == {"hangs": "did not answer within 300 s"}
    pid = int((site / "pid").read_text())
    wait_until(lambda: not is_alive(pid))


def is_alive(pid):
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip() != "" and not shown.stdout.startswith("Z")


@pytest.mark.full
def test_a_notifier_that_takes_its_process_along_has_failed(site):
    failed = send("pager", MESSAGE, {"dies": "die:secret"}, own=())
    assert failed == {"dies": "could not be asked: its process failed"}


def test_a_notifier_is_found_by_its_name_and_a_missing_one_comes_with_the_nearest(site):
    assert open_notifier("pager").name == "pager"
    with pytest.raises(PluginError, match=r'^no notifier "pagr" is installed; did you mean "pager"\?$'):
        open_notifier("pagr")


@pytest.mark.full
def test_a_thread_of_a_notifiers_own_reaches_a_host_of_the_users_network_beside_no_url_of_the_record(site):
    """It may work for several messages."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        urls = dict.fromkeys(["a", "b"], f"thread:{server.getsockname()[1]}")
        assert send("pager", MESSAGE, urls, own=urls) == {}
        assert send("pager", MESSAGE, urls, own=["a"]) == dict.fromkeys(urls, "not reached")
