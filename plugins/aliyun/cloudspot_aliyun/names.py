"""The names of a launch's machines, which ECS numbers: the number in a node's name is its rank.

RunInstances gives each instance the next number if a name contains ``[begin,bits]`` (API reference,
RunInstances, HostName and InstanceName; checked 2026-11). A machine reads its host name from its metadata,
and DescribeInstances shows it, so node and driver agree on the rank.
"""

from __future__ import annotations

import re
from typing import Final

MAX_HOST_NAME: Final = 64
_ROOM: Final = 18
"""How many characters of a host name are needed for the launch, the rank and the separators."""
_RANK: Final = re.compile(r"(?<![0-9])[0-9]{1,4}$")


def instance_name(job_id: str, launch: int, num_nodes: int) -> str:
    """Return the InstanceName of a launch, ``digits-1-2-[0,1]``, by which people find its machines.

    The name begins with a letter, as ECS requires.
    """
    start = job_id if job_id[0].isalpha() else f"job-{job_id}"
    return f"{start}-{launch}-{_numbers(num_nodes)}"


def host_name(job_id: str, launch: int, num_nodes: int) -> str:
    """Return the HostName of a launch, which ends in the rank and follows ECS's rules for names."""
    start = re.sub(r"-+", "-", job_id)[: MAX_HOST_NAME - _ROOM].strip("-")
    return f"{start}-{launch}-{_numbers(num_nodes)}"


def rank_of(name: str) -> int | None:
    """Return the number at the end of a host name, or None if it has none and so is not cloudspot's."""
    found = _RANK.search(name)
    return None if found is None else int(found[0])


def _numbers(num_nodes: int) -> str:
    """Return the pattern that numbers several machines, or 0 for a single one."""
    return "0" if num_nodes == 1 else f"[0,{len(str(num_nodes - 1))}]"
