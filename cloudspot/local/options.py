"""The table ``[providers.local]`` of a job file: made-up prices and planned reclaims."""

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
    """The launch of the job, from 1."""
    rank: int = 0
    """The machine of that launch, from 0."""
    after_steps: int | None = None
    """Reclaim the machine when a training process on it begins this step of the job."""
    after_seconds: Duration | None = None
    """Reclaim the machine this long after its boot."""
    after_share: Share | None = None
    """Reclaim the machine when a training process on it has begun this share of the steps, such as 0.5."""
    notice: Duration = 10.0
    """The time between the notice and the end; 0 takes the machine without a notice."""

    def __post_init__(self) -> None:
        moments = (self.after_steps, self.after_seconds, self.after_share)
        if sum(moment is not None for moment in moments) != 1:
            raise ValueError("a reclaim needs one of after_steps, after_seconds and after_share")


class RandomReclaims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reclaims of every spot machine, at times drawn from an exponential distribution."""

    mean: PositiveDuration
    """The mean life of a machine from its boot to its reclaim's notice."""
    seed: int = 0
    """The seed of the random times; with the same seed, a given launch and rank get the same time."""
    notice: Duration = 10.0
    """The time between the notice and the end; 0 takes the machines without a notice."""
    max: int | None = None
    """How many launches of the job, the first ones, are reclaimed; all by default."""


class LocalOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[providers.local]``: machines that are process trees on this host.

    Plans reclaim only spot machines, as clouds do; ``cloudspot preempt`` takes any machine.
    """

    reclaims: tuple[Reclaim, ...] = ()
    """The planned reclaims."""
    random_reclaims: RandomReclaims | None = None
    """Random reclaims."""
    notice: Duration = 10.0
    """The notice that ``cloudspot preempt`` gives by default."""
    spot_price: float = 0.30
    """The price in USD per machine and hour; it is made up, and not charged."""
    on_demand_price: float = 1.00
    """The on-demand price, as ``spot_price``."""
    zones: tuple[str, ...] = ("local-a", "local-b")
    """The zones of this cloud; each offer is in one zone."""
    capacity: dict[str, NumMachines] = {}
    """The most spot machines that a zone has at a time, for rehearsals of a shortage. A zone that is not
    named has no limit."""
    refused_launches: tuple[int, ...] = ()
    """The launches of the job, from 1, for which no zone has a spot machine."""
    boot_delay: Duration = 0.0
    """The time from the creation of a machine to the start of its boot script."""
    pass_environment: tuple[str, ...] = ()
    """Environment variables to give to machines, such as credentials, because these have no role of their
    own."""

    data_cache: str | None = None
    """The absolute path of a directory in which the machines of all jobs keep the files of ``[data]``, so
    that a second job fetches nothing. Nothing removes them. By default, each machine keeps its own files."""

    @property
    def longest_notice_seconds(self) -> float:
        """The longest notice of this job's machines, except from ``cloudspot preempt`` with a notice."""
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
            # A string seeds by its bytes, which is the same in every process and version of Python.
            drawn = random.Random(f"{chance.seed}/{launch}/{rank}").expovariate(1 / chance.mean)
            planned.append(PlannedReclaim(after_seconds=drawn, notice_seconds=chance.notice))
        return tuple(planned)
