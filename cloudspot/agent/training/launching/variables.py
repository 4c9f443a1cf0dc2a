"""The environment variables that scripts may rely on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cloudspot.train import handoff as files

_ALWAYS = "always"
_COMMAND = '`run.launcher = "none"`'
PROMISED: Final[Mapping[str, tuple[str, str]]] = {
    files.JOB_ID: (
        _ALWAYS,
        "The job's id, the same on each machine and in each start. `exec` and `shell` have it too.",
    ),
    files.GENERATION: (
        _ALWAYS,
        "Which start of the training this is, counted from 1 over all machines. All ranks have the same.",
    ),
    files.ARTIFACTS: (
        _ALWAYS,
        "A directory whose files are [artifacts](cli.md#cloudspot-artifacts). `exec` and `shell` have it.",
    ),
    "CLOUDSPOT_DATA_NAME": (
        "for each `data.NAME`",
        'Where that input is: an absolute path, or a URL for `mode = "stream"`; see `data.NAME.path`.',
    ),
    "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT": (
        '`run.launcher = "torchrun"`',
        "As torchrun sets them.",
    ),
    "NODES, NODE_RANK": (_COMMAND, "The number of machines that train, and which of them this is, from 0."),
    "NNODES": (
        f"{_COMMAND}, `nodes.max` above 1",
        "The same as `NODES`, under the name that some commands read.",
    ),
    "MASTER_ADDR, MASTER_PORT": (
        _COMMAND,
        "Where the machines meet: the first one, and a port that is free there.",
    ),
    "WORLD_SIZE": (_COMMAND, "`NODES` times `procs_per_node`."),
}
"""The variables' names, when each is set, and its content. Others with ``CLOUDSPOT_`` may change."""
INTERNAL: Final = frozenset(
    {files.HANDOFF, files.RESTORE, files.ARENA, files.ARENA_SPILL, files.RESCUE, files.HAND_OVER}
)
"""The other variables of the training's environment, through which a session and the agent communicate."""
