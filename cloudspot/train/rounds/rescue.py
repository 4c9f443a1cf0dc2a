"""One rank's part in a rescue: the state that survives the loss of other ranks is saved (P8).

The process group's store may be gone with the ranks, so the agents decide, and this rank talks to its own by
files. It says at which boundary its state still stands (``survives-R.json``), saves it there when the agent
orders that (``rescue.json``), and says so (``rescued-R.json``). The main thread may hang in a collective
meanwhile. Where the process is about to end, the main thread waits here until the agent needs it no more.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from cloudspot.train import handoff
from cloudspot.train.rounds.save_order import SaveOrder, read_order

_log = logging.getLogger("cloudspot")

POLL_SECONDS = 0.1
SETTLED_SECONDS = 0.5
"""A state that stands for this long, with a main thread that comes to no boundary, is taken to stay so."""
UNSETTLED_SECONDS = 15.0
"""A main thread that changes the state for this long without coming to a boundary holds nothing of use."""
ANSWER_SECONDS = 20.0
"""How long a process that is about to end waits for a word of its agent, which may be starting again."""
HELD_SECONDS = 600.0
"""How long it waits at most once the agent has spoken."""


@dataclass(frozen=True)
class Held:
    """The newest boundary at which this rank's state still stands."""

    boundary: int
    before: int
    """The boundary held before the newest step of an optimizer."""
    step: int
    digest: str
    """Of samples of the weights."""
    draws: bool
    """Whether the steps draw random numbers, so that ranks have generators of their own."""
    differs: bool
    """Whether ranks may differ in buffers of the model."""
    holders: tuple[tuple[int, ...], ...]
    """Of each part of a sharded state, the ranks that hold it."""


class Rescuable(Protocol):
    """What a rank can do about the newest boundary behind it; the rescue's thread calls it."""

    def tell_likeness(self) -> None:
        """Tell the agent how far this rank is like the others, if that has changed."""

    def held(self) -> Held | str:
        """Return at which boundary the state still stands, or why at none."""

    def save(self, order: SaveOrder) -> int | None:
        """Save this rank's part of the state there; return the step, or None if it stands no more."""


class Rescue:
    """Answers the agent in a thread, and holds the main thread where the process would end."""

    def __init__(
        self,
        directory: Path,
        *,
        rank: int,
        rescuable: Rescuable,
        stop_rounds: Callable[[], bool],
    ) -> None:
        """Take part in the rescue of one generation, whose hand-off ``directory`` this is.

        ``stop_rounds`` lets the main thread pass no further boundary, and returns whether the ranks have not
        left otherwise.
        """
        self._directory = directory
        self._rank = rank
        self._rescuable = rescuable
        self._stop_rounds = stop_rounds
        self._orders = handoff.rescue_path(directory)
        self._seen: tuple[int, int] | None = None
        self._attempt = 0
        """Of the agent's newest word."""
        self._told: handoff.Survives | None = None
        self._is_resting = False
        """Whether the main thread waits here, so that it changes nothing more."""
        self._is_ending = False
        self._has_answer = False
        self._may_end = threading.Event()
        self._woken = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="cloudspot-rescue", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; for the end of the process."""
        self._stopped = True
        self._woken.set()
        self._thread.join(HELD_SECONDS)

    def begin(self) -> None:
        """Begin unasked, as the process has been told to end: its main thread comes to rest by itself.

        For a handler of signals: it takes no lock, which the thread that it interrupts may hold.
        """
        self._is_ending = True

    def hold(self) -> None:
        """In the main thread: wait, as the process is about to end, until nobody needs its state any more."""
        if not self._thread.is_alive() or self._stopped:
            return
        self._is_resting = self._is_ending = True
        self._woken.set()
        began = time.monotonic()
        while not self._may_end.wait(POLL_SECONDS):
            waited = time.monotonic() - began
            if waited > (HELD_SECONDS if self._has_answer else ANSWER_SECONDS):
                return

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._answer()
        except Exception:  # the training ends without this, as it would have before
            _log.exception("what this rank holds cannot be saved")
        finally:
            self._may_end.set()

    def _answer(self) -> None:
        word = None
        while not self._stopped and not self._is_ending and (word := self._look()) is None:
            self._rescuable.tell_likeness()
            self._pause()
        if self._stopped:
            return
        if not self._stop_rounds():
            self._tell("its loop has ended")
            return
        asked_at = changed_at = time.monotonic()
        held: Held | str = ""
        while not self._stopped:
            is_resting = self._is_resting
            if (found := self._rescuable.held()) != held:
                held, changed_at = found, time.monotonic()
            is_settled = is_resting or (
                time.monotonic() - asked_at > UNSETTLED_SECONDS
                if isinstance(held, str)
                else time.monotonic() - changed_at > SETTLED_SECONDS
            )
            if is_settled:
                self._tell(held)
                if isinstance(held, str) and is_resting:
                    return
            word = word or self._look()
            if word is not None and word.do == handoff.RELEASE:
                return
            if word is not None and word.do == handoff.SAVE:
                step = self._rescuable.save(read_order(word.order))
                said = {"attempt": word.attempt, "step": step}
                handoff.write_json(handoff.rescued_path(self._directory, self._rank), said)
            word = None
            self._pause()

    def _tell(self, held: Held | str) -> None:
        value = handoff.Survives(
            held=None if isinstance(held, str) else {"rank": self._rank, **asdict(held)},
            problem=held if isinstance(held, str) else "",
            attempt=self._attempt,
            is_ending=self._is_ending,
        )
        if value != self._told:
            handoff.write_json(handoff.survives_path(self._directory, self._rank), asdict(value))
            self._told = value

    def _look(self) -> handoff.RescueWord | None:
        """Return what the agent has said since the last look, or None."""
        try:
            status = self._orders.stat()
            seen = (status.st_ino, status.st_mtime_ns)
            if seen == self._seen:
                return None
            word = handoff.read_rescue(self._directory)
        except (OSError, json.JSONDecodeError):
            return None  # missing or unreadable: look again next time
        if word is None:
            return None
        self._seen, self._has_answer, self._attempt = seen, True, word.attempt
        return word

    def _pause(self) -> None:
        self._woken.wait(POLL_SECONDS)
        self._woken.clear()
