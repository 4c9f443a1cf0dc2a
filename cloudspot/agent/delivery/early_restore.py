"""Restores the newest checkpoint of a session while the node prepares: the setup does not touch it."""

from __future__ import annotations

import threading

from cloudspot.agent.delivery.checkpoint_restore import Restored, restore_newest
from cloudspot.agent.node_context import NodeContext


class EarlyRestore:
    """A thread that restores, on a machine that has not trained yet."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._found: Restored | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="early restore", daemon=True)

    def start(self) -> None:
        """Begin, unless this machine has trained, or a script restores its own checkpoints.

        Those lie in the working directory, where the setup works.
        """
        context = self._context
        if context.memory.generation == 0 and context.job.spec.checkpoint.directory is None:
            self._thread.start()

    def finish(self) -> Restored | None:
        """Wait until it has ended; return what it has restored, None if it was not begun.

        Raises:
            LeavingError: no checkpoint verifies, or an order to leave came.
            CloudspotError: the store or the disk refuses for good.
        """
        context = self._context
        if self._thread.is_alive():
            context.status.state = "restoring"
        while self._thread.is_alive():
            context.obey()
            context.orders.wait(0.1)
        if self._error is not None:
            raise self._error
        return self._found

    def _run(self) -> None:
        try:
            self._found = restore_newest(self._context)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._error = error
