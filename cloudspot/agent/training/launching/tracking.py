"""Asks ``run.trackers`` for each rank's variables, so that runs in experiment trackers continue."""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
from collections.abc import Mapping

from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.training.programs.runtime import Runtime
from cloudspot.calls import TrackingRequest
from cloudspot.errors import CloudspotError, reason_of
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.registry import open_tracker
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def track(
    context: NodeContext,
    runtime: Runtime,
    environment: Mapping[str, str],
    *,
    generation: int,
    step: int | None,
) -> dict[int, dict[str, str]]:
    """Return the trackers' variables for this node's ranks, and write them where the ranks' shells read them.

    Variables that are already in ``environment``, the training's own, are kept. ``step`` is the step of a
    session's checkpoint. If a tracker fails, a warning reports this, and the training starts without it.
    """
    node, ranks = context.node, context.status.ranks
    request = TrackingRequest(
        job_id=node.job_id,
        generation=generation,
        ranks=tuple(ranks),
        step=step,
        work=node.work,
        artifacts=node.artifacts,
        environment=environment,
        run_python=lambda code, seconds: _run_python(runtime, environment, code, seconds),
    )

    def ask(name: str) -> Mapping[int, Mapping[str, str]]:
        problem, variables_by_rank = None, {}
        try:
            variables_by_rank = {**open_tracker(name).variables(request)}
        except CloudspotError as error:
            problem = f"the run in {name} may not continue as one: {error}"
            _log.warning("%s", problem)
        context.status.warn(f"tracker {name}", problem)
        return variables_by_rank

    found: dict[int, dict[str, str]] = {rank: {} for rank in ranks}
    # In parallel, because each tracker may wait for a server, and the training waits for all of them.
    for variables_by_rank in map_parallel(ask, context.job.spec.run.trackers):
        for rank in found.keys() & variables_by_rank.keys():
            found[rank].update(
                (name, value)
                for name, value in variables_by_rank[rank].items()
                if name not in environment and _NAME.fullmatch(name)
            )
    for rank, variables in found.items():
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        path = files.variables_path(node.handoff(generation), rank)
        path.write_text("".join(lines), encoding="utf-8")
    return found


def _run_python(runtime: Runtime, environment: Mapping[str, str], code: str, seconds: float) -> str:
    command, whole = runtime.command([runtime.python, "-c", code], environment)
    try:
        done = subprocess.run(
            command,
            env=whole,
            cwd=runtime.node.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CloudspotError(f"its program took longer than {seconds:g} s") from None
    except OSError as error:
        raise CloudspotError(f"{runtime.python} cannot be run: {reason_of(error)}") from error
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise CloudspotError(last[:500] or f"it ended with status {done.returncode}")
    return done.stdout.decode(errors="replace")
