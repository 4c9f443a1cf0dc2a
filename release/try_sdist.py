"""Runs the quick tests from the sdist of the core, in an environment without plugins.

    python release/try_sdist.py

tests/core-only.txt, which is in the sdist, names the tests that need more than the core: the plugins, or
files of the repository that no sdist has. Whoever packs the core runs the same: pytest @tests/core-
only.txt
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from distributions import ROOT, ReleaseError
from try_wheels import WITH_TORCH, Trial, constraints


def main() -> int:
    """Run the tests; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--dist", type=Path, default=ROOT / "dist", help="folder with the wheels and sdists (dist)"
    )
    parser.add_argument("tests", nargs="*", help="arguments for pytest, such as tests/jobstore")
    arguments = parser.parse_args()
    dist = arguments.dist.resolve()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cloudspot-sdist-") as scratch:
        trial = Trial(WITH_TORCH, dist, constraints(dist, newest=False), Path(scratch))
        (sdist,) = dist.glob("cloudspot-*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        source = Path(scratch) / sdist.name.removesuffix(".tar.gz")
        try:
            place = trial.make("environment", "cloudspot[examples,tests,torch]")
            pytest = (place / "bin" / "pytest", "-q", "-n", "2")
            shown = trial.run(*pytest, "@tests/core-only.txt", *arguments.tests, cwd=source)
        except ReleaseError as error:
            print(f"release/try_sdist.py: {error}", file=sys.stderr)
            return 1
    print(
        f"{shown.rstrip().splitlines()[-1]}\nthe tests of the sdist took {time.monotonic() - started:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
