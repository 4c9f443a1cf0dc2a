"""Fetch the code and run the job's setup, each once, before the node trains."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.node import Node
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.training.launching.kept_setup import find_kept
from cloudspot.agent.training.launching.trainer import log_tail
from cloudspot.agent.training.programs.runtime import KeptSetupLost, Runtime
from cloudspot.errors import AuthError, BundleError, CloudspotError, CorruptData, ObjectMissing
from cloudspot.host.kept_processes import KeptProcesses
from cloudspot.jobstore.code.extraction import extract_bundle
from cloudspot.jobstore.jobs.submission import code_key

_log = logging.getLogger(__name__)


def fetch_code(context: NodeContext) -> None:
    """Fetch the job's code to the working directory.

    Raises:
        LeavingError: the code cannot be fetched.
    """
    memory, node, sha256 = context.memory, context.node, context.job.submission.code_sha256
    if memory.code_ready:
        return
    try:
        data = context.retry_until(lambda: context.store.get(code_key(context.job.submission)))
        memory.kept_setup = find_kept(node, context.job, data)
        if memory.kept_setup is None:
            extract_bundle(data, node.work, sha256=sha256)
    except (BundleError, CorruptData, ObjectMissing) as error:
        # The next machine would get the same bytes, but its disk may have more room.
        permanent = not (isinstance(error, BundleError) and isinstance(error.__cause__, OSError))
        detail = f"the code cannot be fetched: {error}"
        raise LeavingError(Leaving("failed", detail, exit_code=1, permanent=permanent)) from error
    memory.code_ready, memory.setup_done = True, memory.kept_setup is not None
    memory.save(node)


def start_kept(context: NodeContext, runtime: Runtime) -> None:
    """Start the runtime with the setup in the machine's image or, if that is lost, fetch the code again.

    Call this while the working directory contains only the code.

    Raises:
        LeavingError: the node was ordered to leave, the runtime cannot start, or the code cannot be fetched.
    """
    memory = context.memory
    if memory.kept_setup is None or memory.placed or memory.generation > 0:
        return
    try:
        runtime.start(setup_is_done=True, kept=memory.kept_setup, check=context.obey)
    except KeptSetupLost as error:
        _log.warning("%s: it is run again", error)
        context.node.baked.unlink(missing_ok=True)
        memory.code_ready = memory.setup_done = False
        fetch_code(context)
    except CloudspotError as error:
        raise LeavingError(Leaving("failed", str(error), exit_code=1)) from error


def start_runtime(context: NodeContext, runtime: Runtime, check: Callable[[], None] = lambda: None) -> None:
    """Start the runtime for the job's programs.

    Raises:
        AuthError: a registry rejects the login, which would fail on any machine.
        LeavingError: the node was ordered to leave, or the runtime cannot start.
    """

    def look() -> None:
        context.obey()
        check()

    try:
        memory = context.memory
        runtime.start(setup_is_done=memory.setup_done, kept=memory.kept_setup, check=look)
    except AuthError:
        raise
    except CloudspotError as error:
        raise LeavingError(Leaving("failed", str(error), exit_code=1)) from error


def run_setup(
    context: NodeContext,
    runtime: Runtime,
    environment: Mapping[str, str],
    *,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Run the job's setup; ``check`` is called repeatedly and raises to end the setup.

    Raises:
        LeavingError: the node was ordered to leave, or the setup failed.
    """
    memory, node, command = context.memory, context.node, context.job.spec.run.setup
    start_runtime(context, runtime, check)
    if memory.setup_done:
        return
    if command is not None:
        _run(context, command, runtime, runtime.with_programs(environment), check)
    memory.setup_done = True
    memory.save(node)


def end_setup(node: Node) -> None:
    """End every process of the job's setup, even if an earlier agent started it."""
    _ended(node).touch()
    _processes(node).kill()


def _processes(node: Node) -> KeptProcesses:
    return KeptProcesses(node.directory / "setup.processes")


def _ended(node: Node) -> Path:
    return node.directory / "setup.ended"


def _run(
    context: NodeContext,
    command: str,
    runtime: Runtime,
    environment: Mapping[str, str],
    check: Callable[[], None],
) -> None:
    node = context.node
    end_setup(node)  # an earlier agent may have been killed during the setup
    _log.info("setup: %s", command)
    log_path = node.logs / "setup.log"
    argv, variables = runtime.command(
        _processes(node).command(
            runtime.keeper_python, ["/bin/bash", "-euo", "pipefail", "-c", command], ended=_ended(node)
        ),
        environment,
        log=log_path,
        ended=_ended(node),
    )
    _ended(node).unlink(missing_ok=True)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            argv,
            cwd=node.work,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            context.obey()
            check()
            context.orders.wait(0.1)
    finally:
        if process.poll() is None:
            end_setup(node)
            process.wait()
    if process.returncode != 0:
        # As in a shell, the status after death by a signal is 128 plus the signal's number.
        status = process.returncode if process.returncode > 0 else 128 - process.returncode
        tail = log_tail(log_path)
        detail = f"setup failed with exit status {status}: {tail[-1] if tail else command}"
        raise LeavingError(Leaving("failed", detail, exit_code=status, log_tail=tail))
