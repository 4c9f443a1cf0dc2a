"""Drive the job once more when a node ends, so that new machines are bought even if no driver runs.

After a notice and again after it has left, the node runs ``cloudspot reconcile`` for its job in a separate
process. It also does this once at its start, so that a missing permission is known before the permission is
needed. The node needs the permissions of a driver; the job file declares them with ``nodes.drive``.
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
"""How long a node without a deadline tries to get a replacement before its machine ends."""
PAUSE_SECONDS = 10.0
"""The time between two passes, equal to the first wait after a failure."""
_NICENESS = 10


class LastPass:
    """Drives the job from one of its nodes; does nothing unless the job file requests this. Thread-safe."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        # A node on the submitter's computer would end together with the machines it starts.
        self._is_able = (
            context.job.spec.nodes.drive and Capability.THIS_COMPUTER not in context.provider.capabilities
        )

    def run(self) -> None:
        """Make one pass that ends by the node's deadline; failures are only logged."""
        with self._lock:
            if self._is_able:
                self._run(until=self._context.orders.deadline(otherwise=time.monotonic() + LAST_SECONDS))

    def wait(self, seconds: float) -> None:
        """Wait until the current pass has ended, but at most ``seconds``."""
        if self._lock.acquire(timeout=seconds):
            self._lock.release()

    def run_until_replaced(self) -> None:
        """Make passes until the job has a newer launch or has ended, or the time is up."""
        until = self._context.orders.deadline(otherwise=time.monotonic() + LAST_SECONDS)
        while self._is_able and time.monotonic() < until:
            self.run()
            if self._is_replaced():
                return
            time.sleep(max(0.0, min(PAUSE_SECONDS, until - time.monotonic())))

    def _is_replaced(self) -> bool:
        """Return whether machines of a newer launch exist or may appear, or the job is over."""
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
            # The last saves of the training have priority.
            with suppress(ProcessLookupError, PermissionError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            try:
                printed, _ = process.communicate(timeout=max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired as late:
                process.kill()
                process.wait()
                # The process's children may keep its output open for longer.
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
            why = lines[-1] if lines else "a permission is missing"
            _log.error("nodes.drive: this node lacks the permissions of a driver and stops driving: %s", why)
