"""The screens kept in docs/screens are those that the program shows."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "docs" / "screens"
_spec = importlib.util.spec_from_file_location("screens_capture", HERE / "capture.py")
capture = importlib.util.module_from_spec(_spec)
sys.modules["screens_capture"] = capture
_spec.loader.exec_module(capture)


@pytest.mark.full
@pytest.mark.parametrize("width", capture.WIDTHS)
@pytest.mark.parametrize("screen", capture.SCREENS, ids=lambda screen: screen.name)
def test_a_screen_is_as_kept(screen, width):
    with capture.capture(screen, width) as terminal:
        shown = capture.text(screen, terminal)
    kept = capture.path(screen, width).read_text(encoding="utf-8")
    assert shown == kept, "if it is meant to be so: python docs/screens/capture.py"


@pytest.mark.full
@pytest.mark.parametrize("environ", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}], ids=str)
@pytest.mark.parametrize("screen", capture.SCREENS, ids=lambda screen: screen.name)
def test_on_a_terminal_that_knows_ascii_only_nothing_else_is_sent(screen, environ):
    with capture.capture(screen, 80, environ=environ) as terminal:
        assert terminal.sent.isascii()
        # What an encoding lacks and nobody has thought of would be a question mark.
        assert terminal.text().count("?") == int("did you mean" in terminal.text())


@pytest.mark.parametrize("screen", capture.SCREENS, ids=lambda screen: screen.name)
def test_a_screen_of_80_columns_keeps_to_them_and_has_a_picture(screen):
    text = capture.path(screen, 80).read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 80
    picture = capture.path(screen, 80, "svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg")
    assert "http" not in picture.replace("http://www.w3.org", "").replace("https://www.textualize.io", "")


def test_no_screen_is_kept_that_nobody_captures():
    names = {f"{screen.name}-{width}.txt" for screen in capture.SCREENS for width in capture.WIDTHS}
    names |= {f"{screen.name}-80.svg" for screen in capture.SCREENS}
    assert {path.name for path in HERE.iterdir() if path.suffix in {".txt", ".svg"}} == names
