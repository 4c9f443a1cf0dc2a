"""What a node does before it trains: it fetches the code and runs the job's setup, each once."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.node import Node
from cloudspot.errors import BundleError, CorruptData, ObjectMissing
from cloudspot.jobstore import bundle
from cloudspot.jobstore.submission import code_key
from cloudspot.processes import kill_marked

if TYPE_CHECKING:
    from cloudspot.agent.life import Life

_log = logging.getLogger(__name__)

_SETUP_MARK = "CLOUDSPOT_SETUP"


def prepare(life: Life, environment: Mapping[str, str]) -> None:
    """Have the code, the artifacts of earlier machines, and the setup done.

    Raises:
        LeavingError: an order to leave came, or what was tried failed.
    """
    memory, node = life.memory, life.node
    if not memory.code_ready:
        _fetch_code(life)
        memory.code_ready = True
        memory.save(node)
    if not memory.setup_done:
        if node.launch > 1:
            life.insist(life.artifacts.restore)
        _setup(life, environment)
        memory.setup_done = True
        memory.save(node)


def end_setup(node: Node) -> None:
    """End every process of the job's setup, also of one that an agent left behind."""
    kill_marked(_SETUP_MARK, str(node.directory))


def _fetch_code(life: Life) -> None:
    submission = life.job.submission
    sha256 = submission.code_sha256
    try:
        data = life.insist(lambda: life.store.get(code_key(submission)))
        bundle.extract_bundle(data, life.node.work, sha256=sha256)
    except (BundleError, CorruptData, ObjectMissing) as error:
        # The next machine would find the same bytes; but its disk may have the room that ours has not.
        permanent = not (isinstance(error, BundleError) and isinstance(error.__cause__, OSError))
        detail = f"the code cannot be fetched: {error}"
        raise LeavingError(Leaving("failed", detail, exit_code=1, permanent=permanent)) from error


def _setup(life: Life, environment: Mapping[str, str]) -> None:
    command, node = life.job.spec.run.setup, life.node
    if command is None:
        return
    end_setup(node)  # of an agent that was killed in the middle
    _log.info("setup: %s", command)
    with (node.logs / "setup.log").open("ab") as log:
        process = subprocess.Popen(
            ["/bin/bash", "-euo", "pipefail", "-c", command],
            cwd=node.work,
            env={**environment, _SETUP_MARK: str(node.directory)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            life.obey()
            life.orders.wait(0.1)
    finally:
        if process.poll() is None:
            end_setup(node)
            process.wait()
    if process.returncode != 0:
        # As a shell says it: 128 and the number of the signal.
        status = process.returncode if process.returncode > 0 else 128 - process.returncode
        tail = life.tail("setup.log")
        detail = f"setup failed with exit status {status}: {tail[-1] if tail else command}"
        raise LeavingError(Leaving("failed", detail, exit_code=status, log_tail=tail))
