"""The agent's process: one at a time on a machine, restarted by the boot script until it exits 0."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable
from typing import TextIO, TypeVar

from cloudspot.agent.life import Job, Life
from cloudspot.agent.node import Node
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import ObjectStore, Provider
from cloudspot.jobstore import codec, keys
from cloudspot.jobstore.records import Submission
from cloudspot.registry import open_provider, open_store
from cloudspot.spec import spec_from_json

_log = logging.getLogger("cloudspot.agent")
_T = TypeVar("_T")

START_SECONDS = 300.0
"""How long the store and the metadata service may take to come up."""


def main() -> int:
    """Run the agent of this machine to its end; 0 means that the machine may be ended.

    Any other end is an accident: the boot script starts the agent again, and it goes on where the
    one before stood.
    """
    node = Node.from_environment(os.environ)
    node.create_directories()
    lock = _lock(node)
    try:
        _log_to(node)
        store = open_store(node.store_url)
        submission = codec.decode(_await(lambda: store.get(keys.spec(node.job_id))), Submission)
        spec = spec_from_json(submission.spec)
        provider = open_provider(node.provider, spec)
        _live(node, store, provider, submission)
    except CloudspotError:
        _log.exception("the agent cannot go on")
        return 1
    finally:
        lock.close()
    return 0


def _live(node: Node, store: ObjectStore, provider: Provider, submission: Submission) -> None:
    identity = _await(provider.node_identity)
    spec = spec_from_json(submission.spec)
    Life(node, store, provider, Job(submission, spec, identity)).run()


def _lock(node: Node) -> TextIO:
    """Hold the node for this agent alone: two would both upload, and both speak for it."""
    lock = (node.directory / "agent.lock").open("w")
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
