"""A session over the objects that an Accelerator has prepared."""

from __future__ import annotations

from typing import Any

import cloudspot.train as spot
from cloudspot.train.distributed import current_world
from cloudspot.train.errors import SessionError
from cloudspot.train.sessions.training import Session


def session(accelerator: Any, **others: Any) -> Session:
    """Open the process's session: track all objects that the accelerator prepared, and resume them.

    Call this once, after ``accelerator.prepare``, and loop over ``run.batches(loader)`` where the script
    looped over the prepared loader::

        run = session(accelerator)
        for epoch in run.epochs(3):
            for batch in run.batches(loader):
                with accelerator.accumulate(model):
                    ...

    The session tracks the models, the optimizers, the schedulers, the GradScaler and the objects registered
    with ``accelerator.register_for_checkpointing``. Its ``model`` is the first model that was prepared.

    Args:
        accelerator: An ``accelerate.Accelerator``.
        others: Further objects, as for ``cloudspot.train.session``.

    Raises:
        SessionError: nothing was prepared, the accelerator counts fewer processes than were started, an
            object cannot be saved (DeepSpeed, FSDP), or the process has a session already.
        CheckpointError: the restored checkpoint is malformed or does not fit the objects.
    """
    # Accelerate's own save_state also saves the objects in these lists.
    prepared = {
        **_numbered("model", accelerator._models),  # noqa: SLF001
        **_numbered("optimizer", accelerator._optimizers),  # noqa: SLF001
        **_numbered("scheduler", accelerator._schedulers),  # noqa: SLF001
        **_numbered("registered", accelerator._custom_objects),  # noqa: SLF001
    }
    if not prepared:
        raise SessionError(
            "session(accelerator) found nothing to track: call accelerator.prepare() before it"
        )
    if str(accelerator.distributed_type).endswith(("DEEPSPEED", "MEGATRON_LM")):
        raise SessionError(
            f"session(accelerator) cannot save the state of {accelerator.distributed_type} yet: use"
            " accelerator.save_state, with directory in [checkpoint]"
        )
    num_processes = current_world().world_size
    if accelerator.num_processes != num_processes:
        raise SessionError(
            f"{num_processes} processes were started, but the accelerator counts"
            f" {accelerator.num_processes}: on CPUs, create it with Accelerator(cpu=True)"
        )
    return spot.session(**prepared, scaler=accelerator.scaler, accelerator=_Counter(accelerator), **others)


class _Counter:
    """The accelerator's count of batches, by which it accumulates gradients."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._accelerator.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._accelerator.step = state["step"]


def _numbered(name: str, objects: list[Any]) -> dict[str, Any]:
    return {name if number == 0 else f"{name}_{number}": each for number, each in enumerate(objects)}
