"""Names of nodes, and short forms for many names; pure."""

from __future__ import annotations

from collections.abc import Iterable

from cloudspot.decoding import MAX_LAUNCHES, MAX_NODES, whole_number
from cloudspot.jobstore.layout.records import Seat


def parse_seat(name: str) -> Seat:
    """Return the seat of a node by its name.

    Raises:
        ValueError: ``name`` is not a node's name.
    """
    launch_text, _, number = name.partition(".")
    launch, rank = whole_number(launch_text, most=MAX_LAUNCHES - 1), whole_number(number, most=MAX_NODES - 1)
    if not launch or rank is None:
        raise ValueError(f"{name[:40]!r} is not a node's name; expected one such as 2.0")
    return Seat(launch, rank)


def ranges(seats: Iterable[Seat]) -> str:
    """Return ``1.0-7,9 2.3`` for launch 1's nodes 0 to 7 and 9, and launch 2's node 3."""
    runs: dict[int, list[list[int]]] = {}
    for launch, rank in seats:
        of_launch = runs.setdefault(launch, [])
        if of_launch and of_launch[-1][1] == rank - 1:
            of_launch[-1][1] = rank
        else:
            of_launch.append([rank, rank])
    return " ".join(
        f"{launch}." + ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
        for launch, found in runs.items()
    )


def named(seats: Iterable[Seat]) -> str:
    """Return ``node 1.0``, ``nodes 1.0 and 1.1``, or for more nodes ``nodes 1.0-7 2.3``."""
    found = tuple(seats)
    if len(found) == 2:
        return f"nodes {found[0]} and {found[1]}"
    return f"node{'' if len(found) == 1 else 's'} {ranges(found)}"
