"""Find machines that have provably ended, and make their certificates; pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from cloudspot.controller.actions import UNSIGNED, Certify
from cloudspot.controller.assess.observed import Observed
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Certificate
from cloudspot.jobstore.nodes.keeping import kept_now
from cloudspot.model import EndReason, Instance, InstanceState
from cloudspot.story.outcomes import claimed_at, last_sign, launched_at, left_at, machine_ended_at, own_exit


def find_instance(instance_id: str, observed: Observed) -> Instance | None:
    """Return the machine as the newest listing shows it, or None."""
    return next((one for one in observed.instances or () if one.id == instance_id), None)


def provider_proves_death(instance_id: str, observed: Observed) -> bool:
    """Return whether the provider's listings prove that the machine no longer runs anything.

    The state ``ended`` is a proof, and so is an absence that has lasted long enough. A machine that is
    ``shutting-down`` is alive, a lagging listing may cause a short absence, and silence is not death.
    """
    instance = find_instance(instance_id, observed)
    if instance is not None:
        return instance.state is InstanceState.ENDED
    return observed.absent_seconds.get(instance_id, 0.0) >= observed.absence_proves_after_seconds


LEFT_ABSENCE_SECONDS = 30.0
"""How long a machine with an exit record must be absent to count as ended. If the listing merely missed the
machine, any driver that sees it again ends it.
"""


_CLOCKS_APART = timedelta(minutes=1)
"""If a node's clock is ahead of ours by more than this, the end time that the node reports does not count."""


def certificates(history: History, observed: Observed, now: datetime) -> Iterator[Certify]:
    """Yield a certificate for each machine that has provably ended and has none yet.

    An exit record proves that a node runs no user code any more, but not that its machine is gone.
    """
    if observed.instances is None:
        return
    kept = kept_now(history, now)
    for launch in history.launches:
        if launch.is_settled:
            continue
        for instance_id, rank in sorted(_machines(launch, observed).items()):
            if instance_id in launch.certificates:
                continue
            is_absent = find_instance(instance_id, observed) is None
            absent = observed.absent_seconds.get(instance_id, 0.0)
            is_kept = kept is not None and kept.instance_id == instance_id
            has_left = not is_kept and _has_left(launch, instance_id)
            has_gone = is_absent and absent >= LEFT_ABSENCE_SECONDS and has_left
            if has_gone or provider_proves_death(instance_id, observed):
                yield Certify(_certificate(launch, instance_id, rank, observed, now))


def _has_left(launch: LaunchHistory, instance_id: str) -> bool:
    """Return whether the machine's node has written its exit record; the machine then ends itself."""
    owned = (rank for rank, slot in launch.claimed.items() if slot.instance_id == instance_id)
    return any(own_exit(launch, rank) is not None for rank in owned)


def _machines(launch: LaunchHistory, observed: Observed) -> dict[str, int | None]:
    """Return the ids of all known machines of the launch, each with its rank if that is known."""
    known = (*observed.machines_of(launch), *observed.vanished)
    ranks = {one.id: one.rank for one in known if one.launch == launch.number}
    return {**ranks, **{machine: rank for rank, slot in launch.slots.items() for machine in slot.owed}}


def _certificate(
    launch: LaunchHistory,
    instance_id: str,
    rank: int | None,
    observed: Observed,
    now: datetime,
) -> Certificate:
    known = (*observed.machines_of(launch), *observed.vanished)
    instance = next((one for one in known if one.id == instance_id), None)
    seat = None if rank is None else launch.claimed.get(rank)
    owned = rank if seat is not None and seat.instance_id == instance_id else None
    claimed = launch.intent.at if owned is None else claimed_at(launch, owned)
    left = None if owned is None else left_at(launch, owned)
    launched = None if instance is None else launched_at(launch, instance)
    absence = timedelta(seconds=observed.absent_seconds.get(instance_id, 0.0))
    ended, reason = now - absence, EndReason.UNKNOWN
    if owned is not None:
        # The node's heartbeats may be newer than the last listing with the machine, or it ended before our
        # first look.
        sign = last_sign(launch, owned)
        ended = sign if instance is None else max(ended, sign)
    if left is not None:
        ended, reason = min(left, now) if left - now <= _CLOCKS_APART else ended, EndReason.SELF
    detail = ""
    if instance is not None and instance.state is InstanceState.ENDED:
        ended, reason = machine_ended_at(launch, instance) or ended, instance.end_reason or reason
        detail = observed.why_ended(instance)
    # Without a start time from the provider, ours is a guess, perhaps by a clock that runs ahead.
    started = min(claimed, ended) if launched is None else launched
    return Certificate(
        launch=launch.number,
        rank=rank,
        instance_id=instance_id,
        started_at=started,
        ended_at=max(started, ended),
        end_reason=reason,
        detail=detail,
        at=now,
        writer=UNSIGNED,
    )
