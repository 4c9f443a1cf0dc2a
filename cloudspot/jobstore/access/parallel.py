"""Make requests in parallel with a few threads; keep the results in order, and stop at the first error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from typing import TypeVar

from cloudspot.host.left_calls import cut_off_all

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_parallel(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    num_threads: int = 8,
    begin_thread: Callable[[], None] | None = None,
) -> list[Result]:
    """Return ``function(item)`` for each item, in order, from up to ``num_threads`` concurrent calls.

    Each thread first calls ``begin_thread``; if it is given, ``function`` is never called in the caller's own
    thread.

    After the first error, no further call is started. The error is raised once the running calls have ended.
    """
    if begin_thread is None and (len(items) <= 1 or num_threads == 1):
        return [function(item) for item in items]
    has_failed = threading.Event()

    def call(item: Item) -> Result:
        # Without this check, the pool starts more calls until the waiting thread notices the failure.
        if has_failed.is_set():
            raise CancelledError
        try:
            return function(item)
        except BaseException:
            has_failed.set()
            raise

    count = max(1, min(num_threads, len(items)))
    with ThreadPoolExecutor(count, thread_name_prefix="cloudspot", initializer=begin_thread) as pool:
        futures = [pool.submit(call, item) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            cut_off_all()
            raise
        finally:
            # This code also runs if the wait itself was interrupted (Ctrl-C).
            for future in futures:
                future.cancel()
        for future in futures:
            if not future.cancelled() and not isinstance(future.exception(), CancelledError):
                future.result()
    return [future.result() for future in futures]
