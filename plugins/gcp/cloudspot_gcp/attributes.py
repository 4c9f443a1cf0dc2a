"""What a machine is told by its metadata attributes and labels, and how its name says its rank.

Instance attributes are what a program on the machine reads at ``instance/attributes/NAME``; labels are what
listings are filtered by. This module is used on machines too, so it imports the standard library alone.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

JOB: Final = "cloudspot-job"
"""Attribute and label: the job's id, which keeps within the rules of labels."""
LAUNCH: Final = "cloudspot-launch"
"""Attribute and label: counted from 1."""
STORE: Final = "cloudspot-store"
"""The attribute is where the job's records lie; the label is ``store_digest`` of it, since a label may hold
neither slash nor colon."""
MAX_SECONDS: Final = "cloudspot-max-seconds"
"""Attribute: how long the machine may live."""
NOTICE_SECONDS: Final = "cloudspot-notice-seconds"
"""Attribute: how long before the end the machine hears of a reclaim, as the launch asked for it."""
NUM_NODES: Final = "NUM_NODES"
MASTER_ADDR: Final = "MASTER_ADDR"
"""Attribute: the *name* of the first node, known before there is one; it resolves in the nodes' network.
Whoever compares it with an address resolves it first."""
MASTER_PORT: Final = "MASTER_PORT"

_MAX_NAME: Final = 63
_SHORTENED: Final = re.compile(r".{1,21}-[0-9a-f]{8}")
_OWN: Final = re.compile(r"cs-(?P<job>.+)-(?P<store>[0-9a-f]{8})-(?P<launch>\d+)-(?P<rank>\d+)")


def store_digest(store_url: str) -> str:
    """Return a short word that tells two stores apart."""
    return hashlib.sha256(store_url.encode()).hexdigest()[:8]


def machine_stem(job_id: str) -> str:
    """Return how the names of all machines of such a job begin, but for the last dash.

    Names of machines are a-z, 0-9 and dashes, begin with a letter and have at most 63 characters (RFC 1035);
    ids of jobs may have 63, and may begin with a digit.
    """
    if len(job_id) <= 30:
        return f"cs-{job_id}"
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:8]
    return f"cs-{job_id[:21].rstrip('-')}-{digest}"


def machine_name(job_id: str, store_url: str, launch: int, rank: int) -> str:
    """Return the name of a node's machine: the same each time, and of no other."""
    name = f"{machine_stem(job_id)}-{store_digest(store_url)}-{launch}-{rank}"
    assert len(name) <= _MAX_NAME, name
    return name


def launch_and_rank(name: str) -> tuple[int, int] | None:
    """Return the launch and the rank that a machine's name says; None: it is none of cloudspot's."""
    match = _OWN.fullmatch(name)
    return None if match is None else (int(match["launch"]), int(match["rank"]))


def job_of(name: str) -> str | None:
    """Return the job that a machine's name says; None: it is no such name, or the job's id is too long.

    An id that looks like a shortened one cannot be told from it, and counts as that.
    """
    match = _OWN.fullmatch(name)
    return None if match is None or _SHORTENED.fullmatch(match["job"]) else match["job"]


def is_of_job(name: str, job_id: str) -> bool:
    """Say whether a machine's name is one of the job's, of whichever store."""
    match = _OWN.fullmatch(name)
    return match is not None and f"cs-{match['job']}" == machine_stem(job_id)


def digest_in(name: str) -> str:
    """Return the ``store_digest`` in a machine's name; "": it is none of cloudspot's."""
    match = _OWN.fullmatch(name)
    return "" if match is None else match["store"]
