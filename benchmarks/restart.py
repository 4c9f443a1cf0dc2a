"""The time from the loss of a trainer to the next generation's first step, against torchrun's cold start.

python benchmarks/restart.py [--rounds 5] [--nodes 1] [--gpu] [--job FILE]

The smallest job of the end-to-end tests runs on "machines" of one process each, with and without the fork
server. The reference, in the same run, is a plain torchrun on the same number of nodes, from its start to the
first step. Another job, such as examples/hf-trainer/job.toml, has no reference, and is also run without its
``run.preload``.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudspot.host.process_marks import marked_processes
from cloudspot.train import handoff

JOB = Path(__file__).parent.parent / "tests" / "e2e" / "jobs" / "tiny"


def wait_for(condition: Callable[[], Any], *, seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            sys.exit("it did not come")
        time.sleep(0.01)
    return value


def cold_start(num_nodes: int, devices: str) -> float:
    """Return the seconds from the start of the torchrun processes to the first step of all ranks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "CUDA_VISIBLE_DEVICES": devices,
    }
    environment.pop(handoff.HANDOFF, None)
    started = time.monotonic()
    nodes = [
        subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    f"--nnodes={num_nodes}",
                    f"--node-rank={rank}",
                ),
                *("--nproc-per-node=1", "--max-restarts=0", "--monitor-interval=0.05"),
                *("--rdzv-backend=static", f"--rdzv-endpoint=127.0.0.1:{port}", "train.py"),
            ],
            cwd=JOB,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(num_nodes)
    ]
    try:
        assert nodes[0].stdout is not None
        for line in nodes[0].stdout:
            if line.startswith("step 0"):
                return time.monotonic() - started
        sys.exit("the plain torchrun made no step")
    finally:
        for node in nodes:
            node.kill()
            node.wait()
            if node.stdout is not None:
                node.stdout.close()


def restart(home: Path, job: Path, num_nodes: int, devices: str, *, override: str) -> float:
    """Return the seconds from the SIGKILL of the last rank to the first step of the next generation."""
    rank = num_nodes - 1
    environment = {**os.environ, "CLOUDSPOT_LOCAL_HOME": str(home)}
    words = [
        *(sys.executable, "-m", "cloudspot", "run", str(job), "--name", "restart"),
        *("--set", 'checkpoint.interval="1s"', "--set", "providers.local.reclaims=[]"),
        *("--set", f"nodes={num_nodes}", "--set", 'run.env.TINY_EPOCHS="400"'),
        *("--set", f'run.env.CUDA_VISIBLE_DEVICES="{devices}"'),
        *("--set", override),
    ]
    cli = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        machines = home / "machines"
        wait_for(lambda: list(home.glob("store/jobs/restart/manifests/*")))
        (worker,) = wait_for(lambda: list(machines.glob(f"*/node/generations/000001/worker-{rank}.pid")))
        pid = int(worker.read_text())
        assert pid in marked_processes("RANK", str(rank))
        os.kill(pid, signal.SIGKILL)
        lost = time.monotonic()

        def has_stepped() -> bool:
            found = list(machines.glob("*/node/generations/000002/progress-0"))
            if not found:
                return False
            progress = handoff.read_progress(found[0].parent, 0)
            first = resumed.setdefault("step", progress[0]) if progress else 0
            return progress is not None and progress[0] > first

        resumed: dict[str, int] = {}
        wait_for(has_stepped)
        return time.monotonic() - lost
    finally:
        subprocess.run(
            [sys.executable, "-m", "cloudspot", "stop", "restart", "--wait"],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        cli.wait(120)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--job", type=Path, help="a job file instead of the tests' smallest one")
    parser.add_argument("--gpu", action="store_true", help="train on the first GPU")
    options = parser.parse_args()
    devices = "0" if options.gpu else ""
    job = options.job or JOB / "job.toml"
    colds: list[float] = []
    variants = {"with the fork server": "run.fork_server=true", "without it": "run.fork_server=false"}
    if options.job is not None:
        variants["without run.preload"] = "run.preload=[]"
    restarts: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(options.rounds):
        if options.job is None:
            colds.append(cold_start(options.nodes, devices))
        for variant, found in restarts.items():
            with tempfile.TemporaryDirectory() as name:
                home = Path(name) / "home"
                found.append(restart(home, job, options.nodes, devices, override=variants[variant]))
        seconds = ", ".join(f"{variant} {found[-1]:.2f} s" for variant, found in restarts.items())
        cold = f"cold start {colds[-1]:.2f} s, " if colds else ""
        print(f"round {number + 1}: {cold}restart {seconds}", flush=True)
    for variant, found in restarts.items():
        spread = f"{min(found):.2f} to {max(found):.2f}"
        line = f"restart {variant}: median {statistics.median(found):.2f} s ({spread})"
        if colds:
            ratio = statistics.median(r / c for r, c in zip(found, colds, strict=True))
            line += f", {ratio:.2f} x a cold start"
        print(line)


if __name__ == "__main__":
    main()
