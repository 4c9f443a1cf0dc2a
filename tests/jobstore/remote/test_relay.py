"""The program that runs a person's command on a node, as the agent starts it: on pipes, in frames."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from cloudspot.jobstore.remote import relay
from cloudspot.jobstore.remote.relay import MAX_FRAME_BYTES, Frame, FrameReader, Kind


class Relay:
    """The relay's process, and what it has said."""

    def __init__(self, words, directory, **start):
        self.process = subprocess.Popen(
            [sys.executable, "-IS", relay.__file__],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = FrameReader()
        self.frames = []
        self.say(Kind.START, json.dumps({"words": words, **start}).encode())

    def say(self, kind, data=b""):
        self.process.stdin.write(Frame(kind, data).encode())
        self.process.stdin.flush()

    def hear(self, until):
        """Take in frames until one of them satisfies ``until``."""
        while not any(map(until, self.frames)):
            assert select.select([self.process.stdout], [], [], 10.0)[0], self.frames[-5:]
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, self.frames
            self.frames += self._reader.feed(data)

    def end(self):
        self.hear(lambda frame: frame.kind is Kind.STATUS)
        return int(self.frames[-1].data)

    def said(self, kind):
        return b"".join(frame.data for frame in self.frames if frame.kind is kind)


@pytest.fixture
def start(tmp_path):
    started = []

    def run(*words, **size):
        started.append(Relay(words, tmp_path, **size))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.process.wait()
        one.process.stdin.close()
        one.process.stdout.close()


def test_streams_are_apart_and_the_status_is_the_programs(start):
    one = start("sh", "-c", "cat; echo no >&2; exit 7")
    data = bytes(range(256)) * 4096

    def write():
        for begin in range(0, len(data), MAX_FRAME_BYTES):
            one.say(Kind.INPUT, data[begin : begin + MAX_FRAME_BYTES])
        one.say(Kind.END_OF_INPUT)

    writer = threading.Thread(target=write)
    writer.start()
    assert one.end() == 7
    writer.join()
    assert one.said(Kind.OUTPUT) == data
    assert one.said(Kind.ERRORS) == b"no\n"


def test_a_program_that_reads_nothing_does_not_hold_up_its_signals(start):
    one = start("sh", "-c", "echo ready; exec sleep 600")
    one.hear(lambda frame: frame.kind is Kind.OUTPUT)
    for _ in range(16):
        one.say(Kind.INPUT, b"x" * (128 << 10))
    one.say(Kind.SIGNAL, b"TERM")
    assert one.end() == 128 + signal.SIGTERM


@pytest.mark.parametrize(("word", "status"), [("no-such-program", 127), ("/etc/hostname", 126)])
def test_what_is_no_program_is_told_as_a_shell_tells_it(start, word, status):
    one = start(word)
    assert one.end() == status
    assert one.said(Kind.ERRORS).startswith(word.encode())


def test_a_terminal_has_its_size_its_keys_and_its_signals(start):
    one = start("env", "PS1=ready> ", "sh", "-i", rows=31, columns=97)
    one.say(Kind.INPUT, b"stty size\n")
    one.hear(lambda _: b"31 97" in one.said(Kind.OUTPUT))
    one.say(Kind.SIZE, json.dumps({"rows": 5, "columns": 40}).encode())
    one.say(Kind.INPUT, b"stty size\n")
    one.hear(lambda _: b"5 40" in one.said(Kind.OUTPUT))
    one.say(Kind.INPUT, b"sh -c 'echo begun in $((5 * 7)); exec sleep 600'\n")
    one.hear(lambda _: b"begun in 35" in one.said(Kind.OUTPUT))
    one.say(Kind.INPUT, b"\x03")
    one.hear(lambda _: b"^C" in one.said(Kind.OUTPUT) and one.said(Kind.OUTPUT).endswith(b"ready> "))
    one.say(Kind.INPUT, b"echo back in $((6 * 7))\n")
    one.hear(lambda _: b"back in 42" in one.said(Kind.OUTPUT))
    one.say(Kind.INPUT, b"exit 5\n")
    assert one.end() == 5


def test_what_a_program_leaves_running_does_not_keep_it_from_ending(start):
    one = start("sh", "-c", "sleep 600 & echo $!")
    assert one.end() == 0
    os.kill(int(one.said(Kind.OUTPUT)), signal.SIGKILL)
    assert b"processes that it has left behind are ended too" in one.said(Kind.MESSAGE)


def test_what_a_program_leaves_writing_for_ever_does_not_either(start):
    one = start("sh", "-c", "yes & echo $! >&2")
    assert one.end() == 0
    os.kill(int(one.said(Kind.ERRORS)), signal.SIGKILL)
    assert b"processes that it has left behind are ended too" in one.said(Kind.MESSAGE)


def test_how_much_of_its_input_a_program_has_read_is_told(start):
    one = start("sh", "-c", "head -c 100000 > /dev/null; echo read; exec sleep 600")
    for _ in range(10):
        one.say(Kind.INPUT, b"x" * (100 << 10))
    one.hear(lambda frame: frame.kind is Kind.OUTPUT)
    told = [int(frame.data) for frame in one.frames if frame.kind is Kind.TAKEN]
    assert told == sorted(told)
    assert 64 << 10 <= told[-1] <= 300 << 10  # what it has read, and what its pipe holds
    one.say(Kind.SIGNAL, b"TERM")
    assert one.end() == 128 + signal.SIGTERM


def test_whoever_is_gone_ends_the_program(start, tmp_path):
    one = start(
        "sh",
        "-c",
        f"trap 'echo hung up > {tmp_path}/told; exit' HUP; echo ready; while :; do sleep 0.1; done",
    )
    one.hear(lambda frame: frame.kind is Kind.OUTPUT)
    one.process.stdin.close()
    one.process.wait(10)
    assert (tmp_path / "told").read_text() == "hung up\n"


def test_one_that_does_not_heed_that_is_killed(start):
    one = start("sh", "-c", "trap '' HUP; echo $$; while :; do sleep 0.1; done")
    one.hear(lambda frame: frame.kind is Kind.OUTPUT)
    began = time.monotonic()
    one.process.stdin.close()
    one.process.wait(20)
    assert time.monotonic() - began < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int(one.said(Kind.OUTPUT)), 0)


def test_frames_are_found_in_any_portions():
    frames = [Frame(Kind.INPUT, b"abc"), Frame(Kind.ALIVE), Frame(Kind.OUTPUT, b"x" * 1000)]
    data = b"".join(frame.encode() for frame in frames)
    for size in (1, 3, 7, len(data)):
        reader = FrameReader()
        found = []
        for begin in range(0, len(data), size):
            found += reader.feed(data[begin : begin + size])
        assert found == frames


@pytest.mark.parametrize("data", [b"\x00\xff\xff\xff\xff", b"\x63\x00\x00\x00\x00"])
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(ValueError):
        FrameReader().feed(data)
