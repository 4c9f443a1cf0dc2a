"""Starts scripts in forks of a process that has imported their frameworks, which takes seconds.

The server: ``python forked_script.py SOCKET MODULE...``. It prints a line once it takes scripts. What a test gives to
an agent as the command is ``CLIENT``: the script's process is not below it, but its parent here leaves a record by which
the agent finds it, as a fork server does.
"""

import gc
import importlib
import json
import os
import runpy
import socket
import sys
from contextlib import suppress

from cloudspot.host import process_keeper
from cloudspot.train import handoff

CLIENT = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    order = {"words": sys.argv[2:], "directory": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(server, [json.dumps(order).encode()], [1, 2])
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.makefile().read() or 1))
"""


def receive(client):
    """Return a client's order and its standard output and error."""
    message, fds, _, _ = socket.recv_fds(client, 1 << 16, 2)
    while more := client.recv(1 << 16):
        message += more
    return json.loads(message), fds


def serve(path):
    """Serve for as long as standard input is open; in a process that becomes a script, return its words."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            if os.fork():
                client.close()
                continue
            order, fds = receive(client)
            environment = order["environment"]
            process_keeper.adopt_orphans()
            if handoff.HANDOFF in environment:
                records = f"{environment[handoff.HANDOFF]}/{handoff.PROCESSES}"
                process_keeper.record(records, process_keeper.WATCHER)
            script = os.fork()
            if script:
                status = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
                with suppress(BrokenPipeError):  # the agent has ended both
                    client.sendall(str(status if status >= 0 else 128 - status).encode())
                os._exit(0)
            os.environ.clear()
            os.environ.update(environment)
            for number, fd in enumerate(fds, 1):
                os.dup2(fd, number)
            os.chdir(order["directory"])
            return order["words"]


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()
    sys.argv = serve(sys.argv[1])
    runpy.run_path(sys.argv[0], run_name="__main__")
