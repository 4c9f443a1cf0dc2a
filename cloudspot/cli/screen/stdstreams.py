"""Prepare the standard streams for any text, and end the command when its output is lost."""

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

    It is not an OSError, because click and rich handle OSErrors in their own ways, and other code raises them
    for files and sockets.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        self.is_closed_pipe = error.errno == errno.EPIPE


def prepare() -> None:
    """Prepare both streams for any text; from now on, writing to standard output may raise OutputLostError.

    Output of plugins goes to standard error, because it must not mix with results, such as JSON.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # The caller has closed it (`>&-`), so nothing will read the output.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good
        elif isinstance(stream, io.TextIOWrapper):
            # A log line with characters that the terminal's encoding lacks must not end the command.
            fit(stream)
    write = _reporting_failure(sys.stdout.write)

    def write_or_pass_on(text: str) -> int:
        return sys.stderr.write(text) if inside.plugin is not None else write(text)

    for name, call in (("write", write_or_pass_on), ("flush", _reporting_failure(sys.stdout.flush))):
        setattr(sys.stdout, name, call)


def abandon_output() -> None:
    """Discard pending output, so that it cannot cause an error when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_process(status: int) -> None:
    """End the process immediately, without waiting for its other threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, OutputLostError, ValueError):
            stream.flush()
    os._exit(status)


def _reporting_failure(call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any) -> Any:
        try:
            return call(*args)
        except OSError as error:
            raise OutputLostError(error) from None

    return checked
