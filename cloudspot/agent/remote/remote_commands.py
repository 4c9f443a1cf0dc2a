"""Looks for people's calls and runs their commands beside the training: see ``jobstore.remote``."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from contextlib import suppress

from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.remote.running_command import RunningCommand, end_leftovers
from cloudspot.agent.training.programs.runtime import Runtime
from cloudspot.agent.worker import Stopped, Worker
from cloudspot.errors import CloudspotError
from cloudspot.host.names import printable
from cloudspot.jobstore.access.stored_records import create_record, find_record
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import RemoteAnswer, RemoteCall, new_nonce
from cloudspot.jobstore.remote.places import delete_relayed

_log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often a node makes a request to look for a call, unless the listing of the other nodes shows calls."""
MAX_COMMANDS = 8
"""The maximum number of commands that run at once."""
SHOWN_CHARACTERS = 200


class RemoteCommands(Worker):
    """Answers calls addressed to this agent, each of them once."""

    def __init__(self, context: NodeContext, runtime: Runtime) -> None:
        super().__init__("remote commands")
        self._context = context
        self._runtime = runtime
        self._environment: Mapping[str, str] | None = None
        """The programs' environment, or None while it is not ready."""
        self._answers: dict[str, RemoteAnswer] = {}
        """By call. The answers by call: a repeated attempt writes the same answer, because the first attempt
        may have succeeded."""
        self._answered: set[str] = set()
        self._running: list[RunningCommand] = []

    def start(self) -> None:
        """Begin to look for calls, unless the job forbids commands."""
        end_leftovers(self._context.node)
        if self._context.job.spec.run.exec:
            super().start()

    @property
    def serves(self) -> bool:
        """Whether commands can be run now."""
        return self._environment is not None

    def serve(self, environment: Mapping[str, str]) -> None:
        """From now on, run commands in this environment."""
        self._environment = environment

    def end(self, why: str) -> None:
        """End the running commands and accept no more; return at once."""
        self._environment = None
        self.stop()
        self._context.is_called.set()  # wakes the thread
        for each in list(self._running):
            each.cut_off(why)

    def _run(self) -> None:
        store, job_id = self._context.store, self._context.job_id
        with suppress(CloudspotError):  # left by an earlier agent of this machine
            delete_relayed(store, job_id, self._context.seat)
        with suppress(Stopped):
            while True:
                is_called = self._context.is_called.wait(LOOK_SECONDS)
                self._context.is_called.clear()
                self._pause(0.0)
                try:
                    if is_called or not self._context.status.hears_calls:
                        self._look()
                except CloudspotError as error:
                    _log.debug("no call was read: %s", error)

    def _look(self) -> None:
        context = self._context
        key = keys.remote_call(context.job_id, *context.seat)
        call = find_record(context.store, key, RemoteCall)
        if call is None or call.writer in self._answered or not self._is_ours(call):
            return
        self._running = [one for one in self._running if one.is_alive]
        ours = self._answers.setdefault(
            call.writer, RemoteAnswer(refused=self._refusal(), at=context.now(), writer=new_nonce())
        )
        answer_key = keys.remote_answer(context.job_id, *context.seat, call.writer)
        answer = create_record(context.store, answer_key, ours)
        self._answered.add(call.writer)
        with suppress(CloudspotError):  # the call is answered anyway; the next one replaces it
            context.store.delete(key)  # a person who has called meanwhile calls again
        if answer != ours or ours.refused:
            return
        shown = printable(shlex.join(call.words))[:SHOWN_CHARACTERS]
        _log.warning("%s runs a command on this node: %s", printable(call.user), shown)
        assert self._environment is not None, "otherwise it is refused"
        running = RunningCommand(context, self._runtime, self._environment, call, answer)
        self._running.append(running)
        running.start()

    def _is_ours(self, call: RemoteCall) -> bool:
        """Return whether a call is for this agent, not an old call or one for another node."""
        context = self._context
        # The call's nonce becomes part of keys, and of a path on this machine.
        if keys.remote_answer.match(keys.remote_answer(context.job_id, *context.seat, call.writer)) is None:
            return False
        machine = context.job.identity.instance_id
        return (call.launch, call.rank, call.instance_id, call.agent) == (
            *context.seat,
            machine,
            context.agent,
        )

    def _refusal(self) -> str:
        if self._context.orders.pending:
            return "the node is leaving"
        if self._environment is None:
            return f"the node is not ready for programs yet: {self._context.status.state}"
        if len(self._running) >= MAX_COMMANDS:
            return f"{MAX_COMMANDS} commands run on the node already"
        return ""
