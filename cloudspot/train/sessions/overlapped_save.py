"""A save whose large tensors are copied during the step after its boundary (P6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from cloudspot.train.state.overlapped_copy import OverlappedCopy

QUIET_SECONDS = 1.0
"""If no optimizer steps, a copy is accepted after this time, or after ``QUIET_COPIES`` times its own duration
if that is longer. By then, a write that began before the end of the copy is over and can be detected."""
QUIET_COPIES = 20


class OverlappedSave:
    """A save, from its boundary until it is sealed or abandoned.

    Only the main thread calls the methods, except ``cancel``.
    """

    def __init__(
        self, copy: OverlappedCopy, *, seal: Callable[[float, float], None], release: Callable[[], None]
    ) -> None:
        """Begin to copy.

        If the copy equals the state at the boundary, a thread calls ``seal`` with two durations in seconds:
        how long the training has waited since the boundary, and how long the copying took. ``release`` is
        always called at the end.
        """
        self.spoilt: Sequence[str] = ()
        """The tensors that were written to before they were copied; the save is then not sealed."""
        self.error: Exception | None = None
        """Why the save could not be sealed, if there was an error."""
        self.has_ended = False
        self.is_cancelled = False
        self._copy = copy
        self._seal = seal
        self._release = release
        self._lock = threading.RLock()
        self._decided = threading.Event()
        self._is_held_back = False
        self._waited = 0.0
        copy.start(self._end)

    def before_write(self) -> None:
        """Return once later writes by the caller can no longer change the copy."""
        if self._is_held_back:
            return
        with self._lock:
            self._hold_back()
            self._is_held_back = True  # not set if an exception, such as Ctrl-C's, ended this

    def _hold_back(self) -> None:
        if self.has_ended or self.is_cancelled:
            return
        if self._copy.is_on_gpu and torch.cuda.is_current_stream_capturing():
            # Nothing is written during capture, and the writes made by later replays do not trigger a hook.
            self.spoilt = ("a step that a CUDA graph captures",)
        else:
            self._waited = self._copy.finish()
            self.spoilt = self._copy.written()
            if not self.spoilt and not self._copy.is_done():
                return  # the copy may be complete at the next boundary
        self._decided.set()

    def settle(self, *, waits: bool) -> bool:
        """At a boundary, let the save end; return whether it has ended. With ``waits``, it always has."""
        if self.has_ended:
            return True
        self.before_write()
        if waits:
            self._copy.wait()
        if self._copy.is_done():
            self._decided.set()
        if waits:
            self._copy.join()
        return self.has_ended

    def cancel(self) -> None:
        """Abandon the save unless it is sealed; nothing is copied afterwards. Any thread may call this."""
        with self._lock:  # now and later, the main thread copies nothing
            self.is_cancelled = not self.has_ended
        if self._copy.cancel():
            self._decided.set()
            self._copy.join()

    def _end(self) -> None:
        """Wait in the thread until it is known whether the copy is valid, and seal the save if so."""
        quiet = None if self._copy.is_on_gpu else max(QUIET_SECONDS, QUIET_COPIES * self._copy.seconds)
        self._decided.wait(quiet)
        with self._lock:
            try:
                if self._copy.error is not None:
                    raise self._copy.error
                if not self.is_cancelled:
                    # Without a decision, enough time has passed for any write by the main thread that had
                    # begun before to be over.
                    if not self._decided.is_set():
                        self.spoilt = self._copy.written()
                    self.spoilt = self.spoilt or self._copy.torn()
                    if not self.spoilt:
                        self._seal(self._waited, self._copy.seconds)
            except Exception as error:  # the main thread raises it at a boundary
                self.error = error
            finally:
                self._release()
                self.has_ended = True
