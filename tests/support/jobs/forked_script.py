"""Starts scripts in forks of a process that has imported their frameworks, which takes seconds.

The server: ``python forked_script.py SOCKET MODULE...``. It prints a line once it takes scripts. What a test gives to
an agent as the command is ``CLIENT``: the script's process is not below it, but the agent knows its own by
their environment, and finds it.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from contextlib import suppress
from pathlib import Path

CLIENT = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    order = {"words": sys.argv[2:], "directory": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(server, [json.dumps(order).encode()], [1, 2])
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.makefile().read() or 1))
"""
_ROOM = 1 << 14
_ENV_START, _ENV_END = 49, 50
"""The places of two addresses in /proc/self/stat."""


def receive(client):
    """Return a client's order and its standard output and error."""
    message, fds, _, _ = socket.recv_fds(client, 1 << 16, 2)
    while more := client.recv(1 << 16):
        message += more
    return json.loads(message), fds


def take_environment(environment):
    """Take on an environment, as what the kernel shows of this process, too."""
    os.environ.clear()
    os.environ.update(environment)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[place - 2]) for place in (_ENV_START, _ENV_END))
    marks = "".join(
        f"{name}={value}\0" for name, value in environment.items() if name.startswith("CLOUDSPOT_")
    )
    assert len(marks.encode()) < end - start
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, marks.encode(), len(marks.encode()))


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
            script = os.fork()
            if script:
                status = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
                with suppress(BrokenPipeError):  # the agent has ended both
                    client.sendall(str(status if status >= 0 else 128 - status).encode())
                os._exit(0)
            take_environment(order["environment"])
            for number, fd in enumerate(fds, 1):
                os.dup2(fd, number)
            os.chdir(order["directory"])
            return order["words"]


if __name__ == "__main__":
    if "ROOM" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "ROOM": "x" * _ROOM})
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()
    sys.argv = serve(sys.argv[1])
    runpy.run_path(sys.argv[0], run_name="__main__")
