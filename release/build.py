"""Builds and checks the wheels and sdists of the core and of all plugins, from what git tracks.

    python release/build.py                  # into dist/
    python release/build.py --tag v0.2.0     # for publication: refuses what is not ready for it

Each wheel is made of its sdist, so that the sdist lacks nothing. Nothing is published here. Needs what
`tox -e release` installs.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from distributions import (
    FIRST_PARTY,
    ROOT,
    Addresses,
    ReleaseError,
    addresses,
    distributions,
    misfits,
    stage,
    version,
)

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
DIST = ROOT / "dist"


def main() -> int:
    """Build all; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=DIST, help="folder for the files; emptied first (dist)")
    parser.add_argument("--tag", help="the tag of a publication, such as v0.2.0")
    arguments = parser.parse_args()
    try:
        ready(arguments.tag, addresses())
        build(arguments.out)
        check(arguments.out)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        print(f"release/build.py: {error}", file=sys.stderr)
        return 1
    print(f"{len(list(arguments.out.iterdir()))} files of version {version()} are in {arguments.out}")
    return 0


def ready(tag: str | None, where: Addresses) -> None:
    """Refuse versions that do not fit, and for a publication whatever is missing.

    Raises:
        ReleaseError: with a line for each fault.
    """
    faults = list(misfits())
    if tag is not None:
        changes = (ROOT / "CHANGELOG.md").read_text()
        dirty = subprocess.run(
            ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        if tag != f"v{version()}":
            faults.append(
                f"the tag is {tag}, and the version {version()}; run: python release/set_version.py"
            )
        if re.search(rf"^## \[{re.escape(version())}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE) is None:
            faults.append(f"CHANGELOG.md has no heading: ## [{version()}] - YYYY-MM-DD")
        if where.are_placeholders:
            faults.append("release/project.toml has placeholders for addresses")
        if dirty.stdout:
            faults.append(f"the working tree has changes that are not committed:\n{dirty.stdout.rstrip()}")
    if faults:
        raise ReleaseError("\n".join(faults))


def build(out: Path) -> None:
    """Make the files; ``out`` holds nothing else afterwards."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        for one in distributions():
            folder = stage(one, Path(scratch), addresses())
            _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out.resolve(), folder)


def check(out: Path) -> None:
    """Refuse files that an index would, and wheels that lack what each of ours has.

    Raises:
        ReleaseError: with a line for each fault.
    """
    wheels, sdists = sorted(out.glob("*.whl")), sorted(out.glob("*.tar.gz"))
    _run(sys.executable, "-m", "twine", "check", "--strict", *wheels, *sdists)
    _run(sys.executable, "-m", "check_wheel_contents", *wheels)
    faults = [f"{wheel.name}: {fault}" for wheel in wheels for fault in faults_of(wheel)]
    if len(wheels) != len(distributions()) or len(sdists) != len(distributions()):
        faults.append(
            f"{len(wheels)} wheels and {len(sdists)} sdists of {len(distributions())} distributions"
        )
    if faults:
        raise ReleaseError("\n".join(faults))


def faults_of(wheel: Path) -> list[str]:
    """Return what a wheel of ours should have and lacks."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata: Message = HeaderParser().parsestr(archive.read(path).decode())
        licences = [archive.read(name).decode() for name in names if name.endswith("/licenses/LICENSE")]
    faults = []
    if licences != [(ROOT / "LICENSE").read_text()]:
        faults.append("the licence file is missing, or is not that of the repository")
    wanted = {f"{name}, {url}" for name, url in addresses().urls(version()).items()}
    if set(metadata.get_all("Project-URL", [])) != wanted:
        faults.append("its project URLs are not those of release/project.toml")
    if not metadata.get("Author"):
        faults.append("it names no author")
    classifiers = set(metadata.get_all("Classifier", []))
    lacking = [one for one in PYTHONS if f"Programming Language :: Python :: {one}" not in classifiers]
    if lacking or "Typing :: Typed" not in classifiers:
        faults.append(f"it lacks classifiers: of Python {lacking}, or that it is typed")
    if relative := re.findall(r"\]\((?!https://|#)([^)]*)\)", str(metadata.get_payload())):
        faults.append(f"links of its README lead nowhere on an index: {relative}")
    requires = [str(line) for line in metadata.get_all("Requires-Dist", [])]
    for line in requires:
        name = re.split(r"[^\w.-]", line)[0]
        if name == "torch" and "extra ==" not in line:
            faults.append("torch comes without an extra")
        is_own = FIRST_PARTY.match(line) and not line.startswith("cloudspot[")
        if is_own and not re.match(rf"{name}=={re.escape(version())}(;|$)", line.replace(" ", "")):
            faults.append(f"{line} is not in step with version {version()}")
    return faults


def _run(*words: object) -> None:
    """Run a command, and show what it says if it fails."""
    done = subprocess.run(
        [str(word) for word in words], check=False, cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
