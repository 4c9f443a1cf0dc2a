"""How nodes and whole jobs ended, by the records alone; pure."""

from __future__ import annotations

from dataclasses import dataclass

from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import Exit, Generation, Heartbeat, JobOutcome

_STOP_DETAILS = {
    "user": "asked for with cloudspot stop",
    "max_cost": "limits.max_cost was reached",
    "max_runtime": "limits.max_runtime was reached",
}
"""What the user is told, by the reason in the request."""


@dataclass(frozen=True)
class End:
    """The job is over."""

    outcome: JobOutcome
    detail: str
    exit_code: int


def end_by_nodes(history: History) -> End | None:
    """Return the end that needs nobody's judgement, once nothing of the last launch runs; None: not yet."""
    last = history.current_launches[-1] if history.current_launches else None
    if last is not None and (
        succeeded(history, last) or (last.closed is not None and last.closed.outcome == "succeeded")
    ):
        return End("succeeded", _left_early(last), 0)
    if history.stop is not None:
        reason = history.stop.reason
        return End("stopped", _STOP_DETAILS.get(reason, reason), 0 if reason == "user" else 1)
    permanent = None if last is None else permanent_failure(last)
    return None if permanent is None else End("failed", permanent.detail, permanent.exit_code or 1)


def _left_early(launch: LaunchHistory) -> str:
    """Return where the script has left its loop early; empty if it came to the end."""
    finals = [one.final for one in own_exits(launch) if one.final is not None]
    for final in finals:
        if final.left_early:
            planned = "" if final.planned is None else f" of {final.planned}"
            return f"the script left its loop after {final.step}{planned} steps"
    return ""


def own_exit(launch: LaunchHistory, rank: int) -> Exit | None:
    """Return the exit record of the machine that owns the rank; another machine's does not count."""
    return launch.own_exits.get(rank)


def own_exits(launch: LaunchHistory) -> list[Exit]:
    """Return the exit records of the launch's own machines, in order of their ranks."""
    return list(launch.own_exits.values())


def own_beat(launch: LaunchHistory, rank: int) -> Heartbeat | None:
    """Return the newest heartbeat of the machine that owns the rank."""
    beat, slot = launch.heartbeats.get(rank), launch.slots.get(rank)
    return beat if beat is not None and slot is not None and beat.instance_id == slot.instance_id else None


def last_generation(history: History, launch: LaunchHistory) -> Generation | None:
    """Return the newest generation that ran on this launch, or None before its first."""
    return next(iter(reversed(history.generations_by_launch.get(launch.number, ()))), None)


def succeeded(history: History, launch: LaunchHistory) -> bool:
    """Return whether every node of the attempt's newest generation has succeeded."""
    if not launch.is_attempt:
        return False
    generation = last_generation(history, launch)
    ranks = launch.slots if generation is None else generation.ranks(launch.number)
    exits = [own_exit(launch, rank) for rank in ranks]
    return all(one is not None and one.outcome == "succeeded" for one in exits)


def permanent_failure(launch: LaunchHistory) -> Exit | None:
    """Return the exit record of a node whose failure no other machine would mend, or None."""
    return next((one for one in own_exits(launch) if one.outcome == "failed" and one.permanent), None)
