"""Installs the wheels of dist/ as their users will, and runs them, without the clone.

    python release/try_wheels.py                       # on each Python from 3.10 to 3.13
    python release/try_wheels.py --python 3.12         # on one
    python release/try_wheels.py --newest              # with the newest releases of everything else

For each Python there is a new environment with nothing but the command line, one for each extra alone,
and one with all of them, in which jobs run. Where torch is pinned, those are README's first command and
its sandbox; elsewhere a job without torch, on both. A distribution of ours comes from dist/ alone,
whatever an index has under its name. Needs what `tox -e release` installs, and the sdist for the
examples.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distributions import ROOT, ReleaseError, distributions, version

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
WITH_TORCH = "3.11"
"""For it torch is pinned."""

SHOWS = {
    "aliyun": "from cloudspot.registry import provider_class; provider_class('aliyun')",
    "apprise": "from cloudspot.registry import open_notifier; open_notifier('apprise')",
    "aws": "from cloudspot.registry import provider_class; provider_class('aws')",
    "dev": "import mypy, pytest, torch",
    "examples": "import sklearn",
    "frameworks": "import accelerate, lightning, transformers",
    "full": "import datasets, hypothesis, torch",
    "gcp": "from cloudspot.registry import provider_class; provider_class('gcp')",
    "kubernetes": "from cloudspot.registry import provider_class; provider_class('kubernetes')",
    "plot": "import matplotlib",
    "testing": "import cloudspot.testing.storekit",
    "tests": "import hypothesis, pyte",
    "torch": "import torch, cloudspot.train; cloudspot.train.session",
    "prove": "import cloudspot_prove; cloudspot_prove.cloudspot_command('prove').name",
    "trackers": "from cloudspot.registry import open_tracker; open_tracker('wandb')",
    "ui": "import cloudspot_ui; cloudspot_ui.cloudspot_command('report').name",
}
"""For each extra, a script that shows that it brings what it should."""

NEED_TORCH = frozenset({"dev", "frameworks", "full", "tests", "torch"})
"""Extras that bring torch, themselves or by what they bring."""

_NO_TORCH = {
    "job.toml": 'name = "no-torch"\n\n[run]\ncommand = ["python", "train.py"]\n\n[limits]\nmax_cost = 1.00\n',
    "train.py": 'print("it trains")\n',
}


@dataclass
class Trial:
    """The environments of one Python."""

    python: str
    dist: Path
    constraints: Sequence[str]
    """Lines of a constraints file."""
    folder: Path
    times: list[tuple[str, float]] = field(default_factory=list)

    def make(self, environment: str, *requirements: str) -> Path:
        """Install what is asked for into a new environment, and return its folder."""
        place, limits = self.folder / environment, self.folder / "constraints.txt"
        limits.write_text("\n".join(self.constraints))
        uv = (sys.executable, "-m", "uv", "--quiet", "--no-config")
        self.run(*uv, "venv", "--seed", "--python", find_python(self.python), place)
        python = place / "bin" / "python"
        self.run(*uv, "pip", "install", "--python", python, "--constraints", limits, *requirements)
        self.run(*uv, "pip", "check", "--python", python)
        return place

    def run(self, *words: object, cwd: Path | None = None) -> str:
        """Run a command away from the clone, and return what it prints.

        Raises:
            ReleaseError: it fails.
        """
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        clean |= {"HOME": str(self.folder), "NO_COLOR": "1"}
        if "UV_CACHE_DIR" not in clean:
            clean["UV_CACHE_DIR"] = str(Path.home() / ".cache" / "uv")
        line = shlex.join(map(str, words))
        done = subprocess.run(
            list(map(str, words)),
            check=False,
            cwd=cwd or self.folder,
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3000,
        )
        if done.returncode:
            raise ReleaseError(f"Python {self.python}: {line} ended with {done.returncode}\n{done.stdout}")
        return done.stdout

    def step(self, what: str, started: float) -> None:
        """Note how long a step took, and say so."""
        self.times.append((what, time.monotonic() - started))
        print(f"Python {self.python}: {what}: {self.times[-1][1]:.0f} s", flush=True)


def main() -> int:
    """Try the wheels; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--dist", type=Path, default=ROOT / "dist", help="folder with the wheels and sdists (dist)"
    )
    parser.add_argument(
        "--python", action="append", choices=PYTHONS, help="a Python to try; may be repeated (all)"
    )
    parser.add_argument("--newest", action="store_true", help="without constraints.txt")
    parser.add_argument("--only", choices=("extras", "jobs"), help="a part of it")
    arguments = parser.parse_args()
    try:
        for python in arguments.python or PYTHONS:
            with tempfile.TemporaryDirectory(prefix="cloudspot-wheels-") as scratch:
                trial = Trial(
                    python,
                    arguments.dist.resolve(),
                    constraints(arguments.dist, newest=arguments.newest),
                    Path(scratch),
                )
                if arguments.only != "jobs":
                    try_command_line(trial)
                    try_extras(trial)
                if arguments.only != "extras":
                    try_all(trial)
    except ReleaseError as error:
        print(f"release/try_wheels.py: {error}", file=sys.stderr)
        return 1
    return 0


def constraints(dist: Path, *, newest: bool) -> list[str]:
    """Return the lines that hold our distributions to the files of the folder, and others to their pins."""
    wheels = {
        one: dist.resolve() / f"{one.replace('-', '_')}-{version()}-py3-none-any.whl" for one in names()
    }
    missing = [path.name for path in wheels.values() if not path.exists()]
    if missing:
        raise ReleaseError(f"{dist} lacks {', '.join(missing)}; run: python release/build.py")
    own = [f"{name} @ {path.as_uri()}" for name, path in wheels.items()]
    return own if newest else [*own, (ROOT / "constraints.txt").read_text()]


def names() -> tuple[str, ...]:
    """Return the names of our distributions."""
    return tuple(one.name for one in distributions())


def find_python(wanted: str) -> Path:
    """Return an interpreter of that version, on PATH or of pyenv.

    Raises:
        ReleaseError: there is none.
    """
    if sys.version.startswith(f"{wanted}."):
        return Path(sys.executable)
    on_path = shutil.which(f"python{wanted}")
    # A shim of pyenv is on PATH, too, where that version is not chosen; then it fails.
    if (
        on_path is not None
        and subprocess.run([on_path, "-c", ""], check=False, capture_output=True).returncode == 0
    ):
        return Path(on_path)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for found in sorted(root.glob(f"versions/{wanted}.*/bin/python")):
        return found
    raise ReleaseError(f"there is no Python {wanted}, on PATH or in ~/.pyenv/versions")


def try_command_line(trial: Trial) -> None:
    """Install the core alone: the command line works, and torch has not come with it."""
    started = time.monotonic()
    place = trial.make("bare", "cloudspot")
    program = place / "bin" / "cloudspot"
    shown = trial.run(program, "--version").strip()
    if shown != f"cloudspot {version()}":
        raise ReleaseError(f"cloudspot --version says {shown!r}")
    for arguments in (("--help",), ("providers",), ("schema",)):
        trial.run(program, *arguments)
    trial.run(
        place / "bin" / "python", "-c", "import importlib.util as u; assert u.find_spec('torch') is None"
    )
    shutil.rmtree(place)
    trial.step("the command line alone, without torch", started)


def try_extras(trial: Trial) -> None:
    """Install each extra of the core and of the plugins in an environment of its own."""
    extras = distributions()[0].project()["optional-dependencies"]
    if unknown := extras.keys() ^ SHOWS.keys():
        raise ReleaseError(f"release/try_wheels.py: SHOWS and the extras differ in {sorted(unknown)}")
    for extra in sorted(extras):
        if extra in NEED_TORCH and trial.python != WITH_TORCH:
            continue
        started = time.monotonic()
        place = trial.make(extra, f"cloudspot[{extra}]")
        trial.run(place / "bin" / "python", "-c", SHOWS[extra])
        shutil.rmtree(place)
        trial.step(f"cloudspot[{extra}]", started)
    for one in distributions()[1:]:
        for extra in one.project().get("optional-dependencies", {}):
            started = time.monotonic()
            place = trial.make(f"{one.name}-{extra}", f"{one.name}[{extra}]")
            cloud = one.name.removeprefix("cloudspot-")
            code = (
                f"import cloudspot_{cloud}_sandbox; from cloudspot.registry import sandbox_names; "
                f"assert {cloud!r} in sandbox_names()"
            )
            trial.run(place / "bin" / "python", "-c", code)
            shutil.rmtree(place)
            trial.step(f"{one.name}[{extra}]", started)


def try_all(trial: Trial) -> None:
    """Install everything into one environment, and run jobs there: on the local provider and in a sandbox."""
    started = time.monotonic()
    has_torch = trial.python == WITH_TORCH
    extras = [extra for extra in SHOWS if has_torch or extra not in NEED_TORCH]
    trial.make(".venv", f"cloudspot[{','.join(extras)}]", *names()[1:])
    for extra in extras:
        trial.run(trial.folder / ".venv" / "bin" / "python", "-c", SHOWS[extra])
    shown = trial.run(trial.folder / ".venv" / "bin" / "cloudspot", "providers")
    if broken := [line for line in shown.splitlines()[1:] if not line.rstrip().endswith("ok")]:
        raise ReleaseError(f"providers are broken:\n{broken}")
    trial.step("all together", started)
    for line in readme_commands(trial) if has_torch else plain_commands(trial):
        started = time.monotonic()
        trial.run("bash", "-euo", "pipefail", "-c", line)
        trial.step(line, started)


def readme_commands(trial: Trial) -> tuple[str, str]:
    """Unpack the examples, and return README's first job and its sandbox as they are written there."""
    (sdist,) = trial.dist.glob("cloudspot-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(trial.folder, filter="data")
    source = trial.folder / sdist.name.removesuffix(".tar.gz")
    shutil.move(source / "examples", trial.folder / "examples")
    blocks = re.findall(r"^```sh\n(.*?)^```", (source / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    first = blocks[0].split("&&")[-1].strip()
    (sandbox,) = (line for block in blocks for line in block.splitlines() if " sandbox aws -- " in line)
    return first, sandbox


def plain_commands(trial: Trial) -> tuple[str, str]:
    """Write a job that needs no torch, and return the same two commands for it."""
    for name, text in _NO_TORCH.items():
        (trial.folder / name).write_text(text)
    run = ".venv/bin/cloudspot run --provider"
    return f"{run} local job.toml", f".venv/bin/cloudspot sandbox aws -- {run} aws job.toml"


if __name__ == "__main__":
    sys.exit(main())
