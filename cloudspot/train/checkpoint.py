"""The state of the tracked objects: taken for a save, and loaded from a restored checkpoint."""

from __future__ import annotations

import collections
import hashlib
import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cloudspot.train import boxes, sharding
from cloudspot.train.boxes import Box
from cloudspot.train.errors import CheckpointError, SessionError
from cloudspot.train.handoff import RESTORE_MANIFEST
from cloudspot.train.partition import Item, Shard
from cloudspot.train.tree import DTYPES, Json, Keys, dtype_name, escape, flatten, rebuild, tensor_bytes

FORMAT = 1


# --- taking -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """The shared state of all tracked objects at one boundary."""

    objects: dict[str, Json]
    """By the object's name."""
    models: tuple[str, ...]
    """The names of those that are modules: their state is weights, by the names of ``state_dict``."""
    tensors: dict[str, Any]
    """By the item's name; the live tensors, not copies. What is sharded is this rank's box."""
    items: tuple[Item, ...]
    """The same tensors, described."""


def unwrap(module: Any) -> Any:
    """Return the module inside DistributedDataParallel, DataParallel and torch.compile."""
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while True:
        if isinstance(module, wrappers):
            module = module.module
        elif isinstance(module, torch.nn.Module) and "_orig_mod" in module._modules:  # noqa: SLF001 - torch.compile
            module = module._modules["_orig_mod"]  # noqa: SLF001 - has no public name for it
        else:
            return module


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


def take(objects: Mapping[str, Any]) -> State:
    """Describe the objects' state without copying a tensor.

    Raises:
        SessionError: the state holds something that cannot be saved.
    """
    tensors: dict[str, Any] = {}
    trees: dict[str, Json] = {}
    pinned: set[str] = set()
    models = []
    for name, tracked in objects.items():
        inner = unwrap(tracked)
        is_model = isinstance(inner, torch.nn.Module)
        ties = sharding.tied(inner) if is_model else {}
        tied = {f"{name}/{escape(key)}": first for key, first in ties.items()}
        trees[name] = flatten(name, dict(inner.state_dict()), tensors, tied=tied)
        if is_model:
            models.append(name)
            # Ranks differ in buffers such as BatchNorm's; rank 0's are the ones that DDP broadcasts.
            pinned.update(
                f"{name}/{escape(buffer)}" for buffer, _ in inner.named_buffers(remove_duplicate=False)
            )
    items = []
    for name, tensor in tensors.items():
        shards: tuple[Shard, ...] = ()
        if sharding.is_sharded(tensor):
            shards, tensors[name] = sharding.describe(name, tensor)
        items.append(
            Item(
                name=name,
                dtype=dtype_name(tensor.dtype),
                shape=tuple(tensor.shape),
                itemsize=tensor.element_size(),
                pinned=name in pinned and not shards,
                shards=shards,
            )
        )
    return State(trees, tuple(models), tensors, tuple(items))


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
    """Return SHA-256 over the unwrapped model's state: each tensor's name, type, shape and bytes, by name.

    None: the model is sharded. This rank does not hold all of it, and putting it together is a collective.
    """
    digest = hashlib.sha256()
    state = unwrap(model).state_dict()
    for name in sorted(state):
        tensor = state[name]
        if not isinstance(tensor, torch.Tensor):
            continue  # extra state of a module
        if sharding.is_sharded(tensor):
            shape, tensor = tensor.shape, sharding.local_of(tensor)
            if tensor.shape != shape:
                return None
        cpu = tensor.detach().cpu().contiguous()
        digest.update(f"{name}\n{dtype_name(cpu.dtype)}\n{list(cpu.shape)}\n".encode())
        digest.update(tensor_bytes(cpu))
    return digest.hexdigest()


# --- putting back -------------------------------------------------------------------------------


class Checkpoint:
    """A restored checkpoint on disk. Its bytes are verified already; here their meaning is."""

    def __init__(self, directory: Path) -> None:
        """Open the directory and check every table in it.

        Raises:
            CheckpointError: something is missing, malformed, or points outside its file.
        """
        self._directory = directory
        manifest = _read_manifest(directory)
        self.step = _number(manifest, "step")
        self.world_size = _number(manifest, "world_size")
        parts = manifest.get("parts")
        if not isinstance(parts, list) or len(parts) != self.world_size:
            raise CheckpointError(f"{RESTORE_MANIFEST} does not list {self.world_size} parts")
        self._items: dict[str, _Stored] = {}
        self._seals: dict[int, dict[str, Any]] = {}
        for part in parts:
            self._open_part(part)
        if set(self._seals) != set(range(self.world_size)):
            raise CheckpointError(f"{RESTORE_MANIFEST} does not list each rank's part once")
        if len({seal.get("plan") for seal in self._seals.values()}) != 1:
            raise CheckpointError("the parts come from different plans")
        for name, stored in self._items.items():
            problem = boxes.problem(list(stored.pieces), stored.shape) if stored.is_sharded else None
            if problem is not None:
                raise CheckpointError(f"the checkpoint's {name} has {problem}")

    @property
    def shared(self) -> dict[str, Json]:
        """The JSON state that all ranks share."""
        return _object(self._seals[0], "objects")

    @property
    def seed(self) -> int:
        """The seed for the random generators of a world of another size."""
        return _number(self.shared, "seed", limit=2**64)

    @property
    def position(self) -> dict[str, Any] | None:
        """Where a loop over batches stood: what ``Feed.take`` returned; None for a loop over steps.

        ``ended`` is whether it stood between the last batch of the epoch before and the code after it.
        """
        position = self.shared.get("position")
        if position is None:
            return None
        position = _object(self.shared, "position")
        samples = position.get("samples")
        return {
            "epoch": _number(position, "epoch"),
            "batch": _number(position, "batch"),
            "base": _checked("the position's base", position.get("base", 0)),
            "samples": None if samples is None else _number(position, "samples"),
            "order": position.get("order"),
            "ended": position.get("ended") is True,
        }

    @property
    def left(self) -> dict[str, Any] | None:
        """How long the loop was that the script left at this checkpoint, or None: see ``Session``."""
        if self.shared.get("left") is None:
            return None
        left = _object(self.shared, "left")
        planned = left.get("planned")
        return {
            "length": _number(left, "length"),
            "planned": None if planned is None else _number(left, "planned"),
        }

    def rank_state(self, rank: int) -> dict[str, Json]:
        """Return the JSON state of one rank of the world that saved."""
        return _object(self._seals[rank], "rank_state")

    def load(self, objects: Mapping[str, Any]) -> None:
        """Load the saved state into the objects, however either is sharded: no rank waits for another.

        Of a tensor that is sharded here, a rank reads the bytes of its own box. Call it once: it releases the
        files.

        Raises:
            CheckpointError: names, shapes or types differ, or an object refuses its state.
        """
        trees = _object(self.shared, "state")
        _compare("the checkpoint", set(trees), "session()", set(objects))
        loads = []
        for name, tracked in objects.items():
            inner = unwrap(tracked)
            fresh = inner.state_dict()
            if isinstance(inner, torch.nn.Module):
                _check_model(name, fresh, rebuild(name, trees[name], lambda item, _: self._described(item)))
            loads.append((name, inner, fresh))
        for name, inner, fresh in loads:
            try:
                with torch.no_grad():
                    inner.load_state_dict(self._state_for(name, trees[name], inner, fresh))
            except CheckpointError:
                raise
            except Exception as error:  # an object may raise anything
                raise CheckpointError(
                    f"session({name}=...) refuses the checkpoint's state: {error}"
                ) from error

    def _state_for(self, name: str, tree: Json, inner: Any, fresh: Any) -> Any:
        """Return the saved state of an object, sharded as its ``fresh`` state and its parameters are."""
        if isinstance(inner, torch.nn.Module):

            def place(item: Any, keys: Keys) -> Any:
                like = _at(fresh, keys)
                if not sharding.is_sharded(like):
                    # A view of the file: the copy into the parameter is the only one.
                    return self.item(item)
                # The state is the parameter, so this is the only copy here too, and none of all ranks.
                self._read_into(item, like)
                return like

            return _with_metadata(rebuild(name, tree, place), fresh)
        parameters = [each for group in getattr(inner, "param_groups", ()) for each in group["params"]]

        def place_copy(item: Any, keys: Keys) -> Any:
            stored = self._stored(item)
            like = _at(fresh, keys)
            if like is None:
                like = _parameter_of(parameters, keys)
                # Whole state of another shape, such as a count of steps, was never a DTensor.
                if like is not None and not stored.is_sharded and stored.shape != tuple(like.shape):
                    like = None
            if not sharding.is_sharded(like):
                # The object may keep what it is given, so it gets a copy.
                return stored.copy()
            tensor = sharding.empty(stored.shape, stored.dtype, like=like)
            self._read_into(item, tensor)
            return tensor

        return rebuild(name, tree, place_copy)

    def _read_into(self, item: Any, tensor: Any) -> None:
        stored = self._stored(item)
        if tuple(tensor.shape) != stored.shape:
            raise CheckpointError(f"{item} has shape {list(stored.shape)}, not {list(tensor.shape)}")
        box = sharding.box_of(tensor)
        if box.num_elements:
            sharding.local_of(tensor).copy_(stored.read(box))

    def item(self, name: Any) -> Any:
        """Return a tensor by its name in the checkpoint, which must not be written to.

        It is a view of the file, or put together of several ranks' shards.

        Raises:
            CheckpointError: there is no tensor of that name.
        """
        stored = self._stored(name)
        return stored.read(boxes.whole(stored.shape))

    def _described(self, name: Any) -> Any:
        stored = self._stored(name)
        return torch.empty(stored.shape, dtype=stored.dtype, device="meta")

    def _stored(self, name: Any) -> _Stored:
        try:
            return self._items[name]
        except (KeyError, TypeError):
            raise CheckpointError(f"the checkpoint holds no tensor {name!r}") from None

    def _open_part(self, part: Any) -> None:
        if not isinstance(part, dict) or not isinstance(part.get("file"), str):
            raise CheckpointError(f"{RESTORE_MANIFEST} names a part without a file")
        name, seal = part["file"], _object(part, "seal")
        if Path(name).name != name or name in {"", ".", ".."}:
            raise CheckpointError(f"{RESTORE_MANIFEST} names {name!r}, which is not a plain file name")
        if seal.get("format") != FORMAT:
            raise CheckpointError(
                f"{name} has format {seal.get('format')!r}; this cloudspot reads format {FORMAT}"
            )
        rank, nbytes = _number(part, "rank"), _number(seal, "nbytes")
        if _number(seal, "step") != self.step or _number(seal, "rank") != rank:
            raise CheckpointError(f"{name} belongs to another checkpoint or rank")
        self._seals[rank] = seal
        items = seal.get("items")
        if not isinstance(items, list):
            raise CheckpointError(f"{name} has no table of items")
        data = self._map(name, nbytes)
        for item in items:
            self._add_item(name, item, data, nbytes)

    def _map(self, name: str, nbytes: int) -> Any:
        try:
            with (self._directory / name).open("rb") as file:
                size = file.seek(0, 2)
                if size < nbytes:
                    raise CheckpointError(f"{name} has {size} bytes; its seal says {nbytes}")
                if nbytes == 0:
                    return torch.empty(0, dtype=torch.uint8)
                # Copy-on-write, because torch warns of read-only memory; nobody writes to it.
                return torch.frombuffer(
                    mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY), dtype=torch.uint8
                )
        except OSError as error:
            raise CheckpointError(f"{name} of the restored checkpoint cannot be read: {error}") from error

    def _add_item(self, file: str, item: Any, data: Any, nbytes: int) -> None:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise CheckpointError(f"{file} lists an item without a name")
        name, dtype, shape = item["name"], DTYPES.get(str(item.get("dtype"))), item.get("shape")
        if dtype is None or not isinstance(shape, list):
            raise CheckpointError(f"{file}: {name} has type {item.get('dtype')!r} and shape {shape!r}")
        count = 1
        for length in shape:
            count *= _checked(f"{name}: a length of its shape", length)
        offset, size = _number(item, "offset"), _number(item, "nbytes")
        itemsize = torch.empty(0, dtype=dtype).element_size()
        if size != count * itemsize or offset % itemsize or offset + size > nbytes:
            raise CheckpointError(
                f"{file}: {name} of type {item['dtype']} and shape {shape} cannot lie at bytes {offset} to"
                f" {offset + size} of {nbytes}"
            )
        view = data[offset : offset + size].view(dtype).view(shape)
        global_shape, start = item.get("global_shape"), item.get("global_offset")
        is_sharded = global_shape is not None or start is not None
        whole_shape = _lengths(name, global_shape) if is_sharded else tuple(shape)
        box = Box(_lengths(name, start), tuple(shape)) if is_sharded else boxes.whole(whole_shape)
        stored = self._items.setdefault(name, _Stored(dtype, whole_shape, is_sharded=is_sharded))
        if (dtype, whole_shape, is_sharded) != (stored.dtype, stored.shape, stored.is_sharded):
            raise CheckpointError(f"the checkpoint's shards of {name} are not of one tensor")
        if box in stored.pieces:
            raise CheckpointError(f"the checkpoint holds {name} twice")
        stored.pieces[box] = view


class _Stored:
    """A tensor in the checkpoint's files."""

    def __init__(self, dtype: Any, shape: tuple[int, ...], *, is_sharded: bool) -> None:
        self.dtype = dtype
        self.shape = shape
        self.is_sharded = is_sharded
        self.pieces: dict[Box, Any] = {}
        """Views of the files; they make up the tensor."""

    def copy(self) -> Any:
        """Return all of it, in memory of its own."""
        found = self.read(boxes.whole(self.shape))
        return found.clone() if len(self.pieces) == 1 else found

    def read(self, box: Box) -> Any:
        """Return what lies in a box, which has elements: a view, if one piece holds all of it."""
        if box in self.pieces:
            return self.pieces[box]
        found = [(piece, each) for piece in self.pieces if (each := boxes.overlap(box, piece)) is not None]
        if len(found) == 1:
            piece, common = found[0]
            return _narrow(self.pieces[piece], common, piece)
        target = torch.empty(box.shape, dtype=self.dtype)
        for piece, common in found:
            _narrow(target, common, box).copy_(_narrow(self.pieces[piece], common, piece))
        return target


def _narrow(tensor: Any, box: Box, outer: Box) -> Any:
    """Return the view of a box in a tensor that is itself the box ``outer``."""
    for dim, (start, length) in enumerate(zip(box.offset, box.shape, strict=True)):
        tensor = tensor.narrow(dim, start - outer.offset[dim], length)
    return tensor


def _at(state: Any, keys: Keys) -> Any:
    """Return the value in a state to which the keys lead, None if there is none."""
    for key in keys:
        try:
            state = state[key]
        except (LookupError, TypeError):
            return None
    return state


def _parameter_of(parameters: Sequence[Any], keys: Keys) -> Any:
    """Return the parameter to which a tensor of an optimizer's state belongs, None if to none."""
    if len(keys) != 3 or keys[0] != "state" or keys[2] == "step":
        return None
    return parameters[keys[1]] if type(keys[1]) is int and 0 <= keys[1] < len(parameters) else None


def _lengths(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise CheckpointError(f"{name}: a shard needs a global_shape and a global_offset")
    return tuple(_checked(f"{name}: the place of a shard", each) for each in value)


def _read_manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((directory / RESTORE_MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{directory / RESTORE_MANIFEST} cannot be read: {error}") from error
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{directory / RESTORE_MANIFEST} is not a JSON object")
    return manifest


def _object(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    if not isinstance(value, dict):
        raise CheckpointError(f"the checkpoint's {key!r} is not a JSON object")
    return value


def _number(parent: Mapping[str, Any], key: str, *, limit: int = 2**62) -> int:
    return _checked(f"the checkpoint's {key!r}", parent.get(key), limit=limit)


def _checked(what: str, value: Any, *, limit: int = 2**62) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise CheckpointError(f"{what} must be an integer >= 0: got {value!r}")
    return value


def _check_model(name: str, fresh: Mapping[str, Any], saved: Any) -> None:
    if not isinstance(saved, dict):
        raise CheckpointError(f"the checkpoint's {name} is not the state of a model")
    _compare(f"the checkpoint's {name}", set(saved), f"session({name}=...)", set(fresh))
    for key, tensor in fresh.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        other = saved[key]
        if not isinstance(other, torch.Tensor) or other.shape != tensor.shape or other.dtype != tensor.dtype:
            raise CheckpointError(
                f"{name}/{key} is {_describe(tensor)} in this script and {_describe(other)} in the checkpoint"
            )


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)} {list(value.shape)}"
    return type(value).__name__


def _compare(saved_in: str, saved: set[str], here: str, known: set[str]) -> None:
    found = []
    for place, names in ((saved_in, sorted(known - saved)), (here, sorted(saved - known))):
        if names:
            found.append(f"{place} lacks {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}")
    if found:
        raise CheckpointError("; ".join(found))


def _with_metadata(state: dict[str, Any], fresh: Any) -> Any:
    # Modules read the version of their format from this attribute; the script's own version is the right one.
    ordered = collections.OrderedDict(state)
    if hasattr(fresh, "_metadata"):
        ordered._metadata = fresh._metadata  # type: ignore[attr-defined]  # noqa: SLF001 - as torch.save keeps it
    return ordered
