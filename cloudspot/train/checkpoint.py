"""The state of the tracked objects: taken for a save, and loaded from a restored checkpoint."""

from __future__ import annotations

import collections
import hashlib
import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cloudspot.train.errors import CheckpointError, SessionError
from cloudspot.train.handoff import RESTORE_MANIFEST
from cloudspot.train.partition import Item
from cloudspot.train.tree import DTYPES, Json, dtype_name, escape, flatten, rebuild, tensor_bytes

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
    """By the item's name; the live tensors, not copies."""
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
        SessionError: an object has no state, or is sharded.
    """
    for name, tracked in objects.items():
        if not (hasattr(tracked, "state_dict") and hasattr(tracked, "load_state_dict")):
            raise SessionError(
                f"session({name}=...) is a {type(tracked).__name__}, which cannot be saved: it has no"
                " state_dict and load_state_dict"
            )
        kinds = {kind.__name__ for kind in type(tracked).__mro__}
        if kinds & {"FullyShardedDataParallel", "FSDPModule"}:
            raise SessionError(
                f"session({name}=...) is sharded by FSDP, which cannot be saved yet: use"
                " DistributedDataParallel"
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
        trees[name] = flatten(name, dict(inner.state_dict()), tensors)
        if isinstance(inner, torch.nn.Module):
            models.append(name)
            # Ranks differ in buffers such as BatchNorm's; rank 0's are the ones that DDP broadcasts.
            pinned.update(
                f"{name}/{escape(buffer)}" for buffer, _ in inner.named_buffers(remove_duplicate=False)
            )
    items = tuple(
        Item(
            name=name,
            dtype=dtype_name(tensor.dtype),
            shape=tuple(tensor.shape),
            itemsize=tensor.element_size(),
            pinned=name in pinned,
        )
        for name, tensor in tensors.items()
    )
    return State(trees, tuple(models), tensors, items)


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


def weights_sha256(model: Any) -> str:
    """Return SHA-256 over the unwrapped model's state: each tensor's name, type, shape and bytes, by name."""
    digest = hashlib.sha256()
    state = unwrap(model).state_dict()
    for name in sorted(state):
        tensor = state[name]
        if not isinstance(tensor, torch.Tensor):
            continue  # extra state of a module
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
        self._items: dict[str, Any] = {}
        self._seals: dict[int, dict[str, Any]] = {}
        for part in parts:
            self._open_part(part)
        if set(self._seals) != set(range(self.world_size)):
            raise CheckpointError(f"{RESTORE_MANIFEST} does not list each rank's part once")
        if len({seal.get("plan") for seal in self._seals.values()}) != 1:
            raise CheckpointError("the parts come from different plans")

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
        """Load the saved state into the objects.

        Call it once: it releases the files.

        Raises:
            CheckpointError: names, shapes or types differ, or an object refuses its state.
        """
        trees = _object(self.shared, "state")
        _compare("the checkpoint", set(trees), "session()", set(objects))
        loads = []
        for name, tracked in objects.items():
            inner = unwrap(tracked)
            if isinstance(inner, torch.nn.Module):
                # Views of the file: the copy into the parameters is the only one.
                state = rebuild(name, trees[name], self.item)
                fresh = inner.state_dict()
                _check_model(name, fresh, state)
                loads.append((name, inner, _with_metadata(state, fresh)))
            else:
                # The object may keep what it is given, so it gets copies.
                loads.append((name, inner, rebuild(name, trees[name], lambda item: self.item(item).clone())))
        for name, inner, state in loads:
            try:
                with torch.no_grad():
                    inner.load_state_dict(state)
            except Exception as error:  # an object may raise anything
                raise CheckpointError(
                    f"session({name}=...) refuses the checkpoint's state: {error}"
                ) from error

    def item(self, name: Any) -> Any:
        """Return a tensor by its name in the checkpoint: a view of the file, which must not be written to.

        Raises:
            CheckpointError: there is no tensor of that name.
        """
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
        if name in self._items:
            raise CheckpointError(f"the checkpoint holds {name} twice")
        self._items[name] = data[offset : offset + size].view(dtype).view(shape)


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
