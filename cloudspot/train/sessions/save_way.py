"""Chooses whether a rank's interval saves are copied at their boundary or during the following step."""

from __future__ import annotations

import enum
import statistics
from collections import deque
from collections.abc import Collection

NUM_COMPARED = 3
"""The number of saves that are copied during steps before the costs are compared."""
NUM_KEPT = 5
NUM_USUAL = 32
TRY_EVERY = 16
"""One save in this many is made in the other way, because costs may change."""
MAX_SPOILT = 2
"""After this many spoilt saves, no more saves are copied during steps."""
MAX_SHARE = 0.5
"""If more than this share of the bytes must be copied at the boundary, all bytes are copied there."""


class Way(enum.Enum):
    """When a save's large tensors are copied."""

    BOUNDARY = "boundary"
    TRIAL = "trial"
    """At the boundary. Before the next optimizer step, the tensors are compared with their copies."""
    OVERLAPPED = "overlapped"
    """During the next step."""


class SaveWay:
    """Chooses the way of each save by the measured costs of earlier saves.

    The first save is a trial: it finds the tensors that are written to outside optimizer steps, and these
    tensors are always copied at the boundary. The cost of a save is the time from its boundary to the next
    one, minus the usual time between boundaries.
    """

    def __init__(self) -> None:
        """Begin without measurements."""
        self.obstacle: str | None = None
        """Why all saves are copied at the boundary, as a clause; None if they are not."""
        self.excluded: set[str] = set()
        """The tensors that are always copied at the boundary."""
        self._is_tried = False
        self._num_spoilt = self._num_chosen = 0
        self._is_spoilt = False
        self._at: float | None = None
        self._saving: Way | None = None
        self._usual: deque[float] = deque(maxlen=NUM_USUAL)
        self._lost = {way: deque[float](maxlen=NUM_KEPT) for way in (Way.BOUNDARY, Way.OVERLAPPED)}

    def pass_boundary(self, now: float) -> None:
        """Record that the training has reached a boundary at the time ``now`` (monotonic seconds)."""
        before, self._at = self._at, now
        if before is None:
            return
        seconds, saving, self._saving = now - before, self._saving, None
        if saving is None:
            self._usual.append(seconds)
        elif saving is not Way.TRIAL and self._usual:
            self._lost[saving].append(seconds - statistics.median(self._usual))

    def choose(self, *, has_stepped: bool) -> Way:
        """Return how to copy the save at this boundary.

        ``has_stepped`` says whether torch reported an optimizer step since the previous boundary. A step that
        torch does not report, such as the replay of a CUDA graph, could not be delayed.
        """
        is_possible = has_stepped and self.obstacle is None and not self._is_spoilt
        self._saving, self._is_spoilt = self._choose() if is_possible else Way.BOUNDARY, False
        return self._saving

    def _choose(self) -> Way:
        if not self._is_tried:
            return Way.TRIAL
        overlapped, at_boundary = self._lost[Way.OVERLAPPED], self._lost[Way.BOUNDARY]
        if len(overlapped) < NUM_COMPARED or not at_boundary:
            return Way.OVERLAPPED
        self._num_chosen += 1
        is_better = statistics.median(overlapped) - self._spread() <= statistics.median(at_boundary)
        return Way.OVERLAPPED if is_better != (self._num_chosen % TRY_EVERY == 0) else Way.BOUNDARY

    def _spread(self) -> float:
        """Return the spread of the usual times; a smaller difference is not attributed to a save."""
        if len(self._usual) < 2:
            return 0.0
        quarter, _, three_quarters = statistics.quantiles(self._usual, n=4)
        return three_quarters - quarter

    def lost_seconds(self, way: Way) -> float | None:
        """Return the seconds that a save made in this way costs the training, or None if unknown.

        A measured cost below the noise of the steps may be negative; then 0 is returned.
        """
        lost = self._lost[Way.BOUNDARY if way is Way.TRIAL else way]
        return max(0.0, statistics.median(lost)) if lost else None

    def skip(self) -> None:
        """Record that the chosen save was not made."""
        self._saving = None

    def begin_trial(self, stall_seconds: float) -> None:
        """Record how long the trial's copy stalled the training, which is the cost of a boundary copy."""
        self._lost[Way.BOUNDARY].append(stall_seconds)

    def end_trial(self, written: Collection[str], *, share: float) -> None:
        """Record the tensors ``written`` to between boundary and optimizer step, and their ``share``."""
        self._is_tried = True
        self.excluded.update(written)
        if share > MAX_SHARE:
            self.obstacle = f"{min(written)} is written to before an optimizer steps"

    def spoil(self, written: Collection[str]) -> None:
        """Record that a save was spoilt because these tensors were written to before they were copied."""
        self.excluded.update(written)
        self._num_spoilt += 1
        self._is_spoilt, self._saving = True, None
        if self._num_spoilt >= MAX_SPOILT:
            self.obstacle = f"{min(written)} was written to before an optimizer stepped"
