"""The way in which a session's saves are copied, and their cost to its training, in words."""

from __future__ import annotations

from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import SaveCost
from cloudspot.story.outcomes import own_beat

_WAYS = {"boundary": "between two steps", "overlapped": "next to the steps"}


def save_cost(history: History) -> SaveCost | None:
    """Return the highest save cost that a node reports, in the newest generation that has saved, or None."""
    for generation in reversed(history.generations):
        beats = [own_beat(history.launches[seat.launch - 1], seat.rank) for seat in generation.seats]
        costs = [beat.save_cost for beat in beats if beat is not None and beat.save_cost is not None]
        if costs:
            return max(costs, key=lambda cost: (cost.lost_seconds or 0.0, cost.copy_seconds))
    return None


def save_cost_text(cost: SaveCost) -> str:
    """Return the save cost as one line."""
    lost = "" if cost.lost_seconds is None else f"a save costs {_duration(cost.lost_seconds)} of training, "
    return f"copied {_WAYS.get(cost.way, cost.way)}; {lost}a copy takes {_duration(cost.copy_seconds)}"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(1000 * seconds, 0.0):.0f} ms"
