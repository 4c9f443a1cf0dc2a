"""What others wrote, made safe for a terminal; and terminals that lack our characters."""

import io
import subprocess
import sys

import pytest

from cloudspot.cli.screen.printable import fit, printable, shows_unicode


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("loss 0.5", "loss 0.5"),
        ("é ✓ 日本", "é ✓ 日本"),
        ("\x1b[31mred\x1b[0m, \x1b[1;38;5;9mbold\x1b[m", "red, bold"),
        ("up\x1b[5A\x1b[2Kdown\x1b[1;1H", "updown"),
        ("\x1b]0;you are root\x07hello", "hello"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;cm0gLXJmIH4=", ""),
        ("\x1bc\x1b(0\x1b#8reset", "reset"),
        ("\x9b2Jeight bits", "eight bits"),
        ("\x1bPq#0;2;0;0;0\x1b\\picture", "picture"),
        ("bell\x07 back\x08\x08 null\x00", "bell back null"),
        ("a\tb", "a       b"),
        ("abc\u202egnp.exe", "abcgnp.exe"),
        ("one\u2028two\x0bthree", "onetwothree"),
        ("\ud800half", "half"),
    ],
)
def test_what_could_move_the_cursor_is_taken_out(line, shown):
    assert printable(line) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\r 10%|#   | 1/5\r 50%|##  | 3/5\r100%|####| 5/5", "100%|####| 5/5"),
        ("downloading 5 MB\r\x1b[K", "downloading 5 MB"),
        ("a line of another system\r", "a line of another system"),
        ("\r\r", ""),
    ],
)
def test_of_a_bar_that_was_drawn_again_and_again_the_last_state_is_left(line, shown):
    assert printable(line) == shown


def wrapped(encoding):
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("ascii", b"cost 3 x 4 > ##. - 'a' ? ?"),
        ("latin-1", b"cost 3 \xd7 4 > ##. - 'a' \xe9 ?"),
        ("utf-8", "cost 3 \u00d7 4 → ██░ \u2014 \u2018a\u2019 é 日".encode()),
    ],
)
def test_what_the_encoding_lacks_is_replaced_by_something_as_wide(encoding, written):
    stream = wrapped(encoding)
    fit(stream)
    stream.write("cost 3 \u00d7 4 → ██░ \u2014 \u2018a\u2019 é 日")
    stream.flush()
    assert stream.buffer.getvalue() == written


def test_the_streams_encoding_tells_which_characters_it_has():
    assert shows_unicode(wrapped("utf-8"))
    assert not shows_unicode(wrapped("latin-1"))


@pytest.mark.full
@pytest.mark.parametrize("environ", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_an_error_with_any_characters_is_one_line_on_any_stream(environ):
    done = subprocess.run(
        [sys.executable, "-m", "cloudspot", "show", "→ ✓\x1b[2J"],
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", **environ},
        timeout=60,
    )
    assert done.returncode == 5
    assert done.stderr.count(b"\n") == 1
    assert b"\x1b" not in done.stderr
    if "PYTHONIOENCODING" in environ:
        assert done.stderr.startswith(b"error: '> +")
