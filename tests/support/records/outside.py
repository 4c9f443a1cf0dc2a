"""The one promise about values from outside, and the bounds within which it is tested."""

import errno
import itertools
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cloudspot.errors import MAX_MESSAGE, CloudspotError, UnforeseenError

MEMORY_BYTES = 1 << 30
"""Address space that a whole run may take besides what the process had before."""
FILE_BYTES = 64 << 20
DISK_BYTES = 128 << 20
SOAK_SECONDS = float(os.environ.get("CLOUDSPOT_SOAK_OUTSIDE_SECONDS", "3600"))
SOAK_FIRST_SEED = int(os.environ.get("CLOUDSPOT_SOAK_OUTSIDE_SEED", "0"))

CALM = settings(
    database=None,
    deadline=None,
    phases=[Phase.generate],  # Shrinking takes minutes; the blob repeats what was found.
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
CI = settings(CALM, derandomize=True, max_examples=15)
SOAK = settings(CALM, max_examples=400)


class Entry(NamedTuple):
    """A place where values enter: its name, what may come, and the call that takes it."""

    name: str
    values: st.SearchStrategy
    call: Callable[..., Any]
    """With a value, and the place that the test has: a server, or a directory."""


def listed_for_pytest(entries: Iterable[Entry]) -> list[Any]:
    """Return the entries as a test's parameters."""
    return [pytest.param(entry, id=entry.name) for entry in entries]


def check(entry: Entry, place: Any, profile: Callable[[Any], Any]) -> None:
    """Try many values: each is accepted, or refused with one of cloudspot's errors, in a line."""

    def accept(value: Any) -> None:
        try:
            entry.call(value, place)
        except UnforeseenError:
            raise
        except CloudspotError as error:
            check_refusal(error)
        if isinstance(place, Path):
            assert sum(path.lstat().st_size for path in place.rglob("*")) <= DISK_BYTES

    profile(given(entry.values)(accept))()


def check_refusal(error: CloudspotError) -> None:
    """Fail if the error is not a short line, or hides that only the bounds of the test stopped the code."""
    text = str(error)
    assert text
    assert "\n" not in text
    assert len(text) <= MAX_MESSAGE, f"{len(text)} characters: {text[:200]}"
    cause: BaseException | None = error
    while cause is not None:
        assert not isinstance(cause, MemoryError)
        assert not (isinstance(cause, OSError) and cause.errno in {errno.EFBIG, errno.ENOMEM})
        cause = cause.__cause__ or cause.__context__


@contextmanager
def bounded() -> Iterator[None]:
    """Bound this process's memory and the size of a file: beyond that, MemoryError and OSError are raised."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + MEMORY_BYTES,
        resource.RLIMIT_FSIZE: FILE_BYTES,
    }
    before = {one: resource.getrlimit(one) for one in most}
    try:
        for one, limit in most.items():
            resource.setrlimit(one, (limit, before[one][1]))
        yield
    finally:
        for one, limits in before.items():
            resource.setrlimit(one, limits)


def soak(entries: tuple[Entry, ...], place_of: Callable[[], Any], *, seconds: float) -> None:
    """Go through all entries again and again, each time with another seed."""
    end = time.monotonic() + seconds
    with bounded():
        for number in itertools.count(SOAK_FIRST_SEED):
            print(f"seed {number}", flush=True)
            for entry in entries:
                if time.monotonic() > end:
                    return
                check(entry, place_of(), lambda test, number=number: seed(number)(SOAK(test)))
