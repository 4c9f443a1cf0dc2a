"""The loop that a session drives: its steps, the boundaries between them, and its end."""

from __future__ import annotations

import logging
import sys
from array import array
from collections.abc import Mapping, MutableSequence
from typing import Any

from cloudspot.train.data import data_wait
from cloudspot.train.errors import SessionError
from cloudspot.train.sessions import sigterm
from cloudspot.train.sessions.pending_gradients import PendingGradients
from cloudspot.train.sessions.service import Service
from cloudspot.train.state.tree import Json

_log = logging.getLogger("cloudspot")


class TrainingLoop:
    """Counts a loop's steps, and lets the service save and exit at boundaries where saving is possible."""

    def __init__(self, objects: Mapping[str, Any], *, rank: int, start: int) -> None:
        """Follow the tracked objects; the first step is ``start``."""
        self.step = start
        """The current step; after the loop, the number of steps that were made."""
        self.service: Service | None = None
        """The agent's service; None if there is no agent, and after ``close``."""
        self.progress: MutableSequence[int] = array("q", [start, -1, start, -1])
        """The values of ``handoff.Progress`` and of ``handoff.DATA_WAIT``."""
        self.has_begun = False
        self.has_worked = False
        """Whether the loop has run any code of the script."""
        self.is_at_boundary = True
        """Whether the training's whole state can be saved between the last step and the next one."""
        self.left: dict[str, Json] | None = None
        """If the script left the loop early: its "length", and its "planned" number of steps (or None)."""
        self._start = start
        self._gradients = PendingGradients(objects, rank=rank)
        self._is_under_way = False
        self._is_in_step = False
        self._length = 0
        self._has_warned = rank != 0

    def serve(self, service: Service) -> None:
        """From now on, report the boundaries to a service."""
        self.service = service
        self.progress = service.progress

    def open(self) -> None:
        """Record that the script begins its loop.

        Raises:
            SessionError: the script began a loop earlier.
        """
        if self.has_begun:
            raise SessionError(
                "the session's loop has already begun: a session drives a single loop, once. For epochs "
                "around a loop over batches, write: for epoch in run.epochs(N): for batch in "
                "run.batches(loader)"
            )
        self.has_begun = True

    def begin_again(self) -> bool:
        """Let the script begin its loop again, unless a step was made; return whether it may."""
        if self.step == self._start and not self._gradients.has_stepped:
            self.has_begun = False
        return not self.has_begun

    def begin(self, length: int, *, left: dict[str, Json] | None) -> bool:
        """Report to the agent that the loop begins; return whether the script has already left it.

        This is so if the restored checkpoint was saved when the script ``left`` a loop of this ``length``.
        """
        if self.service is not None:
            sigterm.watch()
            self.service.begin_loop()
        self._is_under_way, self._length = True, length
        if left is not None and left["length"] == length:
            self.left = left
        return self.left is not None

    def begin_step(self, step: int) -> None:
        """Carry out the orders at the boundary before the step, and begin the step.

        Raises:
            SystemExit: this rank must leave.
        """
        self.end_step(step)
        if self.service is not None:
            if self.is_at_boundary:
                self.service.pass_boundary(step)
            if step == self.service.prepare_at:
                self.service.prepare(step)
        self._is_in_step = self.has_worked = True
        self.step = self.progress[0] = step
        self.progress[3] = data_wait.nanoseconds()

    def check(self) -> None:
        """Leave if this rank must leave and the state at the last boundary can still be saved.

        Raises:
            SystemExit: the state was saved.
        """
        if self.service is None:
            return
        if self._is_in_step and self._gradients.is_stepped and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "run.check() was called after the optimizer's step, where it cannot save: a notice waits for"
                " the end of the step. Evaluate at the beginning of a step, or after the batches in"
                " run.epochs()"
            )
        self.service.check(is_in_loop=self._is_under_way)

    def end_step(self, num_steps: int | None = None) -> None:
        """Record that the last step has ended; ``num_steps`` were made, by default all with an effect."""
        self.step = self._steps_made() if num_steps is None else num_steps
        if self._is_in_step:
            self._is_in_step = False
            self.is_at_boundary = self._gradients.end_step()

    def _steps_made(self) -> int:
        """Return how many steps were made; a step that was left before it changed the state is excluded."""
        if not self._is_in_step:
            return self.step
        # If a checkpoint with that number exists, a later save needs a different number.
        is_sealed = self.service is not None and self.service.sealed_step == self.step
        return self.step + (1 if self._gradients.has_stepped or is_sealed else 0)

    def leave(self, *, is_held: bool = False) -> None:
        """Record that the script leaves its loop early: the state at that point is the last one."""
        self._is_under_way = False
        self.end_step()
        planned = self.progress[1]
        self.left = {"length": self._length, "planned": planned if planned >= 0 else None}
        if self.service is not None:
            self.service.leave_loop(self.step, left=self.left, saves=self.has_worked, is_held=is_held)

    def end(self) -> None:
        """Save the state after the last step."""
        self._is_under_way = False
        if self.service is not None:
            self.service.end_loop(self.step, left=self.left, saves=self.has_worked)

    def close(self) -> None:
        """Stop serving the agent; called when the process ends."""
        self._gradients.close()
        if self.service is None:
            return
        try:
            # Either an exception ended the loop and was caught, as Python catches SystemExit, or the script
            # still holds the iterator. Only the exit status shows whether the script left the loop itself.
            if self._is_under_way and getattr(sys, "last_value", None) is None:
                self.leave(is_held=True)
        finally:
            service, self.service = self.service, None
            service.close()
