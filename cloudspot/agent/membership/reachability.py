"""Check whether the other machines answer this one, and which ports are free here."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from cloudspot.jobstore.layout.records import Seat

REACH_SECONDS = 3.0
"""How long to try to reach a machine that does not answer, because some packets may be lost."""
PAUSE_SECONDS = 0.25


def free_port() -> int:
    """Return a TCP port that is now free on all addresses, because torch's store listens on all of them."""
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def is_taken(port: int) -> bool:
    """Return whether the port is taken for a server that listens on all addresses, as torch's store does."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return True
    return False


def unreachable(endpoints: Mapping[Seat, tuple[str, int]]) -> frozenset[Seat]:
    """Return the nodes whose machine does not answer this one; takes up to ``REACH_SECONDS``.

    ``endpoints`` gives an address and a port for each node. No program needs to listen there: a refusal is an
    answer too.
    """
    if not endpoints:
        return frozenset()
    with ThreadPoolExecutor(len(endpoints)) as pool:
        answers = dict(zip(endpoints, pool.map(_answers, endpoints.values()), strict=True))
    return frozenset(seat for seat, has_answered in answers.items() if not has_answered)


def side_continues(seat: Seat, members: Sequence[Seat], cut_off: Collection[Seat]) -> bool:
    """Return whether this node's side continues: the larger side or, of two equal sides, the first member's.

    ``members`` are in the generation's order. The other side must leave. Each side decides this by itself,
    because it cannot hear the other side.
    """
    side = set(members) - set(cut_off)
    assert seat in side
    if 2 * len(side) == len(members):
        return members[0] in side
    return 2 * len(side) > len(members)


def _answers(endpoint: tuple[str, int]) -> bool:
    until = time.monotonic() + REACH_SECONDS
    while True:
        try:
            socket.create_connection(endpoint, timeout=max(0.1, until - time.monotonic())).close()
        except ConnectionRefusedError:
            return True
        except OSError:  # no route, no answer in time, or rejected on the way
            if time.monotonic() >= until:
                return False
            time.sleep(PAUSE_SECONDS)
        else:
            return True
