"""Machines that cannot run a job, each for another reason: ``cloudspot run`` says which, and buys no third one."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from e2e.test_sandbox_images import IMAGES
from support.jobs.acting_user import COMMAND, JOBS

from cloudspot.emulation.cloud import EmulatedMachine
from cloudspot.emulation.local_machine_host import emulated
from cloudspot.model import InstanceState

CLOUDS = {
    "aliyun": ("cloudspot_aliyun_sandbox.cloud", "EmulatedAliyun"),
    "aws": ("cloudspot_aws_sandbox.cloud", "EmulatedAws"),
    "gcp": ("cloudspot_gcp_sandbox.cloud", "EmulatedGcp"),
}
READ = {"aliyun": "oss:GetObject", "aws": "s3:GetObject", "gcp": "storage.objects.get"}
ROLES = {
    "aliyun": "this machine has no RAM role; see providers.aliyun.role",
    "aws": "this machine has no role; see providers.aws.instance_profile",
    "gcp": "this machine has no service account; see providers.gcp.service_account",
}
MISSING = {"aliyun": "404 NoSuchKey", "aws": "404 NoSuchKey", "gcp": "404 No such object"}
DENIED = {"aliyun": "403 AccessDenied", "aws": "403 AccessDenied", "gcp": "does not have storage.objects.get"}


@dataclass(frozen=True)
class Breakage:
    """What is wrong with the machines of a job, and the words by which its user learns of it."""

    said: Mapping[str, str] | str
    image: str = ":"
    """What the image does before it runs the boot script."""
    edit: tuple[str, str] = ("", "")
    """What stands in the boot script, and what in its place."""
    sets: tuple[str, ...] = ()
    has_no_role: bool = False
    is_denied: bool = False


STARTUP_SCRIPT = "startup-script"
"""Where Compute Engine has the boot script: among the machine's attributes."""
NO_VENV = """\
mkdir /run/shims
printf '#!/bin/sh\\n[ "$2" = venv ] && echo "$0: No module named venv" >&2 && exit 1\\nexec /usr/bin/python3 "$@"\\n' \
>/run/shims/python3
chmod 755 /run/shims/python3
PATH=/run/shims:$PATH
"""
BROKEN = {
    "no role": Breakage(ROLES, has_no_role=True),
    "no right to the bucket": Breakage(DENIED, is_denied=True),
    "no python": Breakage(
        "the image has no /opt/none/python3, which the agent needs",
        sets=('providers.CLOUD.agent_python="/opt/none/python3"',),
    ),
    "no venv": Breakage("No module named venv", image=NO_VENV),
    "full disk": Breakage(
        "No space left on device", image="mount -t tmpfs -o size=256k tmpfs /var/lib/cloudspot"
    ),
    "no archive": Breakage(MISSING, edit=("agent_key=agents/", "agent_key=agents/none/")),
    "setup": Breakage(
        "setup failed with exit status 7: no such package",
        sets=("run.setup='echo no such package; exit 7'",),
    ),
}
"""Where no package index is in reach, tests/boot/test_installation.py tells: the machines here need none."""
LONG = {("aliyun", "no right to the bucket"), ("aws", "no python"), ("gcp", "setup")}
"""One for each cloud. The others take minutes: the boot script tries an installation for a minute."""


def broken(machine: EmulatedMachine, breakage: Breakage) -> EmulatedMachine:
    """Return the machine as it boots from a broken image, or without its role."""
    facts: dict[str, Any] = dict(machine.metadata)
    if breakage.has_no_role:
        facts = {name: value for name, value in facts.items() if name not in {"role", "service-accounts"}}
    tags = dict(machine.tags)
    if STARTUP_SCRIPT in tags:
        tags[STARTUP_SCRIPT] = broken_script(tags[STARTUP_SCRIPT], breakage)
        return msgspec.structs.replace(machine, tags=tags, metadata=facts)
    data = machine.user_data
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    return msgspec.structs.replace(machine, user_data=broken_script(text, breakage).encode(), metadata=facts)


def broken_script(text: str, breakage: Breakage) -> str:
    first, _, rest = text.partition("\n")
    old, new = breakage.edit
    assert old in rest
    return f"{first}\n{breakage.image}\n{rest.replace(old, new) if old else rest}"


def cases():
    for cloud in CLOUDS:
        for name in BROKEN:
            mark = pytest.mark.full if (cloud, name) in LONG else pytest.mark.soak
            yield pytest.param(cloud, name, marks=mark, id=f"{cloud}-{name.replace(' ', '-')}")


@pytest.mark.enclosed
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("cloud", "name"), [*cases()])
def test_a_machine_that_cannot_run_the_job_says_why_and_the_second_one_ends_the_job(tmp_path, cloud, name):
    breakage = BROKEN[name]
    module, kind = CLOUDS[cloud]
    emulation = getattr(importlib.import_module(module), kind)()
    furnish = emulation.furnish
    emulation.furnish = lambda machine: broken(furnish(machine), breakage)
    if breakage.is_denied:
        emulation.faults.denied_to_machines = {READ[cloud]}
    image, train_python = IMAGES[cloud]
    sets = [
        f"providers.{cloud}.{image}",
        f'providers.{cloud}.train_python="{train_python}"',
        *(one.replace("CLOUD", cloud) for one in breakage.sets),
    ]
    words = [word for one in sets for word in ("--set", one)]
    with emulated(emulation, tmp_path / "cloud", is_isolated=True) as host:
        environ = {**os.environ, **emulation.environment(), "CLOUDSPOT_LOCAL_HOME": str(tmp_path / "home")}
        job = str(JOBS / "tiny" / "job.toml")
        done = subprocess.run(
            [*COMMAND, "run", job, "--name", "tiny", "--provider", cloud, "--plain", *words],
            env=environ, capture_output=True, text=True,
        )  # fmt: skip
        shown = subprocess.run(
            [*COMMAND, "show", "tiny", "--json"], env=environ, capture_output=True, text=True, check=True
        )
        show = json.loads(shown.stdout)
        consoles = "\n".join(host.console(one)[-3000:] for one in host.states())
        everything = (done.stdout[-6000:], done.stderr[-3000:], consoles)
        said = breakage.said if isinstance(breakage.said, str) else breakage.said[cloud]
        assert done.returncode == 1, everything
        (line,) = [one for one in done.stdout.splitlines() if "job failed: " in one]
        assert "job failed: failed twice in a row before the training began: " in line, everything
        assert said in line, everything
        assert len(show["launches"]) == 2, everything
        assert {one.state for one in host.states().values()} == {InstanceState.ENDED}
