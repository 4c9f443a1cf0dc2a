"""One rank's interval saves: made at a boundary, or during the step after the boundary (P6)."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cloudspot.train.rounds.save_order import SaveOrder
from cloudspot.train.sessions.save_way import SaveWay
from cloudspot.train.sessions.saving import Describe, Saver
from cloudspot.train.state.optimizer_steps import before_writes
from cloudspot.train.state.overlapped_copy import OverlappedCopy

_log = logging.getLogger(__name__)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class IntervalSaves:
    """Makes the saves, and delays optimizer steps until the tensors that they change are copied.

    Only the main thread calls the methods, between two steps.
    """

    def __init__(self, saver: Saver, *, again: Callable[[], None]) -> None:
        """Save with ``saver``; ``again`` is called if a save is abandoned after its boundary."""
        self._saver = saver
        self._again = again
        self._way = SaveWay()
        self._trial: OverlappedCopy | None = None
        self._num_steps = self._num_steps_before = 0
        self._has_stepped = False
        self._has_warned = False
        self._pid = os.getpid()
        # Creating an optimizer imports the compiler. The compiler must not trace this hook of a compiled
        # step, because it would reorder the hook's effects.
        is_loaded = "torch._dynamo" in sys.modules
        hook = torch.compiler.disable(self._before_step) if is_loaded else self._before_step
        self._hook = register_optimizer_step_pre_hook(hook)

    def pass_boundary(self, *, waits: bool) -> None:
        """Record that the training has reached a boundary.

        With ``waits``, a save from an earlier boundary is sealed or abandoned before this returns.

        Raises:
            Exception: the earlier save cannot be copied, or cannot be sealed although the disk is not full.
        """
        self._trial = None  # no optimizer has stepped since the trial
        if self._saver.overlapped is not None:
            self.settle(waits=waits)
        self._way.pass_boundary(time.monotonic())
        self._has_stepped = self._num_steps > self._num_steps_before
        self._num_steps_before = self._num_steps

    def save(
        self, objects: Mapping[str, Any], order: SaveOrder, *, step: int, describe: Describe
    ) -> float | None:
        """Save at the last boundary; return the seconds that the training lost, or None if no slot was free.

        If the disk is full, the save is skipped with a warning. The arguments and errors are those of
        ``Saver.copy``.
        """
        way = self._way.choose(has_stepped=self._has_stepped)
        copied = self._saver.copy(
            objects,
            order,
            step=step,
            describe=describe,
            deadline=None,
            way=way,
            but=self._way.excluded,
        )
        if copied is None:
            self._way.skip()
            return None
        lost = self._way.lost_seconds(way)
        copied.content["lost_seconds"] = lost
        stall: float = copied.content["stall_seconds"]
        if self._saver.overlapped is None:
            try:
                self._saver.seal(copied)
            except OSError as error:
                self._pardon(error, step)
        if copied.tried is not None:
            self._way.begin_trial(stall)
            self._trial = copied.tried
        return stall if lost is None else lost

    def settle(self, *, waits: bool) -> None:
        """End a save that is in progress if it is complete or, with ``waits``, wait for its end.

        Raises:
            Exception: the save cannot be copied or sealed.
        """
        save = self._saver.overlapped
        if save is None or not save.settle(waits=waits):
            return
        self._saver.overlapped = None
        if save.spoilt:
            self._way.spoil(save.spoilt)
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "a save is made again: %s was written to while it was copied, before an optimizer"
                    " stepped; from now on, such tensors are copied between two steps",
                    min(save.spoilt),
                )
        if save.spoilt or save.is_cancelled:
            self._again()
        if save.error is not None:
            self._pardon(save.error, None)

    def close(self) -> None:
        """End a save that is in progress, and stop delaying steps; an error of the save is only logged."""
        try:
            self.settle(waits=True)
        except Exception:  # the rest of the session must be closed too
            _log.exception("a save could not be finished")
        self._hook.remove()

    def _pardon(self, error: Exception, step: int | None) -> None:
        if not isinstance(error, OSError) or error.errno not in _FULL:
            raise error
        _log.warning("the state%s was not saved: %s", "" if step is None else f" of step {step}", error)

    def _before_step(self, _optimizer: Any, args: Any, kwargs: Any) -> Any:
        self._num_steps += 1
        if (self._trial is None and self._saver.overlapped is None) or os.getpid() != self._pid:
            return None
        return before_writes(args, kwargs, self._hold_back)

    def _hold_back(self) -> None:
        save, trial, self._trial = self._saver.overlapped, self._trial, None
        if save is not None:
            save.before_write()
        if trial is None or (trial.is_on_gpu and torch.cuda.is_current_stream_capturing()):
            return
        written = {*trial.written(), *trial.differing()}
        self._way.end_trial(written, share=trial.share_of(written))
