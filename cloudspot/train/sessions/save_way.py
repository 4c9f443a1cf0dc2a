"""Chooses whether a rank's interval saves are copied at their boundary or during the step after it."""

from __future__ import annotations

import enum
import statistics
from collections import deque
from collections.abc import Collection

NUM_COMPARED = 3
"""The number of saves that are copied during steps before their cost is compared."""
NUM_KEPT = 5
NUM_USUAL = 32
TRY_EVERY = 16
"""One of this number of saves is made the other way, because costs may change."""
MAX_SPOILT = 2
"""After this number of spoilt saves, no more saves are copied during steps."""
MAX_SHARE = 0.5
"""If more than this share of the bytes must be copied at the boundary, all bytes are."""


class Way(enum.Enum):
    """When the large tensors of a save are copied."""

    BOUNDARY = "boundary"
    TRIAL = "trial"
    """At the boundary. Before the next optimizer step, the tensors are compared with their copies."""
    OVERLAPPED = "overlapped"
    """During the next step."""


class SaveWay:
    """Chooses the way of each save by the measured cost of earlier ones.

    The first save is a trial: it finds the tensors that are written to by code other than an optimizer step,
    and these are always copied at the boundary. The cost of a save is the time from its boundary to the next
    boundary, minus the usual time.
    """

    def __init__(self) -> None:
        """Begin without measurements."""
        self.obstacle: str | None = None
        """The reason that all saves are copied at the boundary, as a clause."""
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
        """Note that the training has reached a boundary, at a moment in monotonic seconds."""
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

        ``has_stepped`` says whether torch has reported an optimizer step since the previous boundary. A step
        that it does not report, such as the replay of a CUDA graph, could not be delayed.
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
        """Return the spread of the usual times; a difference below this is not attributed to a save."""
        if len(self._usual) < 2:
            return 0.0
        quarter, _, three_quarters = statistics.quantiles(self._usual, n=4)
        return three_quarters - quarter

    def lost_seconds(self, way: Way) -> float | None:
        """Return the seconds that a save of this way costs the training, or None if not known yet.

        A cost below the noise of the steps may come out negative, and is 0.
        """
        lost = self._lost[Way.BOUNDARY if way is Way.TRIAL else way]
        return max(0.0, statistics.median(lost)) if lost else None

    def skip(self) -> None:
        """Note that the chosen save was not made."""
        self._saving = None

    def begin_trial(self, stall_seconds: float) -> None:
        """Note how long the trial's copy has held up the training, which is the cost of a boundary copy."""
        self._lost[Way.BOUNDARY].append(stall_seconds)

    def end_trial(self, written: Collection[str], *, share: float) -> None:
        """Note the tensors ``written`` to between the boundary and an optimizer step, and their ``share``."""
        self._is_tried = True
        self.excluded.update(written)
        if share > MAX_SHARE:
            self.obstacle = f"{min(written)} is written to before an optimizer steps"

    def spoil(self, written: Collection[str]) -> None:
        """Note that a save was spoilt, because these tensors were written to before they were copied."""
        self.excluded.update(written)
        self._num_spoilt += 1
        self._is_spoilt, self._saving = True, None
        if self._num_spoilt >= MAX_SPOILT:
            self.obstacle = f"{min(written)} was written to before an optimizer stepped"
