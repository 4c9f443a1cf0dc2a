"""Reports to ranks that leave their loops early after which step the others leave, by ``left/<rank>``."""

from __future__ import annotations

from cloudspot.train.distributed import Store


class EarlyLeave:
    """One rank's part: the main thread calls ``begin``, and the background thread calls ``look``."""

    def __init__(self, store: Store, *, rank: int, world_size: int) -> None:
        """Begin with no rank known to have left."""
        self.steps: dict[int, int] = {}
        """The number of steps after which each rank left, by rank, for the ranks known to have left."""
        self.is_open = False
        """Whether this rank has left its loop and is waiting for the others."""
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._has_announced = False

    @property
    def is_complete(self) -> bool:
        """Whether all ranks are known to have left."""
        return len(self.steps) == self._world_size

    def begin(self, step: int) -> None:
        """Record that this rank has left after ``step`` steps."""
        self.steps[self._rank] = step
        self.is_open = True

    def look(self) -> bool:
        """Tell the other ranks, and check which of them have left; return whether all have left."""
        if not self._has_announced:
            self._store.set(f"left/{self._rank}", str(self.steps[self._rank]))
            self._has_announced = True
        for rank in range(self._world_size):
            if rank not in self.steps and self._store.check([f"left/{rank}"]):
                self.steps[rank] = int(self._store.get(f"left/{rank}"))
        return self.is_complete
