"""Whether and when a job whose last launch is closed goes on; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from cloudspot.controller.actions import Wait
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.model import EndReason
from cloudspot.story.outcomes import End, end_by_nodes, own_exits

FIRST_DELAY_SECONDS = 10.0
"""The wait after a first failure; doubled for each further one in a row."""
MAX_DELAY_SECONDS = 600.0
"""The longest wait after a failure."""
FREE_RECLAIMS = 3
"""This many reclaims in a row without a new checkpoint are relaunched at once, further ones ever later."""


@dataclass(frozen=True)
class Go:
    """Launch again now."""

    why: str


def judge(spec: JobSpec, history: History, now: datetime) -> Go | Wait | End:
    """Return what follows the last launch of a job that has no open one.

    A reclaim is relaunched at once, as often as it takes. After a failure, a lost machine or one that never
    claimed its rank, the job is relaunched with a growing delay, and ends after more than
    ``limits.max_restarts`` of these without a new checkpoint in between, or when two in a row failed before
    the training began, with the same error. (A machine lost after a new checkpoint is not the script's fault,
    and is replaced at once.) A refusal for lack of capacity or quota is neither: the policy turns to other
    offers.
    """
    last = history.current_launches[-1] if history.current_launches else None
    assert last is None or last.closed is not None
    end = end_by_nodes(history)
    if end is not None:
        return end
    if last is None or last.closed is None:
        return Go("resumed" if history.launches else "first")
    failures = _in_a_row(history, is_failure)
    if len(failures) > spec.limits.max_restarts:
        newest = failures[0]
        assert newest.closed is not None
        detail = newest.closed.detail or newest.closed.outcome
        return End("failed", f"failed {len(failures)} times in a row: {detail}", exit_code_of(newest))
    errors = [_early_error(launch) for launch in failures[:2]]
    if len(errors) == 2 and errors[0] is not None and errors[0] == errors[1]:
        detail = f"failed twice in a row before the training began: {errors[0]}"
        return End("failed", detail, exit_code_of(failures[0]))
    delay, cause = _delay(history, failures)
    if delay > 0 and cause is not None and cause.closed is not None:
        left = delay - (now - cause.closed.at).total_seconds()
        if left > 0:
            # A writer whose clock runs ahead must not stretch the delay.
            return Wait(min(left, delay), f"{cause.closed.outcome}; trying again")
    return Go(last.closed.outcome)


def _delay(history: History, failures: list[LaunchHistory]) -> tuple[float, LaunchHistory | None]:
    if failures:
        newest = failures[0]
        assert newest.closed is not None
        # If it made a new checkpoint, it is also the first in its row.
        if newest.closed.outcome == "lost" and made_progress(history, newest):
            return 0.0, None
        return _grown(len(failures)), newest
    reclaims = _in_a_row(history, is_reclaim)
    if len(reclaims) > FREE_RECLAIMS:
        return _grown(len(reclaims) - FREE_RECLAIMS), reclaims[0]
    return 0.0, None


def _grown(count: int) -> float:
    return float(min(FIRST_DELAY_SECONDS * 2 ** min(count - 1, 16), MAX_DELAY_SECONDS))


def _in_a_row(history: History, kind: Callable[[LaunchHistory], bool]) -> list[LaunchHistory]:
    """Return the launches of that kind since, and with, the one of the last new checkpoint, newest first."""
    found = []
    for launch in reversed(history.current_launches):
        if launch.closed is not None and kind(launch):
            found.append(launch)
        if made_progress(history, launch):
            break
    return found


def is_failure(launch: LaunchHistory) -> bool:
    """Return whether a closed launch counts against ``limits.max_restarts``."""
    closed = launch.closed
    return closed is not None and closed.outcome in {"failed", "lost", "voided"} and not is_reclaim(launch)


def is_reclaim(launch: LaunchHistory) -> bool:
    """Return whether the provider took back a machine of the closed launch, claimed or not."""
    closed = launch.closed
    if closed is None:
        return False
    taken = any(line.end_reason == EndReason.RECLAIMED.value for line in closed.machines)
    return closed.outcome == "reclaimed" or (closed.outcome == "voided" and taken)


def made_progress(history: History, launch: LaunchHistory) -> bool:
    """Return whether the launch committed a checkpoint beyond the one from which it resumed."""
    mine = history.generations_by_launch.get(launch.number, ())
    return any(history.commits_by_generation.get(one.number) for one in mine)


def _early_error(launch: LaunchHistory) -> str | None:
    """Return how a node failed before it had a generation, such as in ``run.setup``, or None."""
    return next(
        (one.detail for one in own_exits(launch) if one.outcome == "failed" and one.generation == 0), None
    )


def exit_code_of(launch: LaunchHistory) -> int:
    """Return the script's own exit code if a node reported one, else 1."""
    return next((one.exit_code for one in own_exits(launch) if one.exit_code), 1)
