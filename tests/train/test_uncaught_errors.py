"""What the agent hears of an error that ends a rank."""

import os
import subprocess
import sys
import textwrap

import pytest

from cloudspot.train import handoff


@pytest.fixture
def end(tmp_path):
    """Run a script with an agent's hand-off directory; return its exit status, its stderr, and what it told."""

    def run(script):
        done = subprocess.run(
            [sys.executable, "-c", "from cloudspot.train.uncaught_errors import report_errors\n" + script],
            env={**os.environ, handoff.HANDOFF: str(tmp_path), "RANK": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr, handoff.read_json(handoff.failed_path(tmp_path, 3))

    return run


def test_an_error_that_nobody_catches_is_told_with_its_type_after_its_traceback(end):
    status, stderr, told = end("report_errors()\nreport_errors()\nraise LookupError('no such layer')\n")
    assert status == 1
    assert stderr.count("LookupError: no such layer") == 1
    assert told == {"type": "builtins.LookupError", "message": "no such layer", "causes": []}


def test_an_error_is_told_with_those_that_led_to_it(end):
    """Libraries raise errors of their own when the disk is full."""
    script = """
        report_errors()
        first = OSError(28, "No space left on device")
        try:
            try:
                raise first
            except OSError:
                raise ValueError("no archive")
        except ValueError as error:
            first.__context__ = error  # a circle
            raise RuntimeError("cannot save") from error
    """
    told = end(textwrap.dedent(script))[2]
    assert (told["type"], told["message"]) == ("builtins.RuntimeError", "cannot save")
    assert told["causes"] == ["no archive", "[Errno 28] No space left on device"]


@pytest.mark.parametrize("last_line", ["raise SystemExit(3)", "import os; os._exit(0)", ""])
def test_an_end_without_an_error_tells_nothing(end, last_line):
    assert end(f"report_errors()\n{last_line}\n")[2] is None


def test_a_hook_of_the_script_is_still_asked_first(end):
    script = """
        import os, sys
        from pathlib import Path
        sys.excepthook = lambda *_: print("mine", list(Path(os.environ["CLOUDSPOT_HANDOFF"]).iterdir()), file=sys.stderr)
        report_errors()
        raise ValueError("x")
    """
    _, stderr, told = end(textwrap.dedent(script))
    assert stderr == "mine []\n"
    assert told["type"] == "builtins.ValueError"


@pytest.mark.full
def test_a_fork_speaks_for_no_rank(end):
    script = """
        import os
        report_errors()
        if os.fork() == 0:
            raise ValueError("in a child")
        os.wait()
    """
    status, stderr, told = end(textwrap.dedent(script))
    assert (status, told) == (0, None)
    assert "in a child" in stderr
