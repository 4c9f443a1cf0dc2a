"""Overwrites its title and its environment, and leaves an engine behind when it fails on its first start."""

import os
import signal
import sys
import time
from pathlib import Path

NUM_STEPS = 150


def set_title() -> None:
    """Write over what the kernel shows of the arguments and the environment; see proc(5), ``stat``."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        for first, last in ((45, 46), (47, 48)):
            memory.seek(int(fields[first]))
            memory.write(b"training".ljust(int(fields[last]) - int(fields[first]), b"\0"))


def start_engine() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path("engine.pid").write_text(str(os.getpid()))
            time.sleep(3600)
        os._exit(0)
    os.wait()


def lives(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except FileNotFoundError:
        return False


told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
set_title()
if not Path("engine.pid").exists():
    start_engine()
    sys.exit(3)
print("the engine", "lives" if lives(Path("engine.pid").read_text()) else "is gone", flush=True)
done = sorted(int(path.name.split("-")[1]) for path in Path("out").glob("checkpoint-*"))
step = done[-1] if done else 0
print("starts at", step, flush=True)
while step < NUM_STEPS and not told:
    time.sleep(0.2)
    step += 1
print("told at" if told else "finished at", step, flush=True)
directory = Path("out", f"checkpoint-{step}")
directory.mkdir(parents=True)
(directory / "weights").write_text(str(step))
(directory / "done").write_text("")
