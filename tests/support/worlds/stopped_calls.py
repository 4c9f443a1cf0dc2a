"""Calls that stop before each request to the store and the provider, so that others run meanwhile.

A controller is plain code. It gets a store and a provider that are wrapped here, and its call runs in a thread
of its own, which waits at each of its requests until the test lets it go on, or abandons it there: then it
does nothing any more, as if its process had been killed. Only one of the two threads runs at a time.
"""

import threading

from cloudspot.jobstore.access.wrapped_store import WrappedStore


class Abandoned(BaseException):
    """Unwinds a call that nobody lets go on."""


class Stops:
    """The store and the provider of one controller, and the places where it stops. One call at a time."""

    def __init__(self, store, provider=None):
        self.store = _StoppingStore(store, self)
        self.provider = None if provider is None else _StoppingProvider(provider, self)
        self._thread = None
        self._is_abandoned = False
        self._go, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)

    def steps(self, call, *, at=str):
        """Run the call, and yield what ``at`` makes of the name of each request before it is made.

        Where ``at`` returns None, the call goes on at once. The generator returns the call's result. Requests that
        another thread makes for the call are not stopped at, nor those of calls that are made without this.
        """
        came = []

        def run():
            self._go.acquire()
            try:
                if not self._is_abandoned:
                    came.append((call(), None))
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                came.append((None, error))
            self._at = None
            self._has_stopped.release()

        assert self._thread is None, "one call at a time"
        self._is_abandoned, self._choose = False, at
        self._thread = threading.Thread(target=run, name="stopped call", daemon=True)
        self._thread.start()
        try:
            while True:
                self._go.release()
                self._has_stopped.acquire()
                if self._at is None:
                    break
                yield self._at
        finally:
            if self._at is not None:
                self._is_abandoned = True
                self._go.release()
                self._has_stopped.acquire()
            self._thread.join()
            self._thread = None
        ((result, error),) = came
        if error is not None:
            raise error
        return result

    def stop(self, name):
        """Wait until the call may make this request."""
        if threading.current_thread() is not self._thread:
            return
        if not self._is_abandoned:
            self._at = self._choose(name)
            if self._at is None:
                return
            self._has_stopped.release()
            self._go.acquire()
        if self._is_abandoned:
            raise Abandoned


def until(steps, begin):
    """Take the steps up to the first request whose name begins so."""
    while not next(steps).startswith(begin):
        pass


class _StoppingStore(WrappedStore):
    def __init__(self, inner, stops):
        super().__init__(inner)
        self._stops = stops

    def _call(self, method, key, request):
        self._stops.stop(f"{method} {key}")
        return request()


class _StoppingProvider:
    """Passes everything on, and stops at the calls of its provisioner."""

    def __init__(self, inner, stops):
        self._inner, self._stops = inner, stops

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def provisioner(self):
        return _StoppingProvisioner(self._inner.provisioner(), self._stops)


class _StoppingProvisioner:
    def __init__(self, inner, stops):
        self._inner, self._stops = inner, stops

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found) or name == "render":
            return found

        def request(*args, **options):
            self._stops.stop(name)
            return found(*args, **options)

        return request
