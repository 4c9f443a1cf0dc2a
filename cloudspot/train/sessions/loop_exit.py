"""Distinguishes a loop that the script itself left from a loop that an exception ended."""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType

_RAISES = {dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"]}


class LoopExit:
    """A context manager for a generator; calls back if the generator is closed without an exception.

    This is how ``break`` or ``return`` in the loop over the generator closes it. There is no call if the
    generator outlives the loop, or if an exception passes through the loop, caught or not.
    """

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self._code: CodeType | None = None

    def __enter__(self) -> None:
        """Remember the loop, which is in the caller of the generator that enters this context."""
        self._code = _loop_frames(sys._getframe(1))[-1].f_code  # noqa: SLF001 - the only way to the frame

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Call back if the loop was left by the script."""
        if kind is GeneratorExit:
            frames = _loop_frames(sys._getframe(1))  # noqa: SLF001 - the only way to the frame
            # If the interpreter is shutting down and frees the generator, there is no frame.
            if frames and frames[-1].f_code is self._code and not any(map(is_raising, frames)):
                self._left()


def _loop_frames(generator: FrameType) -> list[FrameType]:
    """Return the frames that called a generator, up to the first frame that is not a generator's."""
    frames: list[FrameType] = []
    frame = generator.f_back
    while frame is not None:
        frames.append(frame)
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            break
        frame = frame.f_back
    return frames


def is_raising(frame: FrameType) -> bool:
    """Return whether an exception is passing through a frame, at the instruction that the frame is executing.

    While a frame is unwound, Python hides the exception from code that runs then. By then, a traceback names
    the instruction, unless the instruction raises the exception again.
    """
    if frame.f_code.co_code[frame.f_lasti] in _RAISES:
        return True
    return any(
        type(each) is TracebackType and each.tb_frame is frame and each.tb_lasti == frame.f_lasti
        for each in gc.get_referrers(frame)
    )
