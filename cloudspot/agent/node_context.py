"""What every part of the agent works with: the node, its job, its store, its status and its orders."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.node import Node, NodeMemory
from cloudspot.agent.orders import Orders
from cloudspot.agent.status import Status
from cloudspot.agent.store_retry import insist
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.records import Part, Submission
from cloudspot.model import NodeIdentity


@dataclass(frozen=True)
class Job:
    """What the node was started to run."""

    submission: Submission
    spec: JobSpec
    identity: NodeIdentity


@dataclass(frozen=True)
class NodeContext:
    """One node of one job, as all threads of its agent see it."""

    node: Node
    store: ObjectStore
    provider: Provider
    job: Job
    memory: NodeMemory
    status: Status = field(default_factory=Status)
    orders: Orders = field(default_factory=Orders)
    known_parts: dict[str, Part] = field(default_factory=dict)
    """Records of checkpoint parts by key, put or read by this agent: see ``manifests.try_commit``."""

    insist = staticmethod(insist)

    @property
    def job_id(self) -> str:
        """Return the job's id."""
        return self.node.job_id

    @property
    def rank(self) -> int:
        """Return the node's rank within its launch."""
        return self.job.identity.rank

    def obey(self) -> None:
        """Leave when there is an order to; for the phases that have nothing to save.

        Raises:
            LeavingError: there is an order.
        """
        leaving = self.ordered_leaving()
        if leaving is not None:
            raise LeavingError(leaving)

    def ordered_leaving(self) -> Leaving | None:
        """Return how to leave by the standing orders, or None."""
        orders = self.orders
        if orders.superseded:
            return Leaving("superseded", "a newer launch of the job runs")
        if orders.reclaim is not None:
            return Leaving("drained", f"reclaimed ({orders.reclaim.notice.action})")
        if orders.stop is not None:
            return Leaving("stopped", f"stop requested: {orders.stop.reason}")
        return None
