"""Transformers' Trainer on machines that may be reclaimed: with two more lines, a notice costs no step."""

from __future__ import annotations

import dataclasses
import inspect
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import ExportableState

import cloudspot.train as spot
from cloudspot.train.data.replayed_loader import ReplayedLoader, set_epoch
from cloudspot.train.data.resumable_batches import own_order
from cloudspot.train.errors import SessionError
from cloudspot.train.framework_loop import (
    FrameworkLoop,
    capture_randomness,
    check_world,
    has_agent,
    restore_randomness,
    restored_state,
)
from cloudspot.train.state.checkpoint import unwrap

_METHODS = ("get_batch_samples", "_load_from_checkpoint", "_maybe_log_save_evaluate", "_run_epoch")
"""The methods of the Trainer that are called or replaced; all of them exist from version 5 on."""
_SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
"""Attributes in which each rank's Trainer accumulates sums, between two logs and over the training."""
_SWITCHES = ("should_evaluate", "should_save", "should_training_stop")
_OF_THIS_PROCESS = {"is_local_process_zero", "is_world_process_zero", "stateful_callbacks", "log_history"}


class SpotCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
    """Saves a Trainer's training when it must leave its machine, and resumes it at the same batch.

    Add it before ``trainer.train()``, and call that method without ``resume_from_checkpoint``::

        trainer.add_callback(SpotCallback(trainer))

    The training is a session: all ranks agree to save and leave between two optimizer steps. The Trainer's
    logged metrics are also logged in the session. Without cloudspot, the callback does nothing.
    """

    def __init__(self, trainer: Any) -> None:
        """Attach the callback to its trainer.

        Raises:
            SessionError: the trainer uses DeepSpeed or FSDP, whose state cannot be saved, or transformers is
                too old.
        """
        self.run: Any = None
        """The session, once the training has begun."""
        self._loop: FrameworkLoop | None = None
        if not has_agent():
            return
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise SessionError(
                "SpotCallback cannot save sharded state (DeepSpeed, FSDP) yet: use the Trainer's own"
                ' checkpoints, with directory and on_notice = "SIGTERM" in [checkpoint]'
            )
        missing = [name for name in _METHODS if not hasattr(trainer, name)]
        if missing:
            raise SessionError(f"SpotCallback needs a newer transformers: its Trainer has no {missing[0]}")
        self._trainer = trainer
        self._states = _TrainerStates(trainer)
        self._place = _Place(trainer)
        self._ignored_in_evaluations: Any = None
        self._is_over = False
        self._has_passed = True
        self._awaits_log = False
        self._train, trainer.train = trainer.train, self._train_or_resume
        self._get_batches, trainer.get_batch_samples = trainer.get_batch_samples, self._batches_of_step

    # --- resuming -------------------------------------------------------------------------------

    def _train_or_resume(
        self,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: Any = None,
        **others: Any,
    ) -> Any:
        if trial is not None:
            raise SessionError(
                "hyperparameter_search trains many times, but a job is a single training run, which "
                "cloudspot resumes: submit each trial as a job of its own, or search without SpotCallback"
            )
        if self.run is not None:
            raise SessionError(
                "trainer.train() was called a second time, but a job is a single training run, which "
                "cloudspot resumes: submit the second run as a job of its own, or leave SpotCallback out of "
                "it"
            )
        self._ignored_in_evaluations = ignore_keys_for_eval
        restored = restored_state("trainer", "state", "log")
        if restored is None:
            if resume_from_checkpoint:
                raise SessionError(
                    "with SpotCallback, cloudspot resumes the training: call trainer.train() without"
                    " resume_from_checkpoint"
                )
            return self._train(None, trial, ignore_keys_for_eval, **others)
        # The Trainer reads its position from a single file of a checkpoint directory; the session restores
        # everything else.
        self._trainer._load_from_checkpoint = lambda *_args, **_kwargs: None  # noqa: SLF001 - nothing public does it
        self._trainer.args.ignore_data_skip = False  # here, skipping batches loads nothing
        self._trainer.args.eval_on_start = False  # the training evaluated at its start
        with tempfile.TemporaryDirectory(prefix="cloudspot-") as directory:
            Path(directory, "trainer_state.json").write_text(
                _TrainerStates.to_file(restored), encoding="utf-8"
            )
            return self._train(directory, trial, ignore_keys_for_eval, **others)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the session, which restores the training; or begin again with smaller batches.

        Raises:
            SessionError: a different number of ranks saved the training, or smaller batches would undo steps.
        """
        if not has_agent():
            return
        trainer, place = self._trainer, self._place
        place.loader = ReplayedLoader(kwargs["train_dataloader"], ahead=args.gradient_accumulation_steps)
        place.own_order = own_order(place.loader, seeds={args.seed, args.data_seed})
        if self.run is not None:
            self._begin_again()
        else:
            self.run = spot.session(
                model=unwrap(trainer.model_wrapped),  # the Trainer may replace the wrapper
                optimizer=trainer.optimizer,
                scheduler=_Scheduler(trainer),
                scaler=trainer.accelerator.scaler,
                dataloader=place,
                trainer=self._states,
            )
            check_world(self.run, is_resumed=place.is_resuming)
        self._loop = FrameworkLoop(self.run, state.max_steps)
        self._is_over = self._loop.is_over
        if place.switches is not None:
            self._evaluate_again(control, place.switches)
            self._is_over |= control.should_training_stop

    def _begin_again(self) -> None:
        """Begin the loop again: ``auto_find_batch_size`` restarts the training with smaller batches."""
        if not self.run.begin_again():
            size = self._trainer._train_batch_size  # noqa: SLF001 - it has no public name
            raise SessionError(
                f"a batch did not fit into memory at step {self.run.step}, and auto_find_batch_size would "
                f"restart the training with batches of {size}: set per_device_train_batch_size to {size} or "
                "less, and submit the training as a new job"
            )
        self._states.begin_again()
        self._place.begin_again()
        self._has_passed, self._awaits_log = True, False

    def _evaluate_again(self, control: Any, switches: dict[str, bool]) -> None:
        """Run the evaluation before which the training was saved, and then the Trainer's next actions."""
        trainer, place = self._trainer, self._place
        place.restore_randomness()
        for name, value in switches.items():
            setattr(control, name, value)
        was_epoch_end = place.is_epoch_end
        self._log_evaluate_and_save()
        if place.is_epoch_over and not was_epoch_end:
            trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, trainer.state, control)
            self._log_evaluate_and_save()

    def _log_evaluate_and_save(self) -> None:
        """Let the Trainer log, evaluate and save after a step or an epoch, as its control requests."""
        trainer = self._trainer
        method = trainer._maybe_log_save_evaluate  # noqa: SLF001 - nothing public does all of it
        values = {
            "tr_loss": getattr(trainer, "_tr_loss", None),
            "grad_norm": None,  # it was logged before the save
            "model": trainer.model_wrapped,
            "trial": None,
            "epoch": trainer.state.epoch,
            "ignore_keys_for_eval": self._ignored_in_evaluations,
            "start_time": 0.0,
            "learning_rate": None,
        }
        method(**{name: values[name] for name in inspect.signature(method).parameters})

    # --- the loop -------------------------------------------------------------------------------

    def _batches_of_step(self, epoch_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """Fetch the next step's batches from the tracked loader instead of the Trainer's own iterator."""
        batches = iter(()) if self._is_over else self._place.batches(epoch_iterator)
        return self._get_batches(batches, *args, **kwargs)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pass the boundary before the step, where the training can be saved and left."""
        if self._loop is not None:
            self._place.begin_step()
            self._pass_boundary()
            self._has_passed = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pass the next boundary, if an evaluation comes before the next step."""
        if self._loop is not None:
            self._place.end_step(is_epoch_end=False)
            self._pass_boundary_before_evaluation(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Act as ``on_step_end`` does; end a training that had no steps left when it was resumed."""
        if self._loop is None:
            return
        if self._is_over and self._place.is_resuming:
            control.should_training_stop = True
            control.should_evaluate = control.should_save = control.should_log = False
            return
        self._place.end_step(is_epoch_end=True)
        self._pass_boundary_before_evaluation(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Log the Trainer's metrics in the session."""
        if self.run is None:
            return
        self.run.log(
            **{name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        )
        if self._awaits_log:
            self._awaits_log = False
            self._pass_boundary()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check for a notice during an evaluation."""
        if self._loop is not None:
            self._loop.check()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the last state."""
        if self._loop is not None:
            self._place.switches = None
            self._loop.end(in_step=not self._has_passed)
            self._loop = None

    def _pass_boundary_before_evaluation(self, control: Any) -> None:
        trainer = self._trainer
        if not control.should_evaluate:
            return
        self._place.await_evaluation(control)
        # The step's log comes before the save, so that a resumed training does not log the step again.
        last_logged = getattr(trainer, "_globalstep_last_logged", -1)
        self._awaits_log = control.should_log and trainer.state.global_step > last_logged
        if not self._awaits_log:
            self._pass_boundary()

    def _pass_boundary(self) -> None:
        assert self._loop is not None
        # After the last evaluation, the Trainer loads the best model, and that state is to be saved.
        is_last = self._loop.is_last_step and self._trainer.args.load_best_model_at_end
        if not self._has_passed and not self._is_over and not is_last:
            self._has_passed = True
            self._loop.begin_step()


class _TrainerStates:
    """The states of the Trainer and its callbacks, which are the same on all ranks."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._log: list[str] = []

    @staticmethod
    def to_file(restored: dict[str, Any]) -> str:
        """Return the content of ``trainer_state.json``, which the Trainer reads."""
        state = {**restored["state"], "log_history": json.loads(restored["log"])}
        return json.dumps(state, default=float)

    def state_dict(self) -> dict[str, Any]:
        state = self._trainer.state
        names = [field.name for field in dataclasses.fields(state) if field.name not in _OF_THIS_PROCESS]
        history = state.log_history
        self._log += [json.dumps(each, default=float) for each in history[len(self._log) :]]
        return {
            "state": {name: getattr(state, name) for name in names},
            "log": f"[{','.join(self._log)}]",
            "callbacks": TrainerState(stateful_callbacks=self._stateful()).stateful_callbacks,
        }

    def begin_again(self) -> None:
        """Forget the log."""
        self._log.clear()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # The Trainer has already read its own state from the file.
        left = {name: each if isinstance(each, list) else [each] for name, each in state["callbacks"].items()}
        for callback in self._stateful():
            states = left.get(type(callback).__name__)
            if states:
                for name, value in states.pop(0)["attributes"].items():
                    setattr(callback, name, value)

    def _stateful(self) -> list[Any]:
        return [
            each for each in self._trainer.callback_handler.callbacks if isinstance(each, ExportableState)
        ]


class _Scheduler:
    """The Trainer's scheduler, which changes when the Trainer begins again with smaller batches."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> Any:
        return self._trainer.lr_scheduler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._trainer.lr_scheduler.load_state_dict(state)


class _Place:
    """This rank's position in its data, with its random state and sums. The session treats it as a loader."""

    is_framework = True

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.loader: Any = None
        self.own_order: str | None = None
        """Why other ranks cannot compute which batches come next on this rank."""
        self.switches: dict[str, bool] | None = None
        """The Trainer's control switches if an evaluation comes before the next step, otherwise None."""
        self.is_epoch_over = False
        """Whether all batches of the epoch have been used."""
        self.is_epoch_end = False
        """Whether the callbacks' ``on_epoch_end`` was called."""
        self.is_resuming = False
        """Whether the training was restored and no step has begun since."""
        self._random: dict[str, Any] = {}
        self._epoch = -1
        self._epoch_iterator: Any = None
        self._batches: Iterator[Any] = iter(())
        self._num_used = 0

    # --- saving and loading ---------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "loader": self.loader.state_between()
            if self.is_epoch_over
            else self.loader.state_dict(num_used=self._num_used),
            "random": capture_randomness(),
            "switches": self.switches,
            "is_epoch_over": self.is_epoch_over,
            "is_epoch_end": self.is_epoch_end,
            "sums": {name: _copied(getattr(self._trainer, name, None)) for name in _SUMS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.is_resuming = True
        self.switches, self._random = state["switches"], state["random"]
        self.is_epoch_over, self.is_epoch_end = state["is_epoch_over"], state["is_epoch_end"]
        self._epoch = state["epoch"]
        if state["loader"] is not None:  # an earlier version saved None
            self.loader.load_state_dict(state["loader"])
        if not self.is_epoch_over:
            self._epoch -= 1  # the Trainer begins this epoch again
        for name, value in state["sums"].items():
            if value is not None:
                setattr(
                    self._trainer, name, value.to(self._trainer.args.device) if name == "_tr_loss" else value
                )

    def restore_randomness(self) -> None:
        """Restore the random state that was saved."""
        restore_randomness(self._random)

    # --- as the Trainer goes on -----------------------------------------------------------------

    def begin_again(self) -> None:
        """Forget the current epoch."""
        self._epoch = -1

    def batches(self, epoch_iterator: Any) -> Iterator[Any]:
        """Return the iterator over the next step's batches; a new ``epoch_iterator`` begins an epoch."""
        if epoch_iterator is not self._epoch_iterator:
            self._epoch_iterator = epoch_iterator
            self._epoch += 1
            set_epoch(self.loader, self._epoch)
            self._batches = iter(self.loader)
            self.is_epoch_over = self.is_epoch_end = False
        self._num_used = self.loader.num_fetched
        return self._batches

    def begin_step(self) -> None:
        """Record that a step begins; the first step after a resume starts from the saved random state."""
        if self.is_resuming and self.switches is None:
            self.restore_randomness()
        self.is_resuming = False
        self.switches = None

    def end_step(self, *, is_epoch_end: bool) -> None:
        """Record that a step has ended, and whether it was the last step of the epoch."""
        self._num_used = self.loader.num_fetched
        self.is_epoch_over = is_epoch_end or float(self._trainer.state.epoch).is_integer()
        self.is_epoch_end = is_epoch_end

    def await_evaluation(self, control: Any) -> None:
        """Record that an evaluation comes before the next step."""
        self.switches = {name: getattr(control, name) for name in _SWITCHES}


def _copied(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value
