"""The agent's process: one at a time on a machine, restarted by the boot script until it exits 0."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO, TypeVar

from cloudspot.agent.lastword import say_last_word
from cloudspot.agent.leaving import Leaving
from cloudspot.agent.life import Job, Life
from cloudspot.agent.node import Node
from cloudspot.agent.orderedstop import OrderedStop
from cloudspot.errors import PluginError, SpecError, TransientError
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore import launches
from cloudspot.jobstore.reader import HistoryReader
from cloudspot.registry import open_provider, open_store

_log = logging.getLogger("cloudspot.agent")
_T = TypeVar("_T")

START_SECONDS = 300.0
"""How long the store and the metadata service may take to come up."""


def main() -> int:
    """Run the agent of this machine to its end; 0 means that the machine may be ended.

    SIGTERM is a notice: see ``orderedstop``. Any other end is an accident: the boot script starts the agent
    again, and it goes on where the one before stood.
    """
    stop = OrderedStop()
    stop.listen()
    node = Node.from_environment(os.environ)
    node.create_directories()
    lock = _lock(node)
    try:
        _log_to(node)
        threading.excepthook = end_process
        _live(node, stop)
    except PluginError as error:
        # No later agent of this machine would find it mended, and without a provider it does not even know
        # who it is: the console is all that can tell.
        _log.error("%s", error)
        sys.stderr.write(f"cloudspot: this machine cannot serve its job: {error}\n")
    except Exception:  # noqa: BLE001 # a bug of ours belongs into the log that is delivered
        _log.exception("the agent cannot go on")
        return 1
    finally:
        lock.close()
    return 0


def end_process(failure: threading.ExceptHookArgs) -> None:
    """End the agent because one of its threads failed; the boot script starts another.

    An agent without one of its threads would look alive, and deliver no lines or checkpoints any more.
    """
    name = "a thread" if failure.thread is None else f"thread {failure.thread.name!r}"
    error = failure.exc_value or failure.exc_type()
    _log.critical("%s failed: this agent ends", name, exc_info=error)
    os._exit(1)


def _live(node: Node, stop: OrderedStop) -> None:
    store = open_store(node.store_url)
    try:
        submission, spec = _await(HistoryReader(store, node.job_id).read_job)
        provider = open_provider(node.provider, spec)
    except SpecError as error:
        refuse(node, store, error)
        return
    identity = _await(provider.node_identity)
    Life(node, store, provider, Job(submission, spec, identity), stop).run()


def refuse(node: Node, store: ObjectStore, error: SpecError) -> None:
    """Claim the node's slot only to say for good that this version of cloudspot cannot read the job.

    Without a word the launch would be voided, and the next one would pay for as much.
    """
    identity = _await(open_provider(node.provider, None).node_identity)
    slot = _await(lambda: launches.claim_slot(store, node.job_id, node.launch, identity.rank, identity))
    if slot.instance_id != identity.instance_id:
        return
    detail = f"the node's cloudspot cannot read the job: {error}"
    _log.error("%s", detail)
    leaving = Leaving("failed", detail, exit_code=error.exit_code, permanent=True)
    _await(lambda: say_last_word(store, node, identity, leaving))


def _lock(node: Node) -> TextIO:
    """Hold the node for this agent alone: two would both upload, and both speak for it."""
    lock = node.lock.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _log_to(node: Node) -> None:
    handler = logging.FileHandler(node.logs / "agent.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    root = logging.getLogger("cloudspot")
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _await(call: Callable[[], _T]) -> _T:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return call()
        except TransientError as error:
            if time.monotonic() > end:
                raise
            _log.warning("waiting: %s", error)
            time.sleep(1.0)
