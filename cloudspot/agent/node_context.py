"""The context that all parts of the agent share: the node, its job, its store, its status and its orders."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.node import Node, NodeMemory
from cloudspot.agent.orders import Orders
from cloudspot.agent.status import Status
from cloudspot.agent.store_retry import retry_until
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.access.store_clock import StoreClock, clock_of
from cloudspot.jobstore.access.stored_records import find_record
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.journal.lineage import newest_generation, why_over
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import (
    JournalRecord,
    Part,
    SaveId,
    Seat,
    StopReason,
    StopRequest,
    Submission,
    new_nonce,
)
from cloudspot.model import NodeIdentity


@dataclass(frozen=True)
class Job:
    """The job that the node was started for."""

    submission: Submission
    spec: JobSpec
    identity: NodeIdentity


@dataclass(frozen=True)
class NodeContext:
    """One node of one job, shared by all threads of its agent."""

    node: Node
    store: ObjectStore
    provider: Provider
    job: Job
    memory: NodeMemory
    status: Status = field(default_factory=Status)
    orders: Orders = field(default_factory=Orders)
    known_parts: dict[str, Part] = field(default_factory=dict)
    """The records of parts, by key, that this agent wrote or read: see ``manifests.write_manifest``."""
    agent: str = field(default_factory=new_nonce)
    """A nonce that distinguishes this agent from earlier and later agents of the machine."""
    is_called: threading.Event = field(default_factory=threading.Event)
    """Set when a request to run a command on this node is seen."""
    uploaded_slots: dict[Path, tuple[SaveId, int]] = field(default_factory=dict)
    """The arena's uploaded slots, each with the save and the rank of the part last uploaded from it."""

    retry_until = staticmethod(retry_until)

    @cached_property
    def journal(self) -> Journal:
        """The job's journal, which all threads of this agent read and append to."""
        return Journal(self.store, self.job_id)

    @cached_property
    def _clock(self) -> StoreClock:
        return clock_of(self.store)

    def now(self) -> datetime:
        """Return this agent's estimate of the store's clock, without a request."""
        return self._clock.now()

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self.node.job_id

    @property
    def rank(self) -> int:
        """The node's rank within its launch."""
        return self.job.identity.rank

    @cached_property
    def seat(self) -> Seat:
        """This node's seat."""
        return Seat(self.node.launch, self.rank)

    def read_stop(self) -> None:
        """Check whether a stop was requested."""
        if self.orders.stop is None:
            key = keys.stop(self.job_id, self.job.submission.resumption)
            stop = find_record(self.store, key, StopRequest)
            if stop is not None:
                self.orders.give(stop=stop)

    def request_stop(self, reason: StopReason, detail: str) -> None:
        """Ask all nodes of the job, including this one, to save a checkpoint and end."""
        number = self.job.submission.resumption
        stop = request_stop(self.store, self.job_id, reason, resumption=number, detail=detail)
        self.orders.give(stop=stop)

    def read_journal(self) -> None:
        """Look for others' decisions: a newer generation, or the end of this launch or of the job."""
        journal = self.journal.read()
        over = why_over(journal, self.node.launch, is_kept=self.orders.is_kept)
        newest = newest_generation(journal)
        if over is not None:
            self.orders.give(superseded=over)
        elif newest is not None:
            self.orders.propose(newest)

    def obey(self) -> None:
        """Leave if the node has an order to leave; for phases in which there is no state to save.

        Raises:
            LeavingError: the node has an order to leave.
        """
        leaving = self.ordered_leaving()
        if leaving is not None:
            raise LeavingError(leaving)

    def obey_journal(self, journal: Sequence[JournalRecord]) -> None:
        """Leave if, by the journal, this launch or the job is over.

        Raises:
            LeavingError: the launch or the job is over.
        """
        over = why_over(journal, self.node.launch)
        if over is not None:
            raise LeavingError(Leaving("superseded", over))

    def ordered_leaving(self) -> Leaving | None:
        """Return the outcome of leaving by the current orders, or None if there is no order."""
        orders = self.orders
        if orders.superseded is not None:
            return Leaving("superseded", orders.superseded)
        if orders.reclaim is not None:
            return Leaving("drained", f"reclaimed ({orders.reclaim.notice.action})")
        if orders.stop is not None:
            return Leaving("stopped", f"stop requested: {orders.stop.reason}")
        return None
