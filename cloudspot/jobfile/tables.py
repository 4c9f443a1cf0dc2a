"""Convert a raw TOML table to a typed struct; errors name the path and the nearest field."""

from __future__ import annotations

import difflib
import functools
import math
import operator
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
"""The names of fields and variables that likely contain a credential; their values are never shown."""

_QUANTITIES: Final[Mapping[str, tuple[Callable[[str], float | int], str]]] = {
    "duration": (parse_duration, 'a duration such as "10m" or a number of seconds'),
    "size": (parse_size, 'a size such as "50GiB" or a number of bytes'),
}
_LISTS: Final = (inspect.ListType, inspect.VarTupleType)
_KINDS: Final[Mapping[type[inspect.Type], tuple[tuple[type, ...], str]]] = {
    inspect.StrType: ((str,), "a string"),
    inspect.BoolType: ((bool,), "true or false"),
    inspect.IntType: ((int,), "an integer"),
    inspect.FloatType: ((float, int), "a number"),
    inspect.ListType: ((list, tuple), "a list"),
    inspect.VarTupleType: ((list, tuple), "a list"),
    inspect.DictType: ((Mapping,), "a table"),
    inspect.StructType: ((Mapping,), "a table"),
}
"""The Python types and the words for each type; a value is described by the first match."""
_BOUNDS: Final = {
    "gt": (operator.gt, ">"),
    "ge": (operator.ge, ">="),
    "lt": (operator.lt, "<"),
    "le": (operator.le, "<="),
}
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class FieldError(SpecError):
    """A field is invalid; the message begins with the field's path."""

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
            key = step if _BARE_KEY.fullmatch(step) else f'"{step}"'
            text += f".{key}" if text else key
    return text


def convert(raw: Mapping[str, Any], type_: type[T], *, at: Path = ()) -> T:
    """Convert the table ``raw`` to a ``type_``; ``at`` is the table's path in the file.

    Unknown fields are refused at every depth, even if the struct allows them. The types and spellings of
    :mod:`cloudspot.jobfile.quantities` are supported.

    Raises:
        FieldError: a field is unknown, missing or of the wrong type or value.
    """
    info = _type_info(type_)
    assert isinstance(info, inspect.StructType)
    converted: T = _Reader(info, at).read(raw, info, at)
    return converted


def expects_text(type_: type[msgspec.Struct], path: Sequence[str], value: Any) -> bool:
    """Return whether the field at ``path`` accepts strings, but not ``value``."""
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
    node = _bare(node)
    members = node.types if isinstance(node, inspect.UnionType) else (node,)
    takes_text = any(isinstance(_bare(one), inspect.StrType | inspect.LiteralType) for one in members)
    return takes_text and not _is_of_type(value, node)


@functools.cache
def _type_info(type_: type[msgspec.Struct]) -> inspect.Type:
    # Inspecting a type takes twenty times as long as decoding a table.
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
    root: inspect.StructType
    at: Path

    def read(self, value: Any, node: inspect.Type, path: Path) -> Any:
        """Return the value in the form that msgspec accepts, with structs converted and quantities parsed."""
        extra = _extra(node)
        word = extra.get("word")
        if value is None or (word is not None and value == word):
            if not _takes_none(node):
                raise _wrong_type(value, node, path)
            return None
        if isinstance(value, float) and not math.isfinite(value):
            raise FieldError(path, f"expected a finite number, got {value}")
        node = _bare(node)
        if "quantity" in extra:
            value = _quantity(value, extra["quantity"], word, path)
        if not _is_of_type(value, node):
            raise _wrong_type(value, node, path)
        if isinstance(node, inspect.UnionType):
            return self.read(value, next(one for one in node.types if _is_of_type(value, _bare(one))), path)
        if isinstance(node, inspect.StrType) and node.pattern and not re.fullmatch(node.pattern, value):
            wrong = extra["wrong"](value) if "wrong" in extra else f"does not match {node.pattern}"
            raise FieldError(path, wrong)
        for name, (holds, sign) in _BOUNDS.items():
            bound = getattr(node, name, None)
            if bound is not None and not holds(value, bound):
                raise FieldError(
                    path, f"expected {_describe_type(node)} {sign} {bound:.15g}, got {_found(value, path)}"
                )
        if isinstance(node, inspect.StructType):
            return self._read_struct(value, node, path)
        if isinstance(node, inspect.DictType):
            if node.max_length is not None and len(value) > node.max_length:
                raise FieldError(path, f"at most {node.max_length} are possible, got {len(value)}")
            return {
                self.read(name, node.key_type, path): self.read(item, node.value_type, (*path, name))
                for name, item in value.items()
            }
        if isinstance(node, _LISTS):
            if "once" in extra and (twice := [one for i, one in enumerate(value) if one in value[:i]]):
                raise FieldError(path, f"names {twice[0]} twice")
            return [self.read(item, node.item_type, (*path, i)) for i, item in enumerate(value)]
        return value

    def _read_struct(self, value: Mapping[str, Any], node: inspect.StructType, path: Path) -> Any:
        fields = {field.encode_name: field for field in node.fields}
        read: dict[str, Any] = {}
        for name, item in value.items():
            if name in fields:
                read[name] = self.read(item, fields[name].type, (*path, name))
            elif name != node.tag_field:
                advice = self.nearest(name, path, list(fields))
                raise FieldError((*path, name), f"unknown field; {advice}")
        for name, field in fields.items():
            if field.required and name not in read:
                raise FieldError((*path, name), "missing; it has no default")
        try:
            table = decoding.convert(read, node.cls)
        except msgspec.ValidationError as error:  # raised by the struct's own check
            text = str(error)
            raise FieldError(path, f"{text[:1].lower()}{text[1:]}") from None
        for rule in getattr(node.cls, "rules", ()):
            problem = rule.problem(table, show_path(path))
            if problem is not None:
                raise FieldError((*path, problem[0]) if problem[0] else path, problem[1])
        return table

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


def _takes_none(node: inspect.Type) -> bool:
    if isinstance(node, inspect.Metadata):
        return _takes_none(node.type)
    if isinstance(node, inspect.UnionType):
        return any(map(_takes_none, node.types))
    return isinstance(node, inspect.NoneType | inspect.AnyType)


def _is_of_type(value: Any, node: inspect.Type) -> bool:
    """Return whether a value other than None is valid for a field of the type."""
    if isinstance(node, inspect.UnionType):
        return any(_is_of_type(value, _bare(member)) for member in node.types)
    if isinstance(node, inspect.NoneType):
        return False
    if choices := _choices(node):
        return isinstance(value, str) and value in choices
    kinds, _ = _KINDS.get(type(node), ((object,), ""))
    return isinstance(value, kinds) and (not isinstance(value, bool) or kinds in ((bool,), (object,)))


def _wrong_type(value: Any, node: inspect.Type, path: Path) -> FieldError:
    choices = _choices(_bare(node))
    if choices and isinstance(value, str):
        listed = ", ".join(f'"{choice}"' for choice in choices)
        return FieldError(path, f"expected one of {listed}; got {_found(value, path)}")
    return FieldError(path, f"expected {_describe_type(node)}, got {_found(value, path)}")


def _describe_type(node: inspect.Type) -> str:
    """Return the words that describe a type in messages."""
    node = _bare(node)
    if isinstance(node, inspect.UnionType):
        members = [member for member in node.types if not isinstance(member, inspect.NoneType)]
        return " or ".join(dict.fromkeys(map(_describe_type, members)))
    return "a string" if _choices(node) else _KINDS.get(type(node), ((), type(node).__name__))[1]


def _field_paths(node: inspect.Type, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every field below a struct type, the deepest first."""
    bare = _bare(node)
    if isinstance(bare, inspect.StructType):
        for field in bare.fields:
            yield from _field_paths(field.type, (*path, field.encode_name))
    if path:
        yield path


def _found(value: Any, path: Path) -> str:
    """Return the value as the user wrote it, or only its type if it may be a credential."""
    hidden = "env" in path or any(isinstance(step, str) and CREDENTIAL_NAME.fullmatch(step) for step in path)
    if hidden or isinstance(value, Mapping | list | tuple):
        descriptions = (description for kinds, description in _KINDS.values() if isinstance(value, kinds))
        return next(descriptions, type(value).__name__)
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
