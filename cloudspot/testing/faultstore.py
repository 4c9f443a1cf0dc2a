"""A store that fails on purpose: refused calls, lost answers, outages, and hooks around puts and deletes."""

from __future__ import annotations

import fnmatch
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from cloudspot.decoding import decode
from cloudspot.errors import SpecError, TransientError
from cloudspot.interfaces import Data, ObjectStore, Upload
from cloudspot.model import ObjectMeta, ObjectPage


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which every call fails before it does anything, by the store's clock."""

    start: float
    """Inclusive; of ``time.time()`` unless the store was given another clock."""
    end: float
    """Exclusive."""


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A point around a put or a delete at which something happens once (by default: SIGKILL to us)."""

    keys: str
    """A glob over whole keys; ``*`` also matches ``/``."""
    when: Literal["before", "after"]
    skip: int = 0
    """How many matching calls this process makes before the one that the hook meets; where ``when`` is
    ``after``, only calls that succeeded count."""
    method: Literal["put", "delete"] = "put"
    action: str = "kill"
    """Passed on to ``on_hook``, which gives it its meaning."""


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong and when. Calls are counted over all methods that talk to the store."""

    fail_every: int | None = None
    """Each Nth call raises TransientError before it does anything; at least 2."""
    lose_every: int | None = None
    """Each Nth put that succeeded raises TransientError nevertheless. 1 loses every answer: then only
    create-only puts, which are settled by reading back, ever come to an end."""
    lose_keys: str = "*"
    """A glob: only puts of such keys lose their answer, and only they are counted for it."""
    outages: tuple[Outage, ...] = ()
    hooks: tuple[Hook, ...] = ()


def load_plan(path: Path) -> FaultPlan:
    """Read a plan from its JSON file.

    Raises:
        SpecError: it is no plan.
    """
    try:
        plan: FaultPlan = decode(path.read_bytes(), FaultPlan)
        return plan
    except (OSError, msgspec.DecodeError) as error:
        raise SpecError(f"fault plan {path}: {error}") from error


def kill_this_process(*_: object) -> None:
    """End this process as a power cut would; what a hook does unless told otherwise."""
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyStore(ObjectStore):
    """Wraps a store and follows a plan of faults.

    Counters are this process's own; that a hook has fired is remembered in ``state_dir``, so that a
    process which is started again after its kill is not killed again. ``calls`` counts what reached
    this store by method, for tests that bound the number of requests.
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
        self.url = inner.url
        self.inner = inner
        self.plan = plan
        self.calls: Counter[str] = Counter()
        self._state_dir = state_dir
        self._clock = clock
        self._on_hook = on_hook
        self._lock = threading.Lock()
        self._num_puts = 0
        self._num_met = [0] * len(plan.hooks)

    @property
    def canonical_url(self) -> str:
        """Return the store's own; see ObjectStore."""
        return self.inner.canonical_url

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Put, or fail by the plan; see ObjectStore."""
        self._enter("put", key)
        with self._around_put(key):
            self.inner.put(key, data, if_absent=if_absent)

    def get(self, key: str) -> bytes:
        """Get, or fail by the plan; see ObjectStore."""
        self._enter("get", key)
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Get a range, or fail by the plan; see ObjectStore."""
        self._enter("get_range", key)
        return self.inner.get_range(key, start, length)

    def head(self, key: str) -> ObjectMeta:
        """Ask for an object's size, or fail by the plan; see ObjectStore."""
        self._enter("head", key)
        return self.inner.head(key)

    def list_page(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """List, or fail by the plan; see ObjectStore."""
        self._enter("list_page", prefix)
        return self.inner.list_page(prefix, after=after, limit=limit)

    def delete(self, key: str) -> None:
        """Delete, or fail by the plan; see ObjectStore."""
        self._enter("delete", key)
        self._fire("delete", "before", key)
        self.inner.delete(key)
        self._fire("delete", "after", key)

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start an upload whose ``commit`` counts as a put; see ObjectStore."""
        self._enter("open_upload", key)
        return _FaultyUpload(self, key, self.inner.open_upload(key, if_absent=if_absent))

    def presign_get(self, key: str, *, seconds: float) -> str:
        """Sign a URL, which asks nothing of the store; see ObjectStore."""
        return self.inner.presign_get(key, seconds=seconds)

    @property
    def num_calls(self) -> int:
        """How many requests were made, failed ones included."""
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

    @contextmanager
    def _around_put(self, key: str) -> Iterator[None]:
        self._fire("put", "before", key)
        yield
        self._fire("put", "after", key)
        if self.plan.lose_every is None or not fnmatch.fnmatchcase(key, self.plan.lose_keys):
            return
        with self._lock:
            self._num_puts += 1
            is_lost = self._num_puts % self.plan.lose_every == 0
        if is_lost:
            raise TransientError(f"{self.url}: injected loss of the answer to put of {key}")

    def _fire(self, method: str, when: str, key: str) -> None:
        """Run the hooks that this call meets, unless they have run in this or another process."""
        for number, hook in enumerate(self.plan.hooks):
            if (hook.method, hook.when) != (method, when) or not fnmatch.fnmatchcase(key, hook.keys):
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
        self._store._enter("commit", self._key)  # noqa: SLF001 (one class in two parts)
        with self._store._around_put(self._key):  # noqa: SLF001
            self._inner.commit()

    def abort(self) -> None:
        self._inner.abort()
