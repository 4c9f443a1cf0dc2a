"""What tests of staged inputs share: a store that counts, and how an input is brought here."""

import threading
import time
from collections import Counter
from contextlib import contextmanager

from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.inputs.input_cache import Staging


class CountingStore(WrappedStore):
    """Counts requests by method and key, and calls ``before`` with each."""

    def __init__(self, inner, before=lambda method, key: None):
        super().__init__(inner)
        self.calls, self.before = Counter(), before
        self._lock = threading.Lock()

    def _call(self, method, key, request):
        with self._lock:
            self.calls[method, key] += 1
        self.before(method, key)
        return request()


@contextmanager
def no_progress(_total, _here):
    yield lambda _count: None


def staging(**others):
    given = {
        "repeat": lambda call: call(),
        "pause": time.sleep,
        "open_progress": no_progress,
        "num_threads": 4,
    }
    return Staging(**{**given, **others})


def contents(cache, source, staged):
    return {file.name: cache.path_of(source, file).read_bytes() for file in staged.files}
