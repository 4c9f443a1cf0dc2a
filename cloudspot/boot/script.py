"""Render the boot script, which is the user data of a launch's machines. This module does no I/O."""

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
"""The directory for the agent's files, unless the profile or the machine sets another."""

LAST_SECONDS = 900.0
"""How long before a machine's maximum age its agent gets a notice. The notice states two thirds of this time,
because clouds that limit a machine's age count from its launch."""
LAST_SHARE = 0.1
"""The maximum share of a machine's life that the time after this notice may take."""
NOTICE_SHARE = 2 / 3

_INSTALLATION = "# --- installation ---\n"
"""The line of boot.sh that the installation replaces."""
_END = "CLOUDSPOT_INSTALL"


class Install(msgspec.Struct, frozen=True, kw_only=True):
    """The archive of a machine's agent, and the digest that shows whether the machine needs the archive."""

    key: str
    """The archive's key in the store."""
    sha256: str
    """The archive's hash. The machine gets this hash with the script, while the archive comes from the store.
    """
    digest: str
    """The digest that ``python -m cloudspot.boot.agentarchive`` prints if the same code is installed."""
    requirements: tuple[str, ...]
    """The distributions that contain this code."""


class BootPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a launch's boot script, which are the same for all nodes and contain no secrets."""

    job_id: str
    submission_sha256: str
    """The hash of the only submission that the agent runs."""
    launch: int
    store_url: str
    """Without credentials."""
    provider: str
    profile: BootProfile
    max_seconds: float
    """The time after which the machine ends itself in all cases."""
    version: str
    """The version of cloudspot that rendered the script; a machine with another version must not run
    unnoticed."""
    stages_inputs: bool = False
    """Whether the job has inputs that its machines keep on their disks."""
    install: Install | None = None
    """The agent's archive, which is needed if the image may lack cloudspot."""
    store_id: str | None = None
    """The store's id, if it has one; see ``ObjectStore.establish``."""


def render_boot_script(plan: BootPlan) -> str:
    """Return the bash script that a machine of this launch runs once at boot, as root or as an ordinary user.

    The script first starts the self-kill timer, which gives the agent a notice before the machine's end. A
    machine that boots a second time has lost its timer and ends itself: through this script if the cloud runs
    it at each boot, otherwise through a cloud-init hook that the first boot installed. If the image may lack
    cloudspot, the script installs the staged code into a separate environment, unless the image has the same
    code. Then it runs ``python -m cloudspot.agent``, restarts the agent after each failure, and ends the
    machine when the agent exits with 0 or cannot run at all.

    The agent's environment has ``CLOUDSPOT_JOB``, ``CLOUDSPOT_SUBMISSION``, ``CLOUDSPOT_LAUNCH``,
    ``CLOUDSPOT_STORE``, ``CLOUDSPOT_PROVIDER``, ``CLOUDSPOT_NODE_DIR``, ``CLOUDSPOT_TRAIN_PYTHON``,
    ``CLOUDSPOT_SHUTDOWN``, ``CLOUDSPOT_VERSION``, ``CLOUDSPOT_STORE_ID`` if the store has an id, and the
    profile's variables. The same plan gives the same bytes.

    Raises:
        CloudspotError: the profile needs an installation but no archive is staged or the provider cannot
            fetch it, or the profile names a variable that no shell can set.
    """
    profile = plan.profile
    if not profile.has_cloudspot and (plan.install is None or not profile.fetch_code):
        missing = "no agent is staged" if plan.install is None else "the provider cannot fetch an agent"
        raise CloudspotError(
            f"the image of provider {plan.provider!r} does not have cloudspot, and {missing}"
        )
    last = min(LAST_SECONDS, LAST_SHARE * plan.max_seconds)
    exports = {
        "CLOUDSPOT_JOB": plan.job_id,
        "CLOUDSPOT_SUBMISSION": plan.submission_sha256,
        "CLOUDSPOT_LAUNCH": str(plan.launch),
        "CLOUDSPOT_STORE": plan.store_url,
        "CLOUDSPOT_PROVIDER": plan.provider,
        "CLOUDSPOT_VERSION": plan.version,
        "CLOUDSPOT_AGENT_PYTHON": profile.agent_python,
        "CLOUDSPOT_TRAIN_PYTHON": profile.train_python,
        "CLOUDSPOT_SHUTDOWN": ending_command(profile),
        "CLOUDSPOT_LIFE": f"{plan.max_seconds - last:g} {NOTICE_SHARE * last:g} {last:g}",
        **({} if plan.store_id is None else {"CLOUDSPOT_STORE_ID": plan.store_id}),
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
    head, loop = _read("boot.sh").split(_INSTALLATION)
    disks = _own_disks(profile) if plan.stages_inputs else ""
    installation = "" if profile.has_cloudspot else _installation(plan)
    return "\n".join(lines) + "\n" + _bare(head) + disks + installation + _bare(loop)


def ending_command(profile: BootProfile) -> str:
    """Return the shell commands with which a machine ends itself.

    Code of the provider that ends the machine through the cloud's API runs first, if there is any. If the
    cloud does not permit that or does not answer, the machine at least shuts down.
    """
    if not profile.end_code:
        return profile.shutdown_command
    program = f"{shlex.quote(profile.agent_python)} -c {shlex.quote(profile.end_code)}"
    return f"{program}; {profile.shutdown_command}"


def _own_disks(profile: BootProfile) -> str:
    """Return the part that mounts the machine's own disks, or an empty string if its type has none."""
    if not (profile.own_disks or profile.own_directories):
        return ""
    values = {"own_disks": profile.own_disks, "own_directories": profile.own_directories}
    assignments = (f"{name}={shlex.quote(' '.join(one))}\n" for name, one in values.items())
    return "".join(assignments) + _bare(_read("disks.sh"))


def _installation(plan: BootPlan) -> str:
    install = plan.install
    assert install is not None
    parts = (plan.profile.fetch_code, _read("install.py"), "install(fetch)")
    program = "\n\n\n".join(part.strip() for part in parts) + "\n"
    if _END in program.splitlines():
        raise CloudspotError(f"the code that fetches the agent contains the line {_END}; remove that line")
    values = {
        "agent_key": install.key,
        "agent_sha256": install.sha256,
        "agent_digest": install.digest,
        "agent_requirements": " ".join(install.requirements),
    }
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    here = f"write_install_program() {{\n    cat >\"$1\" <<'{_END}'\n{program}{_END}\n}}\n"
    return assignments + here + _bare(_read("install.sh"))


def _bare(shell: str) -> str:
    """Return the script without its comments, because clouds limit the size of user data, some to 16 KB."""
    lines = shell.splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("# ") or "shellcheck" in line)


def _export(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        raise CloudspotError(f"the boot profile sets {name!r}, which is not the name of a shell variable")
    if "\0" in value:
        raise CloudspotError(f"the value of {name} in the boot script holds a NUL byte")
    return f"export {name}={shlex.quote(value)}"


@cache
def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
