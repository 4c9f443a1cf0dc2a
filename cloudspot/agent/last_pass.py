"""A node that ends drives its job once more, so that what comes next is bought while nobody is awake.

It runs ``cloudspot reconcile`` for its own job, in a process of its own, when it has been told its end and
again when it has left; and once at its start, so that a missing right is known before it is needed. It needs
the rights of a driver: the job file's ``nodes.drive`` says that it has them.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress

from cloudspot.agent.node_context import NodeContext
from cloudspot.errors import AuthError, CloudspotError
from cloudspot.jobstore.jobs.reader import HistoryReader
from cloudspot.model import Capability

_log = logging.getLogger(__name__)

LAST_SECONDS = 120.0
"""How long a node without a deadline tries to have its job go on elsewhere, before its machine ends."""
PAUSE_SECONDS = 10.0
"""From one pass to the next: as long as the first wait after a failure."""
_NICENESS = 10


class LastPass:
    """Drives the job from one of its nodes; does nothing unless the job file asks for it. Thread-safe."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        # Machines that are this very computer would end together with what they start.
        self._is_able = (
            context.job.spec.nodes.drive and Capability.THIS_COMPUTER not in context.provider.capabilities
        )

    def run(self) -> None:
        """Make one pass, by the node's deadline at the latest; whatever goes wrong is only logged."""
        with self._lock:
            if self._is_able:
                self._run(until=self._context.orders.deadline(otherwise=time.monotonic() + LAST_SECONDS))

    def wait(self, seconds: float) -> None:
        """Wait until a pass that is under way has ended, for at most so long."""
        if self._lock.acquire(timeout=seconds):
            self._lock.release()

    def run_until_replaced(self) -> None:
        """Make passes until the job has another launch than this node's, or its end; for a bounded time."""
        until = self._context.orders.deadline(otherwise=time.monotonic() + LAST_SECONDS)
        while self._is_able and time.monotonic() < until:
            self.run()
            if self._is_replaced():
                return
            time.sleep(max(0.0, min(PAUSE_SECONDS, until - time.monotonic())))

    def _is_replaced(self) -> bool:
        """Return whether machines of a newer launch are there or may come, or the job is over."""
        context = self._context
        try:
            history = HistoryReader(context.store, context.job_id).read()
        except CloudspotError:
            return False
        newest = max((launch.number for launch in history.live_launches), default=0)
        return newest > context.node.launch or history.finished is not None

    def _run(self, *, until: float) -> None:
        node = self._context.node
        command = [sys.executable, "-m", "cloudspot", "reconcile", "--job", node.job_id]
        command += ["--store", node.store_url, "--as", f"node {self._context.seat}"]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            # What the training still has to save goes first.
            with suppress(ProcessLookupError, PermissionError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            try:
                printed, _ = process.communicate(timeout=max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired as late:
                process.kill()
                process.wait()
                # What it has started may hold the output open for longer.
                assert process.stdout is not None
                process.stdout.close()
                printed = late.output or b""
        except OSError as error:
            _log.error("this node could not drive its job: %s", error)
            return
        lines = printed.decode("utf-8", "replace").splitlines()
        for line in lines:
            _log.info("driving: %s", line)
        if process.returncode == AuthError.exit_code:
            self._is_able = False
            why = lines[-1] if lines else "a right is missing"
            _log.error("nodes.drive: this node lacks the rights of a driver, and tries no more: %s", why)
