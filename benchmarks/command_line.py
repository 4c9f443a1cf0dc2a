"""``cloudspot --help`` against the bare import of its dependencies, each timed as a whole process.

python benchmarks/command_line.py [--rounds 21]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time


def seconds(*words: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(seconds("-m", "cloudspot", "--help"))
        theirs.append(seconds("-c", "import click, pluggy"))
    ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    print(f"cloudspot --help         {1e3 * statistics.median(ours):6.0f} ms")
    print(f"import click, pluggy     {1e3 * statistics.median(theirs):6.0f} ms")
    print(f"median ratio             {ratio:6.2f}")


if __name__ == "__main__":
    main()
