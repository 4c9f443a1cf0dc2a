"""Nothing that runs in the tests' own process may end it in silence, as a success."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudspot.train.uncaught_errors import leave_at_once

TESTS = Path(__file__).parent
TEST = """
import threading
from cloudspot.train.uncaught_errors import leave_at_once

def test_with_a_thread_that_leaves():
    thread = threading.Thread(target=leave_at_once, name="link")
    thread.start()
    thread.join()

def test_after_it():
    pass
"""


def test_a_forced_exit_is_an_error_where_it_happens(forced_exits):
    with pytest.raises(BaseException, match="uncaught_errors in thread 'MainThread' with status 0"):
        leave_at_once()
    assert len(forced_exits) == 1
    forced_exits.clear()


@pytest.mark.full
def test_a_forced_exit_of_a_thread_fails_its_test_and_the_others_still_run(tmp_path):
    """The run ended there with status 0, and without a word."""
    tmp_path.joinpath("conftest.py").write_text((TESTS / "conftest.py").read_text())
    tmp_path.joinpath("test_it.py").write_text(TEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:threadexception",
        "-c",
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))}
    done = subprocess.run(
        [*command, "/dev/null", "."],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cloudspot.train.uncaught_errors in thread 'link' with status 0" in done.stdout
    assert "2 passed, 1 error" in done.stdout


def test_a_forked_process_still_ends_as_it_asks():
    child = os.fork()
    if child == 0:
        try:
            leave_at_once()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
