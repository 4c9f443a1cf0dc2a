"""Starts the supervisor of a machine, as a process that outlives whoever starts it."""

from __future__ import annotations

import os
import subprocess
import sys

from cloudspot.local.interpreter import node_python_path
from cloudspot.local.machines import MachineDirectory


def start_supervisor(machine: MachineDirectory, *, python_path: str | None = None) -> subprocess.Popen[bytes]:
    """Start it, and return the process that ends when the supervisor is ready (0) or cannot be (1).

    ``python_path`` is its PYTHONPATH, where it needs more than this cloudspot.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    path = python_path or node_python_path()
    if path is not None:
        environment["PYTHONPATH"] = path
    with (machine.path / "supervisor.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "cloudspot.local.supervisor", str(machine.path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
