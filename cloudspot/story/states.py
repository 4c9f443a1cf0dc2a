"""The state of a job in one word, from its records; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import get_args

from cloudspot.jobfile.spec import Nodes
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Generation, JobOutcome, JobState, Seat
from cloudspot.story.outcomes import end_by_nodes, own_beat, succeeded

TERMINAL_STATES: frozenset[str] = frozenset(get_args(JobOutcome))


def job_state(history: History) -> JobState:
    """Return the job's state.

    The state is ``queued``, ``launching``, ``running``, ``holding``, ``draining``, ``waiting``,
    ``suspended``, ``stopping``, or the job's outcome.

    A job is ``succeeded`` (or ``stopped``, or permanently ``failed``) as soon as its nodes have reported so,
    even if no controller has written the last record of the journal.
    """
    if history.finished is not None:
        return history.finished.outcome
    if history.suspended is not None and history.stop is None and not history.live_launches:
        return "suspended"
    end = end_by_nodes(history)
    if end is not None:
        return end.outcome
    if not history.current_launches:
        return "queued"
    if history.stop is not None:
        return "stopping"
    if not history.live_launches:
        return "waiting"
    members = live_members(history)
    if not members:
        return "launching"
    if is_holding(history, history.generations[-1]):
        return "holding"
    # A node that had a notice and died without an exit record is not in the newest generation.
    return "draining" if any(has_notice(history, seat) for seat in members) else "running"


def live_members(history: History) -> tuple[Seat, ...]:
    """Return the nodes of the newest generation that may still run, in rank order."""
    seats = history.generations[-1].seats if history.generations else ()
    launches = ((seat, history.launch_of(seat)) for seat in seats)
    return tuple(seat for seat, launch in launches if launch is not None and seat.rank in launch.live_ranks)


def has_notice(history: History, seat: Seat) -> bool:
    """Return whether the node has a notice that its machine will be taken."""
    launch = history.launch_of(seat)
    return launch is not None and seat.rank in launch.notices


def nodes_of(history: History) -> Nodes:
    """Return the minimum and the maximum number of nodes."""
    return history.job_file.nodes


def labels_of(history: History) -> dict[str, str]:
    """Return the labels of the job file."""
    return history.job_file.labels


def is_holding(history: History, generation: Generation) -> bool:
    """Return whether the generation has too few nodes to train, and only keeps its nodes warm."""
    return _is_holding(history, generation, nodes_of(history).min)


def held_generations(history: History) -> frozenset[int]:
    """Return the numbers of the generations that only held."""
    least = nodes_of(history).min if history.generations else 0
    return frozenset(one.number for one in history.generations if _is_holding(history, one, least))


def _is_holding(history: History, generation: Generation, least: int) -> bool:
    if len(generation.members) >= least:
        return False
    first = history.current_launches[0].number if history.current_launches else len(history.launches) + 1
    if generation.seats[0].launch >= first:
        return True
    # A resumed job may have needed another number of nodes before; only the nodes' phases show whether they
    # ran.
    return not any(_has_run(history, seat, generation.number) for seat in generation.seats)


def _has_run(history: History, seat: Seat, number: int) -> bool:
    """Return whether the node has run the generation, or may have run it without a heartbeat."""
    launch = history.launch_of(seat)
    beat = None if launch is None else own_beat(launch, seat.rank)
    return beat is None or any(one.generation == number and one.state == "running" for one in beat.phases)


def is_over(history: History) -> bool:
    """Return whether the job has ended, by the rule of `job_state`."""
    return job_state(history) in TERMINAL_STATES


def ended_at(history: History) -> datetime | None:
    """Return when the job ended, or None if it has not.

    If the job's nodes ended it, the time is theirs, because a controller may record the end days later. If a
    controller ended it, for example after too many failures, the time is that of the record.
    """
    finished = None if history.finished is None else history.finished.at
    if not is_over(replace(history, finished=None)):
        return finished
    times = list(_end_times(history))
    assert times, "a job that is over was stopped, keeps a machine, or has had a node that ended"
    return max(times) if finished is None else min(max(times), finished)


def _end_times(history: History) -> Iterator[datetime]:
    """Yield when a stop was requested, a machine was kept, and the nodes that ended the job ended."""
    if history.stop is not None:
        yield history.stop.at
    if history.kept is not None:
        yield history.kept.at
    members = set(history.generations[-1].seats) if succeeded(history) else None
    for launch in history.current_launches:
        for rank in launch.claimed:
            if members is None or Seat(launch.number, rank) in members:
                over = launch.over_at(rank)
                yield launch.intent.at if over is None else max(over, launch.intent.at)
