"""Prepares the standard streams to take any text, and ends the command when its output is lost."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudspot.cli.screen.printable import fit


class OutputLostError(Exception):
    """Nothing can be written to standard output any more.

    Not an OSError, because click and rich handle those in their own ways, and others raise them for files
    and sockets.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        self.is_closed_pipe = error.errno == errno.EPIPE


def prepare() -> None:
    """Make both streams take any text; from now on, writing to standard output may raise OutputLostError."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # The caller closed it (`>&-`): nothing will read it.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good
        elif isinstance(stream, io.TextIOWrapper):
            # A log line that the terminal's encoding lacks must not end the command.
            fit(stream)
    for name in ("write", "flush"):
        setattr(sys.stdout, name, _saying_so(getattr(sys.stdout, name)))


def abandon_output() -> None:
    """Discard what is still to be written, so that the end of the process does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _saying_so(call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any) -> Any:
        try:
            return call(*args)
        except OSError as error:
            raise OutputLostError(error) from None

    return checked
