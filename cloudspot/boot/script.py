"""The boot script: from the plan of a launch to the user data of its machines, as a pure function."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import msgspec

from cloudspot.errors import CloudspotError
from cloudspot.model import BootProfile

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

DEFAULT_NODE_DIR = "/var/lib/cloudspot"
"""Where the agent keeps its files, unless the profile or the machine says otherwise."""


class BootPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that the boot script of a launch says; the same for each of its nodes. Holds no secret."""

    job_id: str
    launch: int
    store_url: str
    """Without credentials."""
    provider: str
    profile: BootProfile
    max_seconds: float
    """After this long the machine ends itself, whatever it is doing."""
    version: str
    """Of the cloudspot that renders, so that a machine cannot silently run another."""


def render_boot_script(plan: BootPlan) -> str:
    """Return the bash script that a machine of this launch runs once at boot, as root or as itself.

    First it starts the self-kill timer; then it runs ``python -m cloudspot.agent``, again and again
    while that fails, and ends the machine when the agent ended with 0 or cannot run at all.

    The agent finds in its environment ``CLOUDSPOT_JOB``, ``CLOUDSPOT_LAUNCH``, ``CLOUDSPOT_STORE``,
    ``CLOUDSPOT_PROVIDER``, ``CLOUDSPOT_NODE_DIR``, ``CLOUDSPOT_TRAIN_PYTHON``, ``CLOUDSPOT_SHUTDOWN``,
    ``CLOUDSPOT_VERSION`` and what the profile sets. The same plan gives the same bytes.

    Raises:
        CloudspotError: the profile needs an installation, or names a variable that no shell can set.
    """
    profile = plan.profile
    if not profile.has_cloudspot:
        raise CloudspotError(
            f"provider {plan.provider!r} boots a stock image: "
            "installing on stock images comes with the first cloud plugin"
        )
    exports = {
        "CLOUDSPOT_JOB": plan.job_id,
        "CLOUDSPOT_LAUNCH": str(plan.launch),
        "CLOUDSPOT_STORE": plan.store_url,
        "CLOUDSPOT_PROVIDER": plan.provider,
        "CLOUDSPOT_VERSION": plan.version,
        "CLOUDSPOT_AGENT_PYTHON": profile.agent_python,
        "CLOUDSPOT_TRAIN_PYTHON": profile.train_python,
        "CLOUDSPOT_SHUTDOWN": profile.shutdown_command,
        "CLOUDSPOT_MAX_SECONDS": f"{plan.max_seconds:.3f}",
        **profile.environment,
    }
    lines = [
        "#!/usr/bin/env bash",
        f"# cloudspot {plan.version}: job {plan.job_id}, launch {plan.launch}",
        "set -u",
        *(_export(name, value) for name, value in exports.items()),
        f'export CLOUDSPOT_NODE_DIR="${{CLOUDSPOT_NODE_DIR:-{DEFAULT_NODE_DIR}}}"',
        "",
    ]
    return "\n".join(lines) + "\n" + _body()


def _export(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        raise CloudspotError(f"the boot profile sets {name!r}, which is no name of a shell variable")
    if "\0" in value:
        raise CloudspotError(f"the value of {name} in the boot script holds a NUL byte")
    return f"export {name}={shlex.quote(value)}"


@cache
def _body() -> str:
    return Path(__file__).with_name("boot.sh").read_text(encoding="utf-8")
