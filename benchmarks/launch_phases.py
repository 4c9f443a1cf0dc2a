"""The phases of a launch up to the first step, on each provider, without and with an image.

python benchmarks/launch_phases.py [--rounds 3] [PROVIDER ...]

Run the digits example on one node, with a setup that makes a virtual environment and an input of 200 files.
The clouds are emulated, with machines whose image has Python and torch but not cloudspot. Concurrent work of
a machine, such as staging inputs during the setup, counts in the phase that waits for it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits"
PROVIDERS = ("local", "aws", "gcp", "aliyun")
IMAGES = {
    "aws": ("ami-0c10d5b07ca5e0002", "/opt/pytorch/bin/python"),
    "gcp": ("projects/ubuntu-os-cloud/global/images/ubuntu-2204-jammy-v20261101", "/opt/conda/bin/python"),
    "aliyun": ("m-bp1cloudspotbare0001", "/opt/pytorch/bin/python"),
}
"""The image without cloudspot of each emulated cloud, and the path of its Python with torch."""
STATES = ("launching", "setup", "staging", "restoring", "starting")
SETUP = "python -m venv made && python -c 'import torch, sklearn'"
NUM_FILES, FILE_BYTES = 200, 250_000


def cloudspot(*words: str, **options: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cloudspot", *words],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    if done.returncode != 0:
        sys.exit(f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def seconds_to_first_step(name: str) -> dict[str, float]:
    """Return the seconds in each state before the first training."""
    found = dict.fromkeys(STATES, 0.0)
    for span in json.loads(cloudspot("show", name, "--json"))["timeline"]:
        if span["state"] == "training":
            return found
        start, end = (datetime.fromisoformat(span[which]) for which in ("start", "end"))
        state = "launching" if span["state"] == "queued" else span["state"]
        found[state] = found.get(state, 0.0) + (end - start).total_seconds()
    sys.exit("it made no step")


def measure(provider: str, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Run the job on the provider, which is reachable from here, first without and then with an image."""
    data = Path(tempfile.mkdtemp()) / "data"
    data.mkdir()
    for number in range(NUM_FILES):
        (data / f"{number:05d}").write_bytes(os.urandom(FILE_BYTES))
    sets = [
        f"run.setup='''{SETUP}'''",
        "run.setup_files=[]",
        "nodes=1",
        "providers.local.reclaims=[]",
        f'data.inputs.url="{stage(provider, data)}"',
    ]
    if provider in IMAGES:
        image, python = IMAGES[provider]
        sets += [f'providers.{provider}.image="{image}"', f'providers.{provider}.train_python="{python}"']
    words = [str(EXAMPLE / "job.toml"), "--provider", provider, *(w for one in sets for w in ("--set", one))]
    found: dict[str, list[dict[str, float]]] = {}
    for kind in ("without", *(("with",) if provider in IMAGES else ())):
        if kind == "with":
            cloudspot("image", "bake", *words)
        for number in range(rounds):
            name = f"{kind}-{number}"
            cloudspot("run", *words, "--name", name)
            found.setdefault(kind, []).append(seconds_to_first_step(name))
    shutil.rmtree(data.parent)
    return found


def stage(provider: str, data: Path) -> str:
    """Put the files where the job's machines can read them, and return the URL."""
    if provider == "local":
        return f"file://{data}/"
    from cloudspot.registry import open_store

    url = f"{os.environ['CLOUDSPOT_STORE']}/inputs/"
    store = open_store(url)
    for path in data.iterdir():
        store.put(path.name, path.read_bytes())
    return url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("providers", nargs="*", default=PROVIDERS, metavar="PROVIDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.providers[0], options.rounds)))
        return
    columns: dict[str, list[dict[str, float]]] = {}
    for provider in options.providers:
        inside = [sys.executable, __file__, "--inside", "--rounds", str(options.rounds), provider]
        with tempfile.TemporaryDirectory() as home:
            environment = {**os.environ, "CLOUDSPOT_HOME": home}
            if provider == "local":
                environment["CLOUDSPOT_STORE"] = f"file://{home}/store"
                printed = subprocess.run(
                    inside, env=environment, stdout=subprocess.PIPE, text=True, check=True
                ).stdout
            else:
                printed = cloudspot("sandbox", provider, "--reclaim", "none", "--", *inside, env=environment)
        found = json.loads(printed.splitlines()[-1])
        columns |= {
            f"{provider}{' with an image' if kind == 'with' else ''}": one for kind, one in found.items()
        }
    print("| phase |", " | ".join(columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for state in (*STATES, "all"):
        cells = []
        for runs in columns.values():
            each = [sum(one.values()) if state == "all" else one[state] for one in runs]
            cells.append(f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")
        print(f"| {state} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
