"""SIGTERM to the agent is a notice, whenever it comes."""

import contextlib
import os
import signal
import subprocess
import sys
from datetime import datetime, timezone

import pytest

from cloudspot.agent.notices.notice_pipe import STOP_SECONDS, NoticePipe, PipeByte, as_notice, wake_agent

LISTENER = """
import os, pathlib, signal, sys, threading, time
from cloudspot.agent.notices.notice_pipe import NoticePipe

told = threading.Semaphore(0)
pipe = NoticePipe(pathlib.Path(sys.argv[1]))
pipe.take_sigterm()

def tell():
    pipe.read()
    told.release()

signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)
for _ in range(%d):
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=tell, daemon=True).start()
print(told.acquire(timeout=%r), told.acquire(timeout=0.1))
"""


def listen(directory, *, num_signals, timeout):
    command = [sys.executable, "-c", LISTENER % (num_signals, timeout), str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_signal_before_anybody_asks_is_kept(tmp_path):
    assert listen(tmp_path, num_signals=2, timeout=60.0) == "True False\n"


def test_no_other_signal_is_taken_for_it(tmp_path):
    assert listen(tmp_path, num_signals=0, timeout=0.1) == "False False\n"


def test_an_ordered_stop_is_a_notice_of_a_minute():
    wall = datetime(2026, 11, 20, tzinfo=timezone.utc)
    reclaim = as_notice(now=1000.0, wall=wall)
    assert (reclaim.seen, reclaim.deadline) == (1000.0, 1000.0 + STOP_SECONDS)
    assert (reclaim.notice.action, reclaim.notice.source) == ("stop", "SIGTERM")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_the_agents_processes_take_signals_as_ever(number, tmp_path):
    script = (
        "import os, subprocess, sys\n"
        "import pathlib\n"
        "from cloudspot.agent.notices.notice_pipe import NoticePipe\n"
        f"NoticePipe(pathlib.Path({str(tmp_path)!r})).take_sigterm()\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        f"child.send_signal({int(number)})\n"
        "sys.exit(100 + child.wait())\n"
    )
    # As the boot script starts the agent.
    command = ["bash", "-c", '"$0" -c "$1" & wait $!', sys.executable, script]
    assert subprocess.run(command, timeout=60).returncode == 100 - number


def test_another_process_wakes_the_agent_and_one_that_starts_later_needs_no_word(tmp_path):
    wake_agent(tmp_path)  # no agent has ever run here
    pipe = NoticePipe(tmp_path)
    wake_agent(tmp_path)
    assert pipe.read() is PipeByte.NOTICE
    os.close(pipe._reader)
    os.close(pipe._writer)
    wake_agent(tmp_path)  # that agent is dead


def test_words_that_nobody_reads_hold_up_no_hook(tmp_path):
    pipe = NoticePipe(tmp_path)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe._writer, bytes(65536))
    wake_agent(tmp_path)
