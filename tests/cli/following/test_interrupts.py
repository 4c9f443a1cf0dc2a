"""Ctrl-C while a job is followed."""

import signal
import subprocess
import sys

import pytest

from cloudspot.cli.following.interrupts import Detached, Interrupts


def test_the_first_asks_for_a_detach_and_breaks_nothing_off():
    with Interrupts() as interrupts:
        interrupts.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Detached):
            interrupts.check()


def test_afterwards_the_signal_is_as_it_was():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_the_second_ends_the_process_at_once():
    code = """
import signal
from cloudspot.cli.following.interrupts import Interrupts
with Interrupts():
    signal.raise_signal(signal.SIGINT)
    print("still here", flush=True)
    signal.raise_signal(signal.SIGINT)
    print("never here", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "still here\n")
