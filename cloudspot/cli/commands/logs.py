"""``cloudspot logs``: print a job's log, even long after its machines are gone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from cloudspot.cli.completers import complete_generations
from cloudspot.cli.joblog.logfiles import download_logs
from cloudspot.cli.joblog.logpieces import list_streams, prune_log, warn_of_gaps
from cloudspot.cli.joblog.logtail import LogTail, lives_of
from cloudspot.cli.jobs import Job, open_job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.lines import are_nodes_named, echo_line, record_line
from cloudspot.cli.screen.printable import printable
from cloudspot.cli.sharedoptions import job_argument, json_option, node_option, parsed, store_option
from cloudspot.errors import SpecError, TransientError
from cloudspot.jobfile.quantities import parse_moment
from cloudspot.jobstore.layout.records import Generation, Seat
from cloudspot.jobstore.logs.log_streams import FOR_PROGRAMS, METRICS, UTILIZATION, parse_stream, stream_name
from cloudspot.model import LogRecord

FOLLOW_SECONDS = 1.0
_to_moment = parsed(lambda text: parse_moment(text, now=datetime.now(timezone.utc).astimezone()))
SOURCES = ("train", "setup", "agent", METRICS, UTILIZATION)


@click.command("logs")
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the job has ended.")
@click.option(
    "-n",
    "--tail",
    "count",
    type=click.IntRange(min=0),
    metavar="N",
    help="Start with the last N lines; without --follow, print only these.",
)
@click.option(
    "--since",
    callback=_to_moment,
    metavar="WHEN",
    help="Start at a time: `10m` (ago), `06:25`, `2026-11-20T06:25` (local time), `2026-11-20T06:25Z`.",
)
@click.option(
    "--until", callback=_to_moment, metavar="WHEN", help="Stop before a time, written as for --since."
)
@node_option(help="Only the lines of this node, such as 2.0.")
@click.option(
    "--generation",
    "number",
    shell_complete=complete_generations,
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the lines of generation N: those of its nodes between its start and the next one's.",
)
@click.option(
    "--source",
    "sources",
    type=click.Choice(SOURCES),
    multiple=True,
    metavar="NAME",
    help=f"Only the lines of this source: {', '.join(SOURCES)}. Repeatable.",
)
@click.option("--grep", "pattern", metavar="REGEX", help="Only lines that match this regular expression.")
@click.option(
    "--download",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the lines to text files, one per node.",
)
@click.option("--list", "listed", is_flag=True, help="List each node's log: days, size and delivery.")
@click.option(
    "--prune",
    callback=_to_moment,
    metavar="WHEN",
    help="Delete the logs of all days before WHEN, written as for --since.",
)
@click.option("-y", "--yes", is_flag=True, help="With --prune: do not ask.")
@store_option
@json_option
def logs(
    job_id: str,
    follow: bool,
    count: int | None,
    since: datetime | None,
    until: datetime | None,
    node: Seat | None,
    number: int | None,
    sources: Sequence[str],
    pattern: str | None,
    download: Path | None,
    listed: bool,
    prune: datetime | None,
    yes: bool,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Print a job's log.

    Prints the lines of the setup, the training script and the agent of all nodes, merged by time. With
    --follow, lines are printed when they arrive, so lines that a node delivers late follow newer lines of
    other nodes. --list lists the logs that are kept, and --prune deletes old logs.

    With --json, each line is one JSON object.
    """
    if download is not None and (follow or count is not None):
        raise SpecError("--download writes whole files; give it without --follow and --tail")
    if until is not None and follow:
        raise SpecError("give --until or --follow, not both")
    if yes and prune is None:
        raise SpecError("--yes confirms --prune; give both, or neither")
    given = {
        "--list": listed,
        "--prune": prune is not None,
        "--download": download is not None,
        "--follow": follow,
        "--tail": count is not None,
        "--since": since is not None,
        "--until": until is not None,
        "--generation": number is not None,
        "--source": bool(sources),
        "--grep": pattern is not None,
    }
    _check_whole("--list", given)
    _check_whole("--prune", given)
    grep = _compile(pattern)
    job = open_job(store_url, job_id)
    seats = None if node is None else {_check_node(job, node)}
    if number is not None:
        generation, end = _generation(job, number)
        seats = set(generation.seats) & (seats or set(generation.seats))
        since = generation.at if since is None else max(since, generation.at)
        until = until if end is None else end if until is None else min(until, end)
    shown = _Filter(sources=frozenset(sources), grep=grep, since=since, until=until, with_all=as_json)

    def wanted(launch: int, rank: int) -> bool:
        return seats is None or (launch, rank) in seats

    warn_of_gaps(job, wanted=wanted)
    if listed:
        list_streams(job, wanted=wanted, as_json=as_json)
    elif prune is not None:
        prune_log(job, prune, wanted=wanted, yes=yes, as_json=as_json)
    elif download is not None:
        download_logs(job, download, wanted=wanted, shown=shown, as_json=as_json)
    else:
        lives = lives_of(job.first_history)
        tail = LogTail(job.log_sink, wanted=wanted, lives=lambda: lives)
        _print_log(job, tail, shown, count, follow=follow, as_json=as_json)


@dataclass(frozen=True)
class _Filter:
    """Selects the lines that are shown."""

    sources: frozenset[str]
    """The sources to show; if empty, all sources."""
    with_all: bool
    """Whether an empty ``sources`` includes sources whose lines are meant for programs."""
    grep: re.Pattern[str] | None
    since: datetime | None
    until: datetime | None

    def __call__(self, record: LogRecord) -> bool:
        if self.sources:
            if record.source not in self.sources:
                return False
        elif record.source in FOR_PROGRAMS and not self.with_all:
            return False
        if self.since is not None and record.time < self.since:
            return False
        if self.until is not None and record.time >= self.until:
            return False
        return self.grep is None or self.grep.search(printable(record.text)) is not None


def _print_log(
    job: Job, tail: LogTail, shown: _Filter, count: int | None, *, follow: bool, as_json: bool
) -> None:
    """Print the selected lines, or the last ``count`` of them; with ``follow``, until the job ends."""
    name_nodes = are_nodes_named(job.spec.nodes.max, job.first_history)

    def show(records: Iterable[LogRecord]) -> None:
        if as_json:
            for record in records:
                output.echo_json_line(_record_json(record))
        else:
            print_records(records, name_nodes=name_nodes, highlight=shown.grep)

    begun = False
    complaint = ""
    while True:
        try:
            # Check this before reading, so that lines that a node wrote before its end are still read below.
            ended = not follow or job.history().finished is not None
            if not begun and count is not None:
                show(tail.last_records(count, since=shown.since, shown=shown))
            elif not begun and shown.since is not None:
                tail.skip_before(shown.since)
            begun = True
            if follow or count is None:
                show(record for record in tail.new_records() if shown(record))
        except TransientError as error:
            if not follow:
                raise
            ended = False
            if str(error) != complaint:
                complaint = str(error)
                output.warn(f"{complaint}; trying again")
        if ended:
            return
        time.sleep(FOLLOW_SECONDS)


def print_records(
    records: Iterable[LogRecord], *, name_nodes: bool, highlight: re.Pattern[str] | None
) -> None:
    """Print log lines with time and source, and colour the matches of ``highlight``."""
    for record in records:
        line = record_line(record, name_nodes=name_nodes)
        if highlight is None:
            echo_line(line)
        else:
            output.echo(output.Styled(line.head, "dim"), " ", *_highlighted(line.text, highlight))


def _highlighted(text: str, highlight: re.Pattern[str]) -> Iterator[str | output.Styled]:
    end = 0
    for match in highlight.finditer(text):
        yield text[end : match.start()]
        yield output.Styled(match[0], "red")
        end = match.end()
    yield text[end:]


def _record_json(record: LogRecord) -> dict[str, Any]:
    launch, rank = parse_stream(record.stream)
    return {
        "node": str(Seat(launch, rank)),
        "launch": launch,
        "rank": rank,
        "seq": record.seq,
        "time": record.time.isoformat(),
        "source": record.source,
        "text": record.text,
    }


def _check_whole(name: str, given: Mapping[str, bool]) -> None:
    """Refuse options that select lines if an option for whole streams is also given."""
    other = next((one for one, is_given in given.items() if is_given and one != name), None)
    if given[name] and other is not None:
        raise SpecError(f"{name} works on whole days of a node's log; give it without {other}")


def _check_node(job: Job, node: Seat) -> Seat:
    launch = job.first_history.launch_of(node)
    is_known = launch is not None and node.rank in launch.claimed
    if not is_known and stream_name(*node) not in job.log_sink.streams():
        raise SpecError(f"--node: job {job.id} has no node {node}; see: {job.command('show')}")
    return node


def _generation(job: Job, number: int) -> tuple[Generation, datetime | None]:
    """Return the generation, and the start of the next one."""
    generations = job.first_history.generations
    if number > len(generations):
        raise SpecError(
            f"--generation must be <= {len(generations)}, the number of generations of {job.id}: got {number}"
        )
    following = generations[number:][:1]
    return generations[number - 1], following[0].at if following else None


def _compile(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise SpecError(f"--grep: {pattern!r} is not a regular expression: {error}") from None
