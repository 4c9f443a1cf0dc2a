"""A world with its own time, in which actors are interleaved, paused and killed by a seed.

An actor is a generator that yields how many seconds it waits. Two things make its life hard. Between
any two of its steps, others run. And inside each call that it makes to the store or the cloud, others
may run too, for as long as it takes: so an actor's view is as old, when it acts on it, as in a
process that was suspended there. An actor that is killed never gets past the call it is in.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from support.stores.memorystore import InMemoryStore

from cloudspot.controller.clock import Clock
from cloudspot.errors import TransientError
from cloudspot.interfaces import Data, ObjectStore, Upload
from cloudspot.model import ObjectMeta, ObjectPage

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
MAX_DEPTH = 3
"""So many actors may stand inside a call at once while others run."""

Actor = Generator[float, None, None]


class Violation(AssertionError):
    """What must never happen has happened."""


class _Killed(BaseException):
    """Unwinds an actor that was killed inside a call."""


@dataclass
class Life:
    """An actor's life, from ``start`` to its end."""

    actor: Actor
    is_over: bool = False


@dataclass(frozen=True, kw_only=True)
class Odds:
    """How often what goes wrong; each the probability at one call or step."""

    interrupt: float = 0.08
    """Others run inside a call."""
    long_pause: float = 0.02
    """An interrupted actor stays where it is for up to ``long_seconds``."""
    long_seconds: float = 900.0
    store_fault: float = 0.02
    """A call to the store fails before it does anything."""
    store_lost: float = 0.02
    """A put is done and its answer lost."""


@dataclass
class World:
    """Virtual time, the actors, and the trouble that a seed makes for them."""

    rng: random.Random
    odds: Odds = field(default_factory=Odds)
    calm_at: float = 4000.0
    """From this moment on nothing goes wrong any more, so that every history comes to an end."""
    time: float = 0.0
    _queue: list[tuple[float, int, Life]] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)
    _stack: list[Life] = field(default_factory=list)

    @property
    def is_calm(self) -> bool:
        """Say whether the trouble is over."""
        return self.time >= self.calm_at

    def chance(self, probability: float) -> bool:
        """Draw whether something goes wrong; never when it is calm."""
        return not self.is_calm and self.rng.random() < probability

    def now(self) -> datetime:
        """Return the true wall-clock time."""
        return START + timedelta(seconds=self.time)

    def store_time(self, _store: ObjectStore) -> datetime:
        """Return the time by the clock of any store."""
        return self.now()

    def clock(self, *, max_skew_seconds: float = 20.0) -> Clock:
        """Return a computer's clocks: the wall's is somewhat off, the monotonic starts anywhere."""
        skew, start = self.rng.uniform(-max_skew_seconds, max_skew_seconds), self.rng.uniform(0, 1e6)
        return Clock(
            now=lambda: START + timedelta(seconds=self.time + skew),
            monotonic=lambda: start + self.time,
        )

    def start(self, actor: Actor, *, delay: float = 0.0) -> Life:
        """Let an actor begin after ``delay`` seconds."""
        life = Life(actor)
        self._push(life, delay)
        return life

    def kill(self, life: Life) -> None:
        """End an actor: it does nothing any more."""
        life.is_over = True

    def step(self) -> bool:
        """Let time pass to the next actor's turn, and run its step; False: there is none."""
        while self._queue:
            moment, _, life = heapq.heappop(self._queue)
            if life.is_over:
                continue
            self.time = max(self.time, moment)
            self._stack.append(life)
            try:
                delay = next(life.actor)
            except (StopIteration, _Killed):
                life.is_over = True
            else:
                self._push(life, delay)
            finally:
                self._stack.pop()
            return True
        return False

    def run(self, *, until: float) -> None:
        """Run everything that happens before the moment ``until``."""
        while self._queue and self._queue[0][0] <= until:
            self.step()
        self.time = max(self.time, until)

    def sleep(self, seconds: float) -> None:
        """Block the running actor inside a call; others run meanwhile."""
        if len(self._stack) > MAX_DEPTH:
            return
        self.run(until=self.time + seconds)
        self._leave_if_killed()

    def interrupt(self) -> None:
        """Perhaps let others run: to be called inside each call to the store or the cloud."""
        if not self._stack or len(self._stack) > MAX_DEPTH:
            return
        if self.chance(self.odds.long_pause):
            self.run(until=self.time + self.rng.uniform(0, self.odds.long_seconds))
        elif self.chance(self.odds.interrupt):
            for _ in range(self.rng.randint(1, 6)):
                self.step()
        self._leave_if_killed()

    def _leave_if_killed(self) -> None:
        if self._stack and self._stack[-1].is_over:
            raise _Killed

    def _push(self, life: Life, delay: float) -> None:
        # A little jitter: what is due at one moment comes in any order.
        due = self.time + max(0.0, delay) + self.rng.random() * 1e-3
        heapq.heappush(self._queue, (due, next(self._count), life))


class SimStore(ObjectStore):
    """A store whose calls take time, fail, and lose their answers."""

    def __init__(self, world: World) -> None:
        self.url = "memory://sim"
        self.inner = InMemoryStore(self.url, now=self._stamp)
        self._world = world
        self._outages: list[tuple[float, float]] = []
        self._landed: dict[str, tuple[bytes, float]] = {}

    def add_outage(self, start: float, seconds: float) -> None:
        """Fail every call from the moment ``start`` on, for so long; not while another lasts."""
        self._outages.append((start, start + seconds))

    def down_seconds(self, since: float) -> float:
        """Return for how long the store has not answered, from the moment ``since`` until now."""
        now = self._world.time
        return sum(max(0.0, min(end, now) - max(start, since)) for start, end in self._outages)

    def num_outages(self, since: float) -> int:
        """Return how many outages lie between the moment ``since`` and now, in part at least."""
        return sum(start < self._world.time and end > since for start, end in self._outages)

    def landed_at(self, key: str) -> float:
        """Return since when the object is as it is, whether those who put it know that or not."""
        return self._landed[key][1]

    def _stamp(self) -> datetime:
        """Return the store's own time, which all others go by, in whole seconds."""
        return self._world.now().replace(microsecond=0)

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Put, or fail, or put and lose the answer."""
        self._enter()
        self.inner.put(key, data, if_absent=if_absent)
        if self._landed.get(key, (None, 0.0))[0] != data:
            self._landed[key] = bytes(data), self._world.time
        self._world.interrupt()
        if self._world.chance(self._world.odds.store_lost):
            raise TransientError(f"the answer to a put of {key} was lost")

    def get(self, key: str) -> bytes:
        """Get, or fail."""
        self._enter()
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Get a part, or fail."""
        self._enter()
        return self.inner.get_range(key, start, length)

    def head(self, key: str) -> ObjectMeta:
        """Look, or fail."""
        self._enter()
        return self.inner.head(key)

    def list_page(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """List, or fail."""
        self._enter()
        return self.inner.list_page(prefix, after=after, limit=limit)

    def delete(self, key: str) -> None:
        """Delete, or fail."""
        self._enter()
        self.inner.delete(key)

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put."""
        return self.inner.open_upload(key, if_absent=if_absent)

    def presign_get(self, key: str, *, seconds: float) -> str:
        """Refuse, as memory does."""
        return self.inner.presign_get(key, seconds=seconds)

    def _enter(self) -> None:
        self._world.interrupt()
        is_down = any(start <= self._world.time < end for start, end in self._outages)
        if is_down or self._world.chance(self._world.odds.store_fault):
            raise TransientError("the store did not answer")
