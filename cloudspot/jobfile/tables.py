"""Convert a raw TOML table to a typed struct, with errors that name the path and the nearest field."""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from cloudspot import decoding
from cloudspot.errors import SpecError
from cloudspot.jobfile.quantities import parse_duration, parse_size

T = TypeVar("T", bound=msgspec.Struct)
Path = tuple[str | int, ...]

CREDENTIAL_NAME: Final = re.compile(
    r"(?i).*(password|passwd|secret|(api|secret|access|private)_?key|(auth|access|bearer|hf|hub)_token)"
)
"""A field or variable of such a name most likely holds a credential; its value is never shown."""

_QUANTITIES: Final[Mapping[str, tuple[Callable[[str], float | int], str]]] = {
    "duration": (parse_duration, 'a duration such as "10m" or a number of seconds'),
    "size": (parse_size, 'a size such as "50GiB" or a number of bytes'),
}
_NAMES: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")
_AT: Final = re.compile(r"(?s)(.*) - at (?:`key` in )?`\$(.*)`")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


class FieldError(SpecError):
    """A field is wrong; the message is ``path: what was found and what to do``."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"{show_path(path)}: {text}" if path else text)
        self.path = path


def show_path(path: Path) -> str:
    """Return the path as users write it, such as ``run.args[1]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            word = step if _WORD.fullmatch(step) else f'"{step}"'
            text += f".{word}" if text else word
    return text


def convert(raw: Mapping[str, Any], type_: type[T], *, at: Path = ()) -> T:
    """Return the table ``raw`` as a ``type_``; ``at`` is the table's path in the file.

    Unknown fields are refused at every depth, even where the struct allows them. The types and words of
    :mod:`cloudspot.jobfile.quantities` are understood.

    Raises:
        FieldError: a field is unknown, missing or of the wrong type or value.
    """
    info = _type_info(type_)
    assert isinstance(info, inspect.StructType)
    prepared = _Reader(info, at).prepare(raw, info, at)
    try:
        converted: T = decoding.convert(prepared, type_)
        return converted
    except msgspec.ValidationError as error:
        raise _field_error(str(error), prepared, at) from None


def expects_text(type_: type[msgspec.Struct], path: Sequence[str]) -> bool:
    """Return whether the field at ``path`` takes only strings."""
    node: inspect.Type = _type_info(type_)
    for step in path:
        node = _bare(node)
        if isinstance(node, inspect.StructType):
            field = next((field for field in node.fields if field.encode_name == step), None)
            if field is None:
                return False
            node = field.type
        elif isinstance(node, inspect.DictType):
            node = node.value_type
        else:
            return False
    return isinstance(_bare(node), inspect.StrType | inspect.LiteralType)


@functools.cache
def _type_info(type_: type[msgspec.Struct]) -> inspect.Type:
    # To inspect a type takes twenty times as long as to decode a table.
    return inspect.type_info(type_)


def _bare(node: inspect.Type) -> inspect.Type:
    """Return the type without metadata and ``| None``."""
    if isinstance(node, inspect.Metadata):
        return _bare(node.type)
    if isinstance(node, inspect.UnionType):
        members = [member for member in node.types if not isinstance(member, inspect.NoneType)]
        if len(members) == 1:
            return _bare(members[0])
    return node


def _extra(node: inspect.Type) -> dict[str, Any]:
    """Return the merged ``extra`` of the type's Metas, and of a union's members."""
    if isinstance(node, inspect.Metadata):
        return {**_extra(node.type), **(node.extra or {})}
    if isinstance(node, inspect.UnionType):
        return {name: value for member in node.types for name, value in _extra(member).items()}
    return {}


@dataclass(frozen=True)
class _Reader:
    """Prepares one table for msgspec."""

    root: inspect.StructType
    at: Path

    def prepare(self, value: Any, node: inspect.Type, path: Path) -> Any:
        """Return the value with quantities parsed; refuse what msgspec would accept."""
        extra = _extra(node)
        word = extra.get("word")
        if word is not None and value == word:
            return None
        if isinstance(value, float) and not math.isfinite(value):
            raise FieldError(path, f"expected a finite number, got {value}")
        if "quantity" in extra:
            return _quantity(value, extra["quantity"], word, path)
        node = _bare(node)
        if isinstance(node, inspect.StructType) and isinstance(value, Mapping):
            fields = {field.encode_name: field.type for field in node.fields}
            unknown = [name for name in value if name not in fields and name != node.tag_field]
            if unknown:
                advice = self.nearest(unknown[0], path, list(fields))
                raise FieldError((*path, unknown[0]), f"unknown field; {advice}")
            return {
                name: self.prepare(item, fields[name], (*path, name)) if name in fields else item
                for name, item in value.items()
            }
        if isinstance(node, inspect.DictType) and isinstance(value, Mapping):
            return {name: self.prepare(item, node.value_type, (*path, name)) for name, item in value.items()}
        if isinstance(node, inspect.ListType | inspect.VarTupleType) and isinstance(value, list | tuple):
            return [self.prepare(item, node.item_type, (*path, i)) for i, item in enumerate(value)]
        choices = _choices(node)
        if choices and isinstance(value, str) and value not in choices:
            listed = ", ".join(f'"{choice}"' for choice in choices)
            raise FieldError(path, f"expected one of {listed}; got {_found(value, path)}")
        return value

    def nearest(self, name: str, path: Path, siblings: Sequence[str]) -> str:
        """Return advice for an unknown name: a similar sibling, a field elsewhere, or the whole list."""
        elsewhere = {inner[-1]: (*self.at, *inner) for inner in _field_paths(self.root)}
        near = difflib.get_close_matches(name, siblings, n=1)
        far = difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.8)
        if name in elsewhere or (far and not near):
            return f"did you mean {show_path(elsewhere[far[0]])}?"
        if near:
            return f"did you mean {show_path((*path, near[0]))}?"
        return f"the fields here are {', '.join(siblings)}" if siblings else "no field is known here"


def _quantity(value: Any, quantity: str, word: str | None, path: Path) -> Any:
    parse, expected = _QUANTITIES[quantity]
    if isinstance(value, str):
        try:
            return parse(value)
        except ValueError as error:
            hint = f'; or write "{word}"' if word else ""
            raise FieldError(path, f"{error}{hint}") from None
    if isinstance(value, bool) or not (value is None or isinstance(value, int | float)):
        raise FieldError(path, f"expected {expected}, got {_found(value, path)}")
    return value


def _choices(node: inspect.Type) -> tuple[str, ...]:
    """Return the strings that a Literal or an Enum allows; empty for other types."""
    if isinstance(node, inspect.LiteralType):
        return tuple(str(value) for value in node.values)
    if isinstance(node, inspect.EnumType):
        return tuple(str(member.value) for member in node.cls)
    return ()


def _field_paths(node: inspect.Type, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every field below a struct type, the deepest first."""
    bare = _bare(node)
    if isinstance(bare, inspect.StructType):
        for field in bare.fields:
            yield from _field_paths(field.type, (*path, field.encode_name))
    if path:
        yield path


def _field_error(message: str, raw: Any, at: Path) -> FieldError:
    """Return msgspec's error in terms of the job file."""
    match = _AT.fullmatch(message)
    text, where = (match[1], match[2]) if match else (message, "")
    missing = re.fullmatch(r"Object missing required field `(.*)`", text)
    got = re.search(r", got `(\w+)`$", text)
    steps = [a or b for a, b in _STEP.findall(where)]
    path, value = _follow(raw, steps, got[1] if got else "", missing[1] if missing else "")
    path = (*at, *path)
    if missing:
        return FieldError((*path, missing[1]), "missing; it has no default")
    expected = re.match(r"Expected `([^`]*)`( (?:>|<|>=|<=) \S+)?", text)
    if expected:
        names = [name for name in expected[1].split(" | ") if name != "null"]
        wanted = " or ".join(_NAMES.get(name, name) for name in names)
        bound = re.sub(r"\.0$", "", expected[2] or "")
        return FieldError(path, f"expected {wanted}{bound}, got {_found(value, path)}")
    return FieldError(path, f"{text[:1].lower()}{text[1:]}")


def _follow(raw: Any, steps: Sequence[str], got: str, missing: str) -> tuple[Path, Any]:
    """Return the path and the value at msgspec's steps, where ``...`` stands for any key of a table.

    The key is the first whose item is of the type that was ``got``, or lacks the field that is ``missing``.
    """

    def is_it(item: Any, following: Sequence[str]) -> bool:
        for step in following:
            if not isinstance(item, Mapping) or step not in item:
                return False
            item = item[step]
        return isinstance(item, Mapping) and missing not in item if missing else _kind(item) == got

    path: list[str | int] = []
    value = raw
    for i, step in enumerate(steps):
        if step == "..." and isinstance(value, Mapping):
            key = next((key for key, item in value.items() if is_it(item, steps[i + 1 :])), None)
            if key is None and i < len(steps) - 1:
                key = next(iter(value), None)
            if key is None:
                break
            path.append(key)
            value = value[key]
        elif step.isdigit() and isinstance(value, list | tuple):
            path.append(int(step))
            value = value[int(step)]
        elif isinstance(value, Mapping) and step in value:
            path.append(step)
            value = value[step]
        else:
            break
    return tuple(path), value


def _kind(value: Any) -> str:
    """Return msgspec's name of the value's type."""
    if isinstance(value, Mapping):
        return "object"
    if isinstance(value, list | tuple):
        return "array"
    return type(value).__name__


def _found(value: Any, path: Path) -> str:
    """Return what was found as the user wrote it, unless it may be a credential."""
    kind = _kind(value)
    hidden = "env" in path or any(isinstance(step, str) and CREDENTIAL_NAME.fullmatch(step) for step in path)
    if kind in ("array", "object") or hidden:
        return _NAMES.get(kind, kind)
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
