"""The life of a node: claim its seat, prepare, run generations, leave with an exit record."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack

from cloudspot.agent.delivery.artifact_sync import ArtifactSync
from cloudspot.agent.delivery.courier import Courier
from cloudspot.agent.delivery.early_restore import EarlyRestore
from cloudspot.agent.delivery.log_pump import LogPump, flush_seconds_of
from cloudspot.agent.delivery.outputs import Outputs
from cloudspot.agent.delivery.tensorboard_events import EventFiles
from cloudspot.agent.ending.exit_record import write_exit_record
from cloudspot.agent.ending.final_delivery import FinalDelivery
from cloudspot.agent.ending.keeping import Keeping
from cloudspot.agent.last_pass import LastPass
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.membership.agreement import Membership
from cloudspot.agent.membership.heartbeat_writer import HeartbeatWriter
from cloudspot.agent.metered_store import MeteredStore
from cloudspot.agent.node import Node, NodeMemory
from cloudspot.agent.node_context import Job, NodeContext
from cloudspot.agent.notices.notice_intake import NoticeIntake
from cloudspot.agent.notices.notice_pipe import NoticePipe
from cloudspot.agent.remote.remote_commands import RemoteCommands
from cloudspot.agent.training.generation_run import GenerationRun
from cloudspot.agent.training.launching.input_staging import InputStaging, data_variables
from cloudspot.agent.training.launching.kept_setup import bake
from cloudspot.agent.training.launching.preparation import fetch_code, run_setup, start_kept
from cloudspot.agent.training.launching.trainer import end_training
from cloudspot.agent.training.programs.container import runtime_of
from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobfile.image import find_login
from cloudspot.jobstore.access.stored_records import find_record
from cloudspot.jobstore.jobs.submission import read_secrets
from cloudspot.jobstore.journal.lineage import newest_generation
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Exit
from cloudspot.jobstore.logs.log_streams import stream_name
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.nodes import launches
from cloudspot.jobstore.nodes.keeping import VERDICT_SECONDS
from cloudspot.model import RegistryLogin
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

TRACKED_SECONDS = 5.0
"""How long a checkpoint's upload waits for the trackers' files."""
DENIED_LOG_SECONDS = 10.0
"""How long a node that lacks a permission, and has not trained, tries to deliver its log lines."""


class Life:
    """One node from its seat to its exit record."""

    def __init__(
        self, node: Node, store: ObjectStore, provider: Provider, job: Job, pipe: NoticePipe
    ) -> None:
        metered = MeteredStore(store)
        self.context = context = NodeContext(node, metered, provider, job, NodeMemory.load(node))
        self.stream = stream_name(node.launch, context.rank)
        self.logs = LogPump(
            provider.log_sink(store, node.job_id) or ObjectStoreLogSink(metered, node.job_id),
            stream=self.stream,
            position_path=node.directory / "logpump.json",
            flush_seconds=flush_seconds_of(
                context.rank,
                num_nodes=job.spec.nodes.max,
                asked_seconds=job.spec.logs.flush_seconds,
            ),
            now=context.now,
        )
        self._secrets: Mapping[str, str] = {}
        self.runtime = runtime_of(node, job.spec, self._image_login)
        context.status.num_live = job.spec.nodes.max  # until the others are heard from
        context.status.now = context.now
        context.status.log_standing = self.logs.standing
        context.status.moved_bytes = lambda: metered.moved_bytes
        self.events = EventFiles(node)

        def is_leaving() -> bool:
            return context.orders.pending

        outputs = Outputs(node, job.spec, context.status.warn, is_leaving=is_leaving)
        self.artifacts = ArtifactSync(
            metered,
            node.job_id,
            node.artifacts,
            seat=context.seat,
            prepare=self.events.update,
            outputs=outputs if job.spec.run.outputs != () else None,
            is_leaving=is_leaving,
            must_yield=lambda: context.status.transfer is not None,
        )
        self.courier = Courier(context, before_upload=self._deliver_tracked)
        source = provider.preemption_source()
        context.status.notice_seconds = source.notice_seconds
        self.last_pass = LastPass(context)
        self.notices = NoticeIntake(context, source, pipe, on_recorded=self.last_pass.run)
        self.heartbeat = HeartbeatWriter(context)
        self.remote = RemoteCommands(context, self.runtime)
        self.keeping = Keeping(context)

    def run(self) -> None:
        """Run until the node has no more work; then the machine may be ended.

        No user code runs unless the seat belongs to this machine.

        Raises:
            AuthError: a permission is missing; the exit record states which, if it could be written.
        """
        context = self.context
        node, identity = context.node, context.job.identity
        record = self._find_exit_record()
        if record is not None:
            if record.outcome == "failed" and self.keeping.recall(record):
                self._stay(record)
            elif record.outcome != "superseded":
                self.last_pass.run_until_replaced()  # the last agent may have been killed in a pass
            return
        slot = context.retry_until(
            lambda: launches.claim_slot(context.store, node.job_id, node.launch, identity.rank, identity)
        )
        if slot.instance_id != identity.instance_id:
            _log.warning("the seat of node %s is void or belongs to another machine: ending", context.seat)
            return
        self._remember()
        self.logs.start()
        self.notices.start()
        # The heartbeat comes before the checkpoint, because retention spares checkpoints that a live node may
        # be choosing.
        context.retry_until(self.heartbeat.beat)
        self.heartbeat.start()
        self.remote.start()
        threading.Thread(target=self.last_pass.run, name="first pass", daemon=True).start()
        try:
            leaving = self._train()
        except LeavingError as error:
            leaving = error.leaving
        except TransientError:
            raise  # it may be temporary: this machine's next agent continues
        except AuthError as error:
            end_training(node)
            self._leave_denied(error)
            self._stop_runtime()
            raise
        except (CloudspotError, OSError) as error:
            # The next agent would fail too, and the machine would be paid for meanwhile.
            _log.exception("this node cannot continue")
            leaving = Leaving("failed", str(error), exit_code=1)
        end_training(node)
        if self.keeping.may_follow(leaving):
            self._leave_or_stay(leaving)
        else:
            self._leave(leaving)
        self._stop_runtime()
        if leaving.outcome != "superseded":
            self.last_pass.run_until_replaced()

    def _stay(self, record: Exit) -> None:
        """Continue after an earlier agent: the machine is, or may be, kept for inspection."""
        context = self.context
        self._remember()
        self.logs.start()
        self.notices.start()
        context.status.state = "kept"
        context.retry_until(self.heartbeat.beat)
        self.heartbeat.start()
        self.remote.start()
        self._serve_at_least()
        waits_until = context.now() if record.waits_until is None else record.waits_until
        self._inspect((waits_until - context.now()).total_seconds())
        self._delivery().fall_silent()
        self._stop_runtime()

    def _leave_or_stay(self, leaving: Leaving) -> None:
        """Leave after a failure; if the machine is kept for inspection, its commands keep running."""
        delivery = self._delivery()
        leaving = self.keeping.settle(delivery.deliver(leaving))
        if leaving.permanent and not self.keeping.is_kept:
            self._end_commands(leaving)
            delivery.fall_silent()
            delivery.write_exit_record(leaving)
        elif delivery.write_exit_record(leaving):
            self._serve_at_least()
            self.last_pass.run()
            self._inspect(VERDICT_SECONDS)
            delivery.fall_silent()

    def _inspect(self, waits_until_seconds: float) -> None:
        """Stay until the time for inspection is over or the machine turns out not to be kept."""
        self.keeping.wait(waits_until_seconds)
        self.remote.end("the node is not kept any longer: the command was ended")
        self.keeping.end()

    def _remember(self) -> None:
        """Continue where an earlier agent of this machine stopped; on a new machine, there was none."""
        context = self.context
        node, memory, status = context.node, context.memory, context.status
        self.logs.follow(node.logs / "agent.log", "agent")
        self.logs.follow(node.logs / "setup.log", "setup")
        # An earlier agent may have died before the last lines of a generation were delivered.
        for path in sorted(node.logs.glob("train-*.log")):
            self.logs.follow(path, "train")
        for path in sorted(node.logs.glob("metrics-*.jsonl")):
            self.logs.follow(path, "metrics")
        if memory.generation > 0:
            status.generation, status.restored_step = memory.generation, memory.restored_step
            status.handoff = node.handoff(memory.generation)
            first = memory.first_rank
            status.ranks = tuple(range(first, first + context.job.spec.procs_per_node))
        self.notices.recall()

    def _environment(self) -> dict[str, str]:
        """Return the variables of the job's programs, without those that depend on its setup or inputs."""
        context = self.context
        run, resumption = context.job.spec.run, context.job.submission.resumption
        self._secrets = context.retry_until(
            lambda: read_secrets(context.store, context.job_id, run.secrets, resumption=resumption)
        )
        environment = {**self.runtime.inherited, **run.env, **self._secrets}
        python_path = [str(context.node.python_path), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
        return environment

    def _serve(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Start to run people's commands; return the training's variables, which may depend on the setup."""
        node = self.context.node
        environment = {**environment, **data_variables(self.context.job.spec.data, node)}
        environment = self.runtime.with_programs(environment)  # again: the setup may have created python
        own = {files.JOB_ID: node.job_id, files.ARTIFACTS: str(node.artifacts)}
        self.remote.serve({**environment, **own})
        return environment

    def _serve_at_least(self) -> None:
        """Also run people's commands if the setup failed, or if an earlier agent ran it."""
        try:
            if not self.remote.serves:
                self._serve(self._environment())
        except (CloudspotError, OSError) as error:
            _log.error("no command can be run here: %s", error)

    def _train(self) -> Leaving:
        context = self.context
        environment = self._environment()
        fetch_code(context)
        start_kept(context, self.runtime)
        inputs = InputStaging(context)
        inputs.start()
        with ExitStack() as stack:
            stack.callback(inputs.stop)
            early = stack.enter_context(EarlyRestore(context))
            run_setup(context, self.runtime, environment, check=inputs.check)
            if context.job.submission.bakes:
                bake(context, self.runtime)
            generations = GenerationRun(
                context,
                Membership(context, early),
                self.runtime,
                self._serve(environment),
                courier=self.courier,
                artifacts=self.artifacts,
                logs=self.logs,
                events=self.events,
            )
            generations.prepare()
            inputs.finish()
            self.artifacts.start()
            self.courier.start()
            return generations.run_all()

    def _deliver_tracked(self) -> None:
        """Deliver the trackers' files: they must not lack any step of a checkpoint after a loss."""
        if not self.context.job.spec.run.trackers or self.context.orders.pending:
            return
        end = time.monotonic() + TRACKED_SECONDS
        try:
            self.artifacts.sync(until=lambda: end)
        except CloudspotError as error:
            _log.warning("a checkpoint is uploaded before the newest files of the trackers: %s", error)

    def _image_login(self, registry: str) -> RegistryLogin | None:
        return find_login(
            registry,
            self.context.job.spec.run.image_login,
            self.context.provider,
            lambda name: self._secrets.get(name, ""),
        )

    def _stop_runtime(self) -> None:
        """Remove the containers; all output of the job has been saved."""
        try:
            self.runtime.stop()
        except (CloudspotError, OSError) as error:
            _log.warning("%s", error)

    def _leave(self, leaving: Leaving) -> None:
        self._end_commands(leaving)
        self._delivery().leave(leaving)

    def _end_commands(self, leaving: Leaving) -> None:
        self.remote.end(f"the node is leaving ({leaving.outcome}): the command was ended")

    def _delivery(self) -> FinalDelivery:
        return FinalDelivery(
            self.context,
            courier=self.courier,
            artifacts=self.artifacts,
            logs=self.logs,
            stop_heartbeat=self.heartbeat.finish,
            end_pass=self.last_pass.wait,
        )

    def _leave_denied(self, error: AuthError) -> None:
        """Leave for lack of a permission; if the job has never trained, other machines would lack it too.

        A node that has trained first tries to deliver its files. Any other node only reports the reason.
        """
        context = self.context
        self.remote.end("the node is leaving: the command was ended")
        has_trained = context.memory.generation > 0
        is_permanent = not has_trained and newest_generation(context.journal.known) is None
        leaving = Leaving("failed", str(error), exit_code=error.exit_code, permanent=is_permanent)
        if has_trained:
            self._leave(leaving)
            return
        self.heartbeat.finish()
        self.logs.finish(deadline=time.monotonic() + DENIED_LOG_SECONDS)
        write_exit_record(context.store, context.node, context.job.identity, leaving, context.status)

    def _find_exit_record(self) -> Exit | None:
        context = self.context
        key = keys.exit_record(context.job_id, context.node.launch, context.rank)
        record = context.retry_until(lambda: find_record(context.store, key, Exit))
        is_ours = record is not None and record.instance_id == context.job.identity.instance_id
        return record if is_ours else None
