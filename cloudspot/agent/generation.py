"""One start of torchrun after the other on this node, until the job ends or the machine has to go."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloudspot.agent.draining import Draining
from cloudspot.agent.failures import FAILED, NOT_CONNECTED, STUCK, WEIGHT, Failure, GiveUp, judge
from cloudspot.agent.inquest import not_reached
from cloudspot.agent.interface import gloo_environment
from cloudspot.agent.launcher import Trainer, TrainerPlan, check_torch, end_training
from cloudspot.agent.leaving import Leaving, LeavingError
from cloudspot.agent.membership import Membership
from cloudspot.agent.reach import goes_on
from cloudspot.agent.watching import KILLED, End, Watch, say_failed
from cloudspot.errors import CloudspotError
from cloudspot.jobstore import generations
from cloudspot.jobstore.records import Final, Generation
from cloudspot.train import handoff as files

if TYPE_CHECKING:
    from cloudspot.agent.life import Life

_log = logging.getLogger(__name__)


class GenerationRun:
    """Runs generations on this node and decides after each how to go on."""

    def __init__(self, life: Life, environment: Mapping[str, str]) -> None:
        self._life = life
        self._node = life.node
        self._spec = life.job.spec
        self._environment = environment
        self._draining = Draining(life)
        self._membership = Membership(life)
        self._has_torch = False
        self._ranks: tuple[int, ...] = ()
        """The global ranks that this node runs in the current generation."""

    def run_all(self) -> Leaving:
        """Run generations until there is a reason to leave, and return it."""
        life = self._life
        self._membership.start()
        try:
            trainer = self._adopt()
            while True:
                if trainer is None:
                    life.obey()
                    trainer = self._start(life.memory.next_why)
                leaving = self._watch(trainer)
                trainer = None
                if leaving is not None:
                    return leaving
        finally:
            self._membership.stop()

    # --- start ----------------------------------------------------------------------------------

    def _adopt(self) -> Trainer | None:
        """Take over the trainer that an earlier agent of this machine started, if there is one."""
        memory, status = self._life.memory, self._life.status
        known: Sequence[Generation] = ()
        if memory.generation > 0:
            known = self._life.insist(
                lambda: generations.read_generations(self._life.store, self._node.job_id)
            )
            # Also where its trainer has ended: a generation is started once, and never again.
            self._membership.resume(known[memory.generation - 1])
        if memory.trainer_pid == 0:
            # An agent that was killed between the start and its note of it left a trainer unknown to us.
            end_training(self._node)
            return None
        _log.warning("this agent was restarted; generation %d goes on", memory.generation)
        self._take_ranks(known[memory.generation - 1])
        handoff = self._node.handoff(memory.generation)
        self._follow_metrics(handoff, memory.generation)
        self._life.courier.adopt()
        status.state = "running"
        return Trainer(handoff, memory.trainer_pid)

    def _start(self, why: str) -> Trainer:
        life, node, status, memory = self._life, self._node, self._life.status, self._life.memory
        if status.state != "uploading":  # the drivers leave a node that says so alone until all is delivered
            status.state = "restoring"
        self._membership.obey()
        life.courier.settle()
        status.state = "restoring"
        life.obey()
        record, restored = self._membership.next(why)
        index = self._take_ranks(record)
        handoff = node.handoff(record.number)
        files.seals_directory(handoff).mkdir(parents=True, exist_ok=True)
        self._need_torch()
        status.restored_step = 0 if record.restore_from is None else record.restore_from.step
        status.generation = record.number
        status.handoff = handoff
        life.events.begin(record.number, status.restored_step)
        life.courier.begin(record, restored)
        log = self._log_path(record.number)
        life.logs.follow(log, "train")
        self._follow_metrics(handoff, record.number)
        environment = {
            **self._environment,
            **gloo_environment(life.job.identity.address, self._environment),
            files.JOB_ID: node.job_id,
            files.GENERATION: str(record.number),
            files.ARENA: str(node.arena),
            files.ARENA_SPILL: str(node.spill),
            files.ARTIFACTS: str(node.artifacts),
        }
        if restored.directory is not None:
            environment[files.RESTORE] = str(restored.directory)
        plan = TrainerPlan(
            python=self._python(),
            entrypoint=self._spec.run.entrypoint,
            args=self._spec.run.args,
            num_nodes=len(record.members),
            node_rank=index,
            procs_per_node=self._spec.procs_per_node,
            endpoint=record.endpoint,
            rendezvous_id=f"{node.job_id}-{record.number}",
            work=node.work,
            log=log,
            environment=environment,
        )
        if record.restore_from is None:
            _log.info("generation %d starts from the beginning", record.number)
        else:
            _log.info("generation %d resumes from checkpoint %s", record.number, record.restore_from)
        memory.generation = record.number
        memory.first_rank = self._ranks[0]
        memory.restored_step = status.restored_step
        memory.next_why = "agent-restarted"
        memory.save(node)
        trainer = Trainer.start(plan, handoff)
        memory.trainer_pid = trainer.pid
        memory.trainer_started_at = time.monotonic()
        memory.save(node)
        status.is_regrouping = False
        status.state = "running"
        return trainer

    def _take_ranks(self, record: Generation) -> int:
        """Take this node's part in a generation; return its index among the members."""
        ranks = [member.rank for member in record.members]
        index, procs = ranks.index(self._life.job.identity.rank), self._spec.procs_per_node
        self._ranks = self._life.status.ranks = tuple(range(index * procs, (index + 1) * procs))
        return index

    def _need_torch(self) -> None:
        if self._has_torch:
            return
        try:
            check_torch(self._python(), self._environment, self._node.work)
        except CloudspotError as error:
            raise LeavingError(Leaving("failed", str(error), 1, permanent=True)) from error
        self._has_torch = True

    def _python(self) -> str:
        return self._spec.run.python or self._node.train_python

    def _log_path(self, generation: int) -> Path:
        return self._node.logs / f"train-{generation:06d}.log"

    def _follow_metrics(self, handoff: Path, generation: int) -> None:
        # The pump tells files apart by name, and each generation has a metrics file of the same name.
        link = self._node.logs / f"metrics-{generation:06d}.jsonl"
        if not link.is_symlink():
            link.symlink_to(files.metrics_path(handoff, 0))
        self._life.logs.follow(link, "metrics")

    # --- end ------------------------------------------------------------------------------------

    def _watch(self, trainer: Trainer) -> Leaving | None:
        """Follow the trainer to its end; return how to leave; None: the next generation starts."""
        life = self._life
        started = life.memory.trainer_started_at
        end = Watch(life, self._membership, self._draining, trainer).follow()
        trainer.kill()
        life.courier.end_of_trainer(finished=end.code == 0)
        life.status.state = "uploading"
        if end.must_regroup and life.ordered_leaving() is None:
            why: Leaving | str = "regrouped"
        else:
            why = self._conclude(trainer.handoff, end, seconds=time.monotonic() - started)
        if isinstance(why, Leaving):
            return why  # until the last word is said, a later agent has to come to the same end
        self._note_end(why)
        return None

    def _note_end(self, why: str) -> None:
        """Remember that this generation's end was dealt with, and why the next one starts."""
        memory = self._life.memory
        memory.trainer_pid, memory.next_why = 0, why
        memory.save(self._node)

    def _conclude(self, handoff: Path, end: End, *, seconds: float) -> Leaving | str:
        life = self._life
        ordered = life.ordered_leaving()
        final = self._final(handoff)
        drained = [files.read_json(files.drained_path(handoff, rank)) for rank in self._ranks]
        # A rank that left without its last state has not finished, whatever the others say.
        if end.code == 0 and not any(drained):
            if final is not None:
                return Leaving("succeeded", "the training finished", final=final, saved_step=final.step)
            return Leaving("succeeded", "the training finished", final=self._bare_final())
        if ordered is not None and (end.drain is not None or ordered.outcome == "superseded"):
            steps = [value["step"] for value in drained if value is not None and value["step"] is not None]
            saved = steps[0] if len(steps) == len(self._ranks) else None
            return Leaving(ordered.outcome, ordered.detail, saved_step=saved)
        if end.code == 0 or all(drained):  # the files count: rank 0 may have taken the store with it
            # Another node has to go (or an agent that was restarted has yet to hear of its order again), or
            # the last step's state could not be saved.
            steps = [value["step"] for value in drained if value is not None and value["step"] is not None]
            how = f"at step {steps[0]}" if steps else "without a save"
            _log.info("drained %s; the training goes on", how)
            life.courier.settle()
            if steps:
                self._membership.await_commit(steps[0])
            return "drained"
        end = end if end.code is not None else replace(end, code=KILLED)
        say_failed(life, end)
        if not self._membership.others_are_well():
            _log.warning("the training failed with exit status %s because a node was lost", end.code)
            return "regrouped"
        elsewhere = self._membership.inquest.failed_elsewhere()
        if elsewhere is not None and WEIGHT.get(elsewhere.why, 0) > WEIGHT[end.why]:
            end = replace(end, why=elsewhere.why)  # what this node saw of it is how the other ended it
        cut_off = self._membership.inquest.try_to_reach()
        if cut_off:
            return self._cut_off(cut_off)
        return self._failed(end, seconds=seconds)

    def _cut_off(self, others: frozenset[int]) -> Leaving | str:
        """Return how this node goes on where the network to other members, who live, is cut."""
        rank, members = self._life.job.identity.rank, self._membership.inquest.ranks
        detail = not_reached(rank, others)
        _log.error("%s", detail)
        if goes_on(rank, members, others) and len(members) - len(others) >= self._spec.nodes.min:
            return "regrouped"
        return Leaving("failed", detail, exit_code=1, log_tail=self._tail())

    def _failed(self, end: End, *, seconds: float) -> Leaving | str:
        life, memory, status = self._life, self._life.memory, self._life.status
        assert end.code is not None
        failure = Failure(
            exit_code=end.code,
            step=status.progress()[0],
            seconds=seconds,
            has_session=status.has_session,
            why=end.why,
        )
        tail = self._tail()
        finished = self._membership.finished()
        if finished:
            # Only here the script failed after the loop; without the others it cannot be run again.
            detail = f"the training {failure} after node {min(finished)} had finished"
            return Leaving("failed", detail, end.code, log_tail=tail)
        known = life.insist(lambda: generations.read_generations(life.store, self._node.job_id))
        # Another node may have proposed the next one already, for this very failure.
        kind = {NOT_CONNECTED} if end.why == NOT_CONNECTED else {FAILED, STUCK}
        num_restarts = sum(one.why in kind for one in known[: status.generation])
        verdict = judge(
            failure, memory, num_restarts=num_restarts, max_restarts=self._spec.limits.max_restarts
        )
        if isinstance(verdict, GiveUp):
            # In one direction packets may still travel: then only others know.
            permanent = verdict.permanent and self._membership.inquest.others_reach_all()
            return Leaving("failed", verdict.detail, end.code, permanent=permanent, log_tail=tail)
        wait = verdict.wait_seconds
        _log.error("the training %s at step %d; starting again in %.0f s", failure, failure.step, wait)
        self._note_end(end.why)
        life.orders.wait(wait)
        return end.why

    def _tail(self) -> tuple[str, ...]:
        return self._life.tail(self._log_path(self._life.status.generation).name)

    def _final(self, handoff: Path) -> Final | None:
        value = files.read_json(files.final_path(handoff))
        if value is None:
            return None
        return Final(
            step=value["step"], weights_sha256=value["weights_sha256"], metrics=self._life.status.metrics()
        )

    def _bare_final(self) -> Final:
        status = self._life.status
        step = status.progress()[0] if status.has_session else None
        return Final(step=step, weights_sha256=None, metrics=status.metrics())
