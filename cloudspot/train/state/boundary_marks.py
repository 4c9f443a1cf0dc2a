"""A session's marks of its last boundaries, from which the state at a boundary can be saved later (P4).

No large tensor is copied or kept alive. A mark contains torch's version counters of the models' and
optimizers' tensors, and copies of all small state: random generators, the position in the data, learning
rates, buffers, and the states of the other objects. As long as the tensors have not changed, they and the
mark together are the state at the boundary.

Buffers are copied because forward passes change them unnoticed: torch does not count BatchNorm's writes to
its statistics, and DDP overwrites all buffers with those of rank 0.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cloudspot.train.state import checkpoint
from cloudspot.train.state.noted_state import Layout, ModelCopies, Noted, saves_more
from cloudspot.train.state.optimizer_steps import before_writes
from cloudspot.train.state.tree import Json, flatten, tensor_bytes

IDLE_SHARE = 0.005
"""The share of the time that marks may take until the script first asks whether it must leave."""
USED_SHARE = 0.02
"""The share of the time after the script has asked, for marks that take longer than ``ALWAYS_SECONDS``."""
ALWAYS_SECONDS = 2e-3
_TORCHS = (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
_READ_ONLY = ("accelerate.", "cloudspot.train.accelerate")
"""The modules whose ``state_dict`` is known to change nothing."""


@dataclass(frozen=True)
class Description:
    """The content of a save besides the objects' state."""

    shared: Mapping[str, Json]
    """The state that all ranks share."""
    rank_state: Mapping[str, Any]
    """This rank's own state, as values that ``tree.flatten`` accepts."""
    loader_state: Callable[[], Any] | None = None
    """Returns the state of a loader that the script iterates; raises if the state is no longer known."""
    draws_unseen: bool = False
    """Whether other processes, such as a loader's workers, draw random numbers for this rank."""
    own_place: str | None = None
    """Why only this rank's own state determines its next data, as a clause; None if other ranks know it."""

    @property
    def is_place_own(self) -> bool:
        """Whether only this rank's own state determines its next data."""
        return self.own_place is not None

    def flatten_rank_state(self) -> Json:
        """Return this rank's own state as JSON."""
        if self.loader_state is None:
            return flatten("rank", self.rank_state, None)
        return flatten("rank", {**self.rank_state, "dataloader": self.loader_state()}, None)


@dataclass(frozen=True)
class Mark:
    """A boundary that the main thread has passed."""

    number: int
    """The boundary's number, as in ``rounds``."""
    step: int
    """The number of steps made before the boundary."""
    description: Description
    layout: Layout
    versions: list[int]
    samples: list[Any]
    num_optimizer_steps: int
    models: Mapping[str, ModelCopies]
    noted: Mapping[str, Noted]
    """The states of the other objects, and the parameter groups of each optimizer without the parameters."""
    events: tuple[Any, ...]
    """One CUDA event per device, which is reached when all work from before the boundary is done."""

    @property
    def is_reached(self) -> bool:
        """Whether the devices have reached the boundary; they never do if a collective hangs."""
        return all(event.query() for event in self.events)


class BoundaryMarks:
    """Marks the boundaries that the main thread passes. Any thread may ask which of the marks still stand."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """Follow the tracked objects until ``close``."""
        self.is_used = False
        """Whether the script calls ``check`` between boundaries, so that marks may take longer."""
        self._objects = objects
        self._optimizers = {name: each for name, each in objects.items() if hasattr(each, "param_groups")}
        self._models = {
            name: checkpoint.unwrap(each)
            for name, each in objects.items()
            if name not in self._optimizers and isinstance(each, torch.nn.Module)
        }
        tracked = self._optimizers.keys() | self._models.keys()
        self._others = {name: each for name, each in objects.items() if name not in tracked}
        # The script's own ``state_dict`` may do anything, so it is called only if the script calls ``check``.
        self._has_scripts_objects = not all(
            isinstance(each, _TORCHS) or type(each).__module__.startswith(_READ_ONLY)
            for each in self._others.values()
        ) or any(saves_more(module) for each in self._models.values() for module in each.modules())
        self._layout: Layout | None = None
        self._num_listed = -1
        self._lasts = True
        self._marks: deque[Mark] = deque(maxlen=2)
        self._first: Mark | None = None
        """The mark of the first boundary since the latest step of an optimizer."""
        self._first_boundary = -1
        """The first boundary since the latest step."""
        self.before_step = 0
        """The first boundary since the step before the latest step."""
        self._num_steps_there = -1
        self.expects_backward = False
        """Whether a step counts only after a backward pass, which ``note_backward`` reports."""
        self._has_backward = False
        self._num_doubtful = 0
        """Of the optimizer steps since the last boundary, how many failed or lacked a backward pass."""
        self._frozen: str | None = None
        self.num_skipped = 0
        """The number of boundaries that were not marked."""
        self._problem = "there was no step"
        self._unmarked: str | None = None
        self._costs = deque([0.0] * 3, maxlen=3)  # seconds; high if the machine was busy
        self._ended_at = -1e9
        self._num_steps = 0
        self._streams: dict[Any, Any] = {}
        # A step counts from its beginning, because its writes can be detected only once they are done.
        self._hooks = []
        if self._optimizers:
            self._hooks.append(register_optimizer_step_pre_hook(self._note_step))
            self._hooks.append(register_optimizer_step_post_hook(self._note_end_of_step))

    def mark(
        self, number: int, step: int, describe: Callable[[], Description], *, is_rare: bool = False
    ) -> None:
        """Mark a boundary unless marks take too much time; a boundary that ``is_rare`` is always marked."""
        begun = time.perf_counter()
        if self._frozen is not None:
            self._unmarked = self._frozen
            return
        if self._num_steps != self._num_steps_there:
            self._num_steps_there, self.before_step = self._num_steps, max(0, self._first_boundary)
            self._first_boundary = number
        is_doubtful = self._num_doubtful > 0
        self._has_backward, self._num_doubtful = False, 0
        may_mark = self.is_used or not self._has_scripts_objects
        if not may_mark or not (is_rare or self._is_affordable(begun - self._ended_at)):
            self._unmarked = "its state was not noted: call run.check() before the loop"
            self.num_skipped += 1
            return
        worked = time.thread_time()
        try:
            with torch.no_grad():
                self._marks.append(self._make(number, step, describe()))
            if number == self._first_boundary and not is_doubtful:
                self._first = self._marks[-1]
            self._unmarked = None
        except Exception as error:  # a save will report it; a mark must not end the training
            self._unmarked = str(error)
            if self._lasts:
                self._num_listed = -1
        self._ended_at = time.perf_counter()
        # Count only this thread's time: on a busy machine, other threads would have run anyway.
        self._costs.append(time.thread_time() - worked)

    def standing(self) -> tuple[Mark, ...]:
        """Return the marks whose state the objects still hold, latest first."""
        return self._standing_of(tuple(self._marks))

    @property
    def newest(self) -> Mark | None:
        """The latest mark, whether or not it stands."""
        return self._marks[-1] if self._marks else None

    @property
    def newest_first(self) -> Mark | None:
        """The latest mark of a first boundary after a step, whether or not it stands."""
        return self._first

    def first_since_step(self) -> Mark | None:
        """Return the mark of the first boundary since the latest optimizer step, if the mark stands.

        The script's work since that boundary, which included no step, may be repeated, for example if the
        script has caught a collective's error and continued with the next batch.
        """
        first = self._first
        if first is None or first.number != self._first_boundary:
            self._problem = "its state was not noted after a complete backward pass"
            return None
        if not first.is_reached:  # waiting for the GPU might never end
            self._problem = "the GPU has not reached it"
            return None
        return next(iter(self._standing_of((first,))), None)

    def note_backward(self) -> None:
        """Record that a backward pass has succeeded, so the gradients for an optimizer step are complete."""
        self._has_backward = True

    def freeze(self, why: str | None) -> None:
        """Mark no further boundaries, because their states may be invalid (``why``); None resumes marking."""
        self._frozen = why

    @property
    def is_frozen(self) -> bool:
        """Whether marking was stopped by ``freeze``."""
        return self._frozen is not None

    def _standing_of(self, marks: Sequence[Mark]) -> tuple[Mark, ...]:
        if not marks:
            return ()
        with self.after(marks[-1]), torch.no_grad():
            try:
                layout = Layout(self._models, self._optimizers)
                changes = [self._change_since(mark, layout) for mark in marks]
            except Exception as error:  # the script is changing the state
                changes = [str(error)] * len(marks)
        self._problem = changes[-1] or ""
        return tuple(mark for mark, change in zip(marks, changes, strict=True) if change is None)[::-1]

    @property
    def problem(self) -> str:
        """Why the latest boundary does not stand."""
        return self._unmarked or self._problem

    def objects_at(self, mark: Mark) -> dict[str, Any]:
        """Return objects whose states are those of the tracked objects at a mark that stands."""
        found: dict[str, Any] = {}
        for name, each in self._objects.items():
            if name in self._models:
                model, layout = self._models[name], mark.layout.models[name]
                found[name] = _MarkedModel(model, partial(layout.state_dict, model, mark.models[name]))
            elif name in self._optimizers:
                found[name] = _MarkedState(partial(_with_groups, each, mark.noted[name]))
            else:
                found[name] = _MarkedState(partial(_state_at, each, mark.noted[name]))
        return found

    @contextmanager
    def after(self, mark: Mark) -> Iterator[None]:
        """Use CUDA streams that wait only for the boundary: the usual streams may wait for other ranks."""
        with ExitStack() as stack:
            for event in mark.events:
                stream = self._streams[event.device]
                stream.wait_event(event)
                stack.enter_context(torch.cuda.stream(stream))
            yield

    def digest(self, mark: Mark) -> str:
        """Return a digest of sampled weights at a mark, which is equal on ranks with equal weights.

        Shards and large buffers are excluded, because they differ between ranks.
        """
        digest = hashlib.sha256()
        with self.after(mark):
            for samples, is_alike in zip(mark.samples, mark.layout.alike(), strict=True):
                if is_alike:
                    digest.update(tensor_bytes(samples.cpu().contiguous()))
        return digest.hexdigest()[:16]

    @property
    def obstacle(self) -> str | None:
        """Why no boundary is marked until the script calls ``run.check()``; None if boundaries are marked."""
        if self.is_used or not self._has_scripts_objects:
            return None
        return "a tracked object is the script's own; if its state_dict only reads, call run.check() first"

    def close(self) -> None:
        """Stop following."""
        for hook in self._hooks:
            hook.remove()

    def _is_affordable(self, seconds: float) -> bool:
        cost = min(self._costs)
        if self.is_used and cost < ALWAYS_SECONDS:
            return True
        return cost <= (USED_SHARE if self.is_used else IDLE_SHARE) * seconds

    def _find(self) -> tuple[Layout, list[int]]:
        """Return the state's layout, computed anew if needed, and the versions of tensors not copied.

        Raises:
            LookupError: the state's tensors are new at each call.
        """
        # Adam creates its tensors in its first step.
        num_states = sum(len(getattr(each, "state", ())) for each in self._optimizers.values())
        layout = self._layout if num_states == self._num_listed else None
        versions = None if layout is None else layout.listing.versions()
        if layout is None or (versions is None and self._lasts):
            self._layout = layout = Layout(self._models, self._optimizers)
            self._num_listed = num_states
            versions = layout.listing.versions()
            self._lasts = versions is not None
        if versions is None:
            raise LookupError("the state_dict of a model or optimizer returns new tensors on each call")
        return layout, versions

    def _make(self, number: int, step: int, description: Description) -> Mark:
        layout, versions = self._find()
        noted = {name: Noted(_settings(each)) for name, each in self._optimizers.items()}
        noted |= {name: Noted(_state_of(each)) for name, each in self._others.items()}
        models = {name: each.copies() for name, each in layout.models.items()}
        samples = layout.samples()
        devices = set()
        if torch.cuda.is_initialized():
            copies = [samples, *(each.buffers for each in models.values())]
            copies += [each.copies for each in noted.values()]
            devices = {copied.device for several in copies for copied in several if copied.is_cuda}
        # Create the streams now, because a process's first stream waits until the GPU is idle.
        self._streams |= {each: torch.cuda.Stream(each) for each in devices - self._streams.keys()}
        return Mark(
            number,
            step,
            description,
            layout,
            versions,
            samples,
            self._num_steps,
            models,
            noted,
            tuple(torch.cuda.current_stream(device).record_event() for device in devices),
        )

    def _change_since(self, mark: Mark, layout: Layout) -> str | None:
        """Return how the state has changed since a mark, as a clause, or None if it has not."""
        if mark.num_optimizer_steps != self._num_steps:
            return "an optimizer has stepped"
        if not mark.layout.is_same(layout):
            self._num_listed = -1
            return "a tensor of a model or optimizer was replaced"
        versions = layout.listing.versions() or ()
        for name, then, now in zip(layout.listing.names, mark.versions, versions, strict=True):
            if now != then:
                return f"{name} was written to"
        # Compare on the CPU: a kernel that a process uses for the first time may wait until the GPU is idle.
        samples = zip(mark.layout.samples(), mark.samples, strict=True)
        if not all(torch.equal(*(each.cpu().view(torch.uint8) for each in pair)) for pair in samples):
            return "a model's weights were written to"
        for name, noted in mark.noted.items():
            if noted.has_changed():
                return f"a tensor of {name} was written to or replaced"
        return None

    def _note_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Record that an optimizer step begins."""
        if not self._is_tracked(optimizer):
            return None
        self._num_doubtful += 1
        return before_writes(args, kwargs, self._count_step)

    def _count_step(self) -> None:
        self._num_steps += 1

    def _note_end_of_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        # Check only now, because a closure may run the backward pass within the step, as Lightning's does.
        if self._is_tracked(optimizer) and (self._has_backward or not self.expects_backward):
            self._num_doubtful -= 1

    def _is_tracked(self, optimizer: Any) -> bool:
        tracked = self._optimizers.values()
        return any(optimizer is each or optimizer.param_groups is each.param_groups for each in tracked)


class _MarkedState:
    def __init__(self, state_dict: Callable[[], Any]) -> None:
        self.state_dict = state_dict


class _MarkedModel(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A module with the names of a model's parameters and buffers, but with a different state."""

    def __init__(self, model: Any, state_dict: Callable[[], Any]) -> None:
        super().__init__()
        self.state_dict = state_dict
        self.named_modules = model.named_modules
        self.named_parameters = model.named_parameters
        self.named_buffers = model.named_buffers


def _state_of(tracked: Any) -> dict[str, Any]:
    if not isinstance(tracked, torch.amp.GradScaler) or not tracked.is_enabled() or tracked._scale is None:  # noqa: SLF001
        return dict(tracked.state_dict())
    # The scaler's own state_dict waits for the GPU.
    return {
        "scale": tracked._scale,  # noqa: SLF001 - nothing public returns the tensor
        "growth_factor": tracked.get_growth_factor(),
        "backoff_factor": tracked.get_backoff_factor(),
        "growth_interval": tracked.get_growth_interval(),
        "_growth_tracker": tracked._growth_tracker,  # noqa: SLF001 - as above
    }


def _state_at(tracked: Any, noted: Noted) -> Any:
    state = noted.state()
    if isinstance(tracked, torch.amp.GradScaler):
        return {key: each.item() if isinstance(each, torch.Tensor) else each for key, each in state.items()}
    return state


def _settings(optimizer: Any) -> list[dict[str, Any]]:
    """Return the parameter groups without the parameters."""
    return [
        {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]


def _with_groups(optimizer: Any, noted: Noted) -> dict[str, Any]:
    state = dict(optimizer.state_dict())
    groups = zip(state["param_groups"], noted.state(), strict=True)
    state["param_groups"] = [{**now, **then} for now, then in groups]
    return state
