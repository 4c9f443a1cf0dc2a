"""How a mark stores a state: it copies small tensors, and stores version counters and samples of large ones.

No code here keeps a large tensor alive, calls a collective, or waits for a GPU. Call this code with gradients
disabled.
"""

from __future__ import annotations

import copy
import random
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from cloudspot.train.state import sharding

SMALL_BYTES = 1 << 20
"""The maximum size in bytes at which an object's tensors are copied if it is neither a model nor an
optimizer. Buffers up to this total size are copied even if they exceed ``BUFFER_SHARE``."""
BUFFER_SHARE = 1 / 64
"""The maximum size of copied buffers, as a share of the state of models and optimizers. Copying this share
took 0.6 to 2.4 % of the time of an optimizer's step, which is seldom a fifth of a whole step."""
NUM_SAMPLES = 16
"""The number of sampled tensors among each model's trained tensors, and among its other tensors. The tensor
``parameter.data`` has its own version counter, so no other counter shows a write to it. Swapping in a moving
average changes every weight, so a few samples show it."""
NUM_ELEMENTS = 4
"""The number of elements sampled in each of these tensors; in a buffer that is not copied, ``NUM_SAMPLES``
times as many are sampled."""
_EXTRA = "_extra_state"
_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in nested dicts, lists and tuples, with names that begin with ``name``."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from tensors_in(f"{name}/{key}", each)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from tensors_in(f"{name}/{index}", each)


def num_bytes(tensors: Iterable[Any]) -> int:
    """Return the total size, in bytes, of the parts of the tensors that this rank holds."""
    return sum(each.numel() * each.element_size() for each in map(_held, tensors))


def saves_more(module: Any) -> bool:
    """Return whether a module saves more than its parameters and buffers."""
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _place_of(tensor: Any) -> tuple[Any, ...] | None:
    """Return an ordinary tensor's address and layout; None for other tensors and for empty ones."""
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return None
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


class Listing:
    """Tensors whose version counters are watched."""

    def __init__(self, found: Iterable[tuple[str, Any]]) -> None:
        """List tensors by name."""
        pairs = [(name, weakref.ref(tensor)) for name, tensor in found]
        self.names = [name for name, _ in pairs]
        self._references = [reference for _, reference in pairs]

    def tensors(self) -> list[Any]:
        """Return the tensors, with None in place of each tensor that no longer exists."""
        return [each() for each in self._references]

    def versions(self) -> list[int] | None:
        """Return how many times each tensor was written to, or None if a tensor no longer exists."""
        try:
            return [tensor._version for tensor in self.tensors()]  # noqa: SLF001 - it has no public name
        except AttributeError:
            return None

    def has_same_tensors(self, other: Listing) -> bool:
        """Return whether the other listing has the same tensors under the same names, and all still exist."""
        pairs = zip(self.tensors(), other.tensors(), strict=False)
        return self.names == other.names and all(one is two is not None for one, two in pairs)


class Noted:
    """A copy of a state of nested containers. Large tensors are not copied and must stay unchanged."""

    def __init__(self, state: Any) -> None:
        """Copy the state."""
        found: dict[int, tuple[_Place, Any]] = {}
        self._state = _without_tensors(state, found)
        self.copies: list[Any] = []
        """Copies of the tensors, if these are small."""
        self._listing: Listing | None = None
        if not found:
            return
        tensors = [tensor for _, tensor in found.values()]
        if num_bytes(tensors) <= SMALL_BYTES:
            self.copies = [each.clone() for each in tensors]
        else:
            self._listing = Listing(("", each) for each in tensors)
            self._versions = self._listing.versions()

    def has_changed(self) -> bool:
        """Return whether a tensor that was not copied was written to or no longer exists."""
        if self._listing is None:
            return False
        return self._versions is None or self._versions != self._listing.versions()

    def state(self) -> Any:
        """Return the state; call this only if it has not changed (``has_changed``)."""
        return _with_tensors(self._state, self.copies if self._listing is None else self._listing.tensors())


class _Place(int):
    """The index of a tensor among a state's tensors."""


def _without_tensors(value: Any, found: dict[int, tuple[_Place, Any]]) -> Any:
    """Return a copy of a state with places instead of tensors; add the tensors to ``found``, by id."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {
            key: each if type(each) in _ATOMS else _without_tensors(each, found)
            for key, each in value.items()
        }
    if isinstance(value, torch.Tensor):
        return found.setdefault(id(value), (_Place(len(found)), value))[0]
    if kind is list or kind is tuple:
        return kind([each if type(each) in _ATOMS else _without_tensors(each, found) for each in value])
    if isinstance(value, dict):
        copied = copy.copy(value)
        for key, each in value.items():
            copied[key] = _without_tensors(each, found)
        return copied
    numpy = sys.modules.get("numpy")
    # A save accepts no other mutable values.
    can_change = kind is set or (numpy is not None and isinstance(value, numpy.ndarray))
    return copy.copy(value) if can_change else value


def _with_tensors(value: Any, tensors: list[Any]) -> Any:
    kind = type(value)
    if kind is _Place:
        return tensors[value]
    if kind is list or kind is tuple:
        return kind([_with_tensors(each, tensors) for each in value])
    if isinstance(value, dict):
        copied = copy.copy(value)
        for key, each in value.items():
            copied[key] = _with_tensors(each, tensors)
        return copied
    return value


class Layout:
    """The tensors in the states of models and optimizers."""

    def __init__(self, models: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
        """Look up the tensors that ``state_dict`` currently returns."""
        states = {name: each.state_dict(keep_vars=True) for name, each in models.items()}
        found = [*tensors_in("", {name: each.state_dict().get("state") for name, each in optimizers.items()})]
        held = [tensor for _, tensor in (*found, *tensors_in("", states))]
        room = max(SMALL_BYTES, int(num_bytes(held) * BUFFER_SHARE))
        self.models: dict[str, ModelLayout] = {}
        for name, state in states.items():
            self.models[name] = each = ModelLayout(models[name], state, most_bytes=room)
            room -= each.nbytes
            found += tensors_in(f"/{name}", each.watched(state))
        self.listing = Listing((name[1:], tensor) for name, tensor in found)
        """All tensors except the copied buffers."""

    def is_same(self, other: Layout) -> bool:
        """Return whether the other layout has the same tensors and copies the same buffers."""
        return self.listing.has_same_tensors(other.listing) and all(
            each.copies_same(other.models[name]) for name, each in self.models.items()
        )

    def samples(self) -> list[Any]:
        """Return the sampled elements of the tensors."""
        return [torch.cat(find(each)) for model in self.models.values() for _, find, each in model.sampled]

    def alike(self) -> list[bool]:
        """For each group of samples, return whether it is from weights that all ranks hold."""
        return [alike for model in self.models.values() for alike, *_ in model.sampled]


class ModelCopies(NamedTuple):
    """Copies of the state that forward passes change."""

    buffers: list[Any]
    """Copies of buffers; each tensor contains many buffers."""
    extras: Mapping[str, Noted]
    """The modules' extra states, by name in the model's state."""


class ModelLayout:
    """The tensors of a model's state, and which of its buffers are copied.

    Forward passes change buffers without changing the counters: torch does not count BatchNorm's writes to
    its statistics, nor DDP's writes, which overwrite all buffers with those of rank 0.
    """

    def __init__(self, model: Any, state: Mapping[str, Any], *, most_bytes: int) -> None:
        """Choose the smallest buffers in the model's ``state``, with at most ``most_bytes`` in total."""
        self._extras: dict[str, Any] = {}
        for path, module in model.named_modules():
            if saves_more(module) and (key := f"{path}.{_EXTRA}".lstrip(".")) in state:
                self._extras[key] = weakref.ref(module)
        self.nbytes = 0
        """The number of bytes to copy."""
        self._copied: set[Any] = set()  # places in memory
        self._kinds: dict[tuple[Any, ...], tuple[list[Any], list[int]]] = {}
        self._owners: list[tuple[Any, ...]] = []
        found = {_place_of(each): each for each in state.values()}
        owners = _owners_of_buffers(model, found)
        for place in sorted(owners, key=lambda each: num_bytes([found[each]])):
            tensor = found[place]
            nbytes = num_bytes([tensor])
            if self.nbytes + nbytes > most_bytes:
                break
            self.nbytes += nbytes
            self._copied.add(place)
            kind = tensor.device, tensor.dtype, min(tensor.dim(), 2)
            chosen, numels = self._kinds.setdefault(kind, ([], []))
            self._owners += [(*each, kind, len(chosen), tensor.shape) for each in owners[place]]
            chosen.append(owners[place][0])
            numels.append(tensor.numel())
        buffers = [state[key] for key, _ in model.named_buffers() if key in state]
        self.copies_all = {_place_of(each) for each in buffers if each.numel() > 0} <= self._copied
        """Whether all non-empty buffers are copied."""
        self.sampled = _sampled(self.watched(state).values())
        """The elements that are watched, besides the version counters of tensors that are not copied."""

    def watched(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of the model's state that is watched, because it is not copied."""
        return {
            key: each
            for key, each in state.items()
            if key not in self._extras and _place_of(each) not in self._copied
        }

    def copies_same(self, other: ModelLayout) -> bool:
        """Return whether the other layout copies the same modules' buffers, with equal names and shapes."""
        return self._owners == other._owners and self._extras == other._extras

    def copies(self) -> ModelCopies:
        """Copy the buffers and extra states. If this raises, the model may have other buffers by now."""
        made = []
        for (_, _, num_dims), (chosen, numels) in self._kinds.items():
            tensors = [module()._buffers[key] for module, key in chosen]  # noqa: SLF001 - as below
            if num_dims == 0:
                made.append(torch.stack(tensors))
            else:
                made.append(torch.cat(tensors if num_dims == 1 else [each.reshape(-1) for each in tensors]))
            if made[-1].numel() != sum(numels):
                raise LookupError("the shape of a buffer has changed")
        modules = {key: reference() for key, reference in self._extras.items()}
        extras = {key: Noted(each.get_extra_state()) for key, each in modules.items() if each is not None}
        return ModelCopies(made, extras)

    def state_dict(self, model: Any, copies: ModelCopies) -> dict[str, Any]:
        """Return the model's state with the copies in place of its buffers.

        If this raises an error, the model may now have other buffers.
        """
        pieces = {
            kind: made.reshape(-1).split(numels)
            for (kind, (_, numels)), made in zip(self._kinds.items(), copies.buffers, strict=True)
        }
        copied = {
            _place_of(module()._buffers[key]): pieces[kind][index].reshape(shape)  # noqa: SLF001 - as below
            for module, key, kind, index, shape in self._owners
        }
        state = dict(model.state_dict())
        places = {key: _place_of(each) for key, each in state.items()}
        if None in copied or not copied.keys() <= set(places.values()):
            raise LookupError("a buffer is being replaced")
        extras = {key: each.state() for key, each in copies.extras.items()}
        return {key: copied.get(places[key], each) for key, each in state.items()} | extras


def _owners_of_buffers(model: Any, found: Mapping[Any, Any]) -> dict[Any, list[tuple[Any, str]]]:
    """Return, by place, the owning modules and the names of the buffers ``found`` in the model's state."""
    weights = {_place_of(each) for each in model.parameters()}
    owners: dict[Any, list[tuple[Any, str]]] = {}
    for module in model.modules():
        for key, buffer in module._buffers.items():  # noqa: SLF001 - the module may replace the buffer in this dict
            place = _place_of(buffer)
            if place is not None and place in found and place not in weights:
                owners.setdefault(place, []).append((weakref.ref(module), key))
    return owners


def _sampled(tensors: Iterable[Any]) -> list[tuple[bool, Any, list[Any]]]:
    """Choose tensors of a model and elements in these tensors; group the elements by device and type.

    Each group is a tuple: whether its tensors are weights that all ranks hold (buffers and shards differ
    between ranks), a function that finds the elements, and the function's arguments.
    """
    weights: dict[bool, list[Any]] = {True: [], False: []}
    chosen = []
    for each in tensors:
        if isinstance(each, torch.nn.Parameter):
            weights[each.requires_grad].append(each)
        elif isinstance(each, torch.Tensor):
            chosen.append((each, NUM_SAMPLES * NUM_ELEMENTS))
    chance = random.Random(0)  # a fixed stride might miss all layers of one kind
    for several in weights.values():
        drawn = chance.sample(several, min(NUM_SAMPLES, len(several)))
        chosen += [(each, NUM_ELEMENTS) for each in drawn]
    kinds: dict[tuple[Any, ...], list[Any]] = {}
    for tensor, count in chosen:
        held = _held(tensor)
        numel = held.numel()
        is_row = held is tensor and type(tensor) in _PLAIN and tensor.is_contiguous()
        where = ((min(count, numel),), (max(numel // count, 1),)) if is_row else ()
        if numel > 0:
            is_alike = held is tensor and isinstance(tensor, torch.nn.Parameter)
            kind = is_alike, _slices if is_row else _middles, held.device, held.dtype
            kinds.setdefault(kind, []).append((weakref.ref(tensor), *where))
    return [(is_alike, find, each) for (is_alike, find, *_), each in kinds.items()]


def _slices(rows: list[Any]) -> list[Any]:
    return [reference().as_strided(size, stride) for reference, size, stride in rows]


def _middles(others: list[Any]) -> list[Any]:
    tensors = [_held(reference()) for (reference,) in others]
    return [each.detach()[tuple(length // 2 for length in each.shape)].reshape(1) for each in tensors]


def _held(tensor: Any) -> Any:
    """Return the part of a tensor that this rank holds; getting the other parts would need a collective."""
    return sharding.local_of(tensor) if sharding.is_dtensor(tensor) else tensor
