"""Tells a loop that a script has left by its own will from one that an exception ends."""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType

_RAISES = {dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"]}


class LoopExit:
    """A context in a generator that calls back if the generator is closed without an exception.

    Such is ``break`` or ``return`` in the loop over it. With an exception on its way through the loop, which
    the script may catch or not, nothing is called, nor where the generator outlives the loop.
    """

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self._code: CodeType | None = None

    def __enter__(self) -> None:
        """Begin: the caller is the generator, and who has called that is the loop."""
        self._code = _loop_frames(sys._getframe(1))[-1].f_code  # noqa: SLF001 - the only way to the frame

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Call back if the loop was left."""
        if kind is GeneratorExit:
            frames = _loop_frames(sys._getframe(1))  # noqa: SLF001 - the only way to the frame
            # There is no frame where the interpreter ends and frees the generator.
            if frames and frames[-1].f_code is self._code and not any(map(is_raising, frames)):
                self._left()


def _loop_frames(generator: FrameType) -> list[FrameType]:
    """Return the frames that a generator is called through, up to the first that is no generator's."""
    frames: list[FrameType] = []
    frame = generator.f_back
    while frame is not None:
        frames.append(frame)
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            break
        frame = frame.f_back
    return frames


def is_raising(frame: FrameType) -> bool:
    """Return whether an exception is on its way through a frame, at the instruction that it now executes.

    Python hides an exception from what runs while it unwinds a frame, but has noted the instruction in a
    traceback by then; not where it raises an exception again.
    """
    if frame.f_code.co_code[frame.f_lasti] in _RAISES:
        return True
    return any(
        type(each) is TracebackType and each.tb_frame is frame and each.tb_lasti == frame.f_lasti
        for each in gc.get_referrers(frame)
    )
