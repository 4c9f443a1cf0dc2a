"""The record of a node's container, with which the local provider removes it when the machine ends.

A cloud's machine takes its containers with it. An emulated machine is a process tree, whose processes are
killed together with the engine's process that would otherwise remove the container.
"""

from __future__ import annotations

import logging
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cloudspot.host.partial_files import write_whole

_log = logging.getLogger(__name__)

ENGINES = ("docker", "podman")
"""The programs that can run the container; one that has the image is preferred, otherwise the first."""
ENGINE_SECONDS = 60.0
"""The time limit for engine commands that need no network."""
PREFIX = "CLOUDSPOT_"
"""The beginning of the names of cloudspot's own variables."""
_RECORD = "container"


def user_home() -> str:
    """Return the user's home, where engines keep images and logins; on a local machine, HOME differs."""
    return pwd.getpwuid(os.getuid()).pw_dir


def engine_environment() -> dict[str, str]:
    """Return the engine's environment, without the variables that mark the machine's processes.

    The engine's background processes manage the container, and must outlive the marked processes.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {**own, "HOME": user_home()}


def record_container(node_directory: Path, engine: str, name: str) -> None:
    """Record that the node runs a container of this name with one of the ``ENGINES``."""
    write_whole(node_directory / _RECORD, f"{Path(engine).name}\n{name}\n".encode())


def forget_container(node_directory: Path) -> None:
    """Delete the record; a missing one is no error."""
    (node_directory / _RECORD).unlink(missing_ok=True)


def remove_recorded_container(node_directory: Path) -> None:
    """Remove the container that a machine's node has recorded, if it still exists; log a failure."""
    try:
        engine, name = (node_directory / _RECORD).read_text().splitlines()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        _log.warning("the record of the machine's container cannot be read: %s", error)
        return
    program = shutil.which(engine) if engine in ENGINES else None
    if program is None or name.startswith("-"):
        _log.warning("the machine's container %r of %r cannot be removed", name, engine)
        return
    try:
        # "rm" waits for a container that ignores SIGTERM, so the container is killed first.
        _run([program, "kill", "--signal", "KILL", name])
        done = _run([program, "rm", "--force", "--volumes", name])
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning("the machine's container %s may be left: %s", name, error)
        return
    if done.returncode != 0 and "no such container" not in done.stderr.lower():
        _log.warning("the machine's container %s may be left: %s", name, done.stderr.strip())


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=engine_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=ENGINE_SECONDS,
        check=False,
    )
