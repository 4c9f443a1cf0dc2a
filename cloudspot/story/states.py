"""The state of a job in one word, from its records; pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import get_args

from cloudspot.jobstore.history import History, LaunchHistory
from cloudspot.jobstore.records import JobOutcome, JobState
from cloudspot.story.outcomes import last_generation, own_exit, own_exits, permanent_failure, succeeded

TERMINAL_STATES: frozenset[str] = frozenset(get_args(JobOutcome))


def job_state(history: History) -> JobState:
    """Return ``queued``, ``launching``, ``running``, ``draining``, ``waiting`` or ``stopping``, or its end.

    A job is ``succeeded`` (or ``stopped``, or ``failed`` for good) as soon as its nodes have said so, even
    if no controller was there to write the last record of the journal.
    """
    if history.finished is not None:
        return history.finished.outcome
    if history.suspended is not None and history.stop is None and history.open_launch is None:
        return "suspended"
    if not history.current_launches:
        return "queued" if history.stop is None else "stopped"
    last = history.current_launches[-1]
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
    # A node that had a notice and died without an exit record is not in the generation that goes on.
    members = last.slots.keys() if generation is None else set(generation.ranks(last.number))
    draining = any(own_exit(last, rank) is None for rank in members & last.notices.keys())
    return "draining" if draining else "running"


def is_over(history: History) -> bool:
    """Return whether the job has ended, by the same rule."""
    return job_state(history) in TERMINAL_STATES


def ended_at(history: History) -> datetime | None:
    """Return when the job ended; None while it goes on.

    That is when its nodes ended it, by the same rule: a controller may write that down days later. If a
    controller ended it (after too many failures, say), it is the time of its record.
    """
    finished = None if history.finished is None else history.finished.at
    if not is_over(replace(history, finished=None)):
        return finished
    said = [] if history.stop is None else [history.stop.at]
    for launch in history.current_launches[-1:]:
        exits = [one.at for one in own_exits(launch)]
        said += exits or ([] if launch.closed is None else [launch.closed.at])
        said.append(launch.intent.at)
    assert said, "a job that is over was stopped or launched"
    return max(said) if finished is None else min(max(said), finished)


def _all_exited(launch: LaunchHistory) -> bool:
    return launch.is_attempt and all(own_exit(launch, rank) is not None for rank in launch.slots)
