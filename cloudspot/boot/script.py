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

LAST_SECONDS = 900.0
"""So long before a machine is too old its agent gets a notice. It says two thirds of that, as clouds that
limit a machine's age count from its launch."""
LAST_SHARE = 0.1
"""At most this share of its life."""
NOTICE_SHARE = 2 / 3

_INSTALLATION = "# --- installation ---\n"
"""The line of boot.sh where the installation goes."""
_END = "CLOUDSPOT_INSTALL"


class Install(msgspec.Struct, frozen=True, kw_only=True):
    """Where a machine finds the archive of its agent, and when it needs it."""

    key: str
    """The archive's key in the store."""
    sha256: str
    """The archive's. The machine gets it with the script, by another road than the archive."""
    digest: str
    """The code's: what ``python -m cloudspot.boot.agentarchive`` prints where it is installed already."""
    requirements: tuple[str, ...]
    """The distributions of that code."""


class BootPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in the boot script of a launch; equal for all of its nodes, and without secrets."""

    job_id: str
    submission_sha256: str
    """The agent runs this very submission, or nothing."""
    launch: int
    store_url: str
    """Without credentials."""
    provider: str
    profile: BootProfile
    max_seconds: float
    """After this long the machine ends itself, whatever it is doing."""
    version: str
    """The version of cloudspot that renders, so that a machine cannot silently run another."""
    stages_inputs: bool = False
    """The job has inputs that its machines keep on their disks."""
    install: Install | None = None
    """Needed if the image may have no cloudspot."""
    store_id: str | None = None
    """The store's id, if it has one; see ``ObjectStore.establish``."""


def render_boot_script(plan: BootPlan) -> str:
    """Return the bash script that a machine of this launch runs once at boot, as root or as itself.

    First it starts the self-kill timer, which gives the agent a notice before. A machine that boots a second
    time has lost its timer and ends itself: through this script if the cloud runs it at each boot, else
    through a hook that the first boot leaves with cloud-init. If the image may have no cloudspot, the script
    installs the staged one into a separate environment, unless the image has the same. Then it runs
    ``python -m cloudspot.agent``, again whenever that fails, and ends the machine when the agent exits with
    0 or cannot run at all.

    The agent finds in its environment ``CLOUDSPOT_JOB``, ``CLOUDSPOT_SUBMISSION``, ``CLOUDSPOT_LAUNCH``,
    ``CLOUDSPOT_STORE``, ``CLOUDSPOT_PROVIDER``, ``CLOUDSPOT_NODE_DIR``, ``CLOUDSPOT_TRAIN_PYTHON``,
    ``CLOUDSPOT_SHUTDOWN``, ``CLOUDSPOT_VERSION``, perhaps ``CLOUDSPOT_STORE_ID``, and what the profile sets.
    The same plan gives the same bytes.

    Raises:
        CloudspotError: the profile needs an installation but nothing is staged or the provider cannot fetch
            it, or the profile names a variable that no shell can set.
    """
    profile = plan.profile
    if not profile.has_cloudspot and (plan.install is None or not profile.fetch_code):
        missing = "no agent is staged for it" if plan.install is None else "it cannot fetch one"
        raise CloudspotError(f"provider {plan.provider!r} boots an image without cloudspot, and {missing}")
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
    """Return the shell commands by which a machine ends itself.

    If its provider knows how it ends itself through the cloud's API, that comes first. If it may not, or the
    cloud does not answer, the machine at least goes down.
    """
    if not profile.end_code:
        return profile.shutdown_command
    program = f"{shlex.quote(profile.agent_python)} -c {shlex.quote(profile.end_code)}"
    return f"{program}; {profile.shutdown_command}"


def _own_disks(profile: BootProfile) -> str:
    """Return the part that mounts the disks of the machine's own, if its kind can have any."""
    if not (profile.own_disks or profile.own_directories):
        return ""
    values = {"own_disks": profile.own_disks, "own_directories": profile.own_directories}
    assignments = (f"{name}={shlex.quote(' '.join(one))}\n" for name, one in values.items())
    return "".join(assignments) + _bare(_read("disks.sh"))


def _installation(plan: BootPlan) -> str:
    """Return the part that brings the agent onto the image."""
    install = plan.install
    assert install is not None
    parts = (plan.profile.fetch_code, _read("install.py"), "install(fetch)")
    program = "\n\n\n".join(part.strip() for part in parts) + "\n"
    if _END in program.splitlines():
        raise CloudspotError(f"the code that fetches the agent holds the line {_END}")
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
    """Return the script without its comments: clouds limit the user data, some to 16 KB."""
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
