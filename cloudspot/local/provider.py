"""The provider ``local``: what the core asks for by name."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import ClassVar

from cloudspot.errors import SpecError
from cloudspot.interfaces import PreemptionSource, Provider, Provisioner
from cloudspot.local.home import HOME, state_home
from cloudspot.local.interpreter import node_python_path
from cloudspot.local.metadata import LocalPreemptionSource, read_announced, read_identity
from cloudspot.local.options import LocalOptions
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.model import BootProfile, CheckResult, NodeIdentity, Resources


class LocalProvider(Provider):
    """Machines as process trees on this host: the same boot script, agent and trainer as in a cloud."""

    name: ClassVar[str] = "local"
    options_type = LocalOptions

    def __init__(self, options: LocalOptions | None = None) -> None:
        options = LocalOptions() if options is None else options
        super().__init__(options)
        unknown = set(options.no_capacity) - set(options.zones)
        if unknown:
            raise SpecError(f"providers.local.no_capacity: no zone {min(unknown)!r} in providers.local.zones")
        self._options = options

    def provisioner(self) -> Provisioner:
        """Return the provisioner of this host's machines."""
        return LocalProvisioner(self._options, provider=self.name)

    def preemption_source(self) -> PreemptionSource:
        """Return the source that reads the machine's metadata service."""
        return LocalPreemptionSource(notice_seconds=self._options.longest_notice_seconds)

    def node_identity(self) -> NodeIdentity:
        """Say who this machine is, by its metadata service."""
        return read_identity()

    def announced(self) -> Mapping[str, str]:
        """Return this machine's tags that were announced."""
        return read_announced()

    def boot_profile(self) -> BootProfile:
        """Return the submitter's own interpreter, for the agent and the training alike."""
        path = node_python_path()
        return BootProfile(
            agent_python=sys.executable,
            train_python=sys.executable,
            environment={} if path is None else {"PYTHONPATH": path},
            has_cloudspot=True,
        )

    def check(self, *, resources: Resources | None = None) -> Sequence[CheckResult]:
        """Look for bash, for torch, for a place to keep machines, and for memory to save in."""
        bash, home = shutil.which("bash"), state_home()
        has_torch = importlib.util.find_spec("torch") is not None
        results = [
            CheckResult(
                name="bash", ok=bash is not None, detail=bash or "not found on PATH", remedy="install bash"
            ),
            CheckResult(
                name="torch",
                ok=has_torch,
                detail=f"{sys.executable} {'has it' if has_torch else 'has none'}",
                remedy='pip install "cloudspot[torch]", or name an interpreter that has it in run.python',
            ),
        ]
        try:
            home.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=home):
                pass
            results.append(CheckResult(name="state home", ok=True, detail=str(home)))
        except OSError as error:
            detail = f"{home} cannot be written: {error.strerror}"
            remedy = f"set {HOME} to a directory of your own"
            results.append(CheckResult(name="state home", ok=False, detail=detail, remedy=remedy))
        if sys.platform == "linux":
            memory = "/dev/shm"  # noqa: S108 # the kernel's memory file system
            is_usable = os.access(memory, os.W_OK)
            detail = (
                f"{memory}, where checkpoints are handed over" if is_usable else f"{memory} cannot be written"
            )
            remedy = f"mount a tmpfs at {memory}, or make it writable; in a container: --shm-size=2g"
            results.append(CheckResult(name="memory", ok=is_usable, detail=detail, remedy=remedy))
        return tuple(results)

    def default_store(self) -> str | None:
        """Return a directory beside the machines."""
        return f"file://{state_home()}/store"

    def preempt(self, instance_id: str, *, notice_seconds: float | None = None) -> None:
        """Reclaim a machine; None: with the notice that its job's options name."""
        LocalProvisioner(self._options).reclaim(instance_id, notice_seconds=notice_seconds)
