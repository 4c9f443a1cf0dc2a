"""Start the supervisor of a machine, and locate this cloudspot for the machine's clean environment."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import cloudspot
from cloudspot.local.machines import MachineDirectory


def start_supervisor(
    machine: MachineDirectory, *, python_path: str | None = None, held: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start the supervisor; return a process that exits with 0 once it is ready, or 1 if it failed.

    The supervisor outlives this process. ``python_path`` is the supervisor's PYTHONPATH, if it needs more
    than this cloudspot; ``held`` are open files that it keeps open for its lifetime.
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
            pass_fds=held,
        )


def node_python_path() -> str | None:
    """Return the PYTHONPATH with which this interpreter finds this cloudspot in a clean environment.

    The result is None if cloudspot is installed for the interpreter, which is usual.
    """
    from importlib import metadata  # slow to import, and only needed to boot a machine

    home = str(Path(cloudspot.__file__).resolve().parent.parent)
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if home in {str(Path(entry).resolve()) for entry in named if entry}:
        return home
    try:
        where = str(metadata.distribution("cloudspot").locate_file(""))
    except metadata.PackageNotFoundError:
        return home
    if site.ENABLE_USER_SITE and Path(where).resolve() == Path(site.getusersitepackages()).resolve():
        # A machine has its own HOME, so it does not see our user site, which also contains torch.
        return where
    return None
