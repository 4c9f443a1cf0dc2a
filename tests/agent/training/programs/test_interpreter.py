"""What setup and training find on PATH under the names python and pip."""

import os
import subprocess
from pathlib import Path

import pytest

from cloudspot.agent.training.programs.interpreter import with_interpreter


@pytest.fixture
def node(bench):
    return bench.node()


def interpreter(path: Path) -> Path:
    """Make a stand-in for a Python that says who it is and how it was called."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho {path} "$@"\n')
    path.chmod(0o755)
    return path


def say(environment: dict[str, str], node, *command: str) -> str:
    shell = ["/bin/bash", "-c", '"$@"', "-", *command]
    done = subprocess.run(shell, env=environment, cwd=node.work, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["python3.12", "python3"])
def test_all_its_names_mean_the_interpreter_whatever_it_is_called(node, tmp_path, name):
    """On Debian there is no `python`, and the `pip` on PATH may install for another interpreter."""
    python = interpreter(tmp_path / "opt" / "bin" / name)
    interpreter(tmp_path / "opt" / "bin" / "pip")
    interpreter(tmp_path / "usr" / "python")
    environment = with_interpreter({"PATH": f"{tmp_path}/usr:/usr/bin:/bin"}, str(python), node)
    assert say(environment, node, "python", "a b") == f"{python} a b"
    assert say(environment, node, "python3") == f"{python}"
    assert say(environment, node, "pip", "install", "x") == f"{python} -m pip install x"
    assert say(environment, node, "pip3") == f"{python} -m pip"


def test_what_is_installed_beside_it_comes_before_the_rest_of_path(node, tmp_path):
    python = interpreter(tmp_path / "opt" / "bin" / "python3")
    beside = interpreter(tmp_path / "opt" / "bin" / "accelerate")
    interpreter(tmp_path / "usr" / "accelerate")
    environment = with_interpreter({"PATH": f"{tmp_path}/usr:/usr/bin:/bin"}, str(python), node)
    assert say(environment, node, "accelerate", "launch") == f"{beside} launch"


def test_a_name_is_looked_up_on_path(node, tmp_path):
    python = interpreter(tmp_path / "usr" / "python3")
    environment = with_interpreter({"PATH": f"{tmp_path}/usr:/usr/bin:/bin"}, "python3", node)
    assert say(environment, node, "python") == f"{python}"


def test_an_interpreter_that_the_setup_makes_is_found_in_that_setup_already(node, tmp_path):
    interpreter(tmp_path / "usr" / "python3")
    path = {"PATH": f"{tmp_path}/usr:/usr/bin:/bin"}
    environment = with_interpreter(path, ".venv/bin/python", node)
    assert say(environment, node, "python3", "-m", "venv") == f"{tmp_path}/usr/python3 -m venv"
    python = interpreter(node.work / ".venv" / "bin" / "python")
    assert say(environment, node, "python") == f"{python}"
    after = with_interpreter(path, ".venv/bin/python", node)
    assert say(after, node, "pip", "list") == f"{python} -m pip list"


def test_an_interpreter_that_is_nowhere_changes_nothing(node):
    environment = {"PATH": "/usr/bin:/bin", "A": "1"}
    assert with_interpreter(environment, "no-such-python", node) == environment


@pytest.mark.full
def test_setup_and_training_call_the_same_python(bench):
    """`python: command not found`, said the setup, and `pip` was that of some other environment."""
    script = "import os, subprocess\nassert subprocess.check_output(['python', '-c', '']) == b''\n"
    life = bench.life(script, run={"setup": "python -c 'import this'; command -v python"})
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    assert str(life.context.node.programs / "python") in bench.log(life)
    assert os.access(life.context.node.programs / "pip", os.X_OK)
