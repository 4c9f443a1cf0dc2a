"""Files of a job that a browser can download."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from cloudspot.cli.joblog.logtail import LogTail, lives_of
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen.output import utc_text
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.layout.records import Seat
from cloudspot.jobstore.logs.log_streams import FOR_PROGRAMS, parse_stream
from cloudspot.jobstore.logs.stored_artifacts import list_artifacts

_BLOCK = 1 << 20


def artifact(job: Job, name: str) -> Response:
    """Return an artifact.

    A file's name is looked up in the bucket's list of artifacts, and not used as a path.
    """
    store = with_retries(job.store)
    found = next((one for one in list_artifacts(job.store, job.id) if one.name == name), None)
    if found is None:
        raise HTTPException(404, f"job {job.id} has no artifact {name!r}")
    meta = found

    def blocks() -> Iterator[bytes]:
        for start in range(0, meta.size, _BLOCK):
            yield store.get_range(meta.key, start, min(_BLOCK, meta.size - start))

    return _download(blocks(), name.rpartition("/")[2], num_bytes=meta.size)


def log(job: Job) -> Response:
    """Return the whole log as text, merged over the nodes."""
    lives = lives_of(job.history())
    tail = LogTail(job.log_sink, lives=lambda: lives)

    def lines() -> Iterator[bytes]:
        held: list[str] = []
        for record in tail.new_records():
            if record.source not in FOR_PROGRAMS:
                node = Seat(*parse_stream(record.stream))
                held.append(f"{utc_text(record.time)} {node} {record.source} {record.text}\n")
            if len(held) >= 1000:
                yield "".join(held).encode(errors="replace")
                held = []
        yield "".join(held).encode(errors="replace")

    return _download(lines(), f"{job.id}.log")


def _download(blocks: Iterator[bytes], name: str, *, num_bytes: int | None = None) -> Response:
    # Files are never shown as a page of this site, because a job's file may be HTML.
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    if num_bytes is not None:
        headers["Content-Length"] = str(num_bytes)
    return StreamingResponse(blocks, media_type="application/octet-stream", headers=headers)
