"""Follow a trainer until it ends or this agent must end it."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import dataclass, replace

from cloudspot.agent.delivery.courier import Courier
from cloudspot.agent.delivery.on_demand_fetch import OnDemandFetch
from cloudspot.agent.ending.restart_policy import (
    FAILED,
    NOT_CONNECTED,
    NOT_RESTORED,
    STUCK,
    fingerprint_of,
    has_connected,
    has_lost_another,
)
from cloudspot.agent.membership.agreement import Membership
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.rank_reports import RankImports, read_report
from cloudspot.agent.training.launching.fork_server import advice
from cloudspot.agent.training.launching.trainer import Trainer
from cloudspot.agent.training.watching.drain_schedule import SCRIPT_START_SECONDS, DrainSchedule, join_is_due
from cloudspot.agent.training.watching.hand_over_watch import HandOverWatch
from cloudspot.agent.training.watching.rescue import Rescue
from cloudspot.agent.training.watching.script_notice import ScriptNotice
from cloudspot.jobstore.layout.records import Failed, FailureKind, RankLikeness
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
CONNECT_SECONDS = 60.0
"""If torchrun has not found its peers after this long, the agent checks whether it can reach them."""
DUMP_SECONDS = 3.0
"""The time between the order to dump stacks and the end of a stuck trainer."""
LEAVE_SECONDS = 10.0
"""How long a script that was asked to save may take to leave after its checkpoint is committed."""
KILLED = 137


@dataclass(frozen=True)
class TrainerEnd:
    """The end of a trainer on this node."""

    code: int | None
    """The training script's exit status, here or where it failed; None if this node must end it."""
    drain: files.Drain | None
    """The drain that the trainer was asked for, if any."""
    why: FailureKind = FAILED
    fingerprint: str | None = None
    """The fingerprint of a failure: see ``Failure.fingerprint``."""
    is_consequence: bool = False
    """Whether another node's failure caused this end: see ``Failure.is_consequence``."""
    must_regroup: bool = False
    """Whether other nodes are lost or have agreed on another generation."""
    was_notified: bool = False
    """Whether a script without a session was asked to save and leave."""
    is_cut_short: bool = False
    """Whether the script exited 0 in the middle of its loop."""


class Supervisor:
    """Follows one generation's trainer."""

    def __init__(
        self,
        context: NodeContext,
        membership: Membership,
        drains: DrainSchedule,
        trainer: Trainer,
        courier: Courier,
        fetch: OnDemandFetch,
    ) -> None:
        self._context = context
        self._courier = courier
        self._fetch = fetch
        on_notice = context.job.spec.checkpoint.on_notice
        self._script_notice: ScriptNotice | None = None
        if on_notice is not None:
            self._script_notice = ScriptNotice(on_notice, trainer.handoff, context.node)
        self._membership = membership
        self._drains = drains
        self._trainer = trainer
        self._ranks = context.status.ranks
        self._drain = files.read_drain(trainer.handoff)  # ordered by an earlier agent
        self._moved_at = time.monotonic()
        self._seen: tuple[bool, int, int | None] | None = None
        """Whether there is a session, the step, and the total number of steps."""
        self._is_in_loop = False
        self._has_loaded = False
        """Whether all ranks on this node have read the restored checkpoint."""
        self._reach_at = time.monotonic() + CONNECT_SECONDS
        self._likeness: tuple[RankLikeness, ...] = ()
        self._rescue = Rescue(context, membership, trainer)
        self._hand_over = HandOverWatch(trainer.handoff, context.status)

    def follow(self) -> TrainerEnd:
        """Return once the trainer has ended or must be ended."""
        while True:
            now = time.monotonic()
            self._note_progress(now)
            if self._rescue.is_due():
                self._rescue.run()
                now = time.monotonic()
            end = (
                self._own_end(now)
                or self._end_by_others()
                or self._end_if_cut_off(now)
                or self._end_if_stuck(now)
            )
            if end is not None:
                self._advise()
                return replace(end, was_notified=self._was_notified(end.code))
            self._context.orders.wait_for_news(POLL_SECONDS)

    def _own_end(self, now: float) -> TrainerEnd | None:
        trainer, ranks = self._trainer, self._ranks
        code = trainer.poll()
        if code is not None:
            return TrainerEnd(0, self._drain) if code == 0 else self._failure(code)
        if self._context.orders.superseded:
            _log.warning("the job goes on without this node, or is over: ending the trainer")
            return TrainerEnd(None, self._drain)
        membership, orders = self._membership, self._context.orders
        due = self._drains.due(
            now,
            peers_deadline=membership.notice_deadline(),
            is_replaced=orders.reclaim is not None and membership.has_replacement(),
            joins=self._drain is None and self._must_let_join(now),
        )
        if due is not None and (self._drain is None or due.guard < self._drain.guard):
            self._drain = due
            files.write_drain(trainer.handoff, due)
            self._context.status.state = "draining"
        if self._drain is not None:
            self._notify_script(now)
            is_over = self._drains.is_over(self._drain, now) or self._has_answered(now)
            return TrainerEnd(None, self._drain) if is_over else None
        # Wait for a drain's save, even if another node asked for it.
        if trainer.has_drained(ranks):
            return None
        if self._fetch.error is not None:
            if not self._fetch.may_succeed_otherwise:
                raise self._fetch.error
            _log.error("%s: ending the trainer, which waits for it", self._fetch.error)
            return TrainerEnd(1, self._drain, why=NOT_RESTORED)
        code = trainer.failed_status(ranks)
        if code is not None:
            _log.warning("a rank ended with exit status %d: ending the trainer", code)
            return self._failure(code)
        if trainer.is_failing(ranks):
            self._membership.votes.expect_end()
        return None

    def _must_let_join(self, now: float) -> bool:
        memory, status = self._context.memory, self._context.status
        if self._drains.notifies_script and self._membership.someone_drains():
            return True  # without a session, ranks cannot agree by themselves
        if not status.has_session and not self._drains.notifies_script:
            return False  # the script cannot be asked to save, so steps since its last save would be lost
        began_at = memory.training_began_at
        if not status.has_session:
            began_at = memory.trainer_started_at + SCRIPT_START_SECONDS
        is_due = join_is_due(now, began_at=memory.generation_began_at, training_began_at=began_at)
        return is_due and self._membership.newcomers_wait()

    def _notify_script(self, now: float) -> None:
        """Ask a script without a session to save."""
        if self._script_notice is not None and self._drains.notifies_script:
            # Ask for a checkpoint only if a process was notified: otherwise, the script's saves are ordinary
            # and count as complete at status 0.
            self._script_notice.notify(now, before=self._courier.ask_script)

    def _was_notified(self, code: int | None) -> bool:
        """Return whether a script without a session was asked to leave, so its end is not a failure.

        ``code`` is its exit status. If it is 0, the script may have left together with ranks on a node that
        was asked earlier.
        """
        if self._script_notice is None or self._drain is None or not self._drains.notifies_script:
            return False
        if not self._script_notice.reached_script and code != 0:
            name = self._context.job.spec.checkpoint.on_notice
            _log.warning("the script was not asked to save: none of its processes was seen handling %s", name)
        return self._script_notice.reached_script

    def _has_answered(self, now: float) -> bool:
        """Return whether the requested save is committed and the script has had time to leave."""
        answered_at = self._courier.answered_at
        return answered_at is not None and now >= answered_at + LEAVE_SECONDS

    def _failure(self, code: int) -> TrainerEnd:
        """Return the end of a trainer that failed here; torchrun's ``code`` is used if no rank has one."""
        trainer, ranks = self._trainer, self._ranks
        why: FailureKind = NOT_CONNECTED if self._is_not_connected() else FAILED
        status, errors = trainer.failed_status(ranks), trainer.errors(ranks)
        has_torchrun = self._context.job.spec.run.launcher_or_default != "none"
        fingerprint = None
        # Ranks leave no status if they are killed together with their shells or the disk is full.
        if status is not None or not has_torchrun or not trainer.has_started(ranks):
            fingerprint = fingerprint_of(status or code, errors[0] if errors else None)
        is_consequence = bool(errors) and has_lost_another(errors[0])
        return TrainerEnd(
            status or code, self._drain, why=why, fingerprint=fingerprint, is_consequence=is_consequence
        )

    def _is_not_connected(self) -> bool:
        trainer, status = self._trainer, self._context.status
        if not trainer.has_started(self._ranks):
            return self._membership.votes.is_rendezvous_to_blame()
        errors = trainer.errors(self._ranks)
        is_early = status.progress()[0] <= status.restored_step
        return is_early and bool(errors) and not any(map(has_connected, errors))

    def _end_by_others(self) -> TrainerEnd | None:
        if self._drain is not None:  # the guard ends a drain
            return None
        regroup = self._membership.why_regroup()
        if regroup is not None:
            _log.warning("%s: ending the trainer to go on with the remaining nodes", regroup)
            return TrainerEnd(None, None, must_regroup=True)
        failed = self._membership.votes.failed_elsewhere()
        if failed is None or self._trainer.has_drained(self._ranks):
            return None
        _log.warning("the training has failed on another node: ending the trainer")
        if failed.why == STUCK:
            self._dump_stacks()
        return TrainerEnd(
            failed.exit_code, None, why=failed.why, fingerprint=failed.fingerprint, is_consequence=True
        )

    def _end_if_cut_off(self, now: float) -> TrainerEnd | None:
        # torchrun tries for ten minutes; once ranks have started, the nodes have connected.
        if now < self._reach_at or self._drain is not None or self._trainer.has_started(self._ranks):
            return None
        self._reach_at = now + CONNECT_SECONDS
        if not self._membership.votes.try_to_reach():
            return None
        _log.warning("torchrun cannot find its peers, and they do not answer: ending it")
        return TrainerEnd(KILLED, None, why=NOT_CONNECTED)

    def _end_if_stuck(self, now: float) -> TrainerEnd | None:
        context, status = self._context, self._context.status
        limit = context.job.spec.limits.stuck_after
        # There are no steps after the loop, and the last save or an evaluation may take long. During a drain,
        # the drain's guard ends the wait.
        step, total = status.progress()
        if limit is None or now - self._moved_at <= limit or not status.has_session:
            return None
        if self._drain is not None or step == total or self._trainer.has_ended_loop(self._ranks):
            return None
        _log.error("no step for %.0f s: ending the trainer, its stacks follow", now - self._moved_at)
        # Report this before ending the trainer: the others would mistake its end for an ordinary failure.
        status.failed = Failed(generation=status.generation, why=STUCK, exit_code=KILLED)
        self._dump_stacks()
        self._rescue.run()
        return TrainerEnd(KILLED, None, why=STUCK)

    def _dump_stacks(self) -> None:
        self._trainer.dump_stacks(self._ranks)
        self._context.orders.wait(DUMP_SECONDS)

    def _note_progress(self, now: float) -> None:
        status = self._context.status
        self._hand_over.look()
        if (likeness := status.likeness) != self._likeness:
            self._likeness = likeness
            status.state_changed.set()  # the others must know this if the node is lost
        step, total = status.progress()
        # Imports and data loading before the session are not steps, and may take any time.
        seen = (status.has_session, step, total)
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
        if not self._has_loaded and self._trainer.has_begun_loop(self._ranks):
            self._has_loaded = True
            shutil.rmtree(self._context.node.restore_in_memory, ignore_errors=True)
        if not self._is_in_loop and (total is not None or step > status.restored_step):
            self._is_in_loop = True
            status.note_phase("training")
            self._advise()
            memory = self._context.memory
            if not memory.training_began_at:  # otherwise, an earlier agent recorded it
                memory.training_began_at = now
                memory.save(self._context.node)

    def _advise(self) -> None:
        """Suggest ``run.preload`` if it would save time, as measured by this node's first rank."""
        rank = self._ranks[0]
        report = read_report(files.imports_path(self._trainer.handoff, rank), RankImports)
        if report is not None:
            self._context.status.warn("preload", advice(self._context.job.spec.run.preload, report.seconds))
