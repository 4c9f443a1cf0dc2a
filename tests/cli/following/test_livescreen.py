"""The panel on a terminal, and the terminal after it."""

import json
import os
import signal
import sys

import pytest
from support.jobs.pseudo_terminal import Terminal

pytestmark = pytest.mark.full


CODE = """
import json, os, select, sys, time
from datetime import datetime, timezone
from rich.text import Text
from cloudspot.cli.following.interrupts import Detached, Interrupts
from cloudspot.cli.screen.lines import Line
from cloudspot.cli.following.livescreen import LiveScreen
from cloudspot.cli.screen.printable import fit, printable

for stream in (sys.stdout, sys.stderr):
    fit(stream)
NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
shown = ["one", "two"]
def draw(width, height, ascii_only):
    first = f"panel {width}x{height} " + ("ascii " if ascii_only else "")
    asked = ["detaching"] if interrupts.is_asked else []
    return [Text(line) for line in [first.ljust(width - 1, "-"), *shown, *asked]]
commands = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
screen = LiveScreen(draw)
interrupts = Interrupts(screen.leave_at_once)
buffer = ""
with interrupts, screen:
    while True:
        screen.check()
        try:
            interrupts.check()
        except Detached:
            break
        select.select([commands], [], [], 0.05)
        try:
            buffer += os.read(commands, 1 << 20).decode()
        except BlockingIOError:
            pass
        line, end, rest = buffer.partition("\\n")
        if not end:
            time.sleep(0.02)
            continue
        buffer = rest
        what, value = json.loads(line)
        if what == "print":
            screen.print([Line(NOON, "train", printable(text)) for text in value])
        elif what == "panel":
            shown[:] = value
        elif what == "error":
            raise ValueError(value)
        elif what == "stray":
            print(value)
            print(value, file=sys.stderr)
        elif what == "busy":
            time.sleep(value)
        elif what == "signal":
            os.kill(os.getpid(), value)
        elif what == "quit":
            break
print("after")
"""


class Driven(Terminal):
    """A terminal with a live screen that does what it is told."""

    def __init__(self, directory, **options):
        self._path = directory / "commands"
        os.mkfifo(self._path)
        environ = {"TZ": "UTC", **options.pop("environ", {})}
        script = directory / "driver.py"
        script.write_text(CODE)
        command = [sys.executable, str(script), str(self._path)]
        if options.pop("in_shell", False):
            # As at a prompt: without a shell that could continue it, no process can be stopped by Ctrl-Z.
            shell = options.pop("shell", "{}; read line; fg >/dev/null")
            command = ["bash", "--norc", "-mc", shell.format(" ".join(command))]
        super().__init__(command, environ=environ, **options)
        self.wait_for("panel ")
        self._commands = os.open(self._path, os.O_WRONLY)

    def tell(self, what, value=None):
        os.write(self._commands, json.dumps([what, value]).encode() + b"\n")

    def __exit__(self, *error):
        os.close(self._commands)
        super().__exit__(*error)

    def lines(self):
        return self.text().splitlines()


@pytest.fixture
def driven(tmp_path):
    screens = []

    def start(**options):
        screens.append(Driven(tmp_path, **options))
        return screens[-1]

    yield start
    for screen in screens:
        screen.__exit__(None, None, None)


def test_lines_go_above_the_panel_and_the_panel_is_gone_at_the_end(driven):
    screen = driven(columns=40, lines=10)
    assert not screen.shows_typing()
    screen.tell("print", ["step 1", "step 2"])
    screen.wait_for("step 2")
    assert screen.lines() == [
        "12:00:00 train     step 1",
        "12:00:00 train     step 2",
        "panel 40x10 ---------------------------",
        "one",
        "two",
    ]
    screen.tell("panel", ["three"])
    screen.wait_for("three")
    assert screen.lines()[2:] == ["panel 40x10 ---------------------------", "three"]
    screen.tell("quit")
    assert screen.finish() == 0
    assert screen.lines() == ["12:00:00 train     step 1", "12:00:00 train     step 2", "after"]
    screen.assert_sane()


def test_many_lines_scroll_and_none_is_lost_or_torn(driven):
    screen = driven(columns=40, lines=10)
    for first in range(0, 300, 30):
        screen.tell("print", [f"step {n}" for n in range(first, first + 30)])
    screen.wait_for("step 299")
    told = [line for line in screen.all_lines() if "train" in line]
    assert told == [f"12:00:00 train     step {n}" for n in range(300)]
    assert screen.lines()[-3:] == ["panel 40x10 ---------------------------", "one", "two"]


def test_of_a_flood_the_end_is_shown(driven):
    screen = driven(columns=60, lines=10)
    screen.tell("print", [f"step {n}" for n in range(1300)])
    screen.wait_for("step 1299")
    told = [line for line in screen.all_lines() if line and "panel" not in line][:-2]
    assert told[0] == "(800 lines left out; see them with cloudspot logs)"
    assert len(told) == 501


HOSTILE = [
    "\x1b[2J\x1b[H\x1b[31mowned",
    "\x1b]0;title\x07after a title",
    "\x1b[?1049hother screen",
    "\x1b[10Aup",
    " 10%|#    |\r 50%|##   |\r100%|#####|",
    "bell\x07\x08\x08\x08",
    "\x1b[?25htail\x9b5D",
]


def test_what_a_log_says_moves_no_cursor(driven):
    screen = driven(columns=40, lines=14)
    screen.tell("print", [*HOSTILE, "end"])
    screen.wait_for("end")
    assert [line[19:] for line in screen.lines()[:-3]] == [
        "owned",
        "after a title",
        "other screen",
        "up",
        "100%|#####|",
        "bell",
        "tail",
        "end",
    ]
    assert screen.lines()[-3:] == ["panel 40x14 ---------------------------", "one", "two"]
    assert screen.screen.cursor.hidden


def test_a_line_that_is_longer_than_the_terminal_is_wide_is_wrapped_by_it(driven):
    screen = driven(columns=40, lines=12)
    screen.tell("print", ["x" * 100, "日本" * 20, "end"])
    screen.wait_for("end")
    text = "".join(screen.lines()[:-4])
    assert text.count("x") == 100
    assert text.count("日") == 20
    assert screen.lines()[-3:] == ["panel 40x12 ---------------------------", "one", "two"]
    screen.tell("print", ["y" * 5000])
    screen.wait_for("(3000 more)")


def test_what_others_print_meanwhile_tears_nothing(driven):
    screen = driven(columns=40, lines=10)
    screen.tell("stray", "a library has something to say")
    screen.wait_for(lambda: screen.text().count("a library") == 2)
    assert screen.lines()[-3:] == ["panel 40x10 ---------------------------", "one", "two"]


@pytest.mark.parametrize("size", [(30, 10), (60, 10), (40, 7), (30, 6), (25, 14)])
def test_another_size_leaves_no_trace_of_the_panel_that_was(driven, size):
    columns, lines = size
    screen = driven(columns=40, lines=10)
    screen.tell("print", ["step 1", "step 2"])
    screen.wait_for("step 2")
    screen.resize(columns, lines)
    screen.wait_for(f"panel {columns}x{lines} ")
    screen.tell("print", ["step 3"])
    screen.wait_for("step 3")
    shown = screen.lines()
    assert sum("panel" in line for line in screen.all_lines()) == 1
    assert shown[-3:] == [f"panel {columns}x{lines} ".ljust(columns - 1, "-"), "one", "two"]
    told = [line for line in shown if "train" in line]
    assert [line[-6:] for line in told][-3:] == ["step 1", "step 2", "step 3"][-len(told) :]
    screen.tell("quit")
    assert screen.finish() == 0
    screen.assert_sane()


def test_typed_keys_do_not_show(driven):
    screen = driven(columns=40, lines=10)
    screen.press("nonsense\n\n\n")
    screen.tell("print", ["step 1"])
    screen.wait_for("step 1")
    assert screen.lines() == [
        "12:00:00 train     step 1",
        "panel 40x10 ---------------------------",
        "one",
        "two",
    ]


def test_ctrl_c_ends_it_and_the_terminal_is_as_before(driven):
    screen = driven()
    screen.press("\x03")
    assert screen.finish() == 0
    assert screen.lines() == ["after"]
    screen.assert_sane()


def test_the_panel_tells_that_ctrl_c_was_heard_and_a_second_one_leaves_at_once(driven):
    screen = driven()
    screen.tell("busy", 600)
    screen.read(0.5)
    screen.press("\x03")
    screen.wait_for("detaching")
    screen.press("\x03")
    assert screen.finish() == 130
    screen.assert_sane()


def test_an_error_leaves_the_terminal_as_it_was(driven):
    screen = driven()
    screen.tell("error", "wrong on purpose")
    assert screen.finish() == 1
    assert screen.lines()[-1] == "ValueError: wrong on purpose"
    assert "panel" not in screen.text()
    screen.assert_sane()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_the_process_leaves_the_terminal_as_it_was(driven, number):
    screen = driven()
    screen.signal(number)
    assert screen.finish() == -number
    screen.assert_sane()


def test_a_hang_up_that_is_to_be_ignored_is_ignored(driven):
    screen = driven(columns=200, lines=10, in_shell=True, shell="trap '' HUP; {}")
    screen.tell("signal", signal.SIGHUP)
    screen.tell("print", ["still here"])
    screen.wait_for("still here")
    screen.tell("quit")
    assert screen.finish() == 0
    screen.assert_sane()


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(driven):
    screen = driven(columns=200, lines=10, in_shell=True)
    screen.tell("print", ["step 1"])
    screen.wait_for("step 1")
    screen.press("\x1a")
    screen.wait_for("Stopped")
    assert "panel" not in screen.text()
    screen.assert_sane()
    screen.press("typed at the prompt\n")
    screen.wait_for("panel")
    assert not screen.shows_typing()
    screen.tell("print", ["step 2"])
    screen.wait_for("step 2")
    screen.tell("quit")
    assert screen.finish() == 0
    told = [line for line in screen.lines() if line.startswith(("12:", "typed", "after"))]
    assert told == [
        "12:00:00 train     step 1",
        "typed at the prompt",
        "12:00:00 train     step 2",
        "after",
    ]
    screen.assert_sane()


def test_in_the_background_it_prints_lines_only(driven):
    screen = driven(
        columns=200, lines=12, in_shell=True, shell="{}; bg >/dev/null; read line; read line; fg >/dev/null"
    )
    screen.press("\x1a")
    screen.wait_for("Stopped")
    screen.tell("print", ["step 1"])
    screen.wait_for("step 1")
    screen.press("typed meanwhile\n")
    screen.tell("print", ["step 2"])
    screen.wait_for("step 2")
    assert "panel" not in screen.text()
    assert screen.shows_typing()
    screen.press("\n")
    screen.wait_for("panel")
    screen.tell("quit")
    assert screen.finish() == 0
    screen.assert_sane()


@pytest.mark.parametrize("environ", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}])
def test_a_terminal_without_utf_8_gets_ascii(driven, environ):
    screen = driven(environ=environ)
    screen.wait_for("ascii")
    screen.tell("print", ["loss → 0.5 é"])
    screen.wait_for("loss > 0.5 ?")
    assert screen.sent.isascii()


def test_without_colour_none_is_sent(driven):
    screen = driven(environ={"NO_COLOR": "1"})
    screen.tell("print", ["step 1"])
    screen.wait_for("step 1")
    colours = {cell.fg for line in screen.screen.buffer.values() for cell in line.values()}
    assert colours == {"default"}
