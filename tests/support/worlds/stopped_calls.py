"""Calls that stop before each request to the store and the provider, so that others run meanwhile.

A controller is plain code. It gets a store and a provider that are wrapped here, and its call runs in a greenlet,
which waits at each of its requests until the test lets it go on, or abandons it there: then it does nothing any
more, as if its process had been killed.
"""

import greenlet

from cloudspot.jobstore.access.wrapped_store import WrappedStore


class Stops:
    """The store and the provider of one controller, and the places where it stops. One call at a time."""

    def __init__(self, store, provider=None):
        self.store = _StoppingStore(store, self)
        self.provider = None if provider is None else _StoppingProvider(provider, self)
        self._call = None
        self._is_abandoned = False

    def steps(self, call, *, at=str):
        """Run the call, and yield what ``at`` makes of the name of each request before it is made.

        Where ``at`` returns None, the call goes on at once. The generator returns the call's result. Requests that
        another thread makes for the call are not stopped at, nor those of calls that are made without this.
        """
        assert self._call is None, "one call at a time"
        self._call, self._is_abandoned, self._choose = greenlet.greenlet(call), False, at
        try:
            while True:
                self._call.parent = greenlet.getcurrent()
                at_request = self._call.switch()
                if self._call.dead:
                    return at_request  # It is the result.
                yield at_request
        finally:
            self._is_abandoned = True
            self._call.parent = greenlet.getcurrent()
            self._call.throw()
            self._call = None

    def stop(self, name):
        """Wait until the call may make this request."""
        if greenlet.getcurrent() is not self._call:
            return
        place = None if self._is_abandoned else self._choose(name)
        if place is not None:
            self._call.parent.switch(place)
        if self._is_abandoned:
            raise greenlet.GreenletExit


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
