"""Restore a session's newest checkpoint while the node prepares; the setup does not touch its files."""

from __future__ import annotations

import logging

from cloudspot.agent.delivery.checkpoint_restore import Restored, restore_newest
from cloudspot.agent.delivery.on_demand_fetch import bring, likely_ranges
from cloudspot.agent.node_context import NodeContext
from cloudspot.agent.worker import Stopped, Worker
from cloudspot.errors import CloudspotError, CorruptData

_log = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0
"""How long a leaving node waits for pending requests."""


class EarlyRestore(Worker):
    """A thread that restores a checkpoint before a machine first trains; the ``with`` block ends it."""

    def __init__(self, context: NodeContext) -> None:
        super().__init__("early restore")
        self._context = context
        self._found: Restored | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> EarlyRestore:
        """Begin the restore, unless this machine has trained or a script saves its own checkpoints.

        A script's own checkpoints are in the working directory, where the setup works.
        """
        context = self._context
        if context.memory.generation == 0 and context.job.spec.checkpoint.directory is None:
            self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """End the restore, even if it is not finished."""
        self.stop()
        self._join(LEAVE_SECONDS)

    def finish(self) -> Restored | None:
        """Wait until the restore has ended; return its result, or None if no restore was begun.

        The restored checkpoint was the newest when the restore began.

        Raises:
            LeavingError: no checkpoint passes verification, or the node was ordered to leave.
            CloudspotError: the store or the disk fails permanently.
        """
        if self._thread.is_alive():
            self._context.status.state = "restoring"
            self._join()
        if self._error is not None:
            raise self._error
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._restore()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._error = error

    def _restore(self) -> Restored:
        context = self._context
        while True:
            found = restore_newest(context, check=self._check)
            if found.on_demand is None:
                return found
            # The ranks will ask for the ranges that they need, which are probably those that their
            # predecessors uploaded.
            likely = likely_ranges(context, found.on_demand)
            try:
                bring(context, found, likely, what="this node read ahead", pause=self._pause)
            except CorruptData as error:
                _log.error("checkpoint %s does not verify, looking for another: %s", found.checkpoint, error)
                continue
            except CloudspotError as error:
                _log.warning(
                    "the checkpoint is not fetched ahead of time, but when the ranks ask for it: %s", error
                )
            return found

    def _pause(self, seconds: float) -> None:
        self._stopped.wait(seconds)
        self._check()

    def _check(self) -> None:
        self._context.obey()
        if self._stopped.is_set():
            raise Stopped
