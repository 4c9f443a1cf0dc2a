"""What clouds sell, as their documents list it, to hold offers against.

The tables are a second source beside the catalogues of the emulations: no row comes from one of those, nor
from a plugin.
"""

import itertools
from typing import NamedTuple

from cloudspot.model import Resources

GIB = 2**30
COUNTS = (1, 2, 4, 8)
SIZES = ((0, 0), (12, 40), (16, 60), (48, 180), (96, 600))
"""vCPUs and GiB of memory that a job asks for beside its accelerators."""


class Sold(NamedTuple):
    """A machine type as its cloud sells it."""

    name: str
    cpus: int
    gib: float
    accelerator: str = ""
    count: int = 0

    def has(self, asked):
        """Return whether it has what a job asks for."""
        return (
            self.cpus >= asked.cpus
            and self.gib * GIB >= asked.memory_bytes
            and self.count >= asked.accelerator_count
        )


def table(accelerator, text):
    """Return the types of the text, each line with a name, vCPUs, GiB of memory and accelerators."""
    rows = (line.split() for line in text.strip().splitlines())
    return [Sold(name, int(cpus), float(gib), accelerator, int(count)) for name, cpus, gib, count in rows]


def combinations(accelerator):
    """Return what jobs ask for with this accelerator, or with none: 20 combinations."""
    if accelerator is None:
        pairs = itertools.product((2, 4, 12, 16, 48), (8, 16, 60, 180))
        return [Resources(cpus=cpus, memory_bytes=gib * GIB) for cpus, gib in pairs]
    return [
        Resources(accelerator=accelerator, accelerator_count=count, cpus=cpus, memory_bytes=gib * GIB)
        for count, (cpus, gib) in itertools.product(COUNTS, SIZES)
    ]


def assert_sold(asked, rows, sold):
    """Check the rows of what was offered for these resources against the types that have the accelerator.

    ``rows`` are as their documents list them. There is an offer exactly if some type has what is asked for,
    and one of them has no more accelerators than it must.
    """
    wrong = [row for row in rows if row not in sold or not row.has(asked)]
    assert not wrong, f"{asked}: {wrong}"
    fitting = [row for row in sold if row.has(asked)]
    assert bool(rows) == bool(fitting), f"{asked}: {fitting}"
    if rows:
        assert min(row.count for row in rows) == min(row.count for row in fitting), asked
