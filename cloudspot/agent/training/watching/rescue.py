"""Make this node's ranks save their state when others are lost, before the training ends (P8)."""

from __future__ import annotations

import itertools
import logging
import time
from typing import Any

from cloudspot.agent.membership.agreement import Membership
from cloudspot.agent.membership.rescue_votes import LAST_ATTEMPT
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.rank_reports import RankRescued, RankSurvives, read_report
from cloudspot.agent.training.launching.trainer import Trainer
from cloudspot.jobstore.layout.records import Commit, HeldState, RescueOrder, Survivors
from cloudspot.train import handoff as files
from cloudspot.train.rounds.save_order import RESCUE, SaveOrder

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 20.0
"""How long a rank may take to report its state."""
TORCHRUN_SECONDS = 15.0
"""The other ranks of this node save within this time after one has ended: torchrun kills them after 30 s."""
MIN_SECONDS = 5.0
"""The minimum time allowed for a save, even if less was trained since the newest checkpoint."""
POLL_SECONDS = 0.05


class _Allowance:
    """The time that a save may take: at most the time that repeating the unsaved steps would take."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._last = time.monotonic()

    def spend(self, *, is_free: bool = False) -> None:
        """Count the time since the last call, unless that time would also have passed without a rescue."""
        now = time.monotonic()
        if not is_free:
            self._left -= now - self._last
        self._last = now

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._left)

    @property
    def is_spent(self) -> bool:
        return self._left <= 0


class Rescue:
    """The rescue of one generation on this node; a generation has at most one rescue."""

    def __init__(self, context: NodeContext, membership: Membership, trainer: Trainer) -> None:
        self._context = context
        self._membership = membership
        self._votes = membership.rescue_votes
        self._trainer = trainer
        self._handoff = trainer.handoff
        self._ranks = context.status.ranks
        self._has_run = not context.job.spec.checkpoint.rescue
        self._spoiled: set[HeldState] = set()
        """The reports of this node's ranks that could not save the reported state."""
        self._given_up = 0
        """The newest attempt in which a rank of this node could not save."""
        self._lost_at: float | None = None
        """When a rank of this node was first found to have ended (monotonic)."""

    def is_due(self) -> bool:
        """Return whether the training here is about to end because of a loss or an error; make no request."""
        if self._has_run or self._votes.is_over:
            return False
        trainer, ranks = self._trainer, self._ranks
        return self._votes.others_have_begun or (
            any(files.survives_path(self._handoff, rank).exists() for rank in ranks)
            or trainer.failed_status(ranks) is not None
            or bool(trainer.poll())
            or self._membership.has_lost()
            or self._membership.votes.failed_elsewhere() is not None
        )

    def run(self) -> None:
        """Save the state of all members' ranks; return once it is committed or can never be."""
        if self._has_run:
            return
        self._has_run = True
        status, trainer, ranks = self._context.status, self._trainer, self._ranks
        if not status.has_session or trainer.has_drained(ranks) or trainer.has_ended_loop(ranks):
            self._report_final()
            return
        allowance = _Allowance(max(MIN_SECONDS, self._seconds_since_save()))
        state, status.state = status.state, "draining"
        try:
            for attempt in itertools.count(1):
                order = self._agree(attempt, allowance)
                if order is None or self._carry_out(order, allowance):
                    break
                if allowance.is_spent or self._votes.is_over:
                    _log.warning("the state of step %d could not be saved in time", order.step)
                    break
        finally:
            self._write_command(files.RescueCommand(files.RELEASE, 0))
            self._report_final()
            status.state = state

    def _report_final(self) -> None:
        number = self._votes.generation.number
        self._context.status.survivors = Survivors(
            generation=number, attempt=LAST_ATTEMPT, held=(), given_up=self._given_up
        )

    def _write_command(self, command: files.RescueCommand) -> None:
        files.write_rescue(self._handoff, command)

    def _agree(self, attempt: int, allowance: _Allowance) -> RescueOrder | None:
        """Report the state of this node's ranks; once all members have reported, return the order for all."""
        self._write_command(files.RescueCommand(files.HOLD, attempt))
        self._is_killed_soon()  # torchrun's time began now or slightly earlier
        votes = self._votes
        self._context.status.survivors = Survivors(
            generation=votes.generation.number,
            attempt=attempt,
            held=self._held(attempt, allowance),
            given_up=self._given_up,
        )
        while not votes.is_over:
            votes.look()
            order = votes.find_order(attempt)
            if order is not None:
                return order
            alive, silent = votes.unreported(attempt)
            # The wait for silent members is not counted, because the training must wait for them anyway.
            allowance.spend(is_free=bool(silent))
            if not (alive or silent) or (allowance.is_spent and not silent) or self._is_killed_soon():
                return votes.decide(attempt)
            votes.pause()
        return None

    def _ended(self) -> set[int]:
        exited = {rank for rank in self._ranks if files.read_exited(self._handoff, rank) is not None}
        return exited | self._trainer.vanished(self._ranks)

    def _held(self, attempt: int, allowance: _Allowance) -> tuple[HeldState, ...]:
        """Return the reports of this node's ranks, once each rank has reported or ended."""
        until = time.monotonic() + min(ANSWER_SECONDS, allowance.seconds_left)
        while True:
            ended = self._ended()
            reports = {
                rank: read_report(files.survives_path(self._handoff, rank), RankSurvives)
                for rank in self._ranks
            }
            waited_for = {
                rank
                for rank, each in reports.items()
                if each is None or (each.held is not None and each.attempt < attempt)
            }
            if waited_for <= ended or self._trainer.poll() is not None or time.monotonic() > until:
                break
            self._context.orders.wait_for_news(POLL_SECONDS)
        for rank, each in reports.items():
            if each is not None and each.held is None:
                _log.warning("rank %d holds no state that can be saved: %s", rank, each.problem[:200])
        held = [each.held for each in reports.values() if each is not None and each.held is not None]
        running = set(self._ranks) - ended
        return tuple(each for each in held if each.rank in running and each not in self._spoiled)

    def _is_killed_soon(self) -> bool:
        trainer, ranks = self._trainer, self._ranks
        if self._lost_at is None and (trainer.failed_status(ranks) is not None or trainer.vanished(ranks)):
            self._lost_at = time.monotonic()
        return self._lost_at is not None and time.monotonic() > self._lost_at + TORCHRUN_SECONDS

    def _carry_out(self, order: RescueOrder, allowance: _Allowance) -> bool:
        """Make this node's ranks save their parts; return whether the save was committed."""
        own = [rank for rank in self._ranks if rank in order.ranks]
        if own:
            self._write_command(
                files.RescueCommand(files.SAVE, order.attempt, self._save_order(order).to_json())
            )
        while not (allowance.is_spent or self._votes.is_over):
            ended = self._ended()  # before reading the answers, because a rank answers before it ends
            answers = {
                rank: read_report(files.rescued_path(self._handoff, rank), RankRescued) for rank in own
            }
            failed = {
                rank
                for rank, answer in answers.items()
                if (
                    rank in ended
                    if answer is None or answer.attempt != order.attempt
                    else answer.step is None
                )
            }
            if failed:
                reported = self._context.status.survivors
                assert reported is not None, "it was asked before the order"
                self._spoiled.update(each for each in reported.held if each.rank in failed)
                self._given_up = order.attempt
                return False
            state = self._votes.state_of(order)
            have_saved = all(
                answer is not None and answer.attempt == order.attempt for answer in answers.values()
            )
            if state == "committed" and (
                self._votes.hold_newer(order) or (not have_saved and self._have_moved_on(order, allowance))
            ):
                self._given_up = order.attempt
                return False
            if state == "committed":
                _log.info("the ranks' state at step %d is saved", order.step)
            if state != "open":
                return state == "committed"
            allowance.spend()
            self._votes.pause()
        return False

    def _have_moved_on(self, order: RescueOrder, allowance: _Allowance) -> bool:
        """Return whether a rank of this node now holds a newer boundary than the order's.

        An earlier save has already committed the state of the order's boundary. A rank in a slow batch
        reports the boundary before that batch, and may then make another step.
        """
        attempt = order.attempt + 1
        self._write_command(files.RescueCommand(files.HOLD, attempt))
        return any(state.boundary > order.boundary for state in self._held(attempt, allowance))

    def _save_order(self, order: RescueOrder) -> SaveOrder:
        world_size = self._context.job.spec.procs_per_node * len(self._votes.generation.members)
        lost = frozenset(range(world_size)).difference(order.ranks)
        rescue: dict[str, Any] = {
            "cause": order.cause,
            "lost": sorted(lost),
            "kept": [rank for rank, _ in order.keepers],
            "is_exact": order.is_exact,
        }
        return SaveOrder(
            RESCUE,
            order.boundary,
            order.save.round,
            avoid=lost,
            rescue=rescue,
            keepers=dict(order.keepers),
        )

    def _seconds_since_save(self) -> float:
        """Return how long the steps that are not saved yet took."""
        context = self._context
        for record in reversed(context.journal.known):
            if isinstance(record, Commit) and record.generation == self._votes.generation.number:
                return max(0.0, (context.now() - record.sealed_at).total_seconds())
        began_at = context.memory.training_began_at
        return time.monotonic() - began_at if began_at else 0.0
