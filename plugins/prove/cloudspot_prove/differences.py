"""Finds how recorded answers differ from other answers to the same requests; does no I/O."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from cloudspot_prove.masking import BYTES, MARK, NUMBER, TIME
from cloudspot_prove.recording import Exchange

Kind = Literal["field", "order", "code", "delay"]
STATE_FIELDS: Final = ("State", "Status", "status", "phase")
"""The fields that hold an object's state, on which its other fields depend."""
SLOW_SECONDS: Final = 20.0
SLOW_FACTOR: Final = 10.0
"""An operation is slow if even its fastest answer takes longer than elsewhere by both of these amounts."""
IDENTITY_FIELDS: Final = frozenset({"InstanceId", "name", "uid"})
"""The fields that identify a listed object. Other names, such as a role's, belong to several objects and come
and go with their states."""
NEW: Final = "what is new"
LATE_SECONDS: Final = 1.0
"""An object is late if a listing shows it later than elsewhere by this time."""


class Difference(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One way in which the answers of two clouds differ."""

    kind: Kind
    action: str
    where: str
    """The path of the field, the list or the parameter."""
    text: str
    """The cloud's answer, followed by the other one's."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded exchange, and the answer to the same request elsewhere, which is masked as well."""

    recorded: Exchange
    status: int
    code: str
    answer: Any
    seconds: float
    is_same_request: bool
    """Whether the answer depends on no value of the request that had to be invented."""
    names: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The other recording's pseudonym for each of this one's, as far as it is known."""


Fields = dict[tuple[str, str, str], dict[str, set[str]]]
"""By action, path and state of an object: its fields, each with the kinds of its values."""


def find_differences(pairs: Sequence[Pair]) -> list[Difference]:
    """Return how the recorded answers differ, each difference once.

    An answer is ignored if the request contained an invented value on which the answer depends.
    """
    pairs = [one for one in pairs if one.is_same_request]
    found: dict[tuple[str, str, str], Difference] = {}

    def add(one: Difference) -> None:
        found.setdefault((one.kind, one.action, one.where), one)

    ours, others = _fields(pairs, recorded=True), _fields(pairs, recorded=False)
    for place in sorted(ours.keys() & others.keys()):
        for one in _field_differences(place, ours[place], others[place]):
            add(one)
    for pair in pairs:
        for one in (*_code_differences(pair), *_order_differences(pair)):
            add(one)
    for one in (*_slow_operations(pairs), *_late_objects(pairs)):
        add(one)
    return sorted(found.values())


def _fields(pairs: Sequence[Pair], *, recorded: bool) -> Fields:
    found: Fields = defaultdict(lambda: defaultdict(set))
    for pair in pairs:
        code, answer = (pair.recorded.code, pair.recorded.answer) if recorded else (pair.code, pair.answer)
        if not code:
            for path, value in _objects(answer, ""):
                place = (pair.recorded.action, path, _state_of(value))
                for name, one in value.items():
                    found[place][_plain(name)].add(_kind_of(one))
                found[place][""].add("object")
    return found


def _objects(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        yield path, value
        for name, one in value.items():
            yield from _objects(one, f"{path}.{_plain(name)}" if path else _plain(name))
    elif isinstance(value, list):
        for one in value:
            yield from _objects(one, f"{path}[]")


def _plain(name: str) -> str:
    """Return a field's name; all masked names become the same."""
    return MARK if name.startswith(MARK) else name


def _state_of(value: Mapping[str, Any]) -> str:
    for name in STATE_FIELDS:
        state = value.get(name)
        if isinstance(state, Mapping):
            state = state.get("Name", state.get("phase"))
        if isinstance(state, str):
            return state
    return ""


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)) or value == NUMBER:
        return "number"
    if isinstance(value, str):
        return {TIME: "time", BYTES: "bytes"}.get(value, "text")
    return "list" if isinstance(value, list) else "object"


def _field_differences(
    place: tuple[str, str, str], ours: Mapping[str, set[str]], others: Mapping[str, set[str]]
) -> Iterator[Difference]:
    action, path, state = place
    of_state = f" ({state})" if state and not state.startswith(MARK) else ""
    for name in sorted(ours.keys() ^ others.keys()):
        text = "there, and missing" if name in ours else "missing, and there"
        yield Difference(
            kind="field", action=action, where=f"{path}.{name}".lstrip("."), text=text + of_state
        )
    for name in sorted(ours.keys() & others.keys()):
        here, there = ours[name] - {"null"}, others[name] - {"null"}
        # An empty text may be written in place of a time that is missing.
        if here and there and not here & there and not {*here, *there} <= {"text", "time"}:
            text = f"{' or '.join(sorted(here))}, and {' or '.join(sorted(there))}"
            yield Difference(kind="field", action=action, where=f"{path}.{name}".lstrip("."), text=text)


def _code_differences(pair: Pair) -> Iterator[Difference]:
    recorded = pair.recorded
    if (recorded.status, recorded.code) != (pair.status, pair.code):
        text = f"{recorded.status} {recorded.code}".strip(), f"{pair.status} {pair.code}".strip()
        yield Difference(kind="code", action=recorded.action, where=text[0], text=f"{text[0]}, and {text[1]}")


def _order_differences(pair: Pair) -> Iterator[Difference]:
    if pair.recorded.code or pair.code:
        return
    for path, ours, others in _lists(pair.recorded.answer, pair.answer, ""):
        here = [shown_part(one, pair.names) for one in ours]
        there = [shown_part(one, {}) for one in others]
        is_telling = len(set(here)) == len(here) > 1
        if is_telling and here != there and sorted(here) == sorted(there):
            yield Difference(
                kind="order", action=pair.recorded.action, where=path, text="the same items in another order"
            )


def _lists(ours: Any, others: Any, path: str) -> Iterator[tuple[str, list[Any], list[Any]]]:
    if isinstance(ours, list) and isinstance(others, list):
        yield path, ours, others
        for one, other in zip(ours, others, strict=False):
            yield from _lists(one, other, f"{path}[]")
    elif isinstance(ours, Mapping) and isinstance(others, Mapping):
        for name in ours.keys() & others.keys():
            yield from _lists(ours[name], others[name], f"{path}.{name}" if path else name)


def shown_part(value: Any, names: Mapping[str, str]) -> str:
    """Return the visible content of an item, by which it is distinguished, with the names that are known."""

    def plain(one: Any) -> Any:
        if isinstance(one, Mapping):
            kept = {name: plain(inner) for name, inner in one.items()}
            return {name: inner for name, inner in kept.items() if inner is not None}
        if isinstance(one, list):
            return [plain(inner) for inner in one]
        if isinstance(one, str) and one.startswith(MARK):
            return names.get(one)
        return one if isinstance(one, (str, int, float)) and not isinstance(one, bool) else None

    return json.dumps(plain(value), sort_keys=True)


def _slow_operations(pairs: Sequence[Pair]) -> Iterator[Difference]:
    quickest: dict[str, tuple[float, float]] = {}
    for pair in pairs:
        ours, others = quickest.get(pair.recorded.action, (pair.recorded.seconds, pair.seconds))
        quickest[pair.recorded.action] = min(ours, pair.recorded.seconds), min(others, pair.seconds)
    for action, (ours, others) in quickest.items():
        if ours > SLOW_SECONDS + others and ours > SLOW_FACTOR * others:
            text = f"it took {ours:.1f} s at the least, and {others:.1f} s"
            yield Difference(kind="delay", action=action, where="the answer", text=text)


def _late_objects(pairs: Sequence[Pair]) -> Iterator[Difference]:
    """Yield the listings that show a new object, named by an earlier answer, later than elsewhere."""
    absent: dict[tuple[str, str, str], float] = {}
    latest: dict[str, float] = {}
    for pair in pairs:
        if pair.recorded.code or pair.code:
            continue
        request = json.dumps(pair.recorded.request, sort_keys=True)
        ours, others = set(_identities_in(pair.recorded.answer)), set(_identities_in(pair.answer))
        for name, other in pair.names.items():
            key = (pair.recorded.action, request, name)
            if name not in ours and other in others:
                absent.setdefault(key, pair.recorded.at)
            elif name in ours and key in absent:
                late = pair.recorded.at - absent.pop(key)
                latest[key[0]] = max(late, latest.get(key[0], 0.0))
    for action, late in latest.items():
        if late > LATE_SECONDS:
            text = f"it showed {late:.0f} s later, and at once"
            yield Difference(kind="delay", action=action, where=NEW, text=text)


def _identities_in(value: Any, field: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _identities_in(one, name)
    elif isinstance(value, list):
        for one in value:
            yield from _identities_in(one, field)
    elif field in IDENTITY_FIELDS:
        yield from names_in(value)


def names_in(value: Any) -> Iterator[str]:
    """Yield the pseudonyms in an answer."""
    if isinstance(value, str):
        if value.startswith(MARK):
            yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from names_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from names_in(one)
