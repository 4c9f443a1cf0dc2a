"""The cost of a job under each market policy in recorded spot markets.

python benchmarks/deadline_policies.py FOLDER [--starts 100] [--seed 0] [--length 48] [--learn builtin|others]

FOLDER has traces in the layout of skypilot-org/spot-traces, one folder for each set, at any depth:
``.../SET/ZONE_TYPE_COUNT.json``. Sets below a folder ``availability`` are played. The policies' hazards are
built in (from a set below ``preemption``) or, with ``--learn others``, are learned from all sets but the
played one. The starts in one zone are the same for all policies.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloudspot.market.hazards import DEFAULT, Hazards, estimate, tally_of, total
from cloudspot.market.replay import SimulatedJob
from cloudspot.market.simulation import simulate
from cloudspot.market.situation import Bools
from cloudspot.market.traces import read_market, windows

NAMES = ("greedy", "uniform-progress", "deadline", "optimum")
DEADLINES = (52.0, 60.0, 72.0, 92.0)
OVERHEADS = (0.02, 0.1, 0.2, 0.5)
SPOT_PRICE = 0.9731 / 3.06
"""The ratio of the spot to the on-demand price of p3.2xlarge in us-west-2 in 2023."""
FREE = ((52.0, 0.2), (52.0, 0.05), (72.0, 0.1), (92.0, 0.5))
"""The deadlines and overheads of jobs that can move between zones."""
MARGIN_HOURS = 4.0
"""The windows of all overheads are equally long; a late run needs less than this margin."""
ONE_ZONE_AT_A_TIME = ""


@dataclass(frozen=True)
class Task:
    """One cell of a table."""

    files: tuple[Path, ...]
    group: str
    """The name of the group of zones between which the job can move; empty for one zone at a time."""
    hazards: Hazards
    job: SimulatedJob
    num_starts: int
    seed: int


def play(task: Task) -> Mapping[str, tuple[float, int]]:
    """Return the mean cost and the number of late runs by policy."""
    if task.group == ONE_ZONE_AT_A_TIME:
        markets = [read_market([path]) for path in task.files]
    else:
        markets = [read_market(task.files)]
    tick_hours = markets[0].tick_hours
    num_ticks = int(np.ceil((task.job.deadline + MARGIN_HOURS) / tick_hours))
    parts = [windows(one, num_ticks=num_ticks, num_runs=task.num_starts, seed=task.seed) for one in markets]
    is_up: Bools = np.concatenate(parts, axis=2)
    found = simulate(is_up, tick_hours, task.job, names=NAMES, hazards=task.hazards, max_wait_hours=0.0)
    return {name: (one.mean_cost, one.late) for name, one in found.items()}


def groups_of(files: Sequence[Path]) -> dict[str, tuple[Path, ...]]:
    """Return the groups of zones for each machine type: every region with several zones, and all zones."""
    found: dict[str, list[Path]] = {}
    for path in files:
        zone, _, kind = path.stem.partition("_")
        found.setdefault(f"{kind} {zone[:-1]}", []).append(path)
        found.setdefault(f"{kind} everywhere", []).append(path)
    several = {name: tuple(paths) for name, paths in found.items() if len(paths) > 1}
    # A type in only one region must not be listed twice.
    return {
        name: paths
        for name, paths in several.items()
        if not name.endswith("everywhere") or paths not in [several[one] for one in several if one != name]
    }


def hazards_for(played: Path, sets: Mapping[Path, Sequence[Path]], learn: str) -> Hazards:
    """Return the hazards that the policies know when this set is played."""
    if learn == "builtin":
        return DEFAULT
    others = [path for name, files in sets.items() if name != played for path in files]
    markets = map(read_market, ([path] for path in others))
    return estimate(total(tally_of(one.is_up[:, 0], one.tick_hours) for one in markets))


def row(cells: Sequence[Mapping[str, tuple[float, int]]], names: Sequence[str]) -> str:
    return " | ".join("/".join(f"{cell[name][0]:.3f}" for name in names) for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=float, default=48.0)
    parser.add_argument("--learn", choices=("builtin", "others"), default="builtin")
    options = parser.parse_args()
    began = time.perf_counter()
    sets: dict[Path, list[Path]] = {}
    for path in sorted(options.folder.rglob("*.json")):
        sets.setdefault(path.parent, []).append(path)
    played = {name: files for name, files in sets.items() if "availability" in name.parts}
    if not played:
        parser.error(f"there is no trace below a folder named availability in {options.folder}")
    keys, tasks = [], []
    for name, files in played.items():
        hazards = hazards_for(name, sets, options.learn)
        groups = {ONE_ZONE_AT_A_TIME: tuple(files), **groups_of(files)}
        cases = [(ONE_ZONE_AT_A_TIME, deadline, overhead) for overhead in OVERHEADS for deadline in DEADLINES]
        cases += [(group, *case) for group in groups if group != ONE_ZONE_AT_A_TIME for case in FREE]
        for group, deadline, overhead in cases:
            job = SimulatedJob(
                length=options.length, deadline=deadline, overhead=overhead, spot_price=SPOT_PRICE
            )
            keys.append((name, group, overhead, deadline))
            tasks.append(Task(groups[group], group, hazards, job, options.starts, options.seed))
    with ProcessPoolExecutor(max_workers=2) as pool:
        cells = dict(zip(keys, pool.map(play, tasks), strict=True))
    print(
        f"a job of {options.length:g} h; {options.starts} starts in each zone, seed {options.seed}; spot at "
        f"{SPOT_PRICE:.3f} of on-demand; hazards: {options.learn}; cost as a share of on-demand"
    )
    heads = " | ".join(f"{deadline:g} h" for deadline in DEADLINES)
    for name, files in played.items():
        print(f"\n{name.name}, one zone at a time ({len(files)}): {' / '.join(NAMES)}\n")
        print(f"| overhead | {heads} |\n|---|{'---|' * len(DEADLINES)}")
        for overhead in OVERHEADS:
            line = [cells[name, ONE_ZONE_AT_A_TIME, overhead, deadline] for deadline in DEADLINES]
            print(f"| {overhead:g} h | {row(line, NAMES)} |")
    print("\nfree to move between zones: uniform-progress / deadline / optimum (deadline to optimum)\n")
    free = " | ".join(f"{deadline:g} h, {overhead:g} h" for deadline, overhead in FREE)
    print(f"| zones | {free} |\n|---|{'---|' * len(FREE)}")
    for name, files in played.items():
        for group, zones in groups_of(files).items():
            line = [cells[name, group, overhead, deadline] for deadline, overhead in FREE]
            texts = [
                f"{row([cell], NAMES[1:])} ({cell['deadline'][0] / cell['optimum'][0]:.3f})" for cell in line
            ]
            print(f"| {name.name} {group} ({len(zones)}) | {' | '.join(texts)} |")
    late = sum(number for cell in cells.values() for _, number in cell.values())
    took, cpu = time.perf_counter() - began, os.times()
    print(f"\nlate runs: {late}; {took:.0f} s, {cpu.user + cpu.children_user:.0f} s of processor")


if __name__ == "__main__":
    main()
