"""Every distribution of this repository builds, and installs with pip alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT, *(path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml")))]


def run(*words, cwd):
    environment = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PIP_CONSTRAINT"}
    }
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_wheels_and_sdists_of_all_build_and_install_in_a_clean_environment(tmp_path):
    built, venv = tmp_path / "built", tmp_path / "venv"
    for project in PROJECTS:
        run(
            sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", built, cwd=project
        )
    wheels, sdists = sorted(built.glob("*.whl")), sorted(built.glob("*.tar.gz"))
    assert len(wheels) == len(sdists) == len(PROJECTS)
    # A wheel made of the sdist is the wheel made of the tree: the sdist lacks nothing.
    for sdist, wheel in zip(sdists, wheels, strict=True):
        with tarfile.open(sdist) as archive:
            archive.extractall(tmp_path / "sources", filter="data")
        source = tmp_path / "sources" / sdist.name.removesuffix(".tar.gz")
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=source)
        assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()

    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    pip = (venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "-q", "-c", ROOT / "constraints.txt", *wheels, cwd=tmp_path)
    run(*pip, "check", cwd=tmp_path)
    shown = run(venv / "bin" / "cloudspot", "providers", cwd=tmp_path)
    assert [name for name in ("local", "aliyun", "aws", "gcp", "kubernetes") if name not in shown] == []
    run(*pip, "install", "-q", "-c", ROOT / "constraints.txt", "twine", cwd=tmp_path)
    run(venv / "bin" / "twine", "check", "--strict", *wheels, *sdists, cwd=tmp_path)
