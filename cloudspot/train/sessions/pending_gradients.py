"""Finds steps that end with gradients which no optimizer has used yet: checkpoints hold no gradients."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from cloudspot.train.state.sharding import fsdp_modules, has_unreduced_gradients, is_dtensor, local_of

_log = logging.getLogger("cloudspot")

LONGEST_ACCUMULATION_STEPS = 256
"""After this many steps in a row with pending gradients, the state is saved without them, with a warning."""


class PendingGradients:
    """Follows the steps of the tracked optimizers.

    An optimizer's gradients are pending at the end of a step if the optimizer did not step in it and some of
    its parameters have gradients that have changed since its last step. Gradients that FSDP has not yet
    reduced over the ranks are also pending.
    """

    def __init__(self, objects: Mapping[str, Any], *, rank: int) -> None:
        """Watch the optimizers among the tracked objects until ``close``."""
        self._watched = [
            _Watched(name, each) for name, each in objects.items() if hasattr(each, "param_groups")
        ]
        self._fsdp_modules = [
            (name, fsdp_modules(each)) for name, each in objects.items() if isinstance(each, torch.nn.Module)
        ]
        self._rank = rank
        self._num_pending = 0
        self._has_stepped = False
        self._has_warned = False
        # If an optimizer wraps another one, as Accelerate's do, the inner optimizer's step is noticed.
        self._hook = register_optimizer_step_post_hook(self._note_step) if self._watched else None

    @property
    def has_stepped(self) -> bool:
        """Whether the current step has changed the state; True if no optimizer is tracked."""
        return self._has_stepped or not self._watched

    @property
    def is_stepped(self) -> bool:
        """Whether a tracked optimizer has stepped in the current step."""
        return self._has_stepped

    def end_step(self) -> bool:
        """Record that a step has ended; return whether the training's whole state can be saved now."""
        self._has_stepped = False
        if not self._watched:
            return True
        pending = [each.name for each in self._watched if each.is_pending()]
        pending += [
            name for name, modules in self._fsdp_modules if any(map(has_unreduced_gradients, modules))
        ]
        self._num_pending = self._num_pending + 1 if pending else 0
        if self._num_pending < LONGEST_ACCUMULATION_STEPS:
            return not pending
        self._num_pending = 0
        if not self._has_warned and self._rank == 0:
            self._has_warned = True
            _log.warning(
                "for %d steps, %s had gradients that were not used; checkpoints leave them out, so resuming"
                " is exact only if the script zeroes them before their next use",
                *(LONGEST_ACCUMULATION_STEPS, " and ".join(pending)),
            )
        return True

    def close(self) -> None:
        """Stop watching."""
        if self._hook is not None:
            self._hook.remove()

    def _note_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for each in self._watched:
            if each.is_stepped_by(optimizer):
                each.note_step()
                self._has_stepped = True


class _Watched:
    def __init__(self, name: str, optimizer: Any) -> None:
        self.name = name
        self._optimizer = optimizer
        self._has_stepped = False
        # Marks are needed only for an optimizer that skips steps.
        self._marks: list[tuple[Any, int] | None] | None = None
        self._needs_marks = False

    def is_stepped_by(self, optimizer: Any) -> bool:
        return optimizer is self._optimizer or optimizer.param_groups is self._optimizer.param_groups

    def note_step(self) -> None:
        self._has_stepped = True
        if self._needs_marks:
            self._marks = [
                None if gradient is None else (weakref.ref(gradient), _version(gradient))
                for gradient in self._gradients()
            ]

    def is_pending(self) -> bool:
        if self._has_stepped:
            self._has_stepped = False
            return False
        self._needs_marks = True
        marks = self._marks
        for index, gradient in enumerate(self._gradients()):
            if gradient is None:
                continue
            mark = marks[index] if marks is not None and index < len(marks) else None
            if mark is None or mark[0]() is not gradient or mark[1] != _version(gradient):
                return True
        return False

    def _gradients(self) -> Iterator[Any]:
        return (each.grad for group in self._optimizer.param_groups for each in group["params"])


def _version(gradient: Any) -> int:
    """Return a number that grows with each change of the gradient."""
    version: int = gradient._version  # noqa: SLF001 - public in all but name
    # FSDP adds to a DTensor's local tensor, and the DTensor's own counter does not show this.
    if is_dtensor(gradient):
        version += local_of(gradient)._version  # noqa: SLF001
    return version
