"""Threads in simulated time: each is a greenlet, and others run where it waits.

``Fibers`` stands for the modules ``time`` and ``threading`` of code under test. Each fiber belongs to an owner,
such as a process, and what it starts belongs to the same. An owner that is killed does nothing any more: not even
its ``finally`` blocks run. One that is frozen goes on later.
"""

import heapq
import itertools
import math
import types

import greenlet


class Fibers:
    def __init__(self):
        self.now = 0.0
        self.current = None
        self._is_over = False
        self._all = []
        self._queue = []
        self._count = itertools.count()
        self._frozen = {}
        self.clock = types.SimpleNamespace(
            monotonic=lambda: self.now,
            time=lambda: self.now,
            monotonic_ns=lambda: int(self.now * 1e9),
            sleep=self.sleep,
        )
        """Stands for the module ``time``."""
        self.threading = types.SimpleNamespace(
            Event=lambda: Event(self),
            Lock=lambda: Lock(self),
            Condition=lambda: Condition(self),
            Thread=lambda target, name="", daemon=False: Thread(self, target),
        )
        """Stands for the module ``threading``."""

    def start(self, call, owner, *, delay=0.0):
        """Let a call begin; ``owner`` is a tuple: whoever kills or freezes what it begins with does so to it."""
        fiber = Fiber(call, owner)
        self._all.append(fiber)
        self._push(fiber, delay)
        return fiber

    def kill(self, owner):
        """End all that belongs to the owner where it is."""
        for fiber in self._all:
            if fiber.owner[: len(owner)] == owner:
                fiber.is_over = True

    def freeze(self, owner, seconds):
        """Let nothing that belongs to the owner run for so long."""
        self._frozen[owner] = self.now + seconds

    def is_frozen(self, owner):
        """Return whether nothing that belongs to the owner runs now."""
        return self._thaws_at(owner) > self.now

    def sleep(self, seconds):
        """Wait, in the current fiber."""
        self._push(self.current, seconds)
        self.switch()

    def switch(self):
        """Let others run until someone wakes the current fiber."""
        if self._is_over:
            raise greenlet.GreenletExit
        self.current.greenlet.parent.switch()
        if self._is_over:
            raise greenlet.GreenletExit

    def wake(self, fiber):
        """Let a fiber go on that waits; what it waited for besides counts no more."""
        self._push(fiber, 0.0)

    def run(self, *, until, is_done):
        """Run all until the moment, or until ``is_done()``."""
        while self._queue and not is_done():
            moment, _, fiber, turn = heapq.heappop(self._queue)
            if moment > until:
                break
            if fiber.is_over or fiber.turn != turn:
                continue
            thaws_at = self._thaws_at(fiber.owner)
            if thaws_at > moment:
                heapq.heappush(self._queue, (thaws_at, next(self._count), fiber, turn))
                continue
            self.now = max(self.now, moment)
            self._resume(fiber)

    def close(self):
        """End all fibers for good."""
        self._is_over = True
        for fiber in self._all:
            while not fiber.greenlet.dead and fiber.has_begun:
                self.current = fiber
                fiber.greenlet.parent = greenlet.getcurrent()
                fiber.greenlet.throw()

    def _thaws_at(self, owner):
        return max((at for each, at in self._frozen.items() if owner[: len(each)] == each), default=0)

    def _resume(self, fiber):
        fiber.turn += 1
        fiber.has_begun = True
        self.current, before = fiber, self.current
        fiber.greenlet.parent = greenlet.getcurrent()
        try:
            fiber.greenlet.switch()
        finally:
            self.current = before
        fiber.is_over = fiber.is_over or fiber.greenlet.dead

    def _push(self, fiber, seconds):
        if seconds < math.inf:
            heapq.heappush(self._queue, (self.now + max(0.0, seconds), next(self._count), fiber, fiber.turn))


class Fiber:
    def __init__(self, call, owner):
        self.greenlet = greenlet.greenlet(call)
        self.owner = owner
        self.turn = 0
        self.has_begun = self.is_over = False


class Condition:
    def __init__(self, fibers):
        self._fibers = fibers
        self._waiting = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def notify_all(self):
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            self._fibers.wake(fiber)

    def wait(self, timeout=None):
        fibers = self._fibers
        self._waiting.append(fibers.current)
        fibers._push(fibers.current, math.inf if timeout is None else timeout)
        fibers.switch()
        if fibers.current in self._waiting:
            self._waiting.remove(fibers.current)

    def wait_for(self, predicate, timeout=None):
        until = self._fibers.now + (math.inf if timeout is None else timeout)
        while not (found := predicate()) and self._fibers.now < until:
            self.wait(until - self._fibers.now)
        return found


class Event:
    def __init__(self, fibers):
        self._changed = Condition(fibers)
        self._is_set = False

    def is_set(self):
        return self._is_set

    def set(self):
        self._is_set = True
        self._changed.notify_all()

    def clear(self):
        self._is_set = False

    def wait(self, timeout=None):
        return self._changed.wait_for(lambda: self._is_set, timeout)


class Lock:
    def __init__(self, fibers):
        self._released = Condition(fibers)
        self._is_held = False

    def __enter__(self):
        self._released.wait_for(lambda: not self._is_held)
        self._is_held = True

    def __exit__(self, *_):
        self._is_held = False
        self._released.notify_all()


class Thread:
    def __init__(self, fibers, target):
        self._fibers, self._target, self._fiber = fibers, target, None

    def start(self):
        self._fiber = self._fibers.start(self._target, self._fibers.current.owner)

    def is_alive(self):
        return self._fiber is not None and not self._fiber.is_over

    def join(self, timeout=None):
        until = self._fibers.now + (math.inf if timeout is None else timeout)
        while self.is_alive() and self._fibers.now < until:
            self._fibers.sleep(0.1)
