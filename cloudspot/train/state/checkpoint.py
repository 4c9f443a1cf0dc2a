"""The state of the tracked objects: taken for a save, and loaded from a restored checkpoint."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from cloudspot.train.distributed import World
from cloudspot.train.errors import CheckpointError, SessionError
from cloudspot.train.state import boxes, sharding
from cloudspot.train.state.boxes import Box
from cloudspot.train.state.partition import Item, Shard
from cloudspot.train.state.restored_files import RestoredFiles, StoredTensor, checked, json_object, number
from cloudspot.train.state.tree import Json, Keys, dtype_name, escape, flatten, rebuild, tensor_bytes

# --- taking -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """The state of all tracked objects at one boundary that ranks share."""

    objects: dict[str, Json]
    """The objects' states as JSON, by the object's name."""
    models: tuple[str, ...]
    """The names of the objects that are modules. Their states are weights, by the names in ``state_dict``."""
    layouts: dict[str, Json]
    """The layouts of other objects' tensors, by the item's name, except for row-major layouts on the CPU."""
    tensors: dict[str, Any]
    """The live tensors, not copies, by the item's name; for a sharded tensor, this rank's box."""
    items: tuple[Item, ...]
    """The descriptions of the same tensors."""
    optimized: Mapping[str, Any]
    """The ordinary tensors that only an optimizer step should change (parameters and optimizer state): maps
    the name to the DTensor whose local part the tensor is, or to None."""


def unwrap(module: Any) -> Any:
    """Return the module that DistributedDataParallel, DataParallel or torch.compile has wrapped."""
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while True:
        if isinstance(module, wrappers):
            module = module.module
        elif isinstance(module, torch.nn.Module) and "_orig_mod" in module._modules:  # noqa: SLF001 - torch.compile
            module = module._modules["_orig_mod"]  # noqa: SLF001 - it has no public name
        else:
            return module


def plain_naming(module: Any) -> Callable[[str], str]:
    """Return a function that removes inner wrappers from a name in an unwrapped module's state.

    A checkpoint uses these plain names, so it is the same whether or not parts of a model are compiled.
    """
    modules = module.named_modules(remove_duplicate=False)
    wrappers = [f"{path}." for path, each in modules if unwrap(each) is not each]

    def plain(name: str) -> str:
        for path in reversed(wrappers):  # innermost first
            if name.startswith(path):
                name = path + name.removeprefix(path).partition(".")[2]
        return name

    return plain


def check_tracked(objects: Mapping[str, Any]) -> None:
    """Check that every object can be saved.

    Raises:
        SessionError: an object has no state, or is sharded by the first FSDP.
    """
    for name, tracked in objects.items():
        if not (hasattr(tracked, "state_dict") and hasattr(tracked, "load_state_dict")):
            raise SessionError(
                f"session({name}=...) is a {type(tracked).__name__}, which cannot be saved: it has no"
                " state_dict and load_state_dict"
            )
        modules = tracked.modules() if isinstance(tracked, torch.nn.Module) else ()
        if any(type(each).__name__ == "FullyShardedDataParallel" for each in modules):
            raise SessionError(
                f"session({name}=...) is sharded by FullyShardedDataParallel, which cannot be saved: shard it"
                " with torch.distributed.fsdp.fully_shard"
            )


def check_own_state(objects: Mapping[str, Any]) -> None:
    """Check that a module whose state is not exactly its parameters and buffers can load its own state.

    Raises:
        SessionError: a module cannot do so, and no run could resume from its checkpoints.
    """
    for name, tracked in objects.items():
        inner = unwrap(tracked)
        if not isinstance(inner, torch.nn.Module):
            continue
        state = inner.state_dict()
        parameters = {name for name, _ in inner.named_parameters(remove_duplicate=False)}
        buffers = {name for name, _ in inner.named_buffers(remove_duplicate=False)}
        added = {key for key in state.keys() - parameters - buffers if not key.endswith("_extra_state")}
        if not added and parameters <= state.keys():
            continue
        try:
            inner.load_state_dict(state)
        except Exception as error:  # a module may raise any error
            raise SessionError(
                f"session({name}=...) is a {type(inner).__name__} that does not load its own state_dict, so"
                " nothing could resume from its checkpoints. Track only what is trained, such as the adapter"
                f" of a quantized model: {error}"
            ) from error


def take(objects: Mapping[str, Any]) -> State:
    """Describe the objects' state without copying a tensor.

    Raises:
        SessionError: the state contains a value that cannot be saved.
    """
    tensors: dict[str, Any] = {}
    trees: dict[str, Json] = {}
    pinned: set[str] = set()
    frozen: set[str] = set()
    parameters: set[str] = set()
    layouts: dict[str, Json] = {}
    models = []
    for name, tracked in objects.items():
        inner = unwrap(tracked)
        is_model = isinstance(inner, torch.nn.Module)
        ties = sharding.tied(inner) if is_model else {}
        plain = plain_naming(inner) if is_model else str
        state = {plain(key) if is_model else key: value for key, value in inner.state_dict().items()}
        tied = {f"{name}/{escape(plain(key))}": plain(first) for key, first in ties.items()}
        known = len(tensors)
        trees[name] = flatten(name, state, tensors, tied=tied)
        if not is_model:
            # A module copies a loaded state to its own memory, but other objects may keep the tensors that
            # they are given. An optimizer moves its state to the devices of its parameters by itself.
            moved = f"{name}/state/" if isinstance(inner, torch.optim.Optimizer) else None
            for item, tensor in islice(tensors.items(), known, None):
                if moved is not None and item.startswith(moved):
                    parameters.add(item)
                if layout := _layout(tensor, is_moved=moved is not None and item.startswith(moved)):
                    layouts[item] = layout
        else:
            models.append(name)
            # Buffers such as BatchNorm's differ between ranks; DDP broadcasts those of rank 0.
            pinned.update(
                f"{name}/{escape(plain(buffer))}" for buffer, _ in inner.named_buffers(remove_duplicate=False)
            )
            named = {f"{name}/{escape(plain(key))}": one for key, one in inner.named_parameters()}
            parameters.update(named)
            frozen.update(item for item, one in named.items() if not one.requires_grad)
    items = []
    optimized: dict[str, Any] = {}
    for name, tensor in tensors.items():
        shards: tuple[Shard, ...] = ()
        wrapper, local = None, tensor
        if sharding.is_dtensor(tensor):
            wrapper = tensor
            shards, local = sharding.describe(name, tensor)
            tensors[name] = local
        if name in parameters and name not in pinned and _is_watchable(local):
            optimized[name] = wrapper
        items.append(
            Item(
                name=name,
                dtype=dtype_name(tensor.dtype),
                shape=tuple(tensor.shape),
                itemsize=tensor.element_size(),
                pinned=name in pinned and not shards,
                is_frozen=name in frozen,
                shards=shards,
            )
        )
    return State(trees, tuple(models), layouts, tensors, tuple(items), optimized)


def _is_watchable(tensor: Any) -> bool:
    """Return whether torch counts the writes to a tensor, and its elements are contiguous in memory."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_inference() or tensor.is_conj() or tensor.is_neg())
        and tensor.numel() > 0
        and (tensor.is_contiguous() or _is_dense(tensor.shape, tensor.stride()))
    )


def _layout(tensor: Any, *, is_moved: bool) -> dict[str, Json]:
    """Return the parts of a tensor's layout that differ from the default, row-major on the CPU.

    If the object that loads the tensor will move it (``is_moved``), the tensor's device is irrelevant.
    """
    layout: dict[str, Json] = {}
    if sharding.is_dtensor(tensor):
        return layout
    if not tensor.is_contiguous() and _is_dense(tensor.shape, tensor.stride()):
        layout["strides"] = list(tensor.stride())
    if tensor.device.type != "cpu" and not is_moved:
        # Other ranks and later starts have their own current devices.
        is_current = torch.empty(0, device=tensor.device.type).device == tensor.device
        layout["device"] = tensor.device.type if is_current else str(tensor.device)
    return layout


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements fill a block of memory without overlaps or holes."""
    place = 1
    for stride, length in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride != place:
            return False
        place *= length
    return True


def is_materialised(objects: Mapping[str, Any]) -> bool:
    """Return whether every optimizer has state: Adam has none before its first step."""
    optimizers = [each for each in objects.values() if isinstance(each, torch.optim.Optimizer)]
    return all(len(optimizer.state) > 0 for optimizer in optimizers)


def cuda_devices(tensors: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the CUDA devices that hold the state, and the current one; empty without CUDA."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return ()
    devices = {tensor.device.index for tensor in tensors.values() if tensor.device.type == "cuda"}
    return tuple(sorted(devices | {torch.cuda.current_device()}))


def weights_sha256(model: Any) -> str | None:
    """Return the SHA-256 of the unwrapped model's state: each tensor's name, type, shape and bytes, by name.

    Return None if the model is sharded, because gathering the shards would be a collective.
    """
    digest = hashlib.sha256()
    inner = unwrap(model)
    plain = plain_naming(inner)
    state = {plain(name): each for name, each in inner.state_dict().items()}
    for name in sorted(state):
        tensor = state[name]
        if not isinstance(tensor, torch.Tensor):
            continue  # a module's extra state
        if sharding.is_dtensor(tensor):
            shape, tensor = tensor.shape, sharding.local_of(tensor)
            if tensor.shape != shape:
                return None
        cpu = tensor.detach().cpu().contiguous()
        digest.update(f"{name}\n{dtype_name(cpu.dtype)}\n{list(cpu.shape)}\n".encode())
        digest.update(tensor_bytes(cpu))
    return digest.hexdigest()


# --- loading ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Read:
    """A pending read of one box of a tensor in the checkpoint."""

    stored: StoredTensor
    box: Box
    target: Any
    """The tensor to which the box is copied, or None if the view of the file is used instead."""

    def fill(self) -> None:
        """Copy the box to its target."""
        if self.target is not None:
            self.stored.copy_into(self.box, self.target)


class Checkpoint:
    """A restored checkpoint on disk. Its bytes were verified before; this class checks their meaning."""

    def __init__(self, directory: Path) -> None:
        """Open the directory and check every table in it.

        Raises:
            CheckpointError: a table is missing, malformed, or points outside its file.
        """
        self._files = files = RestoredFiles(directory)
        self.step = files.step
        self.world_size = files.world_size
        self._seals = files.seals
        self._tensors = files.tensors

    @property
    def shared(self) -> dict[str, Json]:
        """The JSON state that all ranks share."""
        first = min(self._seals.values(), key=lambda seal: min(map(int, seal["rank_states"])))
        return json_object(first, "objects")

    @property
    def seed(self) -> int:
        """The seed for random generators in a world of a different size."""
        return number(self.shared, "seed", limit=2**64)

    @property
    def position(self) -> dict[str, Any] | None:
        """The position of a loop over batches, from ``ResumableBatches.take``; None for a loop over steps.

        ``ended`` says whether the loop was between the previous epoch's last batch and the code after it.
        """
        position = self.shared.get("position")
        if position is None:
            return None
        position = json_object(self.shared, "position")
        samples = position.get("samples")
        return {
            "epoch": number(position, "epoch"),
            "batch": number(position, "batch"),
            "base": checked("the position's base", position.get("base", 0)),
            "samples": None if samples is None else number(position, "samples"),
            "order": position.get("order"),
            "ended": position.get("ended") is True,
        }

    @property
    def left(self) -> dict[str, Any] | None:
        """The lengths of the loop that the script left at this checkpoint, or None: see ``TrainingLoop``."""
        if self.shared.get("left") is None:
            return None
        left = json_object(self.shared, "left")
        planned = left.get("planned")
        return {
            "length": number(left, "length"),
            "planned": None if planned is None else number(left, "planned"),
        }

    def rank_state(self, rank: int) -> dict[str, Json] | None:
        """Return one rank's JSON state in the world that saved, or None if that rank was lost."""
        for seal in self._seals.values():  # the rank's own seal, or that of the rank that relieved it
            if str(rank) in seal["rank_states"]:
                return json_object(json_object(seal, "rank_states"), str(rank))
        return None

    @property
    def rescue(self) -> Mapping[str, Any] | None:
        """The seals' description of the rescue in which survivors saved it; None if all ranks took part."""
        return self._files.rescue

    def load(self, objects: Mapping[str, Any], *, world: World) -> None:
        """Load the saved state into the objects. Both the state and the objects may be sharded in any way.

        Of a tensor that is sharded here, a rank reads only its own box. If the checkpoint is fetched on
        demand, only these bytes are fetched, and each rank waits until all ranks have their bytes. Call this
        only once, because it releases the files.

        Raises:
            CheckpointError: names, shapes or types differ, or an object rejects its state.
        """
        trees = json_object(self.shared, "state")
        _compare("the checkpoint", set(trees), "session()", set(objects))
        loads = []
        for name, tracked in objects.items():
            inner = unwrap(tracked)
            fresh = inner.state_dict()
            if isinstance(inner, torch.nn.Module):
                known = {key: fresh[own] for key, own in _names(trees[name], inner, fresh).items()}
                _check_model(name, known, rebuild(name, trees[name], lambda item, _: self._described(item)))
            loads.append((name, inner, fresh))
        states = []
        with torch.no_grad():
            for name, inner, fresh in loads:
                reads: list[_Read] = []
                with _naming(name):
                    states.append(
                        (name, inner, self._state_for(name, trees[name], inner, fresh, reads), reads)
                    )
            regions = [(each.stored, each.box) for *_, reads in states for each in reads]
            self._files.fetch(regions, world=world)
            while states:
                name, inner, state, reads = states.pop(0)
                with _naming(name):
                    for each in reads:
                        each.fill()
                    inner.load_state_dict(state)
                    if isinstance(inner, torch.optim.Optimizer):
                        _keep_dtypes(inner, state)
        self._tensors.clear()

    def _state_for(self, name: str, tree: Json, inner: Any, fresh: Any, reads: list[_Read]) -> Any:
        """Return the saved state of an object, sharded like its ``fresh`` state and its parameters.

        It has its values once the ``reads`` added by this method are fetched and filled.
        """
        if isinstance(inner, torch.nn.Module):
            names = _names(tree, inner, fresh)

            def place(item: Any, keys: Keys) -> Any:
                like = _at(fresh, (names[keys[0]], *keys[1:]))
                if sharding.is_dtensor(like):
                    # The state is the parameter itself, so this is the only copy, and it contains only this
                    # rank's box.
                    return self._read_into(item, like, reads)
                # If possible, use a view of the file, so that copying into the parameter is the only copy.
                return self._lend(item, reads)

            state = {names[key]: value for key, value in rebuild(name, tree, place).items()}
            return _with_metadata(state, fresh)
        parameters = [each for group in getattr(inner, "param_groups", ()) for each in group["params"]]

        def place_copy(item: Any, keys: Keys) -> Any:
            stored = self._stored(item)
            like = _at(fresh, keys)
            if like is None:
                like = _parameter_of(parameters, keys)
                # State of a different shape, such as a table of levels, need not have been a DTensor.
                if like is not None and not stored.is_dtensor and stored.shape != tuple(like.shape):
                    like = None
            if not sharding.is_dtensor(like):
                # The object may keep the tensor that it is given, so give it a copy.
                is_moved = isinstance(inner, torch.optim.Optimizer) and keys[0] == "state"
                return self._read_into(item, self._empty(item, stored, None if is_moved else like), reads)
            tensor = sharding.empty(stored.shape, stored.dtype, like=like, divided=stored.divided)
            return self._read_into(item, tensor, reads)

        return rebuild(name, tree, place_copy)

    def _empty(self, name: Any, stored: StoredTensor, like: Any) -> Any:
        """Return a tensor without values, with the saved layout or, if given, on the device of ``like``.

        The CPU is used in place of a device that this machine lacks.
        """
        layouts = self.shared.get("layouts", {})  # earlier versions wrote none
        layout = layouts.get(name, {}) if isinstance(layouts, dict) else None
        strides = layout.get("strides", []) if isinstance(layout, dict) else None
        if layout is None or not isinstance(strides, list):
            raise CheckpointError(f"the checkpoint's layout of {name} is malformed")
        strides = [checked(f"{name}: a stride", each) for each in strides]
        device = layout.get("device", "cpu")
        if isinstance(like, torch.Tensor):
            device = like.device
        elif not _has_device(str(device)):
            device = "cpu"
        if len(strides) == len(stored.shape) and _is_dense(stored.shape, strides):
            return torch.empty_strided(stored.shape, strides, dtype=stored.dtype, device=device)
        return torch.empty(stored.shape, dtype=stored.dtype, device=device)

    def _lend(self, item: Any, reads: list[_Read]) -> Any:
        """Return a tensor that must not be written to."""
        stored = self._stored(item)
        box = boxes.whole(stored.shape)
        view = stored.view(box)
        target = torch.empty(stored.shape, dtype=stored.dtype, device="cpu") if view is None else None
        reads.append(_Read(stored, box, target))
        return target if view is None else view

    def _read_into(self, item: Any, tensor: Any, reads: list[_Read]) -> Any:
        stored = self._stored(item)
        if tuple(tensor.shape) != stored.shape:
            raise CheckpointError(f"{item} has shape {list(stored.shape)}, not {list(tensor.shape)}")
        is_dtensor = sharding.is_dtensor(tensor)
        box = sharding.box_of(tensor) if is_dtensor else boxes.whole(stored.shape)
        if box.num_elements:
            reads.append(_Read(stored, box, sharding.local_of(tensor) if is_dtensor else tensor))
        return tensor

    def item(self, name: Any) -> Any:
        """Return a tensor by its name in the checkpoint; it must not be written to.

        It is a view of the file, or is combined from several ranks' shards.

        Raises:
            CheckpointError: there is no tensor with that name.
        """
        stored = self._stored(name)
        return stored.read(boxes.whole(stored.shape))

    def _described(self, name: Any) -> Any:
        stored = self._stored(name)
        return torch.empty(stored.shape, dtype=stored.dtype, device="meta")

    def _stored(self, name: Any) -> StoredTensor:
        try:
            return self._tensors[name]
        except (KeyError, TypeError):
            raise CheckpointError(f"the checkpoint holds no tensor {name!r}") from None


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Add the name of the object whose state is loaded to the errors that it raises."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # an object may raise any error
        raise CheckpointError(f"session({name}=...) refuses the checkpoint's state: {error}") from error


def _at(state: Any, keys: Keys) -> Any:
    """Return the value in a state that the keys lead to, or None if there is none."""
    for key in keys:
        try:
            state = state[key]
        except (LookupError, TypeError):
            return None
    return state


def _parameter_of(parameters: Sequence[Any], keys: Keys) -> Any:
    """Return the parameter to which a tensor in an optimizer's state belongs, or None if there is none."""
    if len(keys) != 3 or keys[0] != "state" or keys[2] == "step":
        return None
    return parameters[keys[1]] if type(keys[1]) is int and 0 <= keys[1] < len(parameters) else None


def _keep_dtypes(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Restore the saved types of an optimizer's state, which torch rounded to its parameters' types."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for index, saved in state.get("state", {}).items():
        kept = optimizer.state.get(parameters[index]) if type(index) is int else None
        if not isinstance(kept, dict) or not isinstance(saved, dict):
            continue
        for key, value in saved.items():
            loaded: Any = kept.get(key)
            are_tensors = isinstance(value, torch.Tensor) and isinstance(loaded, torch.Tensor)
            if are_tensors and value.dtype != loaded.dtype:
                kept[key] = value.to(loaded.device)


def _has_device(name: str) -> bool:
    """Return whether tensors with values can be on the device."""
    try:
        return str(torch.empty(0, device=name).device) != "meta"
    except (RuntimeError, AssertionError):  # torch is not built for it, or there is no such device
        return False


def _names(tree: Json, module: Any, fresh: Mapping[str, Any]) -> dict[str, str]:
    """Map the checkpoint's names of a module's state to the names in the module's ``fresh`` state."""
    if isinstance(tree, dict) and tree.keys() == fresh.keys():
        return {name: name for name in fresh}  # earlier versions did not write plain names
    plain = plain_naming(module)
    return {plain(name): name for name in fresh}


def _check_model(name: str, fresh: Mapping[str, Any], saved: Any) -> None:
    if not isinstance(saved, dict):
        raise CheckpointError(f"the checkpoint's {name} is not the state of a model")
    _compare(f"the checkpoint's {name}", set(saved), f"session({name}=...)", set(fresh))
    for key, tensor in fresh.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        kept = saved[key]
        if not isinstance(kept, torch.Tensor) or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            raise CheckpointError(
                f"{name}/{key} is {_describe(tensor)} in this script and {_describe(kept)} in the checkpoint"
            )


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)} {list(value.shape)}"
    return type(value).__name__


def _compare(saved_in: str, saved: set[str], here: str, known: set[str]) -> None:
    faults = []
    for place, names in ((saved_in, sorted(known - saved)), (here, sorted(saved - known))):
        if names:
            faults.append(f"{place} lacks {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}")
    if faults:
        raise CheckpointError("; ".join(faults))


def _with_metadata(state: dict[str, Any], fresh: Any) -> Any:
    # Modules read their format's version from this attribute, and the script's own version is the right one.
    ordered = collections.OrderedDict(state)
    if hasattr(fresh, "_metadata"):
        ordered._metadata = fresh._metadata  # type: ignore[attr-defined]  # noqa: SLF001 - as torch.save keeps it
    return ordered
