"""Which jobs and launch requests are this user's own: a local machine is processes of this computer.

Whoever can write to a store can put a job of this provider there, or a launch into a job's journal. So the
store's word is not enough: what may run here is noted here, where nobody else can write. A job is noted by
the hash of its submission. A request carries a signature by a key that never leaves this computer.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cloudspot.errors import NotAdopted, SpecError
from cloudspot.host.locks import lock
from cloudspot.host.partial_files import write_whole
from cloudspot.host.private_directories import make_private
from cloudspot.local.home import HOME, state_home

_KEY = "key"
_KEY_BYTES = 32
_ENDED = b"ended"


def note_job(job_id: str, *, store_url: str, sha256: str) -> None:
    """Note that the job, with this submission too, may run here; safe to repeat. The first makes the key.

    It may have ended before: then this lets it run again.

    Raises:
        SpecError: the directory of the notes is open to others, or cannot be written.
    """
    with _usable():
        directory = _directory()
        make_private(directory)
        with lock(directory / "lock"):
            if not (directory / _KEY).exists():
                write_whole(directory / _KEY, secrets.token_bytes(_KEY_BYTES), mode=0o600)
            noted = (_read(_note(job_id, store_url)) or b"").split()
            text = b"\n".join([*(line for line in noted if line != _ENDED), sha256.encode("ascii")])
            write_whole(directory / _note(job_id, store_url), text, mode=0o600)


def end_job(job_id: str, *, store_url: str) -> None:
    """Note that the job has ended; one that is not noted is left alone. Raises as ``note_job`` does.

    What ran here stays known, for whoever resumes it. But no driver runs it: whoever can write to the store
    could take its end back.
    """
    with _usable():
        note = _note(job_id, store_url)
        noted = _read(note)
        if noted is not None and _ENDED not in noted.split():
            write_whole(_directory() / note, noted + b"\n" + _ENDED, mode=0o600)


def check_job(job_id: str, *, store_url: str, sha256: str, is_resumed: bool = False) -> None:
    """Refuse a job that was not noted, or not with this submission, or that has ended and is not resumed.

    Raises:
        NotAdopted: it may not run here.
        SpecError: as in ``note_job``.
    """
    noted = _read(_note(job_id, store_url))
    lines = [] if noted is None else noted.split()
    if sha256.encode() in lines and (is_resumed or _ENDED not in lines):
        return
    found = "was not submitted from here"
    if sha256.encode() in lines:
        found = "has ended here, and was not resumed from here"
    elif lines:
        found = "is not as it was submitted from here"
    raise NotAdopted(
        f"job {job_id!r} in {store_url} {found} (state home {state_home()}), and machines of provider "
        "'local' are processes of the computer that drives them; if you trust its code, run it here with: "
        f"cloudspot attach --adopt {job_id} --store {store_url}"
    )


def signature(statement: bytes) -> str:
    """Return this state home's signature of the bytes, in hex; empty before its first job, for a dry run.

    Raises:
        SpecError: as in ``note_job``.
    """
    key = _read(_KEY)
    return "" if key is None else hmac.new(key, statement, hashlib.sha256).hexdigest()


def _read(name: str) -> bytes | None:
    directory = _directory()
    with _usable():
        if not os.path.lexists(directory):
            return None
        make_private(directory)
        with suppress(FileNotFoundError):
            return (directory / name).read_bytes()
    return None


def _note(job_id: str, store_url: str) -> str:
    return hashlib.sha256(f"{store_url}\0{job_id}".encode()).hexdigest()


def _directory() -> Path:
    return state_home() / "own-jobs"


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecError(f"{error.strerror}; or set {HOME} to another directory of your own") from error
