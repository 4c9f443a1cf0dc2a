"""A job at one moment: its records, its machines, and the values computed from them; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from cloudspot.controller.assess.limits import Budget, Reached, budget_of, reached_limit
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.journal.history import History
from cloudspot.jobstore.layout.records import Kept
from cloudspot.jobstore.nodes.keeping import kept_now
from cloudspot.jobstore.nodes.seats import Seats, seats_of
from cloudspot.model import Instance
from cloudspot.story.ledger import Ledger, bill


@dataclass(frozen=True)
class Assessment:
    """The job in one look of a driver, shared by the decision, actions, summary and messages."""

    spec: JobSpec
    history: History
    now: datetime
    instances: Sequence[Instance] | None = None
    """The job's machines by the newest listing; None if that failed or has not been made yet."""

    @cached_property
    def seats(self) -> Seats:
        """Return the seats that may hold a machine, and those of them that are to stay."""
        return seats_of(self.history.launches, self.history.generations)

    @cached_property
    def kept(self) -> Kept | None:
        """The node whose machine is kept for inspection at this moment, or None."""
        return kept_now(self.history, self.now)

    @cached_property
    def ledger(self) -> Ledger:
        """Return the bill."""
        return bill(self.history, self.now, instances=self.instances)

    @cached_property
    def budget(self) -> Budget | None:
        """The budget that the job has left, or None if it has no ``limits.max_cost``."""
        return budget_of(self.spec, self.history, self.ledger, self.now, instances=self.instances)

    @cached_property
    def reached(self) -> Reached | None:
        """The limit that the job has reached, or None."""
        return reached_limit(self.spec, self.ledger, self.budget)
