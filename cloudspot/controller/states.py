"""The state of a job in one word, from its records; pure."""

from __future__ import annotations

from cloudspot.controller.attempt import last_generation, own_exit, permanent_failure, succeeded
from cloudspot.jobstore.history import History, LaunchHistory

TERMINAL_STATES = frozenset({"succeeded", "failed", "stopped"})


def job_state(history: History) -> str:
    """Return ``queued``, ``launching``, ``running``, ``draining``, ``waiting`` or ``stopping``, or its end.

    A job is ``succeeded`` (or ``stopped``, or ``failed`` for good) as soon as its nodes have said so,
    even when no controller was there to write the journal's last record.
    """
    if history.finished is not None:
        return history.finished.outcome
    if not history.launches:
        return "queued" if history.stop is None else "stopped"
    last = history.launches[-1]
    if succeeded(history, last) or (last.closed is not None and last.closed.outcome == "succeeded"):
        return "succeeded"
    has_ended = last.closed is not None or _all_exited(last)
    if history.stop is not None:
        return "stopped" if has_ended else "stopping"
    if permanent_failure(last) is not None and has_ended:
        return "failed"
    if has_ended:
        return "waiting"
    if not last.is_attempt:
        return "launching"
    generation = last_generation(history, last)
    # A node that had a notice and died without a word is out of the generation that goes on.
    members = last.slots.keys() if generation is None else {member.rank for member in generation.members}
    draining = any(own_exit(last, rank) is None for rank in members & last.notices.keys())
    return "draining" if draining else "running"


def is_over(history: History) -> bool:
    """Say whether the job has ended, by the same rule."""
    return job_state(history) in TERMINAL_STATES


def _all_exited(launch: LaunchHistory) -> bool:
    return launch.is_attempt and all(own_exit(launch, rank) is not None for rank in launch.slots)
