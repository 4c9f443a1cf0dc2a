"""List a job's log by node, with the state of its delivery, and prune old days."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timezone
from itertools import groupby
from typing import Any

from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.errors import SpecError
from cloudspot.host.size_text import size_text
from cloudspot.jobstore.layout.records import LogStanding, Seat
from cloudspot.jobstore.logs.log_streams import is_node_stream, parse_stream
from cloudspot.model import LogPiece
from cloudspot.story.node_names import named

Wanted = Callable[[int, int], bool]


@dataclass(frozen=True)
class _Stream:
    """One node's log: the lines that have arrived, and the lines that should have arrived."""

    launch: int
    rank: int
    first_day: date | None
    last_day: date | None
    num_bytes: int | None
    """The total size; None if the size of a piece is unknown."""
    num_pieces: int
    num_lines: int
    """The number of lines, which follows from the number of the newest one: lines are numbered without gaps.
    """
    standing: LogStanding | None
    """The node's last report about its log, or None if it has reported nothing."""
    reported_at: datetime | None
    is_over: bool
    """Whether nothing will write to the log any more."""

    @property
    def num_missing(self) -> int | None:
        """The number of the node's lines that are missing from the log; None if unknown."""
        return None if self.standing is None else max(0, self.standing.num_lines - self.num_lines)

    @property
    def delivery(self) -> str:
        """``complete``, ``current``, ``behind``, ``incomplete``, ``gone`` or ``unknown``."""
        if self.standing is None:
            return "unknown"
        is_all = self.num_missing == 0 and self.standing.waiting_bytes == 0
        if self.is_over:
            # Nothing records which lines were pruned, or removed by a service's retention.
            is_gone = self.num_pieces == 0 and self.standing.num_lines > 0
            return "gone" if is_gone else "complete" if is_all else "incomplete"
        return "current" if is_all else "behind"


def list_streams(job: Job, *, wanted: Wanted, as_json: bool) -> None:
    """Print each node's log: its days, size, lines, and the state of its delivery."""
    streams = _streams(job, wanted)
    if as_json:
        output.echo_json([_as_json(each) for each in streams])
        return
    if not streams:
        output.echo(f"job {job.id} has no log that matches")
        return
    output.echo_table(
        ("NODE", "FROM", "TO", "SIZE", "LINES", "DELIVERY"),
        [
            (
                str(Seat(each.launch, each.rank)),
                "-" if each.first_day is None else each.first_day.isoformat(),
                "-" if each.last_day is None else each.last_day.isoformat(),
                "-" if each.num_bytes is None else size_text(each.num_bytes),
                str(each.num_lines),
                _delivery_text(each),
            )
            for each in streams
        ],
    )


def prune_log(job: Job, before: datetime, *, wanted: Wanted, yes: bool, as_json: bool) -> None:
    """Delete, after a confirmation, the pieces of the log whose last day is before the day of ``before``.

    Raises:
        SpecError: ``before`` is in the future, or there is no terminal for the question.
        CloudspotError: the log's service does not allow removal.
    """
    if before > datetime.now(timezone.utc):
        raise SpecError("--prune must be a time in the past, because older logs are deleted")
    day = before.astimezone(timezone.utc).date()
    old = [piece for piece in _pieces(job) if piece.last_day < day and wanted(*parse_stream(piece.stream))]
    size = sum(piece.num_bytes or 0 for piece in old)
    doomed = f"{len(old)} pieces ({size_text(size)}) of the log of {job.id} from before {day} (UTC)"
    if old:
        output.confirm_deletion(doomed, yes=yes)
        job.log_sink.remove(old)
    if as_json:
        output.echo_json({"before": day.isoformat(), "pieces": [piece.name for piece in old], "bytes": size})
    else:
        output.echo(
            f"deleted {doomed}" if old else f"the log of {job.id} has nothing from before {day} (UTC)"
        )


def warn_of_gaps(job: Job, *, wanted: Wanted = lambda _launch, _rank: True) -> None:
    """Warn about nodes from before the job's newest resumption whose log is kept elsewhere."""
    history = job.first_history
    newer = {launch.number for launch in history.current_launches}
    older = [
        Seat(launch.number, rank)
        for launch in history.launches
        for rank in launch.claimed
        if launch.number not in newer and wanted(launch.number, rank)
    ]
    if not older:
        return
    held = {parse_stream(name)[0] for name in job.log_sink.streams() if is_node_stream(name)}
    missing = [seat for seat in older if seat.launch not in held]
    if missing:
        output.warn(
            f"the log of {named(missing)} is not here: it was left behind when job {job.id} moved or changed "
            "its provider; to read it, name its former store with --store"
        )


def _pieces(job: Job) -> list[LogPiece]:
    return [piece for piece in job.log_sink.pieces() if is_node_stream(piece.stream)]


def _streams(job: Job, wanted: Wanted) -> list[_Stream]:
    pieces = sorted(_pieces(job), key=lambda piece: parse_stream(piece.stream))
    held = {name: list(some) for name, some in groupby(pieces, key=lambda piece: piece.stream)}
    history = job.first_history
    spoken = {
        (launch.number, rank): beat for launch in history.launches for rank, beat in launch.heartbeats.items()
    }
    over = {
        (launch.number, rank) for launch in history.launches for rank in launch.slots if launch.is_over(rank)
    }
    known = sorted({*map(parse_stream, held), *spoken})
    streams = []
    for launch, rank in known:
        if not wanted(launch, rank):
            continue
        name = f"{launch}-{rank}"
        own_pieces = held.get(name, [])
        sizes = [piece.num_bytes for piece in own_pieces]
        beat = spoken.get((launch, rank))
        newest = next(job.log_sink.read_back(name), None) if own_pieces else None
        streams.append(
            _Stream(
                launch=launch,
                rank=rank,
                first_day=min((piece.first_day for piece in own_pieces), default=None),
                last_day=max((piece.last_day for piece in own_pieces), default=None),
                num_bytes=None if None in sizes else sum(size or 0 for size in sizes),
                num_pieces=len(own_pieces),
                num_lines=0 if newest is None else newest.seq + 1,
                standing=None if beat is None else beat.log,
                reported_at=None if beat is None else beat.at,
                is_over=history.finished is not None or (launch, rank) in over,
            )
        )
    return streams


def _delivery_text(stream: _Stream) -> str:
    standing, missing = stream.standing, stream.num_missing
    if standing is None or missing is None:
        return "unknown: the node has not reported"
    if stream.delivery in {"complete", "current"}:
        return stream.delivery
    if stream.delivery == "gone":
        text = f"all {missing} lines are gone: pruned or never delivered"
        return f"{text}: {standing.error}" if standing.error else text
    late = [f"{missing} line{'s' if missing > 1 else ''}"] if missing else []
    if standing.waiting_bytes:
        late.append(size_text(standing.waiting_bytes))
    text = f"{' and '.join(late)} {'never delivered' if stream.is_over else 'behind'}"
    return f"{text}: {standing.error}" if standing.error else text


def _as_json(stream: _Stream) -> dict[str, Any]:
    standing = stream.standing
    return {
        "launch": stream.launch,
        "node": str(Seat(stream.launch, stream.rank)),
        "rank": stream.rank,
        "first_day": None if stream.first_day is None else stream.first_day.isoformat(),
        "last_day": None if stream.last_day is None else stream.last_day.isoformat(),
        "bytes": stream.num_bytes,
        "pieces": stream.num_pieces,
        "lines": stream.num_lines,
        "delivery": stream.delivery,
        "node_lines": None if standing is None else standing.num_lines,
        "waiting_bytes": None if standing is None else standing.waiting_bytes,
        "error": None if standing is None else standing.error or None,
        "told_at": None if stream.reported_at is None else stream.reported_at.isoformat(),
    }
