"""Fetch many small files with several processes, because one Python process uses only one core.

Run as a module, this file is one of these processes. Each process reads pickled requests from its standard
input, writes each answer to its standard output, and ends when its parent closes the pipes.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloudspot.errors import CloudspotError
from cloudspot.host.capacity import usable_cores
from cloudspot.host.low_priority import lower_session_priority

_log = logging.getLogger(__name__)

MIN_FILES = 500
"""Below this number, a process costs more time than it saves: half a second, mostly for its imports."""
MAX_PROCESSES = 8

Fetch = Callable[[Sequence[Any]], None]
"""Fetches the given files, except those in the cache; if some fail, raises the error of one of them."""


def processes_for(num_files: int) -> int:
    """Return the number of processes worth using for ``num_files`` files; 1 means this process alone."""
    return max(1, min(MAX_PROCESSES, usable_cores(), num_files // MIN_FILES))


@contextmanager
def fetching_processes(number: int, function: Fetch) -> Iterator[Fetch]:
    """Lend a function that calls ``function``, which is pickled, in one of ``number`` processes.

    Up to ``number`` threads may call the lent function at once. The lent function raises any error that
    ``function`` raises. If a process cannot be started or dies, ``function`` is called in this process from
    then on.
    """
    free: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
    processes = [_Process(function) for _ in range(number)]
    for started in processes:
        free.put(started)

    def fetch(files: Sequence[Any]) -> None:
        process = free.get()
        try:
            if process is not None:
                try:
                    error = process.fetch(files)
                except Exception as broken:  # noqa: BLE001 - the files can be fetched without this process
                    text = "a process that fetches inputs has failed (%r, status %s); doing its work here"
                    _log.warning(text, broken, process.end())
                    process = None
                else:
                    if error is not None:
                        raise error
                    return
            function(files)
        finally:
            free.put(process)

    try:
        yield fetch
    finally:
        for started in processes:
            started.end()


class _Process:
    """A process that is started at its first use."""

    def __init__(self, function: Fetch) -> None:
        self._function = pickle.dumps(function)
        self._process: subprocess.Popen[bytes] | None = None

    def fetch(self, files: Sequence[Any]) -> Exception | None:
        """Return the error that the function raised, if any; raise the errors of the process itself."""
        if self._process is None:
            # Use the same modules as this process, from a working directory whose files cannot shadow them.
            path = os.pathsep.join(str(Path(one).absolute()) for one in sys.path)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                cwd="/",
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the parent only
            )
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        pickle.dump((self._function, files), orders)
        orders.flush()
        answer: Exception | None = pickle.load(answers)  # noqa: S301 - of our own process
        return answer

    def end(self) -> int | None:
        """Kill the process, if it is running; return its exit status."""
        if self._process is None:
            return None
        self._process.kill()
        self._process.communicate()
        status, self._process = self._process.returncode, None
        return status


def _serve() -> None:
    """Serve requests, each in a thread, until the input ends."""
    lower_session_priority()
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Separate requests and answers from the standard streams that plugins and their programs use.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    functions: dict[bytes, Fetch] = {}

    def follow(packed: bytes, files: Sequence[Any]) -> None:
        answer = None
        try:
            if packed not in functions:
                functions[packed] = pickle.loads(packed)  # noqa: S301 - from our parent
            functions[packed](files)
        except BaseException as error:  # noqa: BLE001 - the caller waits for an answer
            answer = error
            if not isinstance(error, CloudspotError | OSError):
                traceback.print_exc()
        answers.write(_packed(answer))
        answers.flush()

    try:
        while True:
            order = pickle.load(orders)  # noqa: S301 - from our parent
            threading.Thread(target=follow, args=order, daemon=True).start()
    finally:
        os._exit(0)


def _packed(error: BaseException | None) -> bytes:
    """Return the pickled error, or its message if the reader could not unpickle the error."""
    if error is None or isinstance(error, Exception):
        with suppress(Exception):  # a plugin's error class may behave in any way
            packed = pickle.dumps(error)
            pickle.loads(packed)  # noqa: S301 - just packed
            return packed
    return pickle.dumps(CloudspotError(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    _serve()
