"""Strategies for values that a bucket's writer may put where a record is expected, made from the records' types."""

import json

from hypothesis import strategies as st
from msgspec import inspect

from cloudspot.decoding import Metrics

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202eevil\u2066\b\b\r\x7f\x85"
"""Text that tries whatever a terminal obeys."""
TEXTS = ["", "x", HOSTILE, "../../x", "/etc/passwd", "a\0b", "%2e%2e%2f", "9" * 40, "x" * 5000, "🙂\n\tb"]
MOMENTS = ["1970-01-01T00:00:00Z", "2199-12-31T23:59:59.999999Z", "2026-11-20T06:00:00+14:00"]

nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3),
    max_leaves=6,
)
wrong = (
    nested
    | st.sampled_from(
        [-1, 0, 1 << 31, 1 << 63, 10**30, -(10**30), 1e300, -0.5, "NaN", "Infinity", "-inf", "7"]
    )
    | st.sampled_from(
        ["2026-11-20T06:00:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", 1e9, "today"]
    )
)
"""Values of no type in particular."""


def fitting(info: inspect.Type) -> st.SearchStrategy:
    """Return JSON values that the type lets through, with a preference for its bounds."""
    match info:
        case inspect.IntType():
            low = info.ge if info.ge is not None else info.gt + 1 if info.gt is not None else -(1 << 62)
            high = info.le if info.le is not None else info.lt - 1 if info.lt is not None else 1 << 62
            return (
                st.sampled_from([low, high]) | st.integers(low, min(high, low + 5)) | st.integers(low, high)
            )
        case inspect.FloatType():
            low = -1e300 if info.ge is None else info.ge
            high = 1e300 if info.le is None else info.le
            return st.sampled_from([low, high]) | st.floats(low, high)
        case inspect.CustomType() if info.cls is Metrics:
            values = st.sampled_from(["nan", "inf", "-inf"]) | st.floats(-1e300, 1e300)
            return st.dictionaries(st.sampled_from(TEXTS), values, max_size=3)
        case inspect.StrType():
            return st.sampled_from(TEXTS) | st.text(max_size=10)
        case inspect.DateTimeType():
            return st.sampled_from(MOMENTS)
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.EnumType():
            return st.sampled_from([one.value for one in info.cls])
        case inspect.UnionType():
            return st.one_of([fitting(one) for one in info.types])
        case inspect.VarTupleType() | inspect.ListType():
            return st.lists(fitting(info.item_type), max_size=3)
        case inspect.NamedTupleType():
            return st.tuples(*(fitting(field.type) for field in info.fields)).map(list)
        case inspect.DictType():
            return st.dictionaries(fitting(info.key_type), fitting(info.value_type), max_size=3)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.StructType():
            tag = {} if info.tag_field is None else {info.tag_field: st.just(info.tag)}
            return st.fixed_dictionaries(
                {**tag, **{field.encode_name: fitting(field.type) for field in info.fields}}
            )
    return nested


@st.composite
def odd_values(draw, healthy: object, record_type: object) -> object:
    """Return a record's value with some of its fields odd: out of place, or at the bounds of their types."""
    info = inspect.type_info(record_type)
    found = draw(fitting(info)) if healthy is None or draw(st.integers(0, 9)) == 0 else healthy
    for _ in range(draw(st.integers(1, 3))):
        found = draw(_changed(found, info))
    return found


@st.composite
def _changed(draw, value: object, info: inspect.Type) -> object:
    """Return the value with one of the values in it changed."""
    if isinstance(info, inspect.UnionType):
        if isinstance(value, dict):
            tagged = [one for one in info.types if isinstance(one, inspect.StructType)]
            info = next(
                (one for one in tagged if one.tag == value.get(one.tag_field)), tagged[0] if tagged else info
            )
        elif isinstance(value, list):
            kinds = (inspect.VarTupleType, inspect.NamedTupleType)
            info = next((one for one in info.types if isinstance(one, kinds)), info)
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        name = draw(st.sampled_from(sorted(value)))
        fields = (
            {one.encode_name: one.type for one in info.fields} if isinstance(info, inspect.StructType) else {}
        )
        if draw(st.integers(0, 19)) == 0:
            return {key: one for key, one in value.items() if key != name}
        below = fields.get(name, getattr(info, "value_type", inspect.AnyType()))
        return {**value, name: draw(_changed(value[name], below))}
    if isinstance(value, list) and value and draw(st.integers(0, 9)):
        place = draw(st.integers(0, len(value) - 1))
        if isinstance(info, inspect.NamedTupleType) and place < len(info.fields):
            below = info.fields[place].type
        else:
            below = getattr(info, "item_type", inspect.AnyType())
        return [*value[:place], draw(_changed(value[place], below)), *value[place + 1 :]]
    return draw(fitting(info) | wrong)


@st.composite
def odd_bytes(draw, healthy: bytes, record_type: object) -> bytes:
    """Return what may stand in the place of a record: odd values, other encodings, or no JSON at all."""
    kind = draw(st.integers(0, 11))
    if kind == 0:
        return healthy[: draw(st.integers(0, max(0, len(healthy) - 1)))]
    if kind == 1:
        return draw(
            st.sampled_from(
                [b"", b"\0", b"\xff\xfe", b"null", b"[]", b"{}", b'"x"', b"{" * 5000, b"[" * 200_000]
            )
            | st.binary(max_size=50)
        )
    value = draw(odd_values(None if not healthy else json.loads(healthy), record_type))
    text = json.dumps(value)
    if kind == 2:
        return text.encode(draw(st.sampled_from(["utf-8-sig", "utf-16", "utf-32"])))
    return text.encode()


def with_hostile_text(value: object, info: inspect.Type, *, kept: frozenset[str]) -> object:
    """Return a record's value with ``HOSTILE`` behind each text that its type leaves free.

    What was equal before is equal afterwards, so ids still match. Fields named in ``kept`` are left alone.
    """
    if isinstance(info, inspect.UnionType):
        structs = [one for one in info.types if isinstance(one, inspect.StructType)]
        if isinstance(value, dict) and structs:
            info = next((one for one in structs if one.tag == value.get(one.tag_field)), structs[0])
        else:
            info = next((one for one in info.types if _is_for(value, one)), info)
    match info:
        case inspect.StrType(pattern=None) if isinstance(value, str):
            return value + HOSTILE
        case inspect.StructType():
            types = {one.encode_name: one.type for one in info.fields if one.encode_name not in kept}
            return {
                name: with_hostile_text(inner, types[name], kept=kept) if name in types else inner
                for name, inner in value.items()
            }
        case inspect.VarTupleType():
            return [with_hostile_text(inner, info.item_type, kept=kept) for inner in value]
        case inspect.DictType():
            return {
                with_hostile_text(key, info.key_type, kept=kept): with_hostile_text(
                    inner, info.value_type, kept=kept
                )
                for key, inner in value.items()
            }
    return value


def _is_for(value: object, info: inspect.Type) -> bool:
    kinds = {str: inspect.StrType, list: inspect.VarTupleType, dict: inspect.DictType}
    return isinstance(info, kinds.get(type(value), inspect.NoneType))
