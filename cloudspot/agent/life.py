"""The life of a node: claim its slot, prepare, run generations, leave with a last word."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TypeVar

from cloudspot.agent.artifacts import Artifacts
from cloudspot.agent.courier import Courier
from cloudspot.agent.generation import GenerationRun
from cloudspot.agent.heartbeat import HeartbeatWriter
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.logpump import LogPump
from cloudspot.agent.node import Node, NodeMemory
from cloudspot.agent.status import Orders, Status
from cloudspot.agent.watcher import NoticeWatcher, Reclaim
from cloudspot.errors import CloudspotError, ObjectMissing, TransientError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobstore import bundle, codec, creation, keys, launches
from cloudspot.jobstore.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.records import Exit, Notice, Submission, new_nonce
from cloudspot.jobstore.submission import read_secrets
from cloudspot.model import NodeIdentity
from cloudspot.processes import kill_marked
from cloudspot.spec import JobSpec

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

LAST_WORD_SECONDS = 600.0
"""How long a node without a deadline tries to deliver its last checkpoint, lines and exit record."""
MAX_BACKOFF_SECONDS = 15.0
LOG_TAIL_LINES = 40
_SETUP_MARK = "CLOUDSPOT_SETUP"


@dataclass(frozen=True)
class Job:
    """What the node was told to run."""

    submission: Submission
    spec: JobSpec
    identity: NodeIdentity


class Life:
    """One node from its slot to its exit record."""

    def __init__(self, node: Node, store: ObjectStore, provider: Provider, job: Job) -> None:
        self.node = node
        self.store = store
        self.job = job
        self.memory = NodeMemory.load(node)
        self.status = Status()
        self.orders = Orders()
        identity = job.identity
        self.stream = f"{node.launch}-{identity.rank}"
        self.logs = LogPump(
            provider.log_sink(store, node.job_id) or ObjectStoreLogSink(store, node.job_id),
            stream=self.stream,
            position_path=node.directory / "logpump.json",
            flush_seconds=job.spec.logs.flush_seconds,
        )
        self.artifacts = Artifacts(store, node.job_id, node.artifacts, rank=identity.rank)
        self.courier = Courier(store, node, job.spec, self.status, self.orders)
        source = provider.preemption_source()
        self.courier.notice_seconds = source.notice_seconds
        self._watcher = NoticeWatcher(source, self._notice)
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
        self.logs.follow(node.logs / "agent.log", "agent")
        self.logs.follow(node.logs / "setup.log", "setup")
        self.logs.start()
        self._watcher.start()
        self._heartbeat.start()
        try:
            leaving = self._train()
        except LeavingError as error:
            leaving = error.leaving
        self._leave(leaving)

    # --- before the training --------------------------------------------------------------------

    def _train(self) -> Leaving:
        self._await_slots()
        secrets = self.insist(lambda: read_secrets(self.store, self.node.job_id))
        environment = {**os.environ, **self.job.spec.run.env, **secrets}
        python_path = [str(self.node.python_path), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
        self._fetch_code()
        if not self.memory.setup_done:
            if self.node.launch > 1:
                self.insist(self.artifacts.restore)
            self._setup(environment)
            self.memory.setup_done = True
            self.memory.save(self.node)
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
                return
            self.obey()
            self.orders.wait(1.0)

    def _fetch_code(self) -> None:
        if self.memory.code_ready:
            return
        submission = self.job.submission
        data = self.insist(lambda: self.store.get(keys.code(submission.code_sha256)))
        bundle.extract_bundle(data, self.node.work, sha256=submission.code_sha256)
        self.memory.code_ready = True
        self.memory.save(self.node)

    def _setup(self, environment: dict[str, str]) -> None:
        command = self.job.spec.run.setup
        if command is None:
            return
        kill_marked(_SETUP_MARK, str(self.node.directory))  # of an agent that was killed in the middle
        _log.info("setup: %s", command)
        with (self.node.logs / "setup.log").open("ab") as log:
            process = subprocess.Popen(
                ["/bin/bash", "-euo", "pipefail", "-c", command],
                cwd=self.node.work,
                env={**environment, _SETUP_MARK: str(self.node.directory)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            while process.poll() is None:
                self.obey()
                self.orders.wait(0.1)
        finally:
            if process.poll() is None:
                kill_marked(_SETUP_MARK, str(self.node.directory))
                process.wait()
        if process.returncode != 0:
            tail = self.tail("setup.log")
            detail = f"setup failed with exit status {process.returncode}: {tail[-1] if tail else command}"
            raise LeavingError(Leaving("failed", detail, exit_code=process.returncode, log_tail=tail))

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

    def _notice(self, reclaim: Reclaim) -> None:
        if self.memory.notice_deadline is not None:  # an earlier agent of this machine saw it first
            reclaim = replace(reclaim, deadline=min(reclaim.deadline, self.memory.notice_deadline))
        left = reclaim.deadline - time.monotonic()
        _log.warning("notice: this machine will %s in %.1f s", reclaim.notice.action, left)
        if self.memory.notice_deadline is None:
            self.memory.notice_deadline = reclaim.deadline
            self.memory.save(self.node)
        self.orders.give(reclaim=reclaim)
        record = Notice(
            launch=self.node.launch,
            rank=self.job.identity.rank,
            deadline=reclaim.deadline_at,
            action=reclaim.notice.action,
            source=reclaim.notice.source,
            step=self.status.progress()[0],
            at=datetime.now(timezone.utc),
            writer=new_nonce(),
        )
        key = keys.notice(self.node.job_id, self.node.launch, self.job.identity.rank)
        try:
            self.insist(
                lambda: creation.create(self.store, key, codec.encode(record)), deadline=reclaim.deadline
            )
        except CloudspotError as error:
            _log.warning("the notice was not recorded: %s", error)

    # --- the end --------------------------------------------------------------------------------

    def _leave(self, leaving: Leaving) -> None:
        """Deliver everything, say the last word, in this order: commit, artifacts, lines, exit record."""
        self.status.state = "ending"
        deadline = self.orders.deadline(otherwise_seconds=LAST_WORD_SECONDS)
        self.courier.finish(deadline=deadline - 0.2)
        self.artifacts.stop()
        self._try(self.artifacts.sync, "artifacts", deadline=deadline - 0.2)
        _log.info("leaving: %s (%s)", leaving.outcome, leaving.detail)
        now = time.monotonic()
        if not self.logs.finish(deadline=now + 0.7 * max(0.0, deadline - now)):
            _log.error("log lines were lost: the sink did not take them in time")
        self._heartbeat.stop()
        step = self.status.progress()[0]
        committed = self.status.committed
        if leaving.outcome in {"drained", "stopped"} and leaving.saved_step is not None:
            step = leaving.saved_step
        record = Exit(
            launch=self.node.launch,
            rank=self.job.identity.rank,
            instance_id=self.job.identity.instance_id,
            outcome=leaving.outcome,
            detail=leaving.detail,
            exit_code=leaving.exit_code,
            permanent=leaving.permanent,
            log_tail=leaving.log_tail,
            generation=self.status.generation,
            restored_step=self.status.restored_step,
            step=step,
            committed=committed,
            final=leaving.final,
            at=datetime.now(timezone.utc),
            writer=new_nonce(),
        )
        key = keys.exit_record(self.node.job_id, self.node.launch, self.job.identity.rank)
        self._try(
            lambda: creation.create(self.store, key, codec.encode(record)), "exit record", deadline=deadline
        )

    def _has_left(self) -> bool:
        """Say whether an earlier agent of this machine has said the last word already."""
        key = keys.exit_record(self.node.job_id, self.node.launch, self.job.identity.rank)
        try:
            record = codec.decode(self.insist(lambda: self.store.get(key)), Exit)
        except ObjectMissing:
            return False
        return record.instance_id == self.job.identity.instance_id

    def _try(self, call: Callable[[], object], what: str, *, deadline: float) -> None:
        try:
            self.insist(call, deadline=deadline)
        except CloudspotError as error:
            _log.error("%s: not delivered: %s", what, error)

    def insist(self, call: Callable[[], _T], *, deadline: float | None = None) -> _T:
        """Repeat a call of the store until it succeeds or, where there is a deadline, until then."""
        wait = 0.25
        while True:
            try:
                return call()
            except TransientError as error:
                if deadline is not None and time.monotonic() + wait > deadline:
                    raise
                _log.warning("the store failed, trying again: %s", error)
                time.sleep(wait)
                wait = min(2 * wait, MAX_BACKOFF_SECONDS)

    def tail(self, name: str) -> tuple[str, ...]:
        """Return the last lines of a log file."""
        try:
            data = (self.node.logs / name).read_bytes()[-16384:]
        except FileNotFoundError:
            return ()
        return tuple(data.decode("utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])
