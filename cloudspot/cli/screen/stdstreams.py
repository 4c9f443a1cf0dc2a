"""Prepares the standard streams to take any text, and ends the command when its output is lost."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudspot.cli.screen.printable import fit
from cloudspot.host.left_calls import inside


class OutputLostError(Exception):
    """Nothing can be written to standard output any more.

    Not an OSError, because click and rich handle those in their own ways, and others raise them for files
    and sockets.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        self.is_closed_pipe = error.errno == errno.EPIPE


def prepare() -> None:
    """Make both streams take any text; from now on, writing to standard output may raise OutputLostError.

    What a plugin prints goes to standard error: it belongs to no answer, such as JSON.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # The caller closed it (`>&-`): nothing will read it.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good
        elif isinstance(stream, io.TextIOWrapper):
            # A log line that the terminal's encoding lacks must not end the command.
            fit(stream)
    write = _saying_so(sys.stdout.write)

    def write_or_pass_on(text: str) -> int:
        return sys.stderr.write(text) if inside.plugin is not None else write(text)

    for name, call in (("write", write_or_pass_on), ("flush", _saying_so(sys.stdout.flush))):
        setattr(sys.stdout, name, call)


def abandon_output() -> None:
    """Discard what is still to be written, so that the end of the process does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_process(status: int) -> None:
    """End the process at once, without its other threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, OutputLostError, ValueError):
            stream.flush()
    os._exit(status)


def _saying_so(call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any) -> Any:
        try:
            return call(*args)
        except OSError as error:
            raise OutputLostError(error) from None

    return checked
