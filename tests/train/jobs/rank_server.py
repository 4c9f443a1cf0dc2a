"""Runs scripts in several ranks, forked from a process that has imported torch: as torchrun does, but at once.

Reads lines of JSON, ``{"script", "args", "num_ranks", "environment", "output"}``, and answers each with the list of
the ranks' exit statuses. As under torchrun, a rank that fails has the others end by SIGTERM. With a list of environments
each rank is on a node of its own, and goes on when another fails.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import sys
from pathlib import Path


def free_port():
    """Return a port below those that the kernel chooses for other programs (``ip_local_port_range``)."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


def await_all(ranks, *, are_nodes):
    """Return the exit statuses of the processes, in their order."""
    statuses = {}
    while len(statuses) < len(ranks):
        process, status = os.wait()
        statuses[process] = os.waitstatus_to_exitcode(status)
        if statuses[process] != 0 and not are_nodes:
            for other in set(ranks) - set(statuses):
                os.kill(other, signal.SIGTERM)
    return [statuses[process] for process in ranks]


def become_rank(rank, order, port):
    """Give this process what torchrun gives a rank."""
    size, environment = str(order["num_ranks"]), order["environment"]
    is_node = isinstance(environment, list)
    os.environ.update(
        environment[rank] if is_node else environment,
        RANK=str(rank),
        LOCAL_RANK="0" if is_node else str(rank),
        WORLD_SIZE=size,
        LOCAL_WORLD_SIZE="1" if is_node else size,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [order["script"], *order["args"]]
    sys.path[0] = str(Path(order["script"]).parent)


def serve():
    """Serve until the end of the input; in a process that becomes a rank, return its script."""
    for line in sys.stdin:
        order = json.loads(line)
        port, ranks = str(free_port()), []
        for rank in range(order["num_ranks"]):
            process = os.fork()
            if process == 0:
                become_rank(rank, order, port)
                return order["script"]
            ranks.append(process)
        print(json.dumps(await_all(ranks, are_nodes=isinstance(order["environment"], list))), flush=True)
    return None


if __name__ == "__main__":
    # torch._dynamo: an optimizer imports it with its first step, which takes as long as torch itself.
    for module in ("numpy", "torch._dynamo", "torch.utils.data", "cloudspot.train.sessions.opening"):
        importlib.import_module(module)
    gc.freeze()
    script = serve()
    if script is not None:
        runpy.run_path(script, run_name="__main__")
