"""Run at the machine's shutdown: notify the agent, wait for it, and write a dead agent's exit record.

    python -m cloudspot.agent.shutdown --seconds 25 --source NAME

The boot script writes the program ``on-shutdown`` to the node's directory; it runs this module with the
agent's environment. The provider makes its machines call this program when they end, in a shutdown script or
unit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from cloudspot.agent.ending.exit_record import write_exit_record
from cloudspot.agent.leaving import Leaving
from cloudspot.agent.node import Node, NodeMemory
from cloudspot.agent.notices.notice_file import NoticeFile
from cloudspot.agent.notices.notice_pipe import wake_agent
from cloudspot.agent.reclaim import understand
from cloudspot.agent.status import Status
from cloudspot.agent.training.launching.preparation import end_setup
from cloudspot.agent.training.launching.trainer import end_training
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.host.locks import try_lock
from cloudspot.jobstore.access.store_clock import clock_of, utc_now
from cloudspot.jobstore.nodes import launches
from cloudspot.model import PreemptionNotice
from cloudspot.registry import open_job_store, open_provider

DEAD_SECONDS = 5.0
"""How long the boot script has to restart a dead agent; the pauses before its first restarts are shorter."""
KEEP_BACK_SECONDS = 5.0
KEEP_BACK_SHARE = 0.25
"""The share of the time, up to ``KEEP_BACK_SECONDS``, reserved for writing a dead agent's exit record."""
POLL_SECONDS = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and the environment, and run ``Shutdown.run``."""
    parser = argparse.ArgumentParser(prog="python -m cloudspot.agent.shutdown")
    parser.add_argument("--seconds", type=float, required=True, help="until the machine's end")
    parser.add_argument("--source", required=True, help="the notice's source, for the job's records")
    options = parser.parse_args(arguments)
    return Shutdown(Node.from_environment(os.environ), seconds=options.seconds, source=options.source).run()


class Shutdown:
    """The last seconds of a machine, handled by a process beside its agent."""

    def __init__(
        self,
        node: Node,
        *,
        seconds: float,
        source: str,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create it; the machine ends in ``seconds``, and ``source`` is the source of the notice."""
        self._node = node
        self._source = source
        self._monotonic = monotonic
        self._sleep = sleep
        self._seconds = seconds
        self._began = monotonic()
        self._end = self._began + seconds

    def run(self) -> int:
        """Give the notice and wait; return 0 if the agent has left, or 1 if the time has run out.

        A live agent writes its own exit record. If the agent is dead, end the training and, if this machine
        owns the node's slot, write the record; the job then continues from the newest commit.
        """
        self._notify_agent()
        spare = min(KEEP_BACK_SECONDS, KEEP_BACK_SHARE * self._seconds)
        dead_since: float | None = None
        while not self._node.agent_ended.exists():
            now = self._monotonic()
            if now >= self._end:
                _print("the agent has not left in time")
                return 1
            with try_lock(self._node.lock) as is_free:
                dead_since = None if not is_free else now if dead_since is None else dead_since
                if dead_since is not None and now >= min(dead_since + DEAD_SECONDS, self._end - spare):
                    # This holds the lock, because an agent that starts now waits for it and then finds the
                    # record.
                    try:
                        self._speak_for_agent()
                    except TransientError as error:
                        _print(f"trying again: {error}")
                    else:
                        return 0
            self._sleep(POLL_SECONDS)
        _print("the agent has left")
        return 0

    def _notify_agent(self) -> None:
        notice = PreemptionNotice(deadline=None, action="stop", source=self._source)
        reclaim = understand(notice, notice_seconds=self._seconds, now=self._began, wall=utc_now())
        try:
            reclaim = NoticeFile(self._node.directory).give(reclaim)
            wake_agent(self._node.directory)
        except OSError as error:
            _print(f"the agent cannot be told: {error}")
        _print(f"this machine goes down in {reclaim.deadline - self._began:.1f} s")

    def _speak_for_agent(self) -> None:
        node = self._node
        _print("the agent is dead: ending the training and writing its exit record")
        # The record is proof that no user code runs here any more.
        end_training(node)
        end_setup(node)
        store = open_job_store(node.store_url, node.store_id)
        identity = open_provider(node.provider, None).node_identity()
        slots = launches.read_slots(store, node.job_id, node.launch)
        rank = next((rank for rank, slot in slots.items() if slot.instance_id == identity.instance_id), None)
        if rank is None:
            _print("no slot is this machine's: there is nothing to record")
            return
        identity = msgspec.structs.replace(identity, rank=rank)
        clock_of(store).compare(store)
        leaving = Leaving("drained", f"shut down ({self._source}) while its agent was dead")
        write_exit_record(store, node, identity, leaving, _status(node))


def _status(node: Node) -> Status:
    memory, status = NodeMemory.load(node), Status()
    status.generation, status.restored_step = memory.generation, memory.restored_step
    if memory.generation > 0:
        status.handoff = node.handoff(memory.generation)
        ranks = (path.name.rpartition("-")[2] for path in status.handoff.glob("progress-*"))
        status.ranks = tuple(sorted(int(rank) for rank in ranks if rank.isdigit()))
    return status


def _print(text: str) -> None:
    sys.stdout.write(f"cloudspot: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CloudspotError as error:
        sys.exit(f"cloudspot: {error}")
