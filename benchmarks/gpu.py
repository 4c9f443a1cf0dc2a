"""All that only a GPU can show, in order of value, in fifteen minutes; writes one table as it goes.

python benchmarks/gpu.py [--minutes 15] [--table gpu.md] [--only NAME ...] [--dry]

One NVIDIA GPU is enough. Each check is a process of its own with a limit, so that one that hangs or crashes
costs its own time alone, and the table (Markdown) is written anew after each: it names what there was no time
for, too. ``--dry`` makes every check small and on the CPU, to see that the script runs to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
TRAININGS = ROOT / "tests" / "train" / "jobs" / "overlapped.py"
DRY_KINDS = "batch_norm,clipped_by_data"


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    what: str
    figure: str
    reference: str = ""


Read = Callable[[str], Iterator[Line]]


@dataclass(frozen=True)
class Check:
    """A command, and how to read what it prints."""

    name: str
    shows: str
    seconds: float
    """What it needs, at most; it is ended then."""
    command: Sequence[str]
    dry: Sequence[str]
    """The same, small and on the CPU."""
    read: Read


def read_outcomes(output: str) -> Iterator[Line]:
    """Read the lines of ``tests/train/jobs/overlapped.py --all``."""
    for text in output.splitlines():
        if not text.startswith("{"):
            continue
        found = json.loads(text)
        sealed = ", ".join(f"{count} {way}" for way, count in found["sealed"].items())
        spoilt = f", {found['spoilt']} made again" if found["spoilt"] else ""
        is_right = found["is_equal"] and not found["wrong"]
        figure = "exact" if is_right else f"WRONG: {(found['wrong'] or ['other weights in the end'])[0]}"
        yield Line(found["kind"], figure, f"{found['runs']} runs; saves: {sealed}{spoilt}")


def read_ratios(output: str) -> Iterator[Line]:
    """Read the lines of a benchmark that have a ratio to something."""
    case = ""
    for text in output.splitlines():
        if text.startswith("steps of"):
            case = f"{text}: "
        if match := re.fullmatch(r"\s*(.+?)\s{2,}(\d+ ms)\s+([\d.-]+) x (.+)", text):
            yield Line(f"{case}{match[1]}", f"{match[3]} x {match[4]}", match[2])
        elif match := re.fullmatch(r"(restart .+): median ([\d.]+ s) .*?, ([\d.]+) x (.+)", text):
            yield Line(match[1], f"{match[3]} x {match[4]}", match[2])
        elif match := re.fullmatch(r"\s*show says: (.+)", text):
            yield Line(f"{case}show", match[1])


def read_tests(output: str) -> Iterator[Line]:
    """Read pytest's last line, and what failed."""
    for text in output.splitlines():
        if text.startswith(("FAILED", "ERROR")):
            yield Line(text.partition(" - ")[0], "FAILED")
    yield Line("in all", output.strip().splitlines()[-1].strip("= "))


def python(*words: object) -> list[str]:
    return [sys.executable, *map(str, words)]


PATH = HERE / "checkpoint_path.py"
DRY_PATH = python(PATH, "--alone", "--bytes", "1e7", "--seconds", "16", "--step-ms", "10")
CHECKS = (
    Check(
        "exactness",
        "each save is the state at its boundary, and the weights end as without saves",
        150,
        python(TRAININGS, "--all", "--device", "cuda", "--runs", "6"),
        python(TRAININGS, "--all", "--device", "cpu", "--runs", "1", "--kinds", DRY_KINDS),
        read_outcomes,
    ),
    Check(
        "stall",
        "stall and training time lost by a save of 2 GB, next to steps shorter and longer than the copy",
        150,
        python(PATH, "--gpu", "--alone", "--bytes", "2e9", "--seconds", "27", "--step-ms", "10", "100"),
        DRY_PATH,
        read_ratios,
    ),
    Check(
        "memory",
        "page-locked memory, captured graphs' saves, and the other tests of one process on a GPU",
        150,
        python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/train/test_cuda.py"),
        python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/train/state/test_overlapped_copy.py"),
        read_tests,
    ),
    Check(
        "nccl",
        "a rank of NCCL: DistributedDataParallel on one GPU, saved while it trains",
        60,
        python(TRAININGS, "--all", "--device", "cuda", "--runs", "3", "--kinds", "nccl"),
        python(TRAININGS, "--all", "--device", "cpu", "--runs", "1", "--kinds", "nccl"),
        read_outcomes,
    ),
    Check(
        "restart",
        "from the loss of a trainer to the next step, on the GPU",
        90,
        python(HERE / "restart.py", "--nodes", "1", "--rounds", "3", "--gpu"),
        python(HERE / "restart.py", "--nodes", "1", "--rounds", "1"),
        read_ratios,
    ),
    Check(
        "jobs",
        "whole jobs on the GPU: notices, kills, two nodes that share it",
        240,
        python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/e2e/test_gpu.py"),
        python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/train/sessions/test_save_way.py"),
        read_tests,
    ),
    Check(
        "others",
        "the same save by torch.save, torch.distributed.checkpoint and torchsnapshot",
        240,
        python(PATH, "--gpu", "--bytes", "2e9", "--seconds", "15", "--step-ms", "10"),
        DRY_PATH,
        read_ratios,
    ),
)


def run(check: Check, *, is_dry: bool, seconds: float) -> list[Line]:
    """Run a check, and return its lines of the table; one that fails says so in the last."""
    command = check.dry if is_dry else check.command
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        file.seek(0)
        output = file.read()
    lines = list(check.read(output)) if output.strip() else []
    if status != 0:
        sys.stderr.write(output[-4000:])
        how = f"after {seconds:.0f} s it was ended" if status is None else f"it ended with status {status}"
        lines.append(Line("", f"FAILED: {how}", (output.strip().splitlines() or [""])[-1][:200]))
    elif not lines:
        lines.append(Line("", "FAILED: it printed nothing that can be read"))
    return lines


def device_text() -> str:
    """Return what this machine trains on."""
    name = "torch.cuda.get_device_name() if torch.cuda.is_available() else 'CPU'"
    code = f"import torch; print(torch.__version__, {name})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "torch cannot be imported"


def table(device: str, done: Sequence[tuple[Check, float, Sequence[Line]]], left: Sequence[Check]) -> str:
    """Return the table, with what is yet to be run."""
    rows = [f"torch {device}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d %H:%M')}", ""]
    rows += ["| check | what | figure | beside |", "|---|---|---|---|"]
    for check, seconds, lines in done:
        rows.append(f"| **{check.name}** | {check.shows} | {seconds:.0f} s | |")
        rows += [f"| | {line.what} | {line.figure} | {line.reference} |".replace("\n", " ") for line in lines]
    rows += [f"| **{check.name}** | {check.shows} | NOT RUN | |" for check in left]
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--table", type=Path, default=Path("gpu.md"))
    parser.add_argument("--only", nargs="+", choices=[check.name for check in CHECKS])
    parser.add_argument("--dry", action="store_true", help="small, and on the CPU")
    options = parser.parse_args()
    device = device_text()
    if not options.dry and (shutil.which("nvidia-smi") is None or device.endswith("CPU")):
        sys.exit(f"there is no GPU for torch ({device}): try --dry")
    until = time.monotonic() + 60 * options.minutes
    left = [check for check in CHECKS if options.only is None or check.name in options.only]
    done: list[tuple[Check, float, Sequence[Line]]] = []
    late: list[Check] = []
    while left:
        check = left.pop(0)
        seconds = min(check.seconds if not options.dry else 600.0, until - time.monotonic())
        if seconds < check.seconds / 3 and not options.dry:
            late.append(check)
        else:
            began = time.monotonic()
            lines = run(check, is_dry=options.dry, seconds=seconds)
            done.append((check, time.monotonic() - began, lines))
        text = table(device, done, [*late, *left])
        options.table.write_text(text)
        if done and done[-1][0] is check:
            print(
                "\n".join(f"{check.name}: {line.what}  {line.figure}  {line.reference}" for line in lines),
                flush=True,
            )
    print(f"the table is in {options.table}")
    if any("FAILED" in line.figure or "WRONG" in line.figure for _, _, lines in done for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    main()
