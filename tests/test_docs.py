"""What in the documentation follows from the code is up to date: `python docs/generate.py` brings it there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloudspot.agent import courier
from cloudspot.spec import JobSpec, RunSpec

ROOT = Path(__file__).parents[1]
GENERATE = ROOT / "docs" / "generate.py"


@pytest.fixture(scope="module")
def generate():
    """docs/generate.py as a module."""
    found = importlib.util.spec_from_file_location("generate", GENERATE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_what_is_generated_is_up_to_date(generate):
    stale = [name for name, text in generate.generated().items() if (ROOT / name).read_text() != text]
    assert stale == [], "run: python docs/generate.py"


def test_the_generator_names_what_is_out_of_date_and_mends_it(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "cloudspot").mkdir()
    for name in (
        "docs/generate.py",
        "docs/cli.md",
        "docs/job-file.md",
        "docs/failure-modes.md",
        "cloudspot/job.schema.json",
    ):
        (tmp_path / name).write_text((ROOT / name).read_text())
    reference = tmp_path / "docs" / "job-file.md"
    reference.write_text(reference.read_text().replace("| `run.python` |", "| `run.pithon` |"))
    (tmp_path / "cloudspot" / "job.schema.json").unlink()

    def run(*arguments):
        command = [sys.executable, str(tmp_path / "docs" / "generate.py"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    names = ["docs/job-file.md", "cloudspot/job.schema.json"]
    assert run("--check") == (1, [f"{name} is out of date; run: python docs/generate.py" for name in names])
    assert run() == (0, [f"{name} was rewritten" for name in names])
    assert run("--check") == (0, [])
    assert reference.read_text() == (ROOT / "docs" / "job-file.md").read_text()


def test_a_region_that_nothing_fills_is_refused(generate):
    text = "<!-- generated: one -->\nold\n<!-- end -->\n"
    assert generate._with_regions(text, {"one": "new\n"}) == text.replace("old", "new")
    with pytest.raises(SystemExit, match=r"\['one', 'two'\]"):
        generate._with_regions(text, {"two": ""})


def test_what_is_said_of_failures_has_the_codes_own_figures(generate):
    prose = (ROOT / "docs" / "failure-modes.md").read_text().partition("## The figures")[0]
    said = [
        in_words
        for module, name in generate.FIGURES
        if (in_words := generate.in_words(getattr(module, name)))
    ]
    left_out = [text for text in said if re.search(rf"\b{text.split()[0]}\b", prose) is None]
    assert left_out == []
    assert len(set(said)) > 5
    spec = JobSpec(name="a", run=RunSpec(entrypoint="a.py"))
    assert (spec.limits.stuck_after, spec.limits.max_restarts) == (1800.0, 3)
    assert courier.WARN_SHARE == 0.7
