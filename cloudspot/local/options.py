"""The table ``[providers.local]`` of a job file: invented prices and planned reclaims."""

from __future__ import annotations

import random
from typing import Annotated

import msgspec

from cloudspot.jobfile.quantities import Duration, PositiveDuration
from cloudspot.local.machine_records import PlannedReclaim

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
NumMachines = Annotated[int, msgspec.Meta(ge=0)]


class Reclaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One planned reclaim of one spot machine."""

    launch: int = 1
    """The number of the launch in the job, from 1."""
    rank: int = 0
    """The rank of the machine in that launch, from 0."""
    after_steps: int | None = None
    """Reclaim the machine when a training process on it begins this step of the job."""
    after_seconds: Duration | None = None
    """Reclaim the machine this long after its boot."""
    after_share: Share | None = None
    """Reclaim the machine when a training process on it has begun this share of the steps, such as 0.5."""
    notice: Duration = 10.0
    """The time between the notice and the machine's end; 0 takes the machine without notice."""

    def __post_init__(self) -> None:
        moments = (self.after_steps, self.after_seconds, self.after_share)
        if sum(moment is not None for moment in moments) != 1:
            raise ValueError("a reclaim needs one of after_steps, after_seconds and after_share")


class RandomReclaims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reclaims of every spot machine, at times drawn from an exponential distribution."""

    mean: PositiveDuration
    """The mean time from a machine's boot to the notice of its reclaim."""
    seed: int = 0
    """The seed of the random times; with the same seed, a given launch and rank get the same time."""
    notice: Duration = 10.0
    """The time between the notice and the machine's end; 0 takes the machines without notice."""
    max: int | None = None
    """How many launches of the job are reclaimed, counted from the first; all by default."""


class LocalOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[providers.local]``: machines that are process trees on this host.

    Planned reclaims affect only spot machines, as in clouds; ``cloudspot preempt`` reclaims any machine.
    """

    reclaims: tuple[Reclaim, ...] = ()
    """The planned reclaims."""
    random_reclaims: RandomReclaims | None = None
    """Random reclaims."""
    notice: Duration = 10.0
    """The length of the notice that ``cloudspot preempt`` gives by default."""
    spot_price: float = 0.30
    """The price in USD per machine and hour; it is invented, and not charged."""
    on_demand_price: float = 1.00
    """The on-demand price, invented like ``spot_price``."""
    zones: tuple[str, ...] = ("local-a", "local-b")
    """The zones of this provider; each offer is in one zone."""
    capacity: dict[str, NumMachines] = {}
    """The maximum number of spot machines that a zone has at a time, for rehearsing a shortage. A zone that
    is not listed has no limit."""
    refused_launches: tuple[int, ...] = ()
    """The numbers of the job's launches, from 1, for which no zone has a spot machine."""
    boot_delay: Duration = 0.0
    """The time from a machine's creation to the start of its boot script."""
    pass_environment: tuple[str, ...] = ()
    """Environment variables that are passed to machines, such as credentials, because local machines have no
    role."""

    data_cache: str | None = None
    """The absolute path of a directory in which the machines of all jobs keep the files of ``[data]``, so
    that a second job need not fetch them again. These files are never removed. By default, each machine keeps
    its own files."""

    @property
    def longest_notice_seconds(self) -> float:
        """The longest notice of this job's machines, unless ``cloudspot preempt`` names a longer one."""
        notices = [self.notice, *(reclaim.notice for reclaim in self.reclaims)]
        if self.random_reclaims is not None:
            notices.append(self.random_reclaims.notice)
        return max(notices)

    def planned_reclaims(self, *, launch: int, rank: int) -> tuple[PlannedReclaim, ...]:
        """Return the planned reclaims of this spot machine; the same arguments give the same plan."""
        planned = [
            PlannedReclaim(
                after_steps=reclaim.after_steps,
                after_seconds=reclaim.after_seconds,
                after_share=reclaim.after_share,
                notice_seconds=reclaim.notice,
            )
            for reclaim in self.reclaims
            if (reclaim.launch, reclaim.rank) == (launch, rank)
        ]
        chance = self.random_reclaims
        if chance is not None and (chance.max is None or launch <= chance.max):
            # A string seed is taken by its bytes, which are the same in every process and version of Python.
            drawn = random.Random(f"{chance.seed}/{launch}/{rank}").expovariate(1 / chance.mean)
            planned.append(PlannedReclaim(after_seconds=drawn, notice_seconds=chance.notice))
        return tuple(planned)
