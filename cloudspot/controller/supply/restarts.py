"""Decide whether and when a job that lacks nodes buys machines again; pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from cloudspot.calls.retrying import doubled
from cloudspot.controller.actions import Postpone
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.story.outcomes import JobEnd, LaunchEnd, end_so_far, own_exits, void_outcome, was_reclaimed

FIRST_DELAY_SECONDS = 10.0
"""The wait after a first failure; doubled with each further failure in a row."""
MAX_DELAY_SECONDS = 600.0
"""The longest wait after a failure."""
FREE_RECLAIMS = 3
"""After this many reclaims in a row without a new checkpoint, each further purchase waits longer."""
_WITH_DIGIT = re.compile(r"\S*\d\S*")
"""A word that may differ between two failures with the same cause, such as a process id, address or time."""


@dataclass(frozen=True)
class Buy:
    """Buy now."""

    why: str


@dataclass(frozen=True)
class _Loss:
    """A launch that has lost some or all of its nodes."""

    launch: LaunchHistory
    end: LaunchEnd


def after_losses(spec: JobSpec, history: History, now: datetime) -> Buy | Postpone | JobEnd:
    """Return the consequence of the newest loss of a job that lacks nodes.

    After a reclaim, the job buys machines again at once, any number of times. A failure is an error of a
    node, a lost machine, or a machine that never claimed its seat. After each failure the wait grows, and the
    job ends after more than ``limits.max_restarts`` failures without a new checkpoint in between. A job ends
    sooner in two cases: two failures in a row before the training began had the same cause (an error of the
    node, a network that is cut, or a machine that could not run the agent), or the script failed twice in the
    same way at the same step. A machine lost after a new checkpoint is replaced at once, because the script
    is not at fault. A refusal for capacity or quota is not a failure, because the policy then chooses other
    offers.
    """
    losses = _losses(history)
    if not losses and history.current_launches:
        # The newest launch got only some of its machines.
        return Buy(void_outcome(history.current_launches[-1])[0])
    if not losses:
        return Buy("resumed" if history.launches else "first")
    failures = _in_a_row(history, losses, _is_failure)
    if len(failures) > spec.limits.max_restarts:
        newest = failures[0]
        detail = newest.end.detail or newest.end.outcome
        return JobEnd(
            "failed", f"failed {len(failures)} times in a row: {detail}", exit_code_of(newest.launch)
        )
    errors = [_early_error(history, loss.launch) for loss in failures[:2]]
    if len(errors) == 2 and errors[0] and _alike(errors[0]) == _alike(errors[1]):
        detail = f"failed twice in a row before the training began: {errors[0]}"
        return JobEnd("failed", detail, exit_code_of(failures[0].launch))
    own = [_own_failure(loss.launch) for loss in failures[:2]]
    if len(own) == 2 and own[0] is not None and own[0] == own[1]:
        detail = f"failed twice in a row at step {own[0][0]}: {failures[0].end.detail}"
        return JobEnd("failed", detail, exit_code_of(failures[0].launch))
    delay, cause = _delay(history, losses, failures)
    if delay > 0 and cause is not None:
        left = delay - (now - cause.end.at).total_seconds()
        if left > 0:
            # A record whose writer's clock ran ahead must not lengthen the delay.
            return Postpone(min(left, delay), f"{cause.end.outcome}; trying again")
    return Buy(losses[0].end.outcome)


def _losses(history: History) -> list[_Loss]:
    """Return the launches since the last resumption that have lost nodes, the newest loss first."""
    ends = ((launch, end_so_far(launch)) for launch in history.current_launches)
    found = [_Loss(launch, end) for launch, end in ends if end is not None]
    return sorted(found, key=lambda loss: (loss.end.at, loss.launch.number), reverse=True)


def _delay(history: History, losses: list[_Loss], failures: list[_Loss]) -> tuple[float, _Loss | None]:
    if failures:
        newest = failures[0]
        if newest.end.outcome == "lost" and len(failures) == 1 and made_progress(history, newest.launch):
            return 0.0, None
        return _grown(len(failures)), newest
    reclaims = _in_a_row(history, losses, lambda loss: was_reclaimed(loss.launch))
    if len(reclaims) > FREE_RECLAIMS:
        return _grown(len(reclaims) - FREE_RECLAIMS), reclaims[0]
    return 0.0, None


def _grown(count: int) -> float:
    return doubled(FIRST_DELAY_SECONDS, count - 1, most=MAX_DELAY_SECONDS)


def _in_a_row(history: History, losses: list[_Loss], kind: Callable[[_Loss], bool]) -> list[_Loss]:
    """Return the losses of that kind since the newest commit, the newest first.

    Launches whose nodes failed in the same generation count as one loss.
    """
    newest = history.commits[-1] if history.commits else None
    counted: dict[tuple[str, int], _Loss] = {}
    for loss in losses:
        if newest is not None and loss.end.at < newest.at:
            break
        if kind(loss):
            generation = max((one.generation for one in own_exits(loss.launch)), default=0)
            key = ("generation", generation) if generation else ("launch", loss.launch.number)
            counted.setdefault(key, loss)
    return list(counted.values())


def _is_failure(loss: _Loss) -> bool:
    return loss.end.outcome in {"failed", "lost", "voided"} and not was_reclaimed(loss.launch)


def made_progress(history: History, launch: LaunchHistory) -> bool:
    """Return whether a generation with nodes of the launch has committed a checkpoint."""
    mine = history.generations_by_launch.get(launch.number, ())
    return any(history.commits_by_generation.get(one.number) for one in mine)


def _early_error(history: History, launch: LaunchHistory) -> str:
    """Return why a node failed before it trained, for example in ``run.setup`` or at its boot, or "".

    Nodes that cannot reach one another also count while the job has made no step and has no checkpoint,
    because a firewall would block new machines in the same way.
    """
    exits = [
        one.detail
        for one in own_exits(launch)
        if one.outcome == "failed"
        and (
            one.generation == 0 or (one.is_cut_off and one.step <= one.restored_step and not history.commits)
        )
    ]
    boots = [slot.cause for _, slot in sorted(launch.slots.items()) if slot.cause]
    return next(iter([*exits, *boots]), "")


def _own_failure(launch: LaunchHistory) -> tuple[int, str] | None:
    """Return the step and the kind of the script's failure that ended a node of the launch, or None."""
    found = ((one.step, one.fingerprint) for one in own_exits(launch) if one.outcome == "failed")
    return next(((step, kind) for step, kind in found if kind is not None), None)


def _alike(error: str) -> str:
    return _WITH_DIGIT.sub("#", error)


def exit_code_of(launch: LaunchHistory) -> int:
    """Return the script's own exit code if a node reported one, otherwise 1."""
    return next((one.exit_code for one in own_exits(launch) if one.exit_code), 1)
