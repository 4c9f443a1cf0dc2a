"""What all kits of promises share: tests that nobody overrides unseen, and deviations that are declared."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import pytest

from cloudspot.errors import CloudspotError

_BROKEN = (AssertionError, CloudspotError, NotImplementedError, pytest.fail.Exception)
"""What a broken promise shows as. Anything else is a mistake in the tests, which no deviation may hide."""


class Kit:
    """The base of the kits. A subclass brings the fixtures, and inherits the tests.

    A test of a kit cannot be overridden. What a provider does not do is declared with its reason, and shows
    as an expected failure; if the test passes after all, it fails::

        class TestMine(ProvisionerTests):
            deviations = {"test_a_reclaimed_machine_says_so": "the cloud does not tell why a machine ended"}
    """

    deviations: ClassVar[Mapping[str, str]] = {}
    """By the name of the test: why this provider breaks the promise."""
    left_out: ClassVar[Mapping[str, str]] = {}
    """By the name of the test: why it is not run here, such as that another class runs it; it is skipped."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Mark what deviates and what is left out.

        Raises:
            TypeError: the subclass overrides a test of a kit, or names one that is not there.
        """
        super().__init_subclass__(**arguments)
        promises = {
            name
            for base in cls.__mro__[1:]
            if base.__module__.startswith("cloudspot.testing.")
            for name in vars(base)
            if name.startswith("test_")
        }
        overridden = sorted(promises & vars(cls).keys())
        if overridden and not cls.__module__.startswith("cloudspot.testing."):
            raise TypeError(
                f"{cls.__name__} overrides {overridden[0]}: declare it in deviations, with the reason"
            )
        deviates = partial(pytest.mark.xfail, strict=True, raises=_BROKEN)
        for attribute, mark in (("deviations", deviates), ("left_out", pytest.mark.skip)):
            for name, reason in vars(cls).get(attribute, {}).items():
                if name not in promises or not reason:
                    raise TypeError(
                        f"{cls.__name__}.{attribute}: {name!r} is no test of this kit, or has no reason"
                    )
                setattr(cls, name, mark(reason=reason)(_copy(getattr(cls, name))))


def _copy(test: Callable[..., None]) -> Callable[..., None]:
    """Return a function that a mark can be put on without marking the kit's own."""

    @functools.wraps(test)
    def copy(*arguments: Any, **options: Any) -> None:
        test(*arguments, **options)

    copy.pytestmark = list(getattr(test, "pytestmark", []))  # type: ignore[attr-defined]
    return copy


def wait_until(condition: Callable[[], object], what: str, *, seconds: float) -> None:
    """Return when the condition holds; fail the test if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"after {seconds:g} s still not so: {what}")
        time.sleep(0.05)


@contextmanager
def no_network() -> Iterator[None]:
    """Fail the test if anything connects to anywhere meanwhile."""
    attempts: list[object] = []

    def connect(_self: socket.socket, address: object) -> None:
        attempts.append(address)
        raise OSError("a kit forbids connections here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        patch.setattr(socket.socket, "connect_ex", connect)
        yield
    assert attempts == [], "it asked somebody"
