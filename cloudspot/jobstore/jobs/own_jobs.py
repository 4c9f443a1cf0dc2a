"""This computer's notes of the jobs that its user has submitted, where nobody else can write.

Anyone who can write to a store can change a job's record, or add a job. So the note, rather than the record,
decides anything that affects this computer, such as which of its variables, files and profiles are read, and
whether its processes may serve as machines. A note holds each submission that was made or adopted on this
computer. Launch requests of the provider ``local`` also carry a signature made with a key that never leaves
this computer.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cloudspot.decoding import Sha256, decode
from cloudspot.errors import SpecError
from cloudspot.host.locks import lock
from cloudspot.host.partial_files import write_whole
from cloudspot.host.private_directories import make_private
from cloudspot.jobstore.jobs.state_home import HOME, state_home

if TYPE_CHECKING:
    # A node imports this module with its provider, which must take only a few milliseconds.
    from cloudspot.jobstore.layout.records import Submission

_KEY = "key"
_KEY_BYTES = 32


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """All submissions of one job of one store that were made or adopted on this computer."""

    submissions: dict[Sha256, dict[str, Any]]
    """The content of the submissions by hash, in the order of their notes."""
    has_ended: bool = False
    """Whether the provider ``local`` has released the job; the job runs here again only if it is resumed from
    here.
    """

    @property
    def newest(self) -> Mapping[str, Any]:
        """The content of the submission that was noted last."""
        return list(self.submissions.values())[-1]


def note_job(submission: Submission, *, store_url: str, sha256: str) -> None:
    """Note a submission and its ``hash_of``; safe to repeat. The first note also creates the key.

    ``store_url`` is the label of the store. After this, a job that has ended may run here again.

    Raises:
        SpecError: other users can access the directory of the notes, or it cannot be written.
    """
    from cloudspot.jobstore.jobs.submission import content_of
    from cloudspot.jobstore.layout import codec

    job_id, content = submission.job_id, content_of(codec.encode(submission))
    with _usable():
        directory = _directory()
        make_private(directory)
        with lock(directory / "lock"):
            if not (directory / _KEY).exists():
                write_whole(directory / _KEY, secrets.token_bytes(_KEY_BYTES), mode=0o600)
            found = find_note(job_id, store_url=store_url)
            noted = {} if found is None else {**found.submissions}
            noted.pop(sha256, None)
            _write(job_id, store_url, Note(submissions={**noted, sha256: content}))


def end_job(job_id: str, *, store_url: str) -> None:
    """Note that the job has ended, unless it has no note. Errors as in ``note_job``.

    The job's submissions stay known for a later resumption. But no driver runs the job here again, because
    anyone who can write to the store could revoke its end.
    """
    if find_note(job_id, store_url=store_url) is None:
        return
    with _usable(), lock(_directory() / "lock"):
        found = find_note(job_id, store_url=store_url)
        if found is not None and not found.has_ended:
            _write(job_id, store_url, msgspec.structs.replace(found, has_ended=True))


def forget_job(job_id: str, *, store_url: str) -> None:
    """Delete the note of a job that was removed from its store; a missing note is not an error."""
    with _usable():
        (_directory() / _name(job_id, store_url)).unlink(missing_ok=True)


def find_note(job_id: str, *, store_url: str) -> Note | None:
    """Return the note of the job, or None if no note exists or an earlier version of cloudspot made it.

    Raises:
        SpecError: other users can access the directory of the notes, or it cannot be read.
    """
    data = _read(_name(job_id, store_url))
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        note: Note | None = None if data is None else decode(data, Note)
        return note if note is not None and note.submissions else None
    return None


def signature(statement: bytes) -> str:
    """Return this state home's signature of the bytes, in hex; empty before the first job, as in a dry run.

    Raises:
        SpecError: as in ``note_job``.
    """
    key = _read(_KEY)
    return "" if key is None else hmac.new(key, statement, hashlib.sha256).hexdigest()


def _write(job_id: str, store_url: str, note: Note) -> None:
    write_whole(_directory() / _name(job_id, store_url), msgspec.json.encode(note), mode=0o600)


def _read(name: str) -> bytes | None:
    directory = _directory()
    with _usable():
        if not os.path.lexists(directory):
            return None
        make_private(directory)
        with suppress(FileNotFoundError):
            return (directory / name).read_bytes()
    return None


def _name(job_id: str, store_url: str) -> str:
    return hashlib.sha256(f"{store_url}\0{job_id}".encode()).hexdigest()


def _directory() -> Path:
    return state_home() / "own-jobs"


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecError(
            f"{error.strerror}; correct this, or set {HOME} to another directory of your own"
        ) from error
