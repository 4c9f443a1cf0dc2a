"""Lightning's Trainer on machines that may be reclaimed: with two more lines, a notice costs no step."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, callbacks
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    Callback,
    Checkpoint,
    GradientAccumulationScheduler,
    LearningRateFinder,
)
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer import call

import cloudspot.train as spot
from cloudspot.train.data.replayed_loader import ReplayedLoader
from cloudspot.train.data.resumable_batches import own_order
from cloudspot.train.errors import SessionError
from cloudspot.train.framework_loop import (
    FrameworkLoop,
    capture_randomness,
    check_world,
    has_agent,
    restore_randomness,
)
from cloudspot.train.state.tree import flatten, rebuild

_log = logging.getLogger("cloudspot")

_FETCHED_AHEAD = 3
"""The number of batches fetched for a step: its own, and those that Lightning may fetch before using it."""
_REFUSED = (BaseFinetuning, *filter(None, [getattr(callbacks, "WeightAveraging", None)]))
"""Callbacks that add parameter groups during the training, or keep weights that are only in Lightning's own
checkpoints."""


class SpotCallback(Callback):  # type: ignore[misc]  # mypy does not read lightning
    """Saves a Trainer's training when it must leave its machine, and resumes it at the same batch.

    Pass it to the Trainer, and call ``fit`` without ``ckpt_path``::

        trainer = lightning.Trainer(callbacks=[SpotCallback()])

    The training is a session whose steps are batches. All ranks agree to save and leave between two batches
    when no gradients are pending. The metrics that Lightning logs are also logged in the session. Without
    cloudspot, the callback does nothing.
    """

    def __init__(self) -> None:
        """Do nothing until ``fit``."""
        self.run: Any = None
        """The session, once ``fit`` has started."""
        self._loop: FrameworkLoop | None = None
        self._has_passed = True
        self._changes_at_end = False

    # --- resuming -------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Track the training's loaders.

        Raises:
            SessionError: this is the second training, or a callback has state that cannot be saved.
        """
        if stage != "fit" or not has_agent() or _is_tuning(trainer):
            return
        if self.run is not None:
            raise SessionError(
                "trainer.fit() was called a second time, but a job is a single training run, which "
                "cloudspot resumes: submit the second run as a job of its own, or leave SpotCallback out of "
                "it"
            )
        for finder in _finders(trainer):
            raise SessionError(
                f"SpotCallback cannot resume a training with {type(finder).__name__}: search with"
                " lightning.pytorch.tuner.Tuner(trainer) before trainer.fit() instead"
            )
        refused = [type(each).__name__ for each in trainer.callbacks if isinstance(each, _REFUSED)]
        if refused:
            raise SessionError(
                f"SpotCallback cannot resume {refused[0]}: leave out that callback, or leave out SpotCallback"
                " and name the directory of Lightning's own checkpoints in [checkpoint]"
            )
        hooks = [(pl_module, LightningModule)]
        hooks += [(each, Callback) for each in trainer.callbacks if not isinstance(each, Checkpoint)]
        for owner, base in hooks:
            if type(owner).on_save_checkpoint is not base.on_save_checkpoint:
                _log.warning(
                    "%s.on_save_checkpoint is not called when the session saves: keep what must be resumed in"
                    " buffers, or in the state_dict of a callback",
                    type(owner).__name__,
                )
        self._place = place = _Place(trainer)
        process = trainer.strategy.process_dataloader
        trainer.strategy.process_dataloader = lambda loader: (
            place.track(process(loader)) if trainer.training else process(loader)
        )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the session, which restores the training.

        Raises:
            SessionError: a different number of ranks saved the training, or ``fit`` was called with the path
                of one of Lightning's own checkpoints.
        """
        if not has_agent():
            return
        if trainer.ckpt_path is not None:  # in setup, this is still the path of an earlier fit
            raise SessionError(
                "with SpotCallback, cloudspot resumes the training: call trainer.fit() without ckpt_path"
            )
        self.run = spot.session(
            model=pl_module,
            dataloader=self._place,
            lightning=_TrainerStates(trainer, self._place),
            **_numbered("optimizer", trainer.optimizers),
            **_numbered("scheduler", [each.scheduler for each in trainer.lr_scheduler_configs]),
        )
        check_world(self.run, is_resumed=self._place.is_resuming)
        self._place.remember_schedules()
        trainer.loggers = [*trainer.loggers, _SessionLogger(self.run)]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the session's loop.

        Raises:
            SessionError: there are several loaders with different lengths.
        """
        if self.run is None:
            return
        combined = trainer.fit_loop._combined_loader  # noqa: SLF001 - it has no public name
        if combined._mode != "min_size" and len({each.length for each in self._place.loaders}) > 1:  # noqa: SLF001
            raise SessionError(
                "with SpotCallback, the training loaders must all have the same length, or be a "
                'CombinedLoader of the mode "min_size": Lightning iterates shorter ones several times'
            )
        self._loop = FrameworkLoop(self.run, _num_batches(trainer))
        self._changes_at_end = any(map(_may_change_at_end, (pl_module, *trainer.callbacks)))
        if self._loop.is_over and not self._place.is_before_validation:
            trainer.should_stop = True
            trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, None
        # The strategy's on_train_start runs after the hooks of all callbacks and of the module.
        start = trainer.strategy.on_train_start

        def start_and_go_on() -> None:
            trainer.strategy.on_train_start = start
            start()
            self._go_on(trainer)

        trainer.strategy.on_train_start = start_and_go_on

    def _go_on(self, trainer: Any) -> None:
        """Continue with the interrupted epoch."""
        if self._place.num_resumed > 0:
            # Lightning skips these hooks in a resumed epoch, but this process needs the values that they set.
            with _schedules_kept(trainer), _warning_of_weights(trainer.lightning_module):
                call._call_callback_hooks(trainer, "on_train_epoch_start")  # noqa: SLF001 - as Lightning does
                call._call_lightning_module_hook(trainer, "on_train_epoch_start")  # noqa: SLF001
        if self._place.is_before_validation:
            self._place.restore_randomness()

    # --- the loop -------------------------------------------------------------------------------

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Pass the boundary before the batch, where the training can be saved and left."""
        if self._loop is not None:
            self._place.begin_batch()
            self._pass_boundary()
            self._has_passed = False

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record where a validation after the batch would start."""
        if self._loop is not None:
            self._place.end_batch()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Pass the next boundary before the validation, unless hooks may still change the last state."""
        if self._loop is not None:
            self._place.begin_validation()
            if not (self._changes_at_end and self._loop.is_last_step):
                self._pass_boundary()

    def on_validation_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Check for a notice during a validation."""
        if self._loop is not None:
            self._loop.check()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Warn if the epoch's means exclude some of its batches."""
        if self._loop is None:
            return
        num_resumed, self._place.num_resumed = self._place.num_resumed, 0
        means = [name for name, each in (trainer._results or {}).items() if each.meta.on_epoch]  # noqa: SLF001
        if num_resumed > 0 and means:
            _log.warning(
                "the means of this epoch leave out its first %d batches, from before the resume: %s",
                *(num_resumed, ", ".join(name.removeprefix("training_step.") for name in means)),
            )

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last state, which other callbacks may have changed at the end of the training."""
        if self._loop is not None:
            # At the end, some ranks may take longer than the others would wait in the save.
            trainer.strategy.barrier()
            self._place.is_before_validation = False
            self._loop.end(in_step=not self._has_passed)
            self._loop = None

    def _pass_boundary(self) -> None:
        assert self._loop is not None
        if not self._has_passed:
            self._has_passed = True
            self._loop.begin_step()


def _finders(trainer: Any) -> list[Any]:
    """Return the callbacks that make trial steps before the training and then restore its state."""
    return [each for each in trainer.callbacks if isinstance(each, (BatchSizeFinder, LearningRateFinder))]


def _is_tuning(trainer: Any) -> bool:
    """Return whether a Tuner called ``fit``: its callback ends that call before our ``on_fit_start``."""
    return any(each._early_exit for each in _finders(trainer))  # noqa: SLF001 - nothing public shows it


def _may_change_at_end(owner: Any) -> bool:
    """Return whether a callback or the module may change the model after the training has ended."""
    kind = next(each for each in type(owner).__mro__ if "on_train_end" in vars(each))
    is_known = kind.__module__.startswith(("cloudspot.", "lightning.", "pytorch_lightning."))
    return not is_known or "Averaging" in kind.__name__


class _TrainerStates:
    """The progress of the Trainer's loops and its callbacks' states, which are the same on all ranks."""

    def __init__(self, trainer: Any, place: _Place) -> None:
        self._trainer = trainer
        self._place = place

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        states = {
            "loops": self._loops(),
            "callbacks": {each.state_key: each.state_dict() for each in trainer.callbacks},
            "data": {} if trainer.datamodule is None else trainer.datamodule.state_dict(),
            "precision": trainer.precision_plugin.state_dict(),
            "should_stop": trainer.should_stop,
            "metrics": dict(trainer.callback_metrics),
        }
        # Tensors are stored in the JSON, because their number may differ between saves and between ranks.
        return {"json": flatten("lightning", states, None)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer, states = self._trainer, rebuild("lightning", state["json"])
        trainer.fit_loop.load_state_dict(states["loops"])
        trainer.should_stop = states["should_stop"]
        trainer.callback_metrics.update(states["metrics"])
        for callback in trainer.callbacks:
            found = states["callbacks"].get(callback.state_key)
            if found:
                callback.load_state_dict(found)
        if states["data"]:
            trainer.datamodule.load_state_dict(states["data"])
        if states["precision"]:
            trainer.precision_plugin.load_state_dict(states["precision"])

    def _loops(self) -> dict[str, Any]:
        """Return a state of the loops that resumes at this boundary, whatever their current counters are."""
        loops: dict[str, Any] = self._trainer.fit_loop.state_dict()
        loops["state_dict"].pop("combined_loader", None)
        batches = loops["epoch_loop.batch_progress"]
        for counts in (batches["total"], batches["current"]):
            counts["ready"] = counts["started"] = counts["processed"] = counts["completed"]
        if not self._place.is_before_validation:
            batches["is_last_batch"] = False
        validated = loops["epoch_loop.val_loop.batch_progress"]
        total, current = validated["total"], validated["current"]
        total["ready"] = total["started"] = total["processed"] = total["completed"]
        if self._place.is_before_validation:
            # Lightning treats this as a validation that was interrupted before its first batch, and runs it.
            total["ready"] = total["started"] = total["completed"] + 1
            current["ready"] = current["started"] = current["processed"] = current["completed"] = 0
        return loops


class _Place:
    """This rank's position in its data, and its random state. The session treats it as a loader."""

    is_framework = True

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.is_before_validation = False
        """Whether a validation comes before the next batch."""
        self._random: dict[str, Any] = {}
        self.is_resuming = False
        """Whether the training was restored and no batch or validation has begun since."""
        self.num_resumed = 0
        """The number of the epoch's batches that were used before the resume."""
        self._resumed_loaders: list[dict[str, Any]] = []
        self._schedules: list[tuple[Any, dict[str, Any]]] = []
        self._num_stepped = 0

    def track(self, loader: Any) -> _TrackedLoader:
        """Return the Trainer's next loader, set to the position from which to resume."""
        tracked = _TrackedLoader(loader)
        if self._resumed_loaders:
            tracked.replayed.load_state_dict(self._resumed_loaders.pop(0))
        return tracked

    # --- saving and loading ---------------------------------------------------------------------

    @property
    def loaders(self) -> list[_TrackedLoader]:
        """The Trainer's loaders."""
        combined = self._trainer.fit_loop._combined_loader  # noqa: SLF001 - they have no public name
        return [] if combined is None else list(combined.flattened)

    @property
    def own_order(self) -> str | None:
        """Why other ranks cannot compute which batches come next on this rank."""
        return next(filter(None, (own_order(each.replayed) for each in self.loaders)), None)

    def state_dict(self) -> dict[str, Any]:
        num_used = self._trainer.fit_loop.epoch_loop.batch_progress.current.completed
        return {
            "loaders": [each.replayed.state_dict(num_used=num_used) for each in self.loaders],
            "random": self._random if self.is_before_validation else capture_randomness(),
            "is_before_validation": self.is_before_validation,
            "num_used": num_used,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.is_resuming = True
        self._resumed_loaders, self._random = state["loaders"], state["random"]
        self.is_before_validation = state["is_before_validation"]
        self.num_resumed = state["num_used"]

    def remember_schedules(self) -> None:
        """Store the state that Lightning changes between its restart and the first batch."""
        configs = self._trainer.lr_scheduler_configs if self.is_resuming else ()
        self._schedules = [(each.scheduler, dict(each.scheduler.state_dict())) for each in configs]
        self._num_stepped = self._trainer.fit_loop.epoch_loop._batches_that_stepped  # noqa: SLF001

    def restore_randomness(self) -> None:
        """Restore the random state that was saved."""
        restore_randomness(self._random)

    # --- as the Trainer goes on -----------------------------------------------------------------

    def begin_batch(self) -> None:
        """Record that a batch begins; the first batch after a resume starts from the saved state."""
        if self.is_resuming:
            self._settle()
            if not self.is_before_validation:
                self.restore_randomness()
                self._trainer.fit_loop.epoch_loop._batches_that_stepped = self._num_stepped  # noqa: SLF001
                for scheduler, state in self._schedules:
                    scheduler.load_state_dict(state)
        self.is_before_validation = False

    def end_batch(self) -> None:
        """Record that a batch has ended."""
        self._random = capture_randomness()

    def begin_validation(self) -> None:
        """Record that a validation begins between two batches."""
        if self.is_resuming:
            self._settle()
        self.is_before_validation = True

    def _settle(self) -> None:
        """End Lightning's restart, which would skip the schedulers until the epoch ends."""
        self.is_resuming = False
        self._trainer.fit_loop.restarting = False


class _TrackedLoader:
    """The loader that Lightning iterates in place of the original one."""

    def __init__(self, loader: Any) -> None:
        self.replayed = ReplayedLoader(loader, ahead=_FETCHED_AHEAD)
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if name in {"_loader", "replayed"}:  # before __init__, for copy and pickle
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.replayed)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def length(self) -> int | None:
        """The number of batches, or None if the loader does not know it."""
        try:
            return len(self._loader)
        except (TypeError, NotImplementedError):
            return None

    @property
    def worker_init_fn(self) -> Any:
        return self._loader.worker_init_fn

    @worker_init_fn.setter
    def worker_init_fn(self, function: Any) -> None:  # Lightning's seeding of workers
        self._loader.worker_init_fn = function

    # The session saves the loader's position, so Lightning's own checkpoints do not need it.

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class _SessionLogger(Logger):  # type: ignore[misc]  # as above
    """Passes the metrics that Lightning logs to the session."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self._run = run

    @property
    def name(self) -> str:
        return "cloudspot"

    @property
    def version(self) -> int:
        return 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._run.log(**metrics)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


@contextmanager
def _schedules_kept(trainer: Any) -> Iterator[None]:
    """After the block, restore the learning rates and their schedules to their values before it."""
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    settings = [
        copy.deepcopy({name: value for name, value in group.items() if name != "params"}) for group in groups
    ]
    schedulers = [each.scheduler for each in trainer.lr_scheduler_configs]
    states = [copy.deepcopy(each.state_dict()) for each in schedulers]
    yield
    for group, setting in zip(groups, settings, strict=True):
        group.update(setting)
    for scheduler, state in zip(schedulers, states, strict=True):
        scheduler.load_state_dict(state)


@contextmanager
def _warning_of_weights(module: Any) -> Iterator[None]:
    """Warn if the block changes weights or buffers, because the checkpoint already includes the change."""
    tensors = module.state_dict(keep_vars=True)  # kept, so that new tensors cannot reuse the ids
    before = _versions(tensors)
    yield
    after = _versions(module.state_dict(keep_vars=True))
    changed = [name for name in after if before.get(name) != after[name]]
    if changed and module.trainer.is_global_zero:
        _log.warning(
            "on_train_epoch_start has run again in the resumed epoch and changed %s a second time, so the"
            " result differs from that of an uninterrupted training; change it in on_train_epoch_end",
            changed[0],
        )


def _versions(state: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return each tensor's id and the number of its in-place changes (0 for inference tensors)."""
    return {
        name: (id(each), 0 if each.is_inference() else each._version)  # noqa: SLF001
        for name, each in state.items()
        if isinstance(each, torch.Tensor)
    }


def _numbered(name: str, objects: list[Any]) -> dict[str, Any]:
    return {name if number == 0 else f"{name}_{number}": each for number, each in enumerate(objects)}


def _num_batches(trainer: Any) -> int | None:
    """Return how many batches the training takes if nothing ends it early; None if that is unknown."""
    if any(isinstance(each, GradientAccumulationScheduler) for each in trainer.callbacks):
        return None
    per_epoch, accumulated = trainer.num_training_batches, trainer.accumulate_grad_batches
    epochs = math.inf if trainer.max_epochs in {None, -1} else trainer.max_epochs
    num_batches = per_epoch * epochs if per_epoch and epochs else 0
    if trainer.max_steps != -1:
        if not trainer.lightning_module.automatic_optimization:
            return None
        if math.isinf(per_epoch):
            return None
        num_epochs, rest = divmod(trainer.max_steps, math.ceil(per_epoch / accumulated))
        num_batches = min(num_batches, num_epochs * per_epoch + rest * accumulated)
    return None if math.isinf(num_batches) else int(num_batches)
