"""What the project promises of itself outside its code: README, CI, constraints, metadata."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

import cloudspot

ROOT = Path(__file__).parents[1]
TEXTS = sorted(path for pattern in ("*.md", "docs/*.md") for path in ROOT.glob(pattern))


def code_blocks(text):
    return re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_readme_begins_with_the_example_and_the_tests():
    first, second = code_blocks((ROOT / "README.md").read_text())[:2]
    assert first.split("&&")[-1].split() == [
        ".venv/bin/cloudspot",
        "run",
        "--provider",
        "local",
        "examples/digits/job.toml",
    ]
    assert second.split("&&")[-1].split() == [".venv/bin/tox", "-p"]


def test_the_ci_runs_the_second_block_of_the_readme_and_then_the_full_tests(tmp_path):
    for name in (".ci/run", ".venv/bin/tox", ".tox/tests/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"#!/bin/sh\necho {Path(name).name} $*\n")
        (tmp_path / name).chmod(0o755)
    ci = tmp_path / ".ci" / "run"
    ci.write_text((ROOT / ".ci" / "run").read_text())
    (tmp_path / "README.md").write_text(
        "# x\n```sh\nexit 7\n```\n\n```sh\necho one &&\necho $PWD\n```\n```\nexit 8\n```\n"
    )
    done = subprocess.run([ci], capture_output=True, text=True)
    full = ["+ .venv/bin/tox -e full", "tox -e full"]
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (0, full)
    assert ["one", str(tmp_path)] == [
        line for line in done.stdout.splitlines() if line in {"one", str(tmp_path)}
    ]
    # The Kubernetes control plane cannot be built everywhere; its tests then say so.
    (tmp_path / ".tox/tests/bin/python").write_text("#!/bin/sh\nexit 3\n")
    done = subprocess.run([ci], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (0, full)
    assert done.stderr == "the Kubernetes control plane is not built, and its tests are skipped\n"
    (tmp_path / ".venv/bin/tox").write_text("#!/bin/sh\nexit 5\n")
    assert subprocess.run([ci], capture_output=True).returncode == 5
    (tmp_path / "README.md").write_text("```\na\n```\n```\nfalse\necho not reached\n```\n")
    done = subprocess.run([ci], capture_output=True, text=True)
    assert done.returncode == 1
    assert not {"not reached", *full} & set(done.stdout.splitlines())
    (tmp_path / "README.md").write_text("```\na\n```\n")
    done = subprocess.run([ci], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "README.md has no second code block\n")


def test_torch_is_pinned():
    assert re.search(r"^torch==[\d.]+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def test_the_constraints_leave_room_for_hydra():
    """It needs antlr4-python3-runtime 4.9, and nothing here needs another one."""
    assert not re.search(
        r"(?m)^(antlr4-python3-runtime|omegaconf|hydra)", (ROOT / "constraints.txt").read_text()
    )


def test_the_distribution_carries_its_version_and_its_types():
    assert metadata.version("cloudspot") == cloudspot.__version__
    assert (Path(cloudspot.__file__).parent / "py.typed").exists()


def test_torch_comes_by_an_extra_only():
    requires = metadata.requires("cloudspot")
    assert [line for line in requires if line.startswith("torch")] != []
    assert all("extra ==" in line for line in requires if line.startswith(("torch", "scikit-learn")))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_link_between_the_documents_leads_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), target


CLOUDS = re.compile(
    r"\b(aws|s3|ec2|imds|cloudwatch|amazon|gcp|gcs|google|compute engine|aliyun|alibaba|oss|ecs|azure)\b",
    re.IGNORECASE,
)


@pytest.mark.full
def test_the_core_names_no_cloud():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "cloudspot").rglob("*"))
        if path.suffix in (".py", ".json", ".txt", ".toml", ".sh")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if CLOUDS.search(line)
    ]
    assert found == []


@pytest.mark.full
def test_nobody_is_told_to_install_by_a_name_that_is_not_published():
    """Whoever registered `cloudspot-moon` at the package index would be run."""
    told = re.compile(r"pip install[^`'\n]* \"?cloudspot[-\[\w]")
    pages = [path for path in ROOT.rglob("*.md") if not {".venv", ".tox"} & set(path.parts)]
    code = [*ROOT.glob("cloudspot/**/*.py"), *ROOT.glob("plugins/*/cloudspot_*/**/*.py")]
    assert told.search('run: pip install "cloudspot[aws]"')
    assert told.search("pip install -U cloudspot-moon")
    assert [path.name for path in (*pages, *code) if told.search(path.read_text(encoding="utf-8"))] == []


def test_the_house_has_no_more_than_24_rooms():
    rooms = {
        path.stem
        for path in (ROOT / "cloudspot").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert len(rooms - {"__init__"} | {"plugins", "benchmarks"}) <= 24
