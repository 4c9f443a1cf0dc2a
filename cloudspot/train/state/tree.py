"""State dicts, stored as JSON and named tensors.

JSON's own values represent themselves; any other value is an object with a single key that begins with ``$``.
Reading creates only numbers, strings, containers and tensors. Pickle is not used, so a file cannot run code.
"""

from __future__ import annotations

import base64
import collections
import math
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from cloudspot.train.errors import CheckpointError, SessionError
from cloudspot.train.state.sharding import is_dtensor, local_of

Json = Any
"""A JSON value."""

DTYPES: Mapping[str, Any] = {
    name: getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    )
    if hasattr(torch, name)
}
"""The element types that a checkpoint can contain, by torch's names."""

EMPTY: Mapping[str, str] = MappingProxyType({})
_PLAIN = (bool, int, str, type(None))
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)
_NUMPY_KINDS = frozenset("biufc")
_MALFORMED = (TypeError, ValueError, LookupError, RuntimeError, AttributeError, OverflowError)


def dtype_name(dtype: Any) -> str:
    """Return torch's name of an element type, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def flatten(
    path: str, value: Any, tensors: dict[str, Any] | None, *, tied: Mapping[str, str] = EMPTY
) -> Json:
    """Return ``value`` as JSON.

    Args:
        path: The value's name in the checkpoint, such as ``optimizer``. The names of its contents begin with
            it.
        value: Nested dicts, lists and tuples of numbers, strings, bytes, tensors and NumPy arrays.
        tensors: Receives the tensors by name; the JSON refers to them. If it is None, the JSON contains them.
        tied: Maps each name of a DTensor that has several names to one common name.

    Raises:
        SessionError: the value contains something that cannot be saved; the message states its path.
    """
    return _Flattening(tensors, tied).convert(path, value)


class _Flattening:
    def __init__(self, tensors: dict[str, Any] | None, tied: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._tied = tied
        self._seen: dict[tuple[Any, ...], str] = {}

    def convert(self, path: str, value: Any) -> Json:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind in _MAPPINGS:
            return self._mapping(path, value)
        if kind is list:
            return [self.convert(f"{path}/{index}", each) for index, each in enumerate(value)]
        if isinstance(value, torch.Tensor):
            return self._tensor(path, value)
        if kind is bytes:
            return {"$bytes": base64.b64encode(value).decode()}
        tag = _SEQUENCES.get(kind)
        if tag is not None:
            each = sorted(value, key=repr) if kind in (set, frozenset) else value
            # Python's random generator has 625 numbers, so plain values are converted without a function
            # call.
            return {
                tag: [
                    one if type(one) in _PLAIN else self.convert(f"{path}/{index}", one)
                    for index, one in enumerate(each)
                ]
            }
        if kind is collections.Counter:
            return {"$counter": [[self.convert(path, key), count] for key, count in value.items()]}
        if kind is torch.dtype:
            return {"$dtype": dtype_name(value)}
        if kind is torch.device:
            return {"$device": str(value)}
        return self._numpy(path, value)

    def _mapping(self, path: str, value: Mapping[Any, Any]) -> Json:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.convert(f"{path}/{escape(key)}", each) for key, each in value.items()}
        return {
            "$dict": [
                [self.convert(path, key), self.convert(f"{path}/{escape(str(key))}", each)]
                for key, each in value.items()
            ]
        }

    def _tensor(self, path: str, value: Any) -> Json:
        kind = type(value)
        if kind.__name__ in {"ShardedTensor", "FlatParameter"}:
            raise SessionError(
                f"{path} is a {kind.__name__}, which cannot be saved: shard with"
                " torch.distributed.fsdp.fully_shard"
            )
        value = value.detach()
        if is_dtensor(value):
            if self._tensors is None:
                raise SessionError(
                    f"{path} is a DTensor, but each rank saves this state separately, so it must not be "
                    "sharded"
                )
            kind = type(local_of(value))
        if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
            raise SessionError(
                f"{path} is a {value.layout} tensor of {value.dtype} on {value.device}:"
                " only dense tensors with values can be saved"
            )
        if value.is_conj() or value.is_neg():  # such a view shares the memory, but not the values
            value = value.resolve_conj().resolve_neg()
        name = dtype_name(value.dtype)
        if name not in DTYPES or not (kind is torch.Tensor or issubclass(kind, torch.nn.Parameter)):
            raise SessionError(f"{path} is a {kind.__name__} of {value.dtype}, which cannot be saved")
        if self._tensors is None:
            cpu = value.cpu().contiguous()
            data = base64.b64encode(tensor_bytes(cpu)).decode()
            return {"$tensor": {"dtype": name, "shape": list(cpu.shape), "data": data}}
        # Tied weights have two names, but are written only once.
        identity: tuple[Any, ...]
        if is_dtensor(value):
            identity = (self._tied.get(path, path),)
        else:
            identity = (value.data_ptr(), name, tuple(value.shape), value.stride())
        known = self._seen.get(identity)
        if known is None or value.numel() == 0:
            if path in self._tensors:
                raise SessionError(f"two tensors of the state are called {path}: rename one")
            self._seen[identity] = known = path
            self._tensors[path] = value
        return {"$item": known}

    def _numpy(self, path: str, value: Any) -> Json:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            array = numpy.ascontiguousarray(value)
            if array.dtype.kind in _NUMPY_KINDS:
                tag = "$ndarray" if isinstance(value, numpy.ndarray) else "$numpy"
                data = base64.b64encode(array.tobytes()).decode()
                return {tag: {"dtype": array.dtype.str, "shape": list(value.shape), "data": data}}
        raise SessionError(
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}: a checkpoint holds numbers,"
            " strings, bytes, dicts, lists, tuples, tensors and NumPy arrays; leave it out of state_dict()"
        )


_SEQUENCES = {tuple: "$tuple", set: "$set", frozenset: "$frozenset", torch.Size: "$size"}


Keys = tuple[Any, ...]
"""The keys and indices that lead to a value in the argument of ``flatten``."""


def _no_item(name: str, _keys: Keys) -> Any:
    raise KeyError(name)


def rebuild(path: str, value: Json, item: Callable[[str, Keys], Any] = _no_item) -> Any:
    """Return the value from which ``flatten`` created the JSON.

    ``item`` returns a tensor, given its name and the keys that lead to it. By default, there are no tensors.

    Raises:
        CheckpointError: the JSON cannot be a result of ``flatten``.
    """
    try:
        return _rebuild(value, item, ())
    except _MALFORMED as error:
        raise CheckpointError(f"the checkpoint's {path} is malformed: {error}") from error


def _rebuild(value: Json, item: Callable[[str, Keys], Any], keys: Keys) -> Any:
    if isinstance(value, list):
        return [_rebuild(each, item, (*keys, index)) for index, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, body),) = value.items()
        if tag.startswith("$"):
            return _rebuild_tagged(tag, body, item, keys)
    return {key: _rebuild(each, item, (*keys, key)) for key, each in value.items()}


def _rebuild_tagged(tag: str, body: Json, item: Callable[[str, Keys], Any], keys: Keys) -> Any:
    if tag == "$item":
        return item(body, keys)
    if tag == "$dict":
        names = [_rebuild(key, item, keys) for key, _ in body]
        return {key: _rebuild(each, item, (*keys, key)) for key, (_, each) in zip(names, body, strict=True)}
    if tag == "$counter":
        return collections.Counter({_rebuild(key, item, keys): int(count) for key, count in body})
    for kind, name in _SEQUENCES.items():
        if tag == name:
            return kind(_rebuild(list(body), item, keys))
    if tag == "$float":
        return float(body)
    if tag == "$bytes":
        return base64.b64decode(body, validate=True)
    if tag == "$dtype":
        return DTYPES[body]
    if tag == "$device":
        return torch.device(body)
    if tag == "$tensor":
        data = bytearray(base64.b64decode(body["data"], validate=True))
        flat = torch.frombuffer(data, dtype=DTYPES[body["dtype"]]) if data else torch.empty(0)
        return flat.to(DTYPES[body["dtype"]]).reshape(body["shape"])
    if tag in {"$ndarray", "$numpy"}:
        return _rebuild_numpy(tag, body)
    raise ValueError(f"unknown tag {tag!r}")


def _rebuild_numpy(tag: str, body: Json) -> Any:
    import numpy as np

    dtype = np.dtype(body["dtype"])
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"NumPy type {body['dtype']!r} is not a number")
    flat = np.frombuffer(base64.b64decode(body["data"], validate=True), dtype=dtype)
    array = flat.reshape(body["shape"]).copy()
    return array[()] if tag == "$numpy" else array


def tensor_bytes(cpu: Any) -> memoryview:
    """Return a view of a contiguous CPU tensor's bytes, which is valid as long as the tensor exists."""
    import ctypes

    nbytes = cpu.numel() * cpu.element_size()
    if nbytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * nbytes).from_address(cpu.data_ptr())).cast("B")


def escape(key: str) -> str:
    """Return a key as a component of an item's name."""
    return key.replace("~", "~0").replace("/", "~1")
