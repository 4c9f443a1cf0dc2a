"""Many small files, fetched by several processes: one process has one interpreter, which is busy on one core.

Run as a module, this is such a process. It reads pickled orders from its standard input, answers each on its
standard output, and ends with whoever holds the other ends.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from cloudspot.errors import CloudspotError, TransientError
from cloudspot.host.cores import usable_cores

FILES_AT_ONCE = 64
"""How many files one order names."""
MIN_FILES = 500
"""With fewer of them, a process costs more than it saves: half a second, mostly for its imports."""
MAX_PROCESSES = 8

Fetch = Callable[[Sequence[Any]], None]
"""Fetches those of the files that are not here yet; raises what goes wrong with one of them."""


def processes_for(num_files: int) -> int:
    """Return how many processes it pays to have for so many files; 1: this one alone."""
    return max(1, min(MAX_PROCESSES, usable_cores(), num_files // MIN_FILES))


@contextmanager
def fetching_processes(number: int, function: Fetch) -> Iterator[Fetch]:
    """Lend a function that has ``function``, which is pickled, called in one of some processes.

    Threads call it, as many at once as there are processes. It raises what the other raises there, and
    TransientError if the process has died, in whose place the next call starts another.
    """
    free: queue.SimpleQueue[_Process] = queue.SimpleQueue()
    processes = [_Process(function) for _ in range(number)]
    for process in processes:
        free.put(process)

    def fetch(files: Sequence[Any]) -> None:
        process = free.get()
        try:
            process.fetch(files)
        finally:
            free.put(process)

    try:
        yield fetch
    finally:
        for process in processes:
            process.end()


class _Process:
    """A process that is started when it is first needed."""

    def __init__(self, function: Fetch) -> None:
        self._function = pickle.dumps(function)
        self._process: subprocess.Popen[bytes] | None = None

    def fetch(self, files: Sequence[Any]) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        try:
            pickle.dump((self._function, files), orders)
            orders.flush()
            error = pickle.load(answers)  # noqa: S301 - our own process's
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            status = self.end()
            raise TransientError(f"a process that fetches inputs ended with status {status}") from error
        if error is not None:
            raise error

    def end(self) -> int | None:
        """Kill the process if there is one, and return the status with which it has ended."""
        if self._process is None:
            return None
        self._process.kill()
        self._process.communicate()
        status, self._process = self._process.returncode, None
        return status


def _serve() -> None:
    """Follow the orders, and look out for the next meanwhile: the end of the orders ends the process."""
    orders, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a plugin prints is no answer
    functions: dict[bytes, Fetch] = {}

    def follow(packed: bytes, files: Sequence[Any]) -> None:
        try:
            if packed not in functions:
                functions[packed] = pickle.loads(packed)  # noqa: S301 - of whoever started us
            functions[packed](files)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller is to have it
            answer = _packed(error)
        else:
            answer = pickle.dumps(None)
        answers.write(answer)
        answers.flush()

    with suppress(EOFError):
        while True:
            order = pickle.load(orders)  # noqa: S301 - of whoever started us
            threading.Thread(target=follow, args=order, daemon=True).start()
    os._exit(0)


def _packed(error: Exception) -> bytes:
    """Return the error pickled; one that does not come out as it went in, as its text."""
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)  # noqa: S301 - just packed
    except Exception:  # noqa: BLE001 - a plugin's may do anything
        return pickle.dumps(CloudspotError(f"{type(error).__name__}: {error}"))
    return packed


if __name__ == "__main__":
    _serve()
