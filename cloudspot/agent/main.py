"""The agent's process: a machine runs one at a time, and the boot script restarts it until it exits 0."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from cloudspot.agent.ending.exit_record import write_exit_record
from cloudspot.agent.leaving import Leaving
from cloudspot.agent.life import Life
from cloudspot.agent.node import Node
from cloudspot.agent.node_context import Job
from cloudspot.agent.notices.notice_pipe import NoticePipe
from cloudspot.agent.store_retry import retry_until
from cloudspot.errors import (
    AuthError,
    CloudspotError,
    CorruptData,
    PluginError,
    PluginFault,
    SpecError,
    TransientError,
)
from cloudspot.host.locks import lock
from cloudspot.host.low_priority import end_low_priority
from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.access.store_clock import clock_of
from cloudspot.jobstore.jobs.reader import job_file_of
from cloudspot.jobstore.jobs.submission import read_submission_of
from cloudspot.jobstore.journal.journal import Journal
from cloudspot.jobstore.layout.records import Intent
from cloudspot.jobstore.nodes import launches
from cloudspot.model import NodeIdentity
from cloudspot.registry import open_job_store, open_provider, with_driver_options

_log = logging.getLogger("cloudspot.agent")
_T = TypeVar("_T")

START_SECONDS = 300.0
"""How long the store and the metadata service may take to become available."""
CANNOT_SERVE = 3
"""The exit status of an agent whose failure a restart would not fix; boot.sh uses the same number."""


def main() -> int:
    """Run the agent of this machine until it ends; exit status 0 means that the machine may be ended.

    After ``CANNOT_SERVE``, the machine may be ended too, but drivers need time to read the reason on its
    console. SIGTERM is a notice: see ``notice_pipe``. After any other exit, the boot script starts a new
    agent, which continues where this one stopped.
    """
    node = Node.from_environment(os.environ)
    node.create_directories()
    pipe = NoticePipe(node.directory)
    pipe.take_sigterm()
    # Without the lock, two agents of one node could both upload and write records.
    with lock(node.lock):
        try:
            _log_to(node)
            end_low_priority()  # an agent of this session may have been killed in an upload
            threading.excepthook = end_process
            _live(node, pipe)
        except (PluginFault, TransientError) as error:
            # The boot script starts another agent, unless it has started too many.
            _log.exception("the agent cannot continue")
            sys.stderr.write(f"cloudspot: {error}\n")
            return 1
        except (AuthError, PluginError) as error:
            # The next agent of this machine would fail too. Without a provider, this agent does not know the
            # machine's identity, and without permissions it cannot write a record: it can only write to the
            # console.
            _log.error("%s", error)
            sys.stderr.write(f"cloudspot: this machine cannot serve its job: {error}\n")
            return CANNOT_SERVE
        except Exception:  # noqa: BLE001 # a bug of the agent must be in the delivered log
            _log.exception("the agent cannot continue")
            return 1
    return 0


def end_process(failure: threading.ExceptHookArgs) -> None:
    """End the agent because one of its threads failed; the boot script starts another.

    Without that thread, the agent would look alive but might no longer deliver log lines or checkpoints.
    """
    name = "a thread" if failure.thread is None else f"thread {failure.thread.name!r}"
    error = failure.exc_value or failure.exc_type()
    _log.critical("%s failed: this agent ends", name, exc_info=error)
    os._exit(1)


def _live(node: Node, pipe: NoticePipe) -> None:
    store = open_job_store(node.store_url, node.store_id)
    try:
        submission = _at_start(lambda: read_submission_of(store, node.job_id, node.submission_sha256))
        spec = job_file_of(submission)
        # Options that refer to the submitter's computer have no meaning on a node.
        provider = open_provider(node.provider, with_driver_options(spec, node.provider, {}))
    except (CorruptData, SpecError) as error:
        refuse(node, store, error)
        return
    identity = _at_start(provider.node_identity)
    # All times in this node's records are by the store's clock.
    _at_start(lambda: clock_of(store).compare(store))
    seated = _at_start(lambda: _seated(node, store, identity))
    if seated is None:
        _log.warning("all seats of launch %d are void or belong to other machines: ending", node.launch)
        return
    try:
        Life(node, store, provider, Job(submission, spec, seated), pipe).run()
    finally:
        store.close()


def _at_start(call: Callable[[], _T]) -> _T:
    return retry_until(call, deadline=time.monotonic() + START_SECONDS)


def _seated(node: Node, store: ObjectStore, identity: NodeIdentity) -> NodeIdentity | None:
    def num_seats() -> int:
        records = Journal(store, node.job_id).read()
        intents = (one for one in records if isinstance(one, Intent) and one.launch == node.launch)
        return next((one.num_nodes for one in intents), 0)

    return launches.claim_seat(store, node.job_id, node.launch, identity, num_seats=num_seats)


def refuse(node: Node, store: ObjectStore, error: CloudspotError) -> None:
    """Claim the node's slot only to report that no node can run the job as it is stored.

    Without this report, the launch would be voided, and the next launch would cost the same again.
    """
    deadline = time.monotonic() + START_SECONDS
    identity = retry_until(open_provider(node.provider, None).node_identity, deadline=deadline)
    retry_until(lambda: clock_of(store).compare(store), deadline=deadline)
    seated = retry_until(lambda: _seated(node, store, identity), deadline=deadline)
    if seated is None:
        return
    detail = f"the node cannot run the job: {error}"
    _log.error("%s", detail)
    leaving = Leaving("failed", detail, exit_code=error.exit_code, permanent=True)
    retry_until(lambda: write_exit_record(store, node, seated, leaving), deadline=deadline)


def _log_to(node: Node) -> None:
    handler = logging.FileHandler(node.logs / "agent.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    root = logging.getLogger("cloudspot")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
