"""How the ranks learn after which step each has left its loop early: each says so in ``left/<rank>``."""

from __future__ import annotations

from cloudspot.train.distributed import Store


class EarlyLeave:
    """One rank's part in it; ``begin`` is the main thread's, ``look`` the background thread's."""

    def __init__(self, store: Store, *, rank: int, world_size: int) -> None:
        """Nobody has left yet."""
        self.steps: dict[int, int] = {}
        """After how many steps, by rank, as far as that is known here."""
        self.is_open = False
        """Whether this rank has left and waits for the others."""
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._has_told = False

    @property
    def is_complete(self) -> bool:
        """Whether that is known of all."""
        return len(self.steps) == self._world_size

    def begin(self, step: int) -> None:
        """Note that this rank has left after so many steps."""
        self.steps[self._rank] = step
        self.is_open = True

    def look(self) -> bool:
        """Tell the others, and look who of them has left; return whether all have."""
        if not self._has_told:
            self._store.set(f"left/{self._rank}", str(self.steps[self._rank]))
            self._has_told = True
        for rank in range(self._world_size):
            if rank not in self.steps and self._store.check([f"left/{rank}"]):
                self.steps[rank] = int(self._store.get(f"left/{rank}"))
        return self.is_complete
