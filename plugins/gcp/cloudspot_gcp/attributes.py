"""The names of a machine's metadata attributes and labels, and machine names, which contain the rank.

A program on the machine reads attributes at ``instance/attributes/NAME``; listings are filtered by labels.
:mod:`cloudspot.plugin.machinetags` has the names that all clouds share: JOB and LAUNCH are both attributes
and labels; STORE's label is the ``store_digest``, because a label may contain neither slash nor colon.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from cloudspot.plugin.machinetags import store_digest

NOTICE_SECONDS: Final = "cloudspot-notice-seconds"
"""Attribute: the notice before a reclaim that the machine's launch requested, in seconds."""
NUM_NODES: Final = "NUM_NODES"
MASTER_ADDR: Final = "MASTER_ADDR"
"""Attribute: the *name* of the first node, which is known before the node exists, and resolves in the nodes'
network. Resolve the name before comparing it with an address.
"""

_MAX_NAME: Final = 63
_SHORTENED: Final = re.compile(r".{1,21}-[0-9a-f]{8}")
_OWN: Final = re.compile(r"cs-(?P<job>.+)-(?P<store>[0-9a-f]{8})-(?P<launch>[0-9]{1,9})-(?P<rank>[0-9]{1,4})")


def machine_stem(job_id: str) -> str:
    """Return the prefix of the names of the job's machines, without the dash after it.

    A machine's name has at most 63 characters of a-z, 0-9 and dash, and begins with a letter (RFC 1035); a
    job's id alone may have 63 characters, and begin with a digit.
    """
    if len(job_id) <= 30:
        return f"cs-{job_id}"
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:8]
    return f"cs-{job_id[:21].rstrip('-')}-{digest}"


def machine_name(job_id: str, store_url: str, launch: int, rank: int) -> str:
    """Return the name of a node's machine, which is always the same and unique in the project."""
    name = f"{machine_stem(job_id)}-{store_digest(store_url)}-{launch}-{rank}"
    assert len(name) <= _MAX_NAME, name
    return name


def launch_and_rank(name: str) -> tuple[int, int] | None:
    """Return the launch and the rank in a machine's name, or None if the name is not cloudspot's."""
    match = _OWN.fullmatch(name)
    return None if match is None else (int(match["launch"]), int(match["rank"]))


def job_of(name: str) -> str | None:
    """Return the job in a machine's name, or None if the name is not cloudspot's or its job id is shortened.

    A job's id that only looks shortened counts as shortened.
    """
    match = _OWN.fullmatch(name)
    return None if match is None or _SHORTENED.fullmatch(match["job"]) else match["job"]


def is_of_job(name: str, job_id: str) -> bool:
    """Return whether a machine's name belongs to the job, in any store."""
    match = _OWN.fullmatch(name)
    return match is not None and f"cs-{match['job']}" == machine_stem(job_id)


def digest_in(name: str) -> str:
    """Return the ``store_digest`` in a machine's name, or "" if the name is not cloudspot's."""
    match = _OWN.fullmatch(name)
    return "" if match is None else match["store"]
