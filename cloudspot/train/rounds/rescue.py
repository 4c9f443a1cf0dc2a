"""One rank's part in a rescue, which saves the state that survives the loss of other ranks (P8).

The process group's store may be lost with the other ranks, so the agents decide, and this rank exchanges
files with its own agent. It reports the boundary at which its state still stands (``survives-R.json``), saves
that state when the agent orders this (``rescue.json``), and reports the save (``rescued-R.json``). In the
meantime, the main thread may hang in a collective. If the process is about to end, the main thread waits here
until the agent releases it.
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
"""A state is assumed to be stable if it stands for this long while the main thread reaches no boundary."""
UNSETTLED_SECONDS = 15.0
"""A state cannot be saved if the main thread changes it for this long without reaching a boundary."""
ANSWER_SECONDS = 20.0
"""How long a process that is about to end waits for its agent to answer; the agent may be restarting."""
HELD_SECONDS = 600.0
"""The maximum time that the process waits after the agent has answered."""


@dataclass(frozen=True)
class Held:
    """The latest boundary at which this rank's state still stands."""

    boundary: int
    before: int
    """The boundary that was held before the optimizer's latest step."""
    step: int
    digest: str
    """A digest of sampled weights."""
    draws: bool
    """Whether the steps draw random numbers, so that each rank's generators have their own state."""
    differs: bool
    """Whether the model's buffers may differ between ranks."""
    holders: tuple[tuple[int, ...], ...]
    """The ranks that hold each part of a sharded state."""
    needs_all: bool
    """Whether each rank's position in the data is known only to that rank."""
    keeps: tuple[int, ...]
    """The other ranks whose own states at this boundary are kept by this rank."""


class Rescuable(Protocol):
    """A rank's operations on the latest boundary that it has passed; the rescue's thread calls them."""

    def report_likeness(self) -> None:
        """Report to the agent how this rank may differ from the others, if that has changed."""

    def held(self) -> Held | str:
        """Return the boundary at which the state still stands, or the reason why there is none."""

    def save(self, order: SaveOrder) -> int | None:
        """Save this rank's part of that state; return its step, or None if the state no longer stands."""


class Rescue:
    """Answers the agent in a thread, and holds the main thread when the process is about to end."""

    def __init__(
        self,
        directory: Path,
        *,
        rank: int,
        rescuable: Rescuable,
        stop_rounds: Callable[[], bool],
    ) -> None:
        """Take part in the rescue of the generation with this hand-off ``directory``.

        ``stop_rounds`` keeps the main thread from passing any further boundary. It returns False if the ranks
        have left after a rewind.
        """
        self._directory = directory
        self._rank = rank
        self._rescuable = rescuable
        self._stop_rounds = stop_rounds
        self._orders = handoff.rescue_path(directory)
        self._seen: tuple[int, int] | None = None
        self._attempt = 0
        """The attempt number in the agent's latest order."""
        self._reported: handoff.Survives | None = None
        self._is_resting = False
        """Whether the main thread is waiting here, and therefore no longer changes the state."""
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
        """End the thread; called at the end of the process."""
        self._stopped = True
        self._woken.set()
        self._thread.join(HELD_SECONDS)

    def begin(self) -> None:
        """Begin without the agent's order, because the process has received a signal to end.

        A signal handler may call this method: it takes no lock, because the interrupted thread may hold it.
        """
        self._is_ending = True

    def hold(self) -> None:
        """In a process that is about to end, make the main thread wait until its state is not needed."""
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
        except Exception:  # without a rescue, the training ends as it would anyway
            _log.exception("the state of rank %d cannot be saved in a rescue", self._rank)
        finally:
            self._may_end.set()

    def _answer(self) -> None:
        command = None
        while not self._stopped and not self._is_ending and (command := self._look()) is None:
            self._rescuable.report_likeness()
            self._pause()
        if self._stopped:
            return
        if not self._stop_rounds():
            self._report("its loop has ended")
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
                self._report(held)
                if isinstance(held, str) and is_resting:
                    return
            command = command or self._look()
            if command is not None and command.do == handoff.RELEASE:
                return
            if command is not None and command.do == handoff.SAVE:
                step = self._rescuable.save(read_order(command.order))
                report = {"attempt": command.attempt, "step": step}
                handoff.write_json(handoff.rescued_path(self._directory, self._rank), report)
            command = None
            self._pause()

    def _report(self, held: Held | str) -> None:
        value = handoff.Survives(
            held=None if isinstance(held, str) else {"rank": self._rank, **asdict(held)},
            problem=held if isinstance(held, str) else "",
            attempt=self._attempt,
            is_ending=self._is_ending,
        )
        if value != self._reported:
            handoff.write_json(handoff.survives_path(self._directory, self._rank), asdict(value))
            self._reported = value

    def _look(self) -> handoff.RescueCommand | None:
        """Return the agent's order if it is new since the last call, otherwise None."""
        try:
            status = self._orders.stat()
            seen = (status.st_ino, status.st_mtime_ns)
            if seen == self._seen:
                return None
            command = handoff.read_rescue(self._directory)
        except (OSError, json.JSONDecodeError):
            return None  # missing or incomplete: look again later
        if command is None:
            return None
        self._seen, self._has_answer, self._attempt = seen, True, command.attempt
        return command

    def _pause(self) -> None:
        self._woken.wait(POLL_SECONDS)
        self._woken.clear()
