"""Warnings about a job that its user might overlook; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime

from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.nodes.seats import seats_of
from cloudspot.story.node_names import named
from cloudspot.story.outcomes import own_beat
from cloudspot.story.states import live_members
from cloudspot.train.rounds.interval import LONGEST_AUTO_SECONDS

SILENT_SECONDS = 5 * 60.0
"""A node without a heartbeat for this long is silent; normally a heartbeat arrives every few seconds."""
UNSAVED_SECONDS = 15 * 60.0
"""The least time without a commit that deserves a warning, because a store may fail for some minutes."""
MAX_NAMED = 4
"""With more nodes than this, a warning gives only their number."""


def warnings(history: History) -> tuple[str, ...]:
    """Return the warnings, each once: warnings about checkpoints, then warnings from the nodes."""
    texts = [
        f"checkpoint {skipped.checkpoint} did not verify and was skipped: {skipped.reason}"
        for generation in history.generations
        for skipped in generation.skipped
    ]
    texts += unsaved(history)
    for seat in _nodes(history):
        beat = history.launches[seat.launch - 1].heartbeats.get(seat.rank)
        texts += () if beat is None else beat.warnings
    idle = idleness(history)
    return tuple(dict.fromkeys([*texts, *([idle] if idle else [])]))


def unsaved(history: History) -> Iterator[str]:
    """Yield a warning if a session trains without a commit for three times the longest normal interval.

    A full disk or a failing store prevents saves but does not end a training. Times are taken from the
    machines' clocks.
    """
    beats = [own_beat(history.launches[seat.launch - 1], seat.rank) for seat in live_members(history)]
    number = history.generations[-1].number if history.generations else 0
    training = [beat for beat in beats if beat and beat.state == "running" and beat.generation == number]
    began = [
        phase.at
        for beat in training
        for phase in beat.phases
        if (phase.state, phase.generation) == ("training", number)
    ]
    newest = history.head
    saved_step = 0 if newest is None else newest.step
    if not began or not any(beat.has_session and beat.step > saved_step for beat in training):
        return
    seconds = (
        max(beat.at for beat in training) - max([*began, *(commit.at for commit in history.commits)])
    ).total_seconds()
    interval = history.job_file.checkpoint.interval or LONGEST_AUTO_SECONDS
    upload = max(beat.upload_seconds or 0.0 for beat in training)
    if seconds >= max(UNSAVED_SECONDS, 3 * max(interval, 1.5 * upload)):
        yield (
            f"no checkpoint was committed for {_duration(seconds)}, though the training goes on: all work "
            f"after step {saved_step} is on its machines only; the logs say why"
        )


def idleness(history: History) -> str:
    """Return a warning that names the idle nodes and their least idle time; empty if no node is idle."""
    idle = {}
    for seat in live_members(history):
        beat = own_beat(history.launches[seat.launch - 1], seat.rank)
        if beat is not None and beat.idle is not None:
            idle[seat] = beat.idle
    return f"{_brief_names(idle)}: {min(idle.values(), key=lambda one: one.seconds).text}" if idle else ""


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"


def _brief_names(seats: Collection[Seat]) -> str:
    return named(seats) if len(seats) <= MAX_NAMED else f"{len(seats)} nodes"


def _nodes(history: History) -> list[Seat]:
    """Return the nodes of the newest generation and all newcomers."""
    seats = seats_of(history.current_launches, history.generations)
    return sorted({*seats.members, *seats.newcomers})


def silence(history: History, now: datetime) -> Iterator[str]:
    """Yield a warning about nodes with overdue heartbeats, by the reader's clock and the nodes' clocks."""
    silent = {}
    for seat in _nodes(history):
        launch = history.launches[seat.launch - 1]
        if seat.rank not in launch.claimed or launch.is_over(seat.rank):
            continue
        beat = own_beat(launch, seat.rank)
        seconds = (now - (launch.slots[seat.rank].at if beat is None else beat.at)).total_seconds()
        if seconds >= SILENT_SECONDS:
            silent[seat] = seconds
    if silent:
        yield (
            f"no heartbeat came from {_brief_names(silent)} for {_duration(min(silent.values()))}; "
            "each is billed until a driver (attach, reconcile) finds out that it has ended"
        )
