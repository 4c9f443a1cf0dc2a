"""Writes its own shard on each node, and cannot resume without it; the nodes make each step together."""

import os
import socket
import sys
import time
from pathlib import Path

NUM_STEPS = 120
rank = int(os.environ["NODE_RANK"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def meet() -> socket.socket:
    if rank == 0:
        with socket.create_server(address) as server:
            return server.accept()[0]
    for _ in range(600):
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit("the first node is not there")


root = Path("out")
root.mkdir(exist_ok=True)
found = sorted(root.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
step = 0
if found:
    mine = found[-1] / f"shard-{rank}"
    print(
        f"node {rank}: {found[-1].name} has {sorted(path.name for path in found[-1].iterdir())}", flush=True
    )
    if not mine.exists():
        print(f"node {rank}: {mine} is missing: cannot resume", flush=True)
        sys.exit(7)
    step = int(mine.read_text())
    shared = (found[-1] / "engine").read_text()
    assert shared == f"node {rank} at {step}", shared
peer = meet()
while step < NUM_STEPS:
    time.sleep(0.3)
    peer.sendall(f"{step:04d}".encode())
    theirs = int(peer.recv(4, socket.MSG_WAITALL))
    assert theirs == step, f"node {rank} is at step {step}, the other at {theirs}"
    step += 1
    if step % 6 == 0:
        directory = root / f"checkpoint-{step}"
        directory.mkdir(exist_ok=True)
        (directory / f"shard-{rank}").write_text(str(step))
        (directory / "engine").write_text(f"node {rank} at {step}")
        (directory / "done").write_text("")
print(f"node {rank}: finished", flush=True)
