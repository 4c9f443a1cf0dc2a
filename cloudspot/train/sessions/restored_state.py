"""The state that a session resumes from: the parts of the restored checkpoint that this rank can use."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cloudspot.train.data.resumable_batches import ResumableBatches
from cloudspot.train.distributed import World
from cloudspot.train.errors import CheckpointError, SessionError
from cloudspot.train.state import checkpoint, randomness
from cloudspot.train.state.checkpoint import Checkpoint
from cloudspot.train.state.tree import Json, rebuild

_log = logging.getLogger("cloudspot")


class RestoredState:
    """A checkpoint loaded into the tracked objects, with its loop's position and its generators' states."""

    def __init__(self, restored: Checkpoint, objects: Mapping[str, Any], *, world: World) -> None:
        """Load the checkpoint into the objects.

        Raises:
            CheckpointError: the checkpoint is malformed or does not fit the objects.
        """
        restored.load(objects, world=world)
        self.step = restored.step
        self.seed = restored.seed
        self._checkpoint = restored
        self._rank = world.rank
        self._rank_state: dict[str, Any] = {}
        if restored.world_size == world.world_size:
            own = restored.rank_state(world.rank)
            if own is not None:
                self._rank_state = rebuild("state of this rank", own)
            elif restored.rescue is not None:
                self._rank_state = self._follow(objects)
                if not restored.rescue.get("is_exact"):
                    _log.warning(
                        "step %d was saved without rank %d, which was lost: its generators are seeded anew",
                        *(restored.step, world.rank),
                    )
        elif world.rank == 0:
            loader = (
                ", and the dataloader begins again with its first sample; run.batches(dataloader) would"
                " continue in the middle of the epoch"
            )
            _log.warning(
                "a checkpoint of %d ranks is resumed by %d: random generators are seeded anew%s",
                restored.world_size,
                world.world_size,
                loader if "dataloader" in (restored.rank_state(0) or {}) else "",
            )

    def _follow(self, objects: Mapping[str, Any]) -> dict[str, Any]:
        """Return this lost rank's state, derived from a saver's state; it is empty if that is impossible.

        This is possible if the saver's position in the data determines this rank's position.
        """
        saved = self._checkpoint
        found = next(filter(None, map(saved.rank_state, range(saved.world_size))), {})
        saver = rebuild("state of a rank", found)
        if not saver.get("is_common"):
            return {}
        devices = checkpoint.cuda_devices(checkpoint.take(objects).tensors)
        random = randomness.reseeded(self.seed, self.step, self._rank, devices)
        followed: dict[str, Any] = _with_randomness(saver, random)
        return followed

    @property
    def left(self) -> dict[str, Json] | None:
        """The lengths of the loop that the script left at this checkpoint, or None: see ``TrainingLoop``."""
        return self._checkpoint.left

    @property
    def loader_state(self) -> Any:
        """The state of the tracked loader in a loop over steps, or None if there is none."""
        return self._rank_state.get("dataloader")

    @property
    def loader_generators(self) -> Any:
        """The states of the generators that belong to the tracked loader, or None if there are none."""
        return self._rank_state.get("loader_generators")

    def position(self) -> dict[str, Any]:
        """Return the position of the loop over batches: see ``Checkpoint.position``.

        Raises:
            SessionError: the checkpoint was saved in a loop over steps.
        """
        position = self._checkpoint.position
        if position is None:
            raise SessionError("the checkpoint was saved in a loop over run.steps(): use run.steps() again")
        return position

    def check_steps(self) -> None:
        """Check that the checkpoint was saved in a loop over steps.

        Raises:
            SessionError: the checkpoint was saved in a loop over batches.
        """
        if self._checkpoint.position is not None:
            raise SessionError(
                "the checkpoint was saved in a loop over run.batches(): use run.batches() again"
            )

    def resume_feed(self, feed: ResumableBatches) -> None:
        """Move a feed to the saved position. This draws random numbers: restore the generators afterwards.

        Raises:
            CheckpointError: the position is malformed.
            SessionError: the position does not fit the feed's loader.
        """
        position = self.position()
        if not self._rank_state:
            self._reseed()
        feed.resume(
            position,
            self._rank_state.get("feed"),
            world_size=self._checkpoint.world_size,
            random=self._rank_state.get("random"),
        )

    def restore_randomness(self, devices: tuple[int, ...], moment: str = "random") -> None:
        """Restore the random generators, including those of CUDA ``devices``, to the state named ``moment``.

        In a world of a different size, they are seeded anew.

        Raises:
            CheckpointError: the saved state is malformed.
        """
        if not self._rank_state:
            self._reseed()
            return
        try:
            state = self._rank_state.get(moment) or self._rank_state["random"]
            randomness.restore(state, devices)
        except (TypeError, ValueError, LookupError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint's random generators are malformed: {error}") from error

    def _reseed(self) -> None:
        randomness.reseed(self.seed, self.step, self._rank)


def _with_randomness(state: Any, random: Mapping[str, Any]) -> Any:
    """Return a saver's state with its generators at ``random``, without its first batch's fingerprint."""
    if isinstance(state, dict):
        found = {key: _with_randomness(each, random) for key, each in state.items() if key != "first"}
        return {**found, **random} if {"python", "torch"} <= state.keys() else found
    if type(state) in {list, tuple}:
        return type(state)(_with_randomness(each, random) for each in state)
    return state
