"""The base of all kits: tests that cannot be overridden, and declared deviations."""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import pytest

from cloudspot.errors import CloudspotError

_BROKEN = (AssertionError, CloudspotError, NotImplementedError, pytest.fail.Exception)
"""The errors that mean a broken promise. Any other error is a mistake in the tests, which no deviation may
hide."""


class Kit:
    """The base of the kits. A subclass provides the fixtures and inherits the tests.

    A test of a kit cannot be overridden. If a provider does not keep a promise, declare this with the reason;
    the test then becomes an expected failure, which fails if it passes. A test with cases is declared case by
    case, or by its name alone if no case passes::

        class TestMine(ProvisionerTests):
            deviations = {
                "test_a_reclaimed_machine_says_so": "the cloud does not report why a machine ended",
                "test_a_listing_that_fails_tells_nothing[denied]": "the cloud returns an empty listing",
            }
    """

    deviations: ClassVar[Mapping[str, str]] = {}
    """Why this provider does not keep a promise, by the name of the test or its case."""
    left_out: ClassVar[Mapping[str, str]] = {}
    """Why a test is skipped here, by the same names, for example because another class runs it."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Mark the deviations and the tests that are left out.

        Raises:
            TypeError: the subclass overrides a test of a kit, or names a test that does not exist.
        """
        super().__init_subclass__(**arguments)
        promises = {name: _cases_of(test) for base in cls.__mro__[1:] for name, test in _tests_of(base)}
        overridden = sorted(promises.keys() & vars(cls).keys())
        if overridden and not _is_kit(cls):
            raise TypeError(
                f"{cls.__name__} overrides {overridden[0]}: declare it in deviations, with the reason"
            )
        deviates = partial(pytest.mark.xfail, strict=True, raises=_BROKEN)
        marks: dict[str, dict[str, pytest.MarkDecorator]] = {}
        for attribute, mark in (("deviations", deviates), ("left_out", pytest.mark.skip)):
            for name, reason in vars(cls).get(attribute, {}).items():
                test, _, case = name.removesuffix("]").partition("[")
                if test not in promises or (case and case not in promises[test]) or not reason:
                    raise TypeError(
                        f"{cls.__name__}.{attribute}: {name!r} is not a test of this kit, or has no reason"
                    )
                marks.setdefault(test, {})[case] = mark(reason=reason)
        for test, by_case in marks.items():
            setattr(cls, test, _marked_copy(getattr(cls, test), by_case))


def cases(names: str, table: Mapping[str, object]) -> pytest.MarkDecorator:
    """Return the marker of a kit's test that runs once for each case; a deviation may name a case."""
    wanted = [value if isinstance(value, tuple) else (value,) for value in table.values()]
    return pytest.mark.parametrize(
        names, [pytest.param(*values, id=name) for name, values in zip(table, wanted, strict=True)]
    )


def promises_of(kit: type[Any]) -> list[str]:
    """Return the names of the kit's own tests, with ``test[case]`` for each case of a test with cases."""
    return [
        f"{name}[{case}]" if case else name
        for name, test in _tests_of(kit)
        for case in _cases_of(test) or [""]
    ]


def promise_of(item: pytest.Function) -> str:
    """Return the name of a test as in ``promises_of``, without other parameters of its fixtures."""
    for mark in item.iter_markers("parametrize"):
        names = [one.strip() for one in mark.args[0].split(",")]
        given = tuple(item.callspec.params.get(name) for name in names)
        for case in mark.args[1]:
            if case.values == given:
                return f"{item.originalname}[{case.id}]"
    return item.originalname


def _is_kit(cls: type[Any]) -> bool:
    return cls.__module__.startswith("cloudspot.testing.")


def _tests_of(cls: type[Any]) -> list[tuple[str, Callable[..., None]]]:
    return [(name, test) for name, test in vars(cls).items() if name.startswith("test_") and _is_kit(cls)]


def _cases_of(test: Callable[..., None]) -> list[str]:
    """Return the names of the test's cases, if it has any."""
    marks = (mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize")
    return [str(case.id) for mark in marks for case in mark.args[1]]


def _marked_copy(test: Callable[..., None], marks: Mapping[str, pytest.MarkDecorator]) -> Callable[..., None]:
    """Return a copy of the test with these markers, by case ("" for the whole test)."""

    @functools.wraps(test)
    def copy(*arguments: Any, **options: Any) -> None:
        test(*arguments, **options)

    def marked(mark: pytest.Mark) -> pytest.Mark:
        if mark.name != "parametrize":
            return mark
        table = [
            pytest.param(*one.values, id=one.id, marks=(*one.marks, marks[one.id]))
            if one.id in marks
            else one
            for one in mark.args[1]
        ]
        return pytest.mark.parametrize(mark.args[0], table).mark

    whole = [marks[""].mark] if "" in marks else []
    copy.pytestmark = [*map(marked, getattr(test, "pytestmark", ())), *whole]  # type: ignore[attr-defined]
    return copy


def wait_until(condition: Callable[[], object], what: str, *, seconds: float) -> None:
    """Return when the condition holds; fail the test if it does not in time, nor in one more attempt."""
    end, is_over = time.monotonic() + seconds, False
    while not condition():
        if is_over:
            pytest.fail(f"after {seconds:g} s still not so: {what}")
        is_over = time.monotonic() > end
        time.sleep(0.05)


@contextmanager
def no_network() -> Iterator[None]:
    """Fail the test if any code opens a connection within the block.

    Threads that were already running, such as an abandoned call of an earlier test, do not count.
    """
    others = {one.ident for one in threading.enumerate()} - {threading.get_ident()}
    attempts: list[object] = []

    def connect(_self: socket.socket, address: object) -> None:
        if threading.get_ident() not in others:
            attempts.append(address)
        raise OSError("a kit forbids connections here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        patch.setattr(socket.socket, "connect_ex", connect)
        yield
    assert attempts == [], "it opened a connection"
