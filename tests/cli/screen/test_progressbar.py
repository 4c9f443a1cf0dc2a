"""Bars for long work."""

import signal
import subprocess
import sys

import pytest
from support.jobs.pseudo_terminal import Terminal

CODE = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: None)
from cloudspot.cli.screen.progressbar import transfer
with transfer("uploading code", {num_bytes}) as advance:
    advance(300_000)
    {wait}
    advance(700_000)
print("done")
"""


def terminal(wait, num_bytes=1_000_000, **environ):
    code = CODE.format(wait=wait, num_bytes=num_bytes)
    return Terminal([sys.executable, "-c", code], environ=environ)


@pytest.mark.full
def test_a_bar_tells_how_far_it_is_and_is_gone_afterwards():
    with terminal("signal.pause()") as screen:
        screen.wait_for("293.0/976.6 KiB")
        assert screen.text().startswith("uploading code ━")
        screen.signal(signal.SIGUSR1)
        assert screen.finish() == 0
        assert screen.text().splitlines()[-1] == "done"
        assert "uploading" not in screen.text()
        screen.assert_sane()


@pytest.mark.full
def test_without_a_total_the_bar_only_moves():
    with terminal("signal.pause()", None) as screen:
        screen.wait_for("uploading code")
        assert "KiB" not in screen.text()
        screen.signal(signal.SIGUSR1)
        assert screen.finish() == 0


@pytest.mark.full
def test_what_is_soon_over_shows_no_bar():
    with terminal("pass") as screen:
        assert screen.finish() == 0
        assert screen.sent == b"done\r\n"


@pytest.mark.full
def test_a_terminal_that_cannot_move_its_cursor_gets_none():
    with terminal("time.sleep(1)", TERM="dumb") as screen:
        assert screen.finish() == 0
        assert screen.sent == b"done\r\n"


@pytest.mark.full
def test_a_terminal_without_utf_8_gets_one_in_ascii():
    with terminal("signal.pause()", PYTHONIOENCODING="ascii") as screen:
        screen.wait_for("293.0/976.6 KiB")
        assert screen.text().startswith("uploading code ---")
        screen.signal(signal.SIGUSR1)
        assert screen.finish() == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_pipe_gets_none(stream):
    code = CODE.format(wait="time.sleep(0.6)", num_bytes=1_000_000)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert getattr(done, stream) == {"stdout": b"done\n", "stderr": b""}[stream]
