"""SIGTERM to the agent is a notice, whenever it comes."""

import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest

from cloudspot.agent.orderedstop import STOP_SECONDS, as_notice

LISTENER = """
import os, signal, threading, time
from cloudspot.agent.orderedstop import OrderedStop

told = threading.Semaphore(0)
stop = OrderedStop()
stop.listen()
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)
for _ in range(%d):
    os.kill(os.getpid(), signal.SIGTERM)
stop.tell(told.release)
print(told.acquire(timeout=%r), told.acquire(timeout=0.1))
"""


def listen(*, num_signals, timeout):
    script = LISTENER % (num_signals, timeout)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_a_signal_before_anybody_asks_is_told_and_only_once():
    assert listen(num_signals=2, timeout=60.0) == "True False\n"


def test_no_other_signal_is_taken_for_it():
    assert listen(num_signals=0, timeout=0.1) == "False False\n"


def test_an_ordered_stop_is_a_notice_of_a_minute():
    wall = datetime(2026, 11, 20, tzinfo=timezone.utc)
    reclaim = as_notice(now=1000.0, wall=wall)
    assert (reclaim.seen, reclaim.deadline) == (1000.0, 1000.0 + STOP_SECONDS)
    assert reclaim.deadline_at == wall + timedelta(seconds=60)
    assert (reclaim.notice.action, reclaim.notice.source) == ("stop", "SIGTERM")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_the_agents_processes_take_signals_as_ever(number):
    script = (
        "import os, subprocess, sys\n"
        "from cloudspot.agent.orderedstop import OrderedStop\n"
        "OrderedStop().listen()\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        f"child.send_signal({int(number)})\n"
        "sys.exit(100 + child.wait())\n"
    )
    # As the boot script starts the agent.
    command = ["bash", "-c", '"$0" -c "$1" & wait $!', sys.executable, script]
    assert subprocess.run(command, timeout=60).returncode == 100 - number
