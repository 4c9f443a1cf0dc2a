"""The seats that may hold a machine, and those that will stay, on which all purchases are based (P2); pure.

No fact that counts here is ever revoked: a void seat stays void, and a node that is over, has a notice or was
excluded remains so. So only an intent increases the number of staying seats, even if a reader has not seen
all records, and the journal puts intents in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cloudspot.jobstore.journal.history import LaunchHistory
from cloudspot.jobstore.layout.records import Generation, Seat


@dataclass(frozen=True)
class Seats:
    """The *live* seats of a job, which are neither void nor over. An unclaimed seat is live."""

    live: frozenset[Seat]
    members: tuple[Seat, ...]
    """The nodes of the newest generation, in rank order, including those that are over."""
    excluded: frozenset[Seat]
    """The nodes of earlier generations that are not in the newest generation."""
    noticed: frozenset[Seat]
    """The nodes that have a notice."""
    principals: dict[Seat, Seat]
    """The nodes to be replaced, each by its stand-in's seat."""

    @cached_property
    def leaving(self) -> frozenset[Seat]:
        """The live seats that have a notice or are excluded."""
        return self.live & (self.noticed | self.excluded)

    @cached_property
    def named(self) -> frozenset[Seat]:
        """The seats for which a live stand-in exists that is not leaving."""
        staying = self.live - self.leaving
        return frozenset(principal for one, principal in self.principals.items() if one in staying)

    @cached_property
    def staying(self) -> frozenset[Seat]:
        """The live seats that are not leaving and have no stand-in."""
        return self.live - self.leaving - self.named

    @cached_property
    def newcomers(self) -> frozenset[Seat]:
        """The live seats that have been in no generation."""
        return self.live - self.excluded - frozenset(self.members)


def seats_of(launches: Sequence[LaunchHistory], generations: Sequence[Generation]) -> Seats:
    """Return the seats of a job according to its records."""
    members = generations[-1].seats if generations else ()
    ever = {seat for one in generations for seat in one.seats}
    return Seats(
        live=frozenset(Seat(one.number, rank) for one in launches for rank in one.live_ranks),
        members=members,
        excluded=frozenset(ever.difference(members)),
        noticed=frozenset(Seat(one.number, rank) for one in launches for rank in one.notices),
        principals={seat: principal for one in launches for seat, principal in one.intent.principals.items()},
    )
