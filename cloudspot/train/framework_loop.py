"""A session's loop for other frameworks' callbacks, and functions that these callbacks share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from cloudspot.train import handoff
from cloudspot.train.errors import SessionError
from cloudspot.train.sessions.training import Session
from cloudspot.train.state import randomness
from cloudspot.train.state.checkpoint import Checkpoint
from cloudspot.train.state.tree import rebuild


class FrameworkLoop:
    """The steps of a session, which are begun one by one from another framework's loop."""

    def __init__(self, run: Session, total: int | None) -> None:
        """Begin the first step; ``total`` is the number of steps, or None if it is unknown in advance."""
        self.run = run
        self._total = total
        self._steps: Any = run.steps(total)  # a generator
        run.check()  # from now on, boundaries are marked, so an evaluation can return to one
        run._random_at_open = None  # noqa: SLF001 - the callbacks undo what frameworks draw before the loop
        self.is_over = False
        """Whether no steps are left."""
        self._advance()

    @property
    def is_last_step(self) -> bool:
        """Whether the current step is the last one."""
        return self._total is not None and self.run.step + 1 >= self._total

    def begin_step(self) -> None:
        """Pass the boundary before the next step.

        Raises:
            SystemExit: this rank must leave, and the state is saved.
            SessionError: the last step has already been made.
        """
        if self.is_over:
            raise SessionError(f"the framework began another step after the last of {self._total} steps")
        self._advance()

    def check(self) -> None:
        """Leave during an evaluation if this rank must leave.

        Raises:
            SystemExit: this rank must leave, and the state from before the evaluation is saved.
        """
        self.run.check()

    def end(self, *, in_step: bool) -> None:
        """End the loop because the framework's loop has ended; the current state is the last one.

        ``in_step`` says whether the framework has completed the step that ``begin_step`` began last.
        """
        if not self.is_over:
            self._advance(leaves=not (in_step and self.is_last_step))

    def _advance(self, *, leaves: bool = False) -> None:
        # Only this function may advance the generator: LoopExit takes this frame for the script's loop.
        if leaves:
            self._steps.close()
        self.is_over = leaves or next(self._steps, None) is None


def check_world(run: Session, *, is_resumed: bool) -> None:
    """Check that this rank ``is_resumed`` if the session is resumed.

    Raises:
        SessionError: a different number of ranks saved the checkpoint.
    """
    if run.resumed and not is_resumed:
        raise SessionError(
            f"the checkpoint was saved by a number of ranks other than {run.world_size}, and a step of a "
            "Trainer is a batch on every rank: with SpotCallback, do not change the number of nodes or "
            "procs_per_node"
        )


def has_agent() -> bool:
    """Return whether this process runs under cloudspot; if not, the callbacks do nothing."""
    return handoff.HANDOFF in os.environ


def restored_state(name: str, *keys: str) -> Any:
    """Return parts of an object's restored state, before a session exists; None on a fresh start.

    The parts must not contain tensors.
    """
    directory = os.environ.get(handoff.RESTORE)
    if not directory:
        return None
    state = Checkpoint(Path(directory)).shared["state"][name]
    return rebuild(name, {key: state[key] for key in keys})


def capture_randomness() -> dict[str, Any]:
    """Return the state of all random generators, including the current CUDA device's."""
    return randomness.capture(_devices())


def restore_randomness(state: dict[str, Any]) -> None:
    """Restore all random generators to a captured state."""
    randomness.restore(state, _devices())


def _devices() -> tuple[int, ...]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return ()
    return (torch.cuda.current_device(),)
