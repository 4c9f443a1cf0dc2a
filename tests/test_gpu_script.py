"""The script for a GPU: it runs to its end without one, and says in its table what went wrong."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch):
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu", module)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "device_text", lambda: "2.13 CPU")  # to ask takes an import of torch
    return module


@pytest.fixture
def run(gpu, monkeypatch, tmp_path):
    """``run(*words)``: the exit status of the script, and its table."""

    def run_one(*words):
        table = tmp_path / "gpu.md"
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--table", str(table), *words])
        try:
            gpu.main()
        except SystemExit as ended:
            return ended.code, table.read_text()
        return 0, table.read_text()

    return run_one


def print_lines(*lines, status=0):
    return [sys.executable, "-c", f"print({chr(10).join(lines)!r}); raise SystemExit({status})"]


OUTCOME = '{"kind": "fused", "runs": 2, "sealed": {"overlapped": 9, "boundary": 2}, "spoilt": 1, "wrong": %s, "is_equal": true}'


def test_the_table_has_each_figure_and_what_there_was_no_time_for(gpu, run, monkeypatch):
    path = (
        "steps of 10 ms, 1 threads",
        "stall of a save         12 ms    0.20 x copy",
        "  show says: copied so",
    )
    restart = "restart with the fork server: median 0.19 s (0.18 to 0.20), 0.11 x a cold start"
    checks = (
        gpu.Check("exactness", "a", 100, [], print_lines(OUTCOME % "[]"), gpu.read_outcomes),
        gpu.Check("stall", "b", 100, [], print_lines(*path), gpu.read_ratios),
        gpu.Check("restart", "c", 100, [], print_lines(restart), gpu.read_ratios),
        gpu.Check("memory", "d", 100, [], print_lines("..", "2 passed in 1.00s"), gpu.read_tests),
    )
    monkeypatch.setattr(gpu, "CHECKS", checks)
    status, table = run("--dry")
    assert status == 0
    for line in (
        "| | fused | exact | 2 runs; saves: 9 overlapped, 2 boundary, 1 made again |",
        "| | steps of 10 ms, 1 threads: stall of a save | 0.20 x copy | 12 ms |",
        "| | steps of 10 ms, 1 threads: show | copied so |  |",
        "| | restart with the fork server | 0.11 x a cold start | 0.19 s |",
        "| | in all | 2 passed in 1.00s |  |",
    ):
        assert line in table
    text = gpu.table("2.13 CPU", [], checks[:1])
    assert "| **exactness** | a | NOT RUN | |" in text


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (print_lines(OUTCOME % '["step 3: model/weight is another one"]'), "WRONG: step 3: model/weight"),
        (print_lines(OUTCOME % "[]", "it broke", status=3), "FAILED: it ended with status 3 | it broke"),
        (print_lines("nothing that it knows"), "FAILED: it printed nothing that can be read"),
    ],
)
def test_a_check_that_fails_is_told_and_ends_nothing(gpu, run, monkeypatch, command, told):
    checks = (
        gpu.Check("exactness", "a", 100, [], command, gpu.read_outcomes),
        gpu.Check("memory", "b", 100, [], print_lines("2 passed"), gpu.read_tests),
    )
    monkeypatch.setattr(gpu, "CHECKS", checks)
    status, table = run("--dry")
    assert status == 1
    assert told in table
    assert "2 passed" in table


def test_a_check_that_hangs_is_ended(gpu):
    check = gpu.Check(
        "stall", "a", 100, [], [sys.executable, "-c", "import time; time.sleep(3600)"], gpu.read_ratios
    )
    (line,) = gpu.run(check, is_dry=True, seconds=0.5)
    assert line.figure == "FAILED: after 0 s it was ended"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_without_a_gpu_it_runs_to_its_end(tmp_path):
    words = [sys.executable, str(SCRIPT), "--dry", "--minutes", "30", "--table", str(tmp_path / "gpu.md")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    table = (tmp_path / "gpu.md").read_text()
    assert (done.returncode, "NOT RUN" in table) == (0, False), done.stdout + done.stderr
    assert table.count("exact |") == 3
