"""Decide what the end of a generation's trainer means: a success, a drain, another start or a failure."""

from __future__ import annotations

import enum
import logging
from dataclasses import replace
from pathlib import Path

from cloudspot.agent.delivery.courier import Courier
from cloudspot.agent.ending.restart_policy import (
    FAILED,
    NOT_CONNECTED,
    NOT_RESTORED,
    STUCK,
    WEIGHT,
    Failure,
    GiveUp,
    decide_restart,
    restarts_in_a_row,
    saved_without_progress,
)
from cloudspot.agent.leaving import Leaving
from cloudspot.agent.membership.agreement import Membership
from cloudspot.agent.membership.failure_votes import leaving_cut_off
from cloudspot.agent.membership.reachability import side_continues
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.rank_reports import RankDrained, RankEnded, read_report
from cloudspot.agent.training.launching.trainer import log_tail
from cloudspot.agent.training.watching.supervision import KILLED, TrainerEnd
from cloudspot.jobstore.journal.lineage import generations_of
from cloudspot.jobstore.layout.records import Commit, Failed, Final, Seat
from cloudspot.train import handoff as files

_log = logging.getLogger(__name__)

AT_THE_STEP_SECONDS = 10.0
"""A training run that resumes at the step where it failed waits this long: the cause may be temporary."""


class LoopState(enum.Enum):
    """How far the session's loop got on this node."""

    NOT_BEGUN = "not begun"
    """There is no session, or its loop has not started."""
    BEGUN = "begun"
    """The loop has started but not ended: the process ended during the loop or its last save."""
    ENDED = "ended"
    """Every local rank has reached the loop's end or left the loop with all ranks, and sealed its state."""


def loop_state(handoff: Path, ranks: tuple[int, ...]) -> LoopState:
    """Return how far the loop got, by the files that the local ranks left."""
    # The progress does not show this: in a loop of unknown length, it is the same before and during the first
    # step.
    if not any(files.begun_loop_path(handoff, rank).exists() for rank in ranks):
        return LoopState.NOT_BEGUN
    in_session = [rank for rank in ranks if files.progress_path(handoff, rank).exists()]
    ended = (files.ended_loop_path(handoff, rank).exists() for rank in in_session)
    return LoopState.ENDED if all(ended) else LoopState.BEGUN


class GenerationEnd:
    """Decides what follows the end of each generation."""

    def __init__(self, context: NodeContext, membership: Membership, courier: Courier) -> None:
        self._context = context
        self._membership = membership
        self._courier = courier

    def conclude(self, handoff: Path, end: TrainerEnd, *, seconds: float) -> Leaving | None:
        """Return the outcome, or None if the node starts another generation; the memory then states why.

        ``seconds`` is how long the trainer ran.
        """
        context = self._context
        ordered = context.ordered_leaving()
        is_leaving = ordered is not None and self._may_have_obeyed()
        if end.code == 0 and not is_leaving:
            files.publish_held(handoff)
        self._courier.end_of_trainer(exited_0=end.code == 0, is_leaving=is_leaving)
        context.status.state = "uploading"
        if end.must_regroup and ordered is None:
            why: Leaving | str = "regrouped"
        else:
            why = self._conclude(handoff, end, ordered, seconds=seconds)
        if isinstance(why, Leaving):
            return why  # until the exit record exists, a later agent must conclude the same
        self._note_end(why)
        return None

    def _may_have_obeyed(self) -> bool:
        """Return whether a script that was not asked to leave may have left because of an order to this node.

        A session reads the order itself. At a shutdown, status 0 may come from a SIGTERM handler that ran
        during a save.
        """
        orders = self._context.orders
        return self._context.status.has_session or orders.is_shutting_down or orders.superseded is not None

    def _note_end(self, why: str) -> None:
        """Store that this generation's end was handled, and why the next generation starts."""
        memory = self._context.memory
        memory.trainer_pid, memory.next_why = 0, why
        memory.save(self._context.node)

    def _conclude(
        self, handoff: Path, end: TrainerEnd, ordered: Leaving | None, *, seconds: float
    ) -> Leaving | str:
        context, ranks = self._context, self._context.status.ranks
        if end.was_notified:
            # The exit status does not matter, nor which node must leave: the script was asked to leave.
            if 0 in ranks and not self._courier.has_answer():
                _log.warning("the script has completed no checkpoint since it was asked to save")
            return ordered or self._drained([], ordered)
        drained = [read_report(files.drained_path(handoff, rank), RankDrained) for rank in ranks]
        # A rank that left without saving its last state has not finished, even if others have finished.
        if end.code == 0 and not any(drained):
            loop = loop_state(handoff, ranks)
            if loop is LoopState.ENDED:
                return self._unequal(handoff) or self._succeeded(handoff)
            if ordered is not None and (loop is LoopState.BEGUN or self._may_have_obeyed()):
                return ordered
            if loop is not LoopState.BEGUN:
                return self._drained([], None) if self._left_with_others() else self._succeeded(handoff)
            end = replace(end, code=1, is_cut_short=True, fingerprint="cut short")
        elif end.code == 0 or all(drained):  # not only the code: rank 0's exit may have ended torch's store
            return self._drained(drained, ordered)
        if ordered is not None and (end.drain is not None or ordered.outcome == "superseded"):
            return ordered
        if end.code is None and end.drain is not None:
            # It was asked to leave because of other nodes and did not leave in time, which is no failure.
            return self._drained([], None)
        end = end if end.code is not None else replace(end, code=KILLED)
        assert end.code is not None
        context.status.failed = Failed(
            generation=context.status.generation,
            why=end.why,
            exit_code=end.code,
            fingerprint=end.fingerprint,
        )
        if not self._membership.others_are_well():
            _log.warning("the training failed with exit status %s because a node was lost", end.code)
            return "regrouped"
        elsewhere = self._membership.votes.failed_elsewhere()
        if elsewhere is not None and WEIGHT.get(elsewhere.why, 0) > WEIGHT[end.why]:
            end = replace(end, why=elsewhere.why)  # this node saw only the effect of the other's failure
        cut_off = self._membership.votes.try_to_reach()
        if cut_off:
            return self._cut_off(cut_off)
        return self._failed(end, seconds=seconds)

    def _left_with_others(self) -> bool:
        """Return whether a script without a session may have left because another node's script was asked to.

        Its ranks may agree to leave before this node learns of the notice.
        """
        context = self._context
        is_notified = context.job.spec.checkpoint.on_notice is not None and not context.status.has_session
        return is_notified and self._membership.someone_leaves()

    def _unequal(self, handoff: Path) -> Leaving | None:
        """Return a failure if local ranks reached the end after different numbers of steps."""
        found = (files.read_progress(handoff, rank) for rank in self._context.status.ranks)
        steps = {one.step for one in found if one is not None}
        if len(steps) < 2:
            return None
        detail = f"its ranks made {min(steps)} to {max(steps)} steps: the last state is in no checkpoint"
        return Leaving("failed", detail, exit_code=1, permanent=True, log_tail=self._tail())

    def _succeeded(self, handoff: Path) -> Leaving:
        status = self._context.status
        value = read_report(files.final_path(handoff), RankEnded)
        if value is None:
            step = status.progress()[0] if status.has_session else None
            final = Final(step=step, weights_sha256=None, metrics=status.metrics())
            return Leaving("succeeded", "the training finished", final=final)
        final = Final(
            step=value.step,
            weights_sha256=value.weights_sha256,
            are_weights_sharded=value.are_weights_sharded,
            metrics=status.metrics(),
            left_early=value.left_early,
            planned=value.planned,
        )
        saved_step = value.step if value.is_saved else None
        return Leaving("succeeded", "the training finished", final=final, saved_step=saved_step)

    def _drained(self, drained: list[RankDrained | None], ordered: Leaving | None) -> Leaving | str:
        context = self._context
        steps = [value.step for value in drained if value is not None and value.step is not None]
        if ordered is None:
            # An order to one node drains all nodes, and this node may not have read its own orders yet.
            context.retry_until(context.read_stop)
            context.retry_until(context.read_journal)
            ordered = context.ordered_leaving()
        if ordered is not None:
            saved = steps[0] if len(steps) == len(drained) else None
            return replace(ordered, saved_step=saved)
        # Another node must leave, or the last step's state could not be saved.
        _log.info("drained %s; the training goes on", f"at step {steps[0]}" if steps else "without a save")
        self._courier.settle()
        if steps:
            self._membership.await_commit(steps[0])
        return "drained"

    def _cut_off(self, others: frozenset[Seat]) -> Leaving | str:
        """Return how this node continues if the network to other live members is cut."""
        seat, current = self._context.seat, self._membership.current
        assert current is not None
        leaving = leaving_cut_off(self._context, others)
        _log.error("%s", leaving.detail)
        if side_continues(seat, current.seats, others):
            return "regrouped"
        return replace(leaving, log_tail=self._tail())

    def _failed(self, end: TrainerEnd, *, seconds: float) -> Leaving | str:
        context, status = self._context, self._context.status
        assert end.code is not None
        if end.why == NOT_RESTORED:
            return end.why  # at most once per checkpoint, and once for lack of memory
        failure = Failure(
            exit_code=end.code,
            step=status.progress()[0],
            seconds=seconds,
            has_session=status.has_session,
            why=end.why,
            fingerprint=end.fingerprint,
            is_cut_short=end.is_cut_short,
            is_consequence=end.is_consequence,
            contributes_part=status.has_session
            or 0 in status.ranks
            or context.job.spec.checkpoint.nodes == "all",
        )
        tail = self._tail()
        finished = self._membership.finished()
        if finished:
            # The script failed on this node only, after the loop; it cannot be run again without the other
            # nodes.
            detail = f"the training {failure} after node {min(finished)} had finished"
            fingerprint = failure.fingerprint if failure.is_step_known else None
            return Leaving("failed", detail, end.code, fingerprint=fingerprint, log_tail=tail)
        known = generations_of(context.retry_until(context.journal.read))
        # Another node may already have proposed the next generation because of this failure.
        kind = {NOT_CONNECTED} if end.why == NOT_CONNECTED else {FAILED, STUCK}
        first_launch = context.job.submission.num_launches_before + 1
        current = [one for one in known[: status.generation] if one.members[0].launch >= first_launch]
        commits = [record for record in context.journal.known if isinstance(record, Commit)]
        num_restarts = restarts_in_a_row(current, kind, saved_by_failures=saved_without_progress(commits))
        max_restarts = context.job.spec.limits.max_restarts
        verdict = decide_restart(
            failure, context.memory, num_restarts=num_restarts, max_restarts=max_restarts
        )
        if isinstance(verdict, GiveUp):
            # If packets still arrive in one direction, only other nodes notice that the network is cut.
            permanent = verdict.permanent and self._membership.votes.others_reach_all()
            return Leaving(
                "failed",
                verdict.detail,
                end.code,
                permanent=permanent,
                is_consequence=failure.is_consequence,
                log_tail=tail,
            )
        committed = context.status.committed
        if committed is not None and committed.step == failure.step:
            verdict = max(verdict, AT_THE_STEP_SECONDS)
        _log.error("the training %s at step %d; starting again in %.0f s", failure, failure.step, verdict)
        self._note_end(end.why)
        context.orders.wait(verdict)
        return end.why

    def _tail(self) -> tuple[str, ...]:
        return log_tail(self._context.node.train_log(self._context.status.generation))
