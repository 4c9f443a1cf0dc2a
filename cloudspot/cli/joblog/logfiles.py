"""Download a job's log as text files, one per node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cloudspot.cli.jobs import Job
from cloudspot.cli.screen import output
from cloudspot.cli.screen.lines import LABEL_WIDTH
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.errors import CloudspotError
from cloudspot.host.partial_files import whole_file
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.logs.log_streams import is_node_stream, parse_stream
from cloudspot.model import LogRecord


def download_logs(
    job: Job,
    directory: Path,
    *,
    wanted: Callable[[int, int], bool],
    shown: Callable[[LogRecord], bool],
    as_json: bool,
) -> None:
    """Write the lines that ``shown`` selects to files in the directory, and print the files' names.

    Each file appears only when complete, and replaces an older one. The lines are written unchanged,
    including terminal control sequences. Raises CloudspotError if the directory is not writable.
    """
    named = sorted(filter(is_node_stream, job.log_sink.streams()), key=parse_stream)
    streams = [stream for stream in named if wanted(*parse_stream(stream))]
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with transfer("downloading the log", None) as advance:
            for stream in streams:
                launch, rank = parse_stream(stream)
                node = str(Seat(launch, rank))
                path = directory / f"node-{node}.log"
                num_lines = _write(job, path, stream, shown, advance)
                if num_lines:
                    written.append(
                        {"file": str(path), "node": node, "launch": launch, "rank": rank, "lines": num_lines}
                    )
    except OSError as error:
        raise CloudspotError(f"--download: {directory} cannot be written: {error.strerror}") from error
    if as_json:
        output.echo_json(written)
    elif written:
        for each in written:
            output.echo(f"{each['file']}: {each['lines']} lines")
    else:
        output.echo(f"job {job.id} has no log that matches")


def _write(
    job: Job, path: Path, stream: str, shown: Callable[[LogRecord], bool], advance: Callable[[int], None]
) -> int:
    """Write one node's lines and return how many there were; without lines, write no file."""

    def wanted() -> Iterator[bytes]:
        for record in job.log_sink.read(stream):
            advance(len(record.text) + 1)
            if shown(record):
                line = f"{output.utc_text(record.time)} {record.source.ljust(LABEL_WIDTH)} {record.text}\n"
                yield line.encode(errors="replace")

    lines = wanted()
    first = next(lines, None)
    if first is None:
        return 0
    num_lines = 1
    with whole_file(path) as file:
        file.write(first)
        for line in lines:
            file.write(line)
            num_lines += 1
    return num_lines
