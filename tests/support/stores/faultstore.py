"""A store that fails on purpose: failed calls, lost answers, outages, and hooks around puts and deletes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec

from cloudspot.decoding import decode
from cloudspot.errors import AuthError, SpecError, TransientError
from cloudspot.interfaces import Data, ObjectStore, Upload
from cloudspot.jobstore.access.wrapped_store import T, WrappedStore


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """A time, by the store's clock, in which every call fails before it does anything."""

    start: float
    """Inclusive; in ``time.time()`` unless the store has another clock."""
    end: float
    """Exclusive."""


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A point before or after a put or a delete at which something happens once: by default, SIGKILL."""

    keys: str
    """A glob over whole keys; ``*`` also matches ``/``."""
    when: Literal["before", "after"]
    skip: int = 0
    """How many matching calls this process makes first; with ``after``, only calls that succeeded count."""
    method: Literal["put", "delete"] = "put"
    action: str = "kill"
    """Passed to ``on_hook``, which gives it its meaning."""


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong and when. Calls are counted over all methods that talk to the store."""

    fail_every: int | None = None
    """Each Nth call raises TransientError before it does anything; at least 2."""
    lose_every: int | None = None
    """Each Nth put that succeeded raises TransientError nevertheless. With 1, only create-only puts ever end:
    reading back settles them."""
    lose_keys: str = "*"
    """A glob: only puts of such keys are counted, and lose their answer."""
    outages: tuple[Outage, ...] = ()
    hooks: tuple[Hook, ...] = ()


def load_plan(path: Path) -> FaultPlan:
    """Read a plan from its JSON file.

    Raises:
        SpecError: it is not a plan.
    """
    try:
        plan: FaultPlan = decode(path.read_bytes(), FaultPlan)
        return plan
    except (OSError, msgspec.DecodeError) as error:
        raise SpecError(f"fault plan {path}: {error}") from error


def kill_this_process(*_: object) -> None:
    """End this process as a power cut would: what a hook does by default."""
    os.kill(os.getpid(), signal.SIGKILL)


class DenyingStore(WrappedStore):
    """Refuses the requests for which ``is_denied(method, key)`` is true, as for lack of a right."""

    def __init__(self, inner: ObjectStore, is_denied: Callable[[str, str], bool]) -> None:
        super().__init__(inner)
        self._is_denied = is_denied

    def _call(self, method: str, key: str, request: Callable[[], T]) -> T:
        if self._is_denied(method, key):
            raise AuthError(f"access denied: the credentials lack store:{method}")
        return request()

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete one after the other: each may be denied."""
        ObjectStore.delete_many(self, keys)


class FaultyStore(WrappedStore):
    """Wraps a store and follows a plan of faults.

    Each process counts for itself, but ``state_dir`` remembers which hooks have fired, so that a restarted
    process is not killed again. ``calls`` counts requests by method, for tests that bound their number.
    """

    def __init__(
        self,
        inner: ObjectStore,
        plan: FaultPlan,
        state_dir: Path,
        *,
        clock: Callable[[], float] = time.time,
        on_hook: Callable[[Hook, str], None] = kill_this_process,
    ) -> None:
        if plan.fail_every is not None and plan.fail_every < 2:
            raise SpecError(f"fail_every must be >= 2, or nothing ever succeeds: got {plan.fail_every}")
        if plan.lose_every is not None and plan.lose_every < 1:
            raise SpecError(f"lose_every must be >= 1: got {plan.lose_every}")
        super().__init__(inner)
        self.plan = plan
        self.calls: Counter[str] = Counter()
        self._state_dir = state_dir
        self._clock = clock
        self._on_hook = on_hook
        self._lock = threading.Lock()
        self._num_puts = 0
        self._num_met = [0] * len(plan.hooks)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete one after the other: a fault may come between any two."""
        ObjectStore.delete_many(self, keys)

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Go through ``get_range``, where subclasses can watch all reading of ranges."""
        return ObjectStore.get_range_into(self, key, start, buffer)

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start an upload whose ``commit`` counts as a put; see ObjectStore."""
        return _FaultyUpload(self, key, super().open_upload(key, if_absent=if_absent))

    @property
    def num_calls(self) -> int:
        """How many requests were made, including failed ones."""
        return sum(self.calls.values())

    def _enter(self, method: str, key: str) -> None:
        """Count the call and fail it if the plan says so."""
        with self._lock:
            self.calls[method] += 1
            number = self.num_calls
        now = self._clock()
        if any(outage.start <= now < outage.end for outage in self.plan.outages):
            raise TransientError(f"{self.url}: injected outage in {method} of {key}")
        if self.plan.fail_every is not None and number % self.plan.fail_every == 0:
            raise TransientError(f"{self.url}: injected failure of call {number}, {method} of {key}")

    def _call(self, method: str, key: str, request: Callable[[], T]) -> T:
        self._enter(method, key)
        return self._meet(method, key, request)

    def _meet(self, method: str, key: str, request: Callable[[], T]) -> T:
        """Make the request between its hooks, and lose a put's answer if the plan says so."""
        self._fire(method, "before", key)
        answer = request()
        self._fire(method, "after", key)
        if method == "put" and self.plan.lose_every is not None and fnmatchcase(key, self.plan.lose_keys):
            with self._lock:
                self._num_puts += 1
                is_lost = self._num_puts % self.plan.lose_every == 0
            if is_lost:
                raise TransientError(f"{self.url}: injected loss of the answer to put of {key}")
        return answer

    def _fire(self, method: str, when: str, key: str) -> None:
        """Run the hooks that this call meets, unless they have run in this or another process."""
        for number, hook in enumerate(self.plan.hooks):
            if (hook.method, hook.when) != (method, when) or not fnmatchcase(key, hook.keys):
                continue
            with self._lock:
                self._num_met[number] += 1
                is_met = self._num_met[number] == hook.skip + 1
            if is_met and self._claim(number):
                self._on_hook(hook, key)

    def _claim(self, number: int) -> bool:
        self._state_dir.mkdir(parents=True, exist_ok=True)
        try:
            (self._state_dir / f"hook-{number}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class _FaultyUpload(Upload):
    def __init__(self, store: FaultyStore, key: str, inner: Upload) -> None:
        self._store = store
        self._key = key
        self._inner = inner

    def write(self, data: Data) -> None:
        self._inner.write(data)

    def commit(self) -> None:
        self._store._enter("commit", self._key)
        self._store._meet("put", self._key, self._inner.commit)

    def abort(self) -> None:
        self._inner.abort()
