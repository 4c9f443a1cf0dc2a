"""A session's loop that the callbacks of another framework drive, and what they need beside it."""

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
    """The steps of a session, begun one by one by a framework whose own loop it is."""

    def __init__(self, run: Session, total: int | None) -> None:
        """Begin the first step; ``total`` is how many there are, None if only the end tells."""
        self.run = run
        self._total = total
        self._steps: Any = run.steps(total)  # a generator
        run.check()  # from now on boundaries are marked, for those in evaluations
        run._random_at_open = None  # noqa: SLF001 - the callbacks put back what frameworks draw before the loop
        self.is_over = False
        """Whether no step is left."""
        self._advance()

    @property
    def is_last_step(self) -> bool:
        """Whether the step under way is the last one."""
        return self._total is not None and self.run.step + 1 >= self._total

    def begin_step(self) -> None:
        """Pass the boundary before the next step.

        Raises:
            SystemExit: the machine has to go, and the state is saved.
            SessionError: there were to be no more steps.
        """
        if self.is_over:
            raise SessionError(f"the training goes on after its last step, of {self._total}")
        self._advance()

    def check(self) -> None:
        """Leave in an evaluation, if the machine has to go.

        Raises:
            SystemExit: it has, and the state before the evaluation is saved.
        """
        self.run.check()

    def end(self, *, in_step: bool) -> None:
        """End the loop where the framework has ended it; the state then is the last one.

        ``in_step`` says whether the framework has made the step that ``begin_step`` has begun last.
        """
        if not self.is_over:
            self._advance(leaves=not (in_step and self.is_last_step))

    def _advance(self, *, leaves: bool = False) -> None:
        # All of it in one function: LoopExit takes this for the script's loop.
        if leaves:
            self._steps.close()
        self.is_over = leaves or next(self._steps, None) is None


def check_world(run: Session, *, is_resumed: bool) -> None:
    """Check that this rank ``is_resumed``, if the session is.

    Raises:
        SessionError: another number of ranks saved.
    """
    if run.resumed and not is_resumed:
        raise SessionError(
            f"the checkpoint was not saved by {run.world_size} ranks, and a Trainer's steps are batches of"
            " all ranks: with SpotCallback, keep nodes and procs_per_node as they were"
        )


def has_agent() -> bool:
    """Return whether this process runs under cloudspot; without it the callbacks do nothing."""
    return handoff.HANDOFF in os.environ


def restored_state(name: str, *keys: str) -> Any:
    """Return parts of the restored state of an object, before there is a session; None on a fresh start.

    They hold no tensors.
    """
    directory = os.environ.get(handoff.RESTORE)
    if not directory:
        return None
    state = Checkpoint(Path(directory)).shared["state"][name]
    return rebuild(name, {key: state[key] for key in keys})


def capture_randomness() -> dict[str, Any]:
    """Return the state of all generators, the current CUDA device's too."""
    return randomness.capture(_devices())


def restore_randomness(state: dict[str, Any]) -> None:
    """Restore all generators to a captured state."""
    randomness.restore(state, _devices())


def _devices() -> tuple[int, ...]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return ()
    return (torch.cuda.current_device(),)
