"""Run generations on this node until the job ends or the machine must leave."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cloudspot.agent.delivery.artifact_sync import ArtifactSync
from cloudspot.agent.delivery.checkpoint_restore import (
    Restored,
    on_demand_here,
    restore_own,
)
from cloudspot.agent.delivery.courier import Courier
from cloudspot.agent.delivery.log_pump import LogPump
from cloudspot.agent.delivery.on_demand_fetch import OnDemandFetch
from cloudspot.agent.delivery.tensorboard_events import EventFiles
from cloudspot.agent.ending.restart_policy import NOT_RESTORED
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.membership.agreement import Membership
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.training.generation_end import GenerationEnd
from cloudspot.agent.training.launching.fork_server import ForkServer
from cloudspot.agent.training.launching.network_interface import gloo_environment
from cloudspot.agent.training.launching.preparation import start_runtime
from cloudspot.agent.training.launching.tracking import track
from cloudspot.agent.training.launching.trainer import (
    Trainer,
    TrainerPlan,
    check_program,
    check_torch,
    end_training,
    launch_settings,
    launch_variables,
)
from cloudspot.agent.training.programs.runtime import Runtime, RuntimeLost
from cloudspot.agent.training.watching.drain_schedule import DrainSchedule
from cloudspot.agent.training.watching.idle_watch import IdleWatch
from cloudspot.agent.training.watching.script_notice import withdraw
from cloudspot.agent.training.watching.supervision import Supervisor
from cloudspot.agent.training.watching.utilization import UtilizationWatch
from cloudspot.errors import CloudspotError, CorruptData
from cloudspot.jobstore.journal.lineage import generations_of
from cloudspot.jobstore.layout.records import Failed, Generation
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

ARTIFACTS_SECONDS = 30.0
"""How long a node that may be replaced may upload its artifacts before the next generation begins."""


class GenerationRun:
    """Runs generations on this node, one after the other."""

    def __init__(
        self,
        context: NodeContext,
        membership: Membership,
        runtime: Runtime,
        environment: Mapping[str, str],
        *,
        courier: Courier,
        artifacts: ArtifactSync,
        logs: LogPump,
        events: EventFiles,
    ) -> None:
        self._context = context
        self._node = context.node
        self._spec = context.job.spec
        self._runtime = runtime
        run = self._spec.run
        self._environment = launch_settings(
            environment,
            has_torchrun=run.launcher_or_default == "torchrun",
            procs_per_node=self._spec.procs_per_node,
        )
        self._fork_server = ForkServer(runtime, run, self._environment)
        logs.follow(self._node.fork_server_log, "agent")
        self._courier = courier
        self._artifacts = artifacts
        self._logs = logs
        self._events = events
        self._drains = DrainSchedule(context)
        self._membership = membership
        self._end = GenerationEnd(context, membership, courier)
        self._idle_watch = IdleWatch(context, membership)
        self._utilization = UtilizationWatch(context, logs.follow)
        self._is_checked = False
        self._have_ended = True
        """Whether all processes of the last generation have ended."""
        self._find_restored: Callable[[], Restored | None] = lambda: None
        """Returns the checkpoint from which the running generation resumed, while ranks may still ask for
        ranges of it."""

    def prepare(self) -> None:
        """Import torch while inputs are staged, checkpoints are restored and nodes agree."""
        if self._context.memory.trainer_pid == 0:
            # If an agent was killed before it recorded the start of a trainer, that trainer is unknown.
            end_training(self._node)
        self._fork_server.start()

    def run_all(self) -> Leaving:
        """Run generations until the node must leave, and return the outcome; call ``prepare`` before."""
        context = self._context
        self._membership.start()
        self._idle_watch.start()
        self._utilization.start()
        try:
            trainer = self._adopt()
            while True:
                if trainer is None:
                    context.obey()
                    trainer = self._start(context.memory.next_why)
                leaving = self._supervise(trainer)
                trainer = None
                if leaving is not None:
                    return leaving
        finally:
            self._idle_watch.stop()
            self._utilization.stop()
            self._membership.stop()

    def _adopt(self) -> Trainer | None:
        """Take over the trainer that an earlier agent of this machine started, if any."""
        context, memory, status = self._context, self._context.memory, self._context.status
        known: Sequence[Generation] = ()
        if memory.generation > 0:
            known = generations_of(context.retry_until(context.journal.read))
            # Enter the generation even if its trainer has ended, because a generation is started only once.
            self._membership.enter(known[memory.generation - 1])
        if memory.trainer_pid == 0:
            return None
        _log.warning("this agent was restarted; generation %d goes on", memory.generation)
        self._take_ranks(known[memory.generation - 1])
        handoff = self._node.handoff(memory.generation)
        self._follow_metrics(handoff, memory.generation)
        self._courier.adopt()
        self._artifacts.begin_training()
        trainer = Trainer(handoff, memory.trainer_pid)
        checkpoint = known[memory.generation - 1].restore_from
        if checkpoint is not None and not trainer.has_begun_loop(status.ranks):
            self._find_restored = lambda: on_demand_here(context, checkpoint)
        status.state = "running"
        return trainer

    def _start(self, why: str) -> Trainer:
        context, node = self._context, self._node
        status, memory = context.status, context.memory
        if status.state != "uploading":  # drivers leave a node in this state alone until it has delivered
            status.state = "restoring"
        self._membership.obey()
        self._courier.settle()
        self._hand_over_artifacts()
        status.state = "restoring"
        context.obey()
        self._courier.set_aside_torn()
        self._membership.await_uploads()  # after this node's uploads, which others wait for
        if not self._have_ended:
            context.uploaded_slots.clear()  # a process that is still alive may write to the slots
        record, restored = self._membership.next(why)
        self._find_restored = lambda: restored
        memory.generation_began_at, memory.training_began_at = self._membership.entered_at, 0.0
        index = self._take_ranks(record)
        try:
            restored = restore_own(context, restored, place=index, num_nodes=len(record.members))
        except CorruptData as error:
            _log.error("generation %d cannot start, looking for another checkpoint: %s", record.number, error)
            status.failed = Failed(generation=record.number, why=NOT_RESTORED, exit_code=1)
            return self._start(NOT_RESTORED)
        handoff = node.handoff(record.number)
        files.seals_directory(handoff).mkdir(parents=True, exist_ok=True)
        start_runtime(context, self._runtime)
        self._fork_server.start()  # it may have ended since the last generation's start
        self._check_programs()
        self._events.begin(record.number, status.restored_step)
        withdraw(self._spec.checkpoint.on_notice, node)
        self._courier.begin(record, restored)
        log = node.train_log(record.number)
        self._logs.follow(log, "train")
        self._follow_metrics(handoff, record.number)
        run, procs = self._spec.run, self._spec.procs_per_node
        variables: Mapping[str, str] = {}
        if run.launcher_or_default == "none":
            variables = launch_variables(
                num_nodes=len(record.members),
                max_nodes=self._spec.nodes.max,
                node_rank=index,
                procs_per_node=procs,
                endpoint=record.endpoint,
            )
        environment = {
            **self._environment,
            **{name: value for name, value in variables.items() if name not in run.env},
            **gloo_environment(context.job.identity.address, self._environment),
            files.JOB_ID: node.job_id,
            files.GENERATION: str(record.number),
            files.ARENA: str(node.arena),
            files.ARENA_SPILL: str(node.spill),
            files.ARTIFACTS: str(node.artifacts),
            files.RESCUE: "1" if self._spec.checkpoint.rescue else "0",
        }
        checkpoint = self._spec.checkpoint
        if checkpoint.rescue and checkpoint.hand_over:
            environment[files.HAND_OVER] = f"{record.writer}@{context.job.identity.address}"
        if restored.directory is not None:
            environment[files.RESTORE] = str(restored.directory)
        self._artifacts.begin_training()  # the trackers' files are outputs, too
        if run.trackers:
            tracked = track(
                context,
                self._runtime,
                environment,
                generation=record.number,
                step=None if restored.directory is None else status.restored_step,
            )
            if run.launcher_or_default == "none":  # no shell sets them for the command
                environment |= tracked[status.ranks[0]]
        plan = TrainerPlan(
            python=self._runtime.python,
            program=run.command_line(self._runtime.python),
            has_torchrun=run.launcher_or_default == "torchrun",
            num_nodes=len(record.members),
            node_rank=index,
            procs_per_node=procs,
            endpoint=record.endpoint,
            rendezvous_id=f"{node.job_id}-{record.number}",
            work=node.work,
            log=log,
            environment=environment,
            prefix=self._fork_server.prefix,
        )
        if record.restore_from is None:
            why = ", as no checkpoint was committed before" if record.number > 1 else ""
            _log.info("generation %d starts at step 0%s", record.number, why)
        else:
            _log.info("generation %d resumes from checkpoint %s", record.number, record.restore_from)
        memory.generation = record.number
        memory.first_rank = status.ranks[0]
        memory.restored_step = status.restored_step
        memory.next_why = "agent-restarted"
        memory.save(node)
        trainer = Trainer.start(plan, handoff, self._runtime)
        memory.trainer_pid = trainer.pid
        memory.trainer_started_at = time.monotonic()
        memory.save(node)
        status.is_regrouping = False
        status.state = "running"
        return trainer

    def _supervise(self, trainer: Trainer) -> Leaving | None:
        """Follow the trainer until it ends; return the outcome if the node leaves, otherwise None."""
        started = self._context.memory.trainer_started_at
        with OnDemandFetch(self._context, self._find_restored, trainer.handoff) as fetch:
            end = Supervisor(
                self._context, self._membership, self._drains, trainer, self._courier, fetch
            ).follow()
            self._have_ended = trainer.kill()
            self._artifacts.end_training(exited_0=end.code == 0)
        return self._end.conclude(trainer.handoff, end, seconds=time.monotonic() - started)

    def _hand_over_artifacts(self) -> None:
        """Upload changed artifacts if a newcomer may take over rank 0, because it fetches them at once."""
        if 0 not in self._context.status.ranks or not self._membership.has_replacement():
            return
        until = self._context.orders.deadline(otherwise=time.monotonic() + ARTIFACTS_SECONDS)
        try:
            self._artifacts.sync(until=lambda: until)
        except CloudspotError as error:
            _log.warning("not all artifacts were uploaded before the next node takes over: %s", error)

    def _take_ranks(self, record: Generation) -> int:
        """Set this node's ranks in a generation; return the node's index among the members."""
        index, procs = record.seats.index(self._context.seat), self._spec.procs_per_node
        self._context.status.ranks = tuple(range(index * procs, (index + 1) * procs))
        if index == 0:
            self._context.retry_until(self._artifacts.take_root)
        return index

    def _check_programs(self) -> None:
        """Leave with a clear error if a program needed for the start is missing."""
        if self._is_checked:
            return
        run = self._spec.run
        try:
            if run.command:
                check_program(run.command[0], self._environment, self._runtime)
            if run.launcher_or_default == "torchrun" or not run.command:
                check_torch(self._environment, self._runtime)
        except CloudspotError as error:
            permanent = not isinstance(error, RuntimeLost)
            raise LeavingError(Leaving("failed", str(error), 1, permanent=permanent)) from error
        self._is_checked = True

    def _follow_metrics(self, handoff: Path, generation: int) -> None:
        # The pump distinguishes files by name, but the metrics files of all generations have the same name.
        link = self._node.logs / f"metrics-{generation:06d}.jsonl"
        if not link.is_symlink():
            link.symlink_to(files.metrics_path(handoff, 0))
        self._logs.follow(link, "metrics")
