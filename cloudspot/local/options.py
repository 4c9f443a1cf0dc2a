"""The table ``[providers.local]`` of a job file: made-up prices, and when machines are reclaimed."""

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
    """When a training process on that machine begins this step of the job."""
    after_seconds: Duration | None = None
    """This long after its boot."""
    after_share: Share | None = None
    """When a training process on that machine has begun this share of the steps, such as 0.5."""
    notice: Duration = 10.0
    """Between the notice and the end; 0 takes the machine without one."""

    def __post_init__(self) -> None:
        moments = (self.after_steps, self.after_seconds, self.after_share)
        if sum(moment is not None for moment in moments) != 1:
            raise ValueError("a reclaim needs one of after_steps, after_seconds and after_share")


class RandomReclaims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reclaims of every spot machine, at times drawn from an exponential distribution."""

    mean: PositiveDuration
    """The mean life of a machine from its boot to its reclaim's notice."""
    seed: int = 0
    """The same seed draws the same time for a given launch and rank."""
    notice: Duration = 10.0
    """Between the notice and the end; 0 takes the machines without one."""
    max: int | None = None
    """Reclaim only this many launches of the job, the first ones; default: all."""


class LocalOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[providers.local]``: machines that are process trees on this host.

    Only spot machines are reclaimed on a plan, as in a cloud; ``cloudspot preempt`` takes any.
    """

    reclaims: tuple[Reclaim, ...] = ()
    """Which machines are reclaimed, and when."""
    random_reclaims: RandomReclaims | None = None
    """Random reclaims."""
    notice: Duration = 10.0
    """The notice that ``cloudspot preempt`` gives by default."""
    spot_price: float = 0.30
    """USD per machine and hour; made up, nobody pays it."""
    on_demand_price: float = 1.00
    """As ``spot_price``."""
    zones: tuple[str, ...] = ("local-a", "local-b")
    """The zones of this cloud; each offer is in one."""
    capacity: dict[str, NumMachines] = {}
    """How many spot machines a zone has at a time, to see what happens then; the others have any number."""
    refused_launches: tuple[int, ...] = ()
    """The launches of the job, from 1, for which no zone has a spot machine."""
    boot_delay: Duration = 0.0
    """From the creation of a machine to the start of its boot script."""
    pass_environment: tuple[str, ...] = ()
    """Environment variables to give to machines, such as credentials: they have no role of their own."""

    data_cache: str | None = None
    """An absolute path: the directory in which machines keep the files of ``[data]``, those of all jobs
    together, so that a second one fetches nothing. Nothing removes them. If left out: each machine's own."""

    @property
    def longest_notice_seconds(self) -> float:
        """The longest notice that this job's machines get, except in drills that name their own."""
        notices = [self.notice, *(reclaim.notice for reclaim in self.reclaims)]
        if self.random_reclaims is not None:
            notices.append(self.random_reclaims.notice)
        return max(notices)

    def planned_reclaims(self, *, launch: int, rank: int) -> tuple[PlannedReclaim, ...]:
        """Return when this spot machine will be reclaimed; pure: the same arguments, the same plan."""
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
            # A string seeds by its bytes, alike in every process and version of Python.
            drawn = random.Random(f"{chance.seed}/{launch}/{rank}").expovariate(1 / chance.mean)
            planned.append(PlannedReclaim(after_seconds=drawn, notice_seconds=chance.notice))
        return tuple(planned)
