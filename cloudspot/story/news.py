"""A job's news that is sent to people; each item has a key on which all drivers agree; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from cloudspot.jobfile.notify import NewsKind
from cloudspot.jobstore.journal.history import History, LaunchHistory
from cloudspot.jobstore.layout.records import Finished, Resumed, Suspended
from cloudspot.jobstore.nodes.keeping import kept_text
from cloudspot.model import EndReason
from cloudspot.story.events import launch_text, stop_text, turn_text
from cloudspot.story.node_names import named
from cloudspot.story.outcomes import own_beat
from cloudspot.story.states import held_generations, live_members

STALLED_SECONDS = 1800.0
"""A job is stalled if it has had no training nodes, or no heartbeats from them, for this long."""


@dataclass(frozen=True)
class News:
    """One event about which people may be notified."""

    kind: NewsKind
    key: str
    """The event's key, which is the same for every driver and unique within the job."""
    text: str
    """A single line; empty if the job's state says enough."""
    at: datetime


def news(history: History, now: datetime, zone: tzinfo) -> Iterator[News]:
    """Yield the news since the job was submitted or last resumed; days are those of ``zone``."""
    claimed = [launch for launch in history.current_launches if launch.claimed]
    for launch in claimed:
        yield from _reclaimed(launch)
    for launch in claimed[1:]:
        at = min(slot.at for slot in launch.claimed.values())
        yield News(
            NewsKind.RELAUNCHED, f"relaunched-{launch.number}", f"{launch_text(launch.intent)}; it is up", at
        )
    for generation in history.generations:
        if generation.why == "trainer-stuck" and generation.at >= history.asked_at:
            step = 0 if generation.restore_from is None else generation.restore_from.step
            text = f"the training was stuck; it begins again at step {step}"
            yield News(NewsKind.STALLED, f"stalled-generation-{generation.number}", text, generation.at)
    if history.stop is not None and history.stop.reason != "user":
        key = f"capped-{history.submission.resumption}"
        yield News(NewsKind.CAPPED, key, stop_text(history.stop, history.kept), history.stop.at)
    yield from _turned(history)
    if history.finished is None and history.stop is None:
        if history.suspended is None:
            yield from _standing(history, now)
        today = now.astimezone(zone).date()
        if history.live_launches and today > history.asked_at.astimezone(zone).date():
            yield News(NewsKind.COST, f"cost-{today}", "", now)


def _reclaimed(launch: LaunchHistory) -> Iterator[News]:
    for rank, slot in launch.claimed.items():
        node, key = f"node {launch.number}.{rank}", f"reclaimed-{launch.number}-{rank}"
        notice, proof = launch.notices.get(rank), launch.certificate(rank)
        if notice is not None:
            seconds = max(0.0, (notice.deadline - notice.at).total_seconds())
            text = f"{node} will be taken in {seconds:.0f} s ({notice.source})"
            yield News(NewsKind.RECLAIMED, key, text, notice.at)
        elif proof is not None and proof.end_reason is EndReason.RECLAIMED:
            text = f"{node} ({slot.instance_id}) was taken without a notice"
            yield News(NewsKind.RECLAIMED, key, text, proof.ended_at)


def _turned(history: History) -> Iterator[News]:
    turns = [turn for _, turn in history.turns]
    resumed = [index for index, turn in enumerate(turns) if isinstance(turn, Resumed)]
    for index in range(resumed[-1] + 1 if resumed else 0, len(turns)):
        turn = turns[index]
        if isinstance(turn, Suspended):
            yield News(NewsKind.STALLED, f"stalled-turn-{index}", turn_text(turn), turn.at)
        elif isinstance(turn, Finished):
            kind = NewsKind.FAILED if turn.outcome == "failed" else NewsKind.FINISHED
            kept = history.kept
            stays = "" if kept is None else f"; {kept_text(kept)}, and paid for"
            yield News(kind, f"{kind.value}-turn-{index}", f"{turn_text(turn)}{stays}", turn.at)


def _standing(history: History, now: datetime) -> Iterator[News]:
    """Yield the news that no node has trained for long, once after each generation."""
    held = held_generations(history)
    trained = [one for one in history.generations if one.number not in held and one.at >= history.asked_at]
    newest = trained[-1] if trained else None
    members = live_members(history)
    if newest is not None and newest is history.generations[-1] and members:
        beats = [own_beat(history.launches[seat.launch - 1], seat.rank) for seat in members]
        since, text, cause = newest.at, f"no heartbeat has come from {named(members)}", ""
        since = max([since, *(beat.at for beat in beats if beat is not None)])
    else:
        later = history.generations[newest.number :] if newest is not None else ()
        ends = [one.over_at(rank) for one in history.current_launches for rank in one.claimed]
        known = [end for end in ends if end is not None]
        since = later[0].at if later else max(known, default=history.asked_at)
        text, cause = "nothing has trained", ", because machines are missing"
    if now - since >= timedelta(seconds=STALLED_SECONDS):
        number = 0 if newest is None else newest.number
        key = f"stalled-after-{history.submission.resumption}-{number}"
        yield News(NewsKind.STALLED, key, f"{text} since {since:%Y-%m-%d %H:%M} UTC{cause}", now)
