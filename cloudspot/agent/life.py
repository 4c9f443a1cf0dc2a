"""The life of a node: claim its slot, prepare, run generations, leave with a last word."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cloudspot.agent.artifacts import Artifacts
from cloudspot.agent.courier import Courier
from cloudspot.agent.generation import GenerationRun
from cloudspot.agent.heartbeat import HeartbeatWriter
from cloudspot.agent.lastword import leave
from cloudspot.agent.launcher import end_training, script_lines
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.logpump import LogPump, split_lines
from cloudspot.agent.node import Node, NodeMemory
from cloudspot.agent.notices import Notices
from cloudspot.agent.orderedstop import OrderedStop
from cloudspot.agent.preparation import prepare
from cloudspot.agent.status import Orders, Status
from cloudspot.agent.tensorboard import EventFiles
from cloudspot.errors import AuthError, CloudspotError, ObjectMissing, TransientError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore import codec, keys, launches
from cloudspot.jobstore.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.records import Exit, Submission
from cloudspot.jobstore.streams import stream_name
from cloudspot.jobstore.submission import read_secrets
from cloudspot.model import NodeIdentity

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

MAX_BACKOFF_SECONDS = 15.0
LOG_TAIL_LINES = 40
LOG_TAIL_BYTES = 65536


@dataclass(frozen=True)
class Job:
    """What the node was told to run."""

    submission: Submission
    spec: JobSpec
    identity: NodeIdentity


class Life:
    """One node from its slot to its exit record."""

    def __init__(
        self, node: Node, store: ObjectStore, provider: Provider, job: Job, stop: OrderedStop | None = None
    ) -> None:
        self.node = node
        self.store = store
        self.provider = provider
        self.job = job
        self.memory = NodeMemory.load(node)
        self.gathered_at = time.monotonic()
        """When all nodes of the launch were there (monotonic)."""
        self.status = Status()
        self.orders = Orders()
        identity = job.identity
        self.stream = stream_name(node.launch, identity.rank)
        self.logs = LogPump(
            provider.log_sink(store, node.job_id) or ObjectStoreLogSink(store, node.job_id),
            stream=self.stream,
            position_path=node.directory / "logpump.json",
            flush_seconds=job.spec.logs.flush_seconds,
        )
        self.status.log_standing = self.logs.standing
        self.events = EventFiles(node)
        self.artifacts = Artifacts(
            store, node.job_id, node.artifacts, rank=identity.rank, prepare=self.events.update
        )
        self.courier = Courier(store, node, job.spec, self.status, self.orders)
        source = provider.preemption_source()
        self.status.notice_seconds = source.notice_seconds
        self.notices = Notices(self, source, stop)
        self._heartbeat = HeartbeatWriter(
            store,
            job_id=node.job_id,
            launch=node.launch,
            identity=identity,
            status=self.status,
            orders=self.orders,
        )

    def run(self) -> None:
        """Live until the node has nothing more to do; then the machine may be ended.

        Runs no user code before the slot is this machine's, and none when it is another's.
        """
        node, identity = self.node, self.job.identity
        if self._has_left():
            return
        slot = self.insist(
            lambda: launches.claim_slot(self.store, node.job_id, node.launch, identity.rank, identity)
        )
        if slot.instance_id != identity.instance_id:
            _log.warning("slot %d of launch %d is not ours; ending", identity.rank, node.launch)
            return
        self._remember()
        self.logs.start()
        self.notices.start()
        self._heartbeat.start()
        try:
            leaving = self._train()
        except LeavingError as error:
            leaving = error.leaving
        except (AuthError, TransientError):
            raise  # it may pass: the next agent of this machine goes on
        except (CloudspotError, OSError) as error:
            # It would meet the next agent of this machine as well, which would go on paying for it.
            _log.exception("this node cannot go on")
            leaving = Leaving("failed", str(error), exit_code=1)
        end_training(self.node)
        leave(self, leaving)

    def _remember(self) -> None:
        """Go on where an earlier agent of this machine stood; on a fresh one there is nothing."""
        node, memory, status = self.node, self.memory, self.status
        self.logs.follow(node.logs / "agent.log", "agent")
        self.logs.follow(node.logs / "setup.log", "setup")
        # It may have left before the last lines of a generation that had ended were delivered.
        for path in sorted(node.logs.glob("train-*.log")):
            self.logs.follow(path, "train")
        for path in sorted(node.logs.glob("metrics-*.jsonl")):
            self.logs.follow(path, "metrics")
        if memory.generation > 0:
            status.generation, status.restored_step = memory.generation, memory.restored_step
            status.handoff = node.handoff(memory.generation)
            first = memory.first_rank
            status.ranks = tuple(range(first, first + self.job.spec.procs_per_node))
        self.notices.recall()

    # --- before the training --------------------------------------------------------------------

    def _train(self) -> Leaving:
        self._await_slots()
        secrets = self.insist(lambda: read_secrets(self.store, self.node.job_id))
        environment = {**os.environ, **self.job.spec.run.env, **secrets}
        python_path = [str(self.node.python_path), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
        prepare(self, environment)
        self.artifacts.start()
        self.courier.start()
        return GenerationRun(self, environment).run_all()

    def _await_slots(self) -> None:
        """Wait until every slot of the launch names an instance: training starts with all or not at all."""
        num_nodes = self.job.spec.nodes.max
        while True:
            slots = self.insist(lambda: launches.read_slots(self.store, self.node.job_id, self.node.launch))
            if any(slot.instance_id is None for slot in slots.values()):
                raise LeavingError(Leaving("superseded", "the launch was given up before all nodes came"))
            if len(slots) >= num_nodes:
                self.gathered_at = time.monotonic()
                return
            self.obey()
            self.orders.wait(1.0)

    # --- orders ---------------------------------------------------------------------------------

    def obey(self) -> None:
        """Leave when others have decided so; for the phases that have nothing to save.

        Raises:
            LeavingError: there is an order.
        """
        leaving = self.ordered_leaving()
        if leaving is not None:
            raise LeavingError(leaving)

    def ordered_leaving(self) -> Leaving | None:
        """Return how to leave by the standing orders, or None."""
        if self.orders.superseded:
            return Leaving("superseded", "a newer launch of the job runs")
        if self.orders.reclaim is not None:
            return Leaving("drained", f"reclaimed ({self.orders.reclaim.notice.action})")
        if self.orders.stop is not None:
            return Leaving("stopped", f"stop requested: {self.orders.stop.reason}")
        return None

    # --- the end --------------------------------------------------------------------------------

    def stop_beating(self) -> None:
        """End the heartbeat: only the last word is to come."""
        self._heartbeat.finish()

    def _has_left(self) -> bool:
        """Say whether an earlier agent of this machine has said the last word already."""
        key = keys.exit_record(self.node.job_id, self.node.launch, self.job.identity.rank)
        try:
            record = codec.decode(self.insist(lambda: self.store.get(key)), Exit)
        except ObjectMissing:
            return False
        return record.instance_id == self.job.identity.instance_id

    def insist(self, call: Callable[[], _T], *, deadline: float | None = None) -> _T:
        """Repeat a call of the store until it succeeds or, where there is a deadline, until then.

        Raises:
            TransientError: the deadline came; the last try was made at that moment.
        """
        wait = 0.25
        while True:
            try:
                return call()
            except TransientError as error:
                left = math.inf if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise
                _log.warning("the store failed, trying again: %s", error)
                time.sleep(min(wait, left))
                wait = min(2 * wait, MAX_BACKOFF_SECONDS)

    def tail(self, name: str) -> tuple[str, ...]:
        """Return the last lines of a log file, without what torchrun adds to them."""
        try:
            data = (self.node.logs / name).read_bytes()[-LOG_TAIL_BYTES:]
        except FileNotFoundError:
            return ()
        lines = script_lines([line.decode("utf-8", errors="replace") for line in split_lines(data)])
        return tuple(lines[-LOG_TAIL_LINES:])
