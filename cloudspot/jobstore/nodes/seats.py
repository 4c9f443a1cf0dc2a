"""Which seats may hold a machine, and which of these are to stay: what all buying rests on (P2); pure.

None of what counts here is ever taken back: a seat that is void stays void, a node that is over, has a notice
or was left out of the training stays so. So only an intent makes the number of staying seats grow, whatever a
reader has not seen yet, and the journal puts intents in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cloudspot.jobstore.journal.history import LaunchHistory
from cloudspot.jobstore.layout.records import Generation, Seat


@dataclass(frozen=True)
class Seats:
    """The seats of a job that are *live*: neither void nor over. An unclaimed seat is live."""

    live: frozenset[Seat]
    members: tuple[Seat, ...]
    """The nodes of the newest generation, in rank order; of those that are over, too."""
    excluded: frozenset[Seat]
    """Those that an earlier generation had and the newest has not."""
    noticed: frozenset[Seat]
    """Those that have a notice."""
    principals: dict[Seat, Seat]
    """By stand-in: the node whose place it takes."""

    @cached_property
    def leaving(self) -> frozenset[Seat]:
        """Return the live seats that have a notice, or are excluded."""
        return self.live & (self.noticed | self.excluded)

    @cached_property
    def named(self) -> frozenset[Seat]:
        """Return the seats for which a live seat that is not leaving stands in."""
        stands = self.live - self.leaving
        return frozenset(principal for one, principal in self.principals.items() if one in stands)

    @cached_property
    def staying(self) -> frozenset[Seat]:
        """Return the live seats that neither leave nor have a stand-in."""
        return self.live - self.leaving - self.named

    @cached_property
    def newcomers(self) -> frozenset[Seat]:
        """Return the live seats that were in no generation."""
        return self.live - self.excluded - frozenset(self.members)


def seats_of(launches: Sequence[LaunchHistory], generations: Sequence[Generation]) -> Seats:
    """Return the seats of a job by its records."""
    members = generations[-1].seats if generations else ()
    ever = {seat for one in generations for seat in one.seats}
    return Seats(
        live=frozenset(Seat(one.number, rank) for one in launches for rank in one.live_ranks),
        members=members,
        excluded=frozenset(ever.difference(members)),
        noticed=frozenset(Seat(one.number, rank) for one in launches for rank in one.notices),
        principals={seat: principal for one in launches for seat, principal in one.intent.principals.items()},
    )
