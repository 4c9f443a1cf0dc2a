"""What a session remembers of its last boundaries, so that the state there can be saved later (P4).

No large tensor is copied, or kept alive. A mark holds the versions that torch counts of the models' and
optimizers' tensors, and copies of all that is small: random generators, the position in the data, learning
rates, and the state of the other objects. As long as the tensors are as they were, the state at the boundary
is what the mark holds and what they hold.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cloudspot.train.state import checkpoint, sharding
from cloudspot.train.state.tree import Json, flatten, rebuild, tensor_bytes

IDLE_SHARE = 0.005
"""The share of the time that marks may take while the script has not asked whether it has to leave."""
USED_SHARE = 0.02
"""The same once it has, for marks that take longer than ``ALWAYS_SECONDS``."""
ALWAYS_SECONDS = 2e-3
SMALL_BYTES = 1 << 20
"""Up to so many bytes of tensors of an object that is neither a model nor an optimizer are copied."""
NUM_SAMPLES = 64
"""``parameter.data`` has a version of its own, so that what is written to it shows nowhere else. A moving
average that is swapped in changes every weight, so that a few show it."""
_TORCHS = (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)


@dataclass(frozen=True)
class Description:
    """What a save holds beside the objects' state."""

    shared: Mapping[str, Json]
    """What all ranks share."""
    rank_state: Mapping[str, Any]
    """This rank's own; values that ``tree.flatten`` takes."""
    loader_state: Callable[[], Any] | None = None
    """Returns the state of a loader that the script iterates, if nothing was fetched since.

    It is asked for only by a save, since asking may draw random numbers.
    """

    def flatten_rank_state(self) -> Json:
        """Return this rank's own state as JSON."""
        if self.loader_state is None:
            return flatten("rank", self.rank_state, None)
        return flatten("rank", {**self.rank_state, "dataloader": self.loader_state()}, None)


@dataclass(frozen=True)
class Mark:
    """A boundary behind."""

    number: int
    """As ``rounds`` count boundaries."""
    step: int
    """How many steps were made."""
    description: Description
    listing: _Listing
    versions: tuple[int, ...]
    samples: tuple[Any, ...]
    num_optimizer_steps: int
    groups: Mapping[str, list[dict[str, Any]]]
    """The parameter groups of each optimizer, without the parameters."""
    others: Mapping[str, _Other]
    events: tuple[Any, ...]
    """CUDA's, one for each device: what was computed before the boundary is done then."""


class _Listing:
    """Tensors of the state, which this does not keep alive."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """List the tensors in nested dicts, lists and tuples."""
        found = [pair for name, value in values.items() for pair in _tensors_in(name, value)]
        self.names = [name for name, _ in found]
        self._references = [weakref.ref(tensor) for _, tensor in found]
        self.nbytes = sum(tensor.numel() * tensor.element_size() for _, tensor in found)

    def versions(self) -> tuple[int, ...]:
        """Return how often each was written to; -1 for one that is gone."""
        return tuple(
            [-1 if (tensor := each()) is None else tensor._version for each in self._references]  # noqa: SLF001
        )

    def has_same_tensors(self, other: _Listing) -> bool:
        pairs = zip(self._references, other._references, strict=False)
        return self.names == other.names and all(one() is two() is not None for one, two in pairs)

    def samples(self) -> tuple[Any, ...]:
        """Return an element of each of up to ``NUM_SAMPLES`` tensors."""
        alive = [tensor for each in self._references if (tensor := each()) is not None]
        elements: dict[tuple[Any, Any], list[Any]] = {}
        for each in alive[:: -(-len(alive) // NUM_SAMPLES) or 1]:
            # What this rank holds: to index a divided tensor, ranks would have to meet.
            tensor = each.detach().to_local() if sharding.is_dtensor(each) else each.detach()
            if tensor.numel() > 0:
                middle = tensor[tuple(length // 2 for length in tensor.shape)]
                elements.setdefault((tensor.device, tensor.dtype), []).append(middle)
        return tuple(map(torch.stack, elements.values()))


@dataclass(frozen=True)
class _Other:
    """The state of an object that is neither a model nor an optimizer."""

    tree: Json
    tensors: dict[str, Any] | None
    """Copies by name, if they are small."""
    listing: _Listing
    versions: tuple[int, ...]


class BoundaryMarks:
    """Marks the boundaries that the main thread passes; any thread may ask which of them still stand."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """Follow the tracked objects until ``close``."""
        self.is_used = False
        """Whether the script asks between boundaries, so that marks may take longer."""
        self._objects = objects
        self._optimizers = {name: each for name, each in objects.items() if hasattr(each, "param_groups")}
        self._models = {
            name: checkpoint.unwrap(each)
            for name, each in objects.items()
            if name not in self._optimizers and isinstance(each, torch.nn.Module)
        }
        # Their ``state_dict`` may do anything: a script that never checks is not to meet that.
        self._has_scripts_objects = not all(
            name in self._optimizers or name in self._models or isinstance(each, _TORCHS)
            for name, each in objects.items()
        )
        self._listings: tuple[_Listing, _Listing] | None = None
        self._num_listed = -1
        self._marks: deque[Mark] = deque(maxlen=2)
        self._problem = "there was no step"
        self._unmarked: str | None = None
        self._costs = deque([0.0] * 3, maxlen=3)  # seconds; one may be high because the machine was busy
        self._ended_at = -1e9
        self._num_steps = 0
        self._streams: dict[Any, Any] = {}
        # Before the step, since its writes show only when they are done.
        self._hook = register_optimizer_step_pre_hook(self._note_step) if self._optimizers else None

    def mark(
        self, number: int, step: int, describe: Callable[[], Description], *, is_rare: bool = False
    ) -> None:
        """Mark a boundary, unless that would take too large a share of the time and it is not ``is_rare``."""
        begun = time.perf_counter()
        may_mark = self.is_used or not self._has_scripts_objects
        if not may_mark or not (is_rare or self._is_affordable(begun - self._ended_at)):
            self._unmarked = "nothing was noted of it: call run.check() before the loop"
            return
        try:
            # Adam's tensors come with its first step.
            num_states = sum(len(getattr(each, "state", ())) for each in self._optimizers.values())
            if self._listings is None or num_states != self._num_listed:
                self._listings, self._num_listed = self._list(), num_states
            begun = time.perf_counter()
            with torch.no_grad():
                self._marks.append(self._make(number, step, describe(), *self._listings))
            self._unmarked = None
        except Exception as error:  # a save says what is wrong; a mark must not end a training
            self._unmarked = str(error)
        self._ended_at = time.perf_counter()
        self._costs.append(self._ended_at - begun)

    def standing(self) -> tuple[Mark, ...]:
        """Return the marks whose state the objects still hold, the newest first."""
        marks = tuple(self._marks)
        if not marks:
            return ()
        with self.after(marks[-1]), torch.no_grad():
            try:
                listing, weights = self._list()
                changes = [self._change_since(mark, listing, weights) for mark in marks]
            except Exception as error:  # the script changes it at this moment
                changes = [str(error)] * len(marks)
        self._problem = changes[-1] or ""
        return tuple(mark for mark, change in zip(marks, changes, strict=True) if change is None)[::-1]

    @property
    def problem(self) -> str:
        """Why the newest boundary does not stand."""
        return self._unmarked or self._problem

    def objects_at(self, mark: Mark) -> dict[str, Any]:
        """Return the tracked objects, with the state that they had at a mark that stands."""
        found: dict[str, Any] = {}
        for name, each in self._objects.items():
            if name in self._optimizers:
                found[name] = _MarkedState(partial(_with_groups, each, mark.groups[name]))
            elif name in mark.others:
                found[name] = _MarkedState(partial(_rebuilt, name, each, mark.others[name]))
            else:
                found[name] = each
        return found

    @contextmanager
    def after(self, mark: Mark) -> Iterator[None]:
        """Use CUDA streams that wait for the boundary alone: the usual ones may wait for other ranks."""
        with ExitStack() as stack:
            for event in mark.events:
                stream = self._streams[event.device]
                stream.wait_event(event)
                stack.enter_context(torch.cuda.stream(stream))
            yield

    def digest(self, mark: Mark) -> str:
        """Return a digest of samples of the weights at a mark: equal where ranks hold the same weights."""
        digest = hashlib.sha256()
        with self.after(mark):
            for samples in mark.samples:
                digest.update(tensor_bytes(samples.cpu().contiguous()))
        return digest.hexdigest()[:16]

    @property
    def obstacle(self) -> str | None:
        """Why no boundary is marked while the script does not call ``run.check()``, or None."""
        if self.is_used or not self._has_scripts_objects:
            return None
        return "a tracked object is the script's own; if its state_dict only reads, call run.check() at first"

    def close(self) -> None:
        """Stop following."""
        if self._hook is not None:
            self._hook.remove()

    def _is_affordable(self, seconds: float) -> bool:
        cost = min(self._costs)
        if self.is_used and cost < ALWAYS_SECONDS:
            return True
        return cost <= (USED_SHARE if self.is_used else IDLE_SHARE) * seconds

    def _list(self) -> tuple[_Listing, _Listing]:
        """List the tensors of models and optimizers, and those of models alone."""
        models = {name: each.state_dict(keep_vars=True) for name, each in self._models.items()}
        optimizers = {name: each.state_dict().get("state") for name, each in self._optimizers.items()}
        return _Listing({**models, **optimizers}), _Listing(models)

    def _make(
        self, number: int, step: int, description: Description, listing: _Listing, weights: _Listing
    ) -> Mark:
        others = {
            name: _note(name, each)
            for name, each in self._objects.items()
            if name not in self._optimizers and name not in self._models
        }
        groups = {name: list(map(_settings, each.param_groups)) for name, each in self._optimizers.items()}
        samples = weights.samples()
        devices = {sample.device for sample in samples if sample.device.type == "cuda"}
        # Now, because the first stream of a process waits until the GPU is idle.
        self._streams |= {each: torch.cuda.Stream(each) for each in devices - self._streams.keys()}
        return Mark(
            number,
            step,
            description,
            listing,
            listing.versions(),
            samples,
            self._num_steps,
            groups,
            others,
            tuple(torch.cuda.current_stream(device).record_event() for device in devices),
        )

    def _change_since(self, mark: Mark, listing: _Listing, weights: _Listing) -> str | None:
        """Return what has changed since a mark, or None."""
        if mark.num_optimizer_steps != self._num_steps:
            return "an optimizer has stepped"
        if not mark.listing.has_same_tensors(listing):
            self._num_listed = -1
            return "a tensor of a model or optimizer was replaced"
        for name, then, now in zip(listing.names, mark.versions, listing.versions(), strict=True):
            if now != then:
                return f"{name} was written to"
        # Not on a GPU: a kernel that a process has not used yet may wait until that is idle.
        samples = zip(weights.samples(), mark.samples, strict=True)
        if not all(torch.equal(now.cpu(), then.cpu()) for now, then in samples):
            return "a model's weights were written to"
        for name, other in mark.others.items():
            if other.tensors is None and other.versions != other.listing.versions():
                return f"a tensor of {name} was written to or replaced"
        return None

    def _note_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        tracked = self._optimizers.values()
        if any(optimizer is each or optimizer.param_groups is each.param_groups for each in tracked):
            self._num_steps += 1


class _MarkedState:
    def __init__(self, state_dict: Callable[[], Any]) -> None:
        self.state_dict = state_dict


def _tensors_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors_in(f"{name}/{key}", each)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _tensors_in(f"{name}/{index}", each)


def _note(name: str, tracked: Any) -> _Other:
    state = _state_of(tracked)
    tensors: dict[str, Any] = {}
    tree = flatten(name, state, tensors)
    listing = _Listing({name: state})
    is_small = listing.nbytes <= SMALL_BYTES
    copies = {item: tensor.clone() for item, tensor in tensors.items()} if is_small else None
    return _Other(tree, copies, listing, listing.versions())


def _state_of(tracked: Any) -> dict[str, Any]:
    if not isinstance(tracked, torch.amp.GradScaler) or not tracked.is_enabled() or tracked._scale is None:  # noqa: SLF001
        return dict(tracked.state_dict())
    # Its own state_dict waits for the GPU.
    return {
        "scale": tracked._scale,  # noqa: SLF001 - nothing public returns the tensor
        "growth_factor": tracked.get_growth_factor(),
        "backoff_factor": tracked.get_backoff_factor(),
        "growth_interval": tracked.get_growth_interval(),
        "_growth_tracker": tracked._growth_tracker,  # noqa: SLF001 - as above
    }


def _rebuilt(name: str, tracked: Any, other: _Other) -> dict[str, Any]:
    tensors = other.tensors
    if tensors is None:
        tensors = {}
        flatten(name, _state_of(tracked), tensors)
    state: dict[str, Any] = rebuild(name, other.tree, lambda item, _keys: tensors[item])
    if isinstance(tracked, torch.amp.GradScaler):
        return {key: each.item() if isinstance(each, torch.Tensor) else each for key, each in state.items()}
    return state


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }


def _with_groups(optimizer: Any, groups: list[dict[str, Any]]) -> dict[str, Any]:
    state = dict(optimizer.state_dict())
    state["param_groups"] = [{**now, **then} for now, then in zip(state["param_groups"], groups, strict=True)]
    return state
