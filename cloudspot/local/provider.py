"""The provider ``local``, which runs machines as process trees on this host."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from typing import ClassVar

from cloudspot.calls import CheckRequest, CheckResults, PreemptRequest, PreemptResult
from cloudspot.errors import SpecError, TransientError
from cloudspot.interfaces import PreemptionSource, Provider, Provisioner
from cloudspot.jobstore.jobs.state_home import HOME, state_home
from cloudspot.local.metadata import LocalPreemptionSource, fetch_json
from cloudspot.local.options import LocalOptions
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.local.supervisor_start import node_python_path
from cloudspot.model import BootProfile, Capability, CheckResult, NodeIdentity
from cloudspot.plugin.optionchecks import data_cache_variable


class LocalProvider(Provider[LocalOptions]):
    """Machines as process trees on this host: the same boot script, agent and trainer as in a cloud."""

    name: ClassVar[str] = "local"
    capabilities = frozenset(
        {Capability.CONTAINERS, Capability.CONSOLE, Capability.PREEMPT, Capability.THIS_COMPUTER}
    )
    options_type = LocalOptions

    def __init__(self, options: LocalOptions | None = None) -> None:
        options = LocalOptions() if options is None else options
        super().__init__(options)
        unknown = set(options.capacity) - set(options.zones)
        if unknown:
            raise SpecError(f"providers.local.capacity: no zone {min(unknown)!r} in providers.local.zones")

    def provisioner(self) -> Provisioner:
        return LocalProvisioner(self.options)

    def preemption_source(self) -> PreemptionSource:
        return LocalPreemptionSource(notice_seconds=self.options.longest_notice_seconds)

    def node_identity(self) -> NodeIdentity:
        identity = fetch_json("/identity", NodeIdentity)
        if identity is None:
            raise TransientError("the metadata service has no identity yet")
        return identity

    def boot_profile(self) -> BootProfile:
        """Return a profile with the submitter's own interpreter, for both the agent and the training."""
        path = node_python_path()
        return BootProfile(
            agent_python=sys.executable,
            train_python=sys.executable,
            environment={
                **({} if path is None else {"PYTHONPATH": path}),
                **data_cache_variable(self.name, self.options.data_cache),
            },
            has_cloudspot=True,
        )

    def check(self, request: CheckRequest) -> CheckResults:
        """Check for bash, torch, a directory for machines, and memory for checkpoints."""
        bash, has_torch = shutil.which("bash"), importlib.util.find_spec("torch") is not None
        home, is_home_usable = str(state_home()), True
        try:
            state_home().mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=home):
                pass
        except OSError as error:
            home, is_home_usable = f"{home} cannot be written: {error.strerror}", False
        torch = f"{sys.executable} {'has it' if has_torch else 'does not have it'}"
        torch_remedy = "pip install torch numpy, or name an interpreter that has it in run.python"
        checks = [
            ("bash", bash is not None, bash or "not found on PATH", "install bash"),
            ("torch", has_torch, torch, torch_remedy),
            ("state home", is_home_usable, home, f"set {HOME} to a directory of your own"),
        ]
        if sys.platform == "linux":
            memory = "/dev/shm"  # noqa: S108 # the kernel's memory file system
            is_usable = os.access(memory, os.W_OK)
            detail = f"{memory}{', where checkpoints are handed over' if is_usable else ' cannot be written'}"
            remedy = f"mount a tmpfs at {memory}, or make it writable; in a container: --shm-size=2g"
            checks.append(("memory", is_usable, detail, remedy))
        return CheckResults(
            results=tuple(
                CheckResult(name=name, ok=ok, detail=detail, remedy="" if ok else remedy)
                for name, ok, detail, remedy in checks
            )
        )

    def default_store(self) -> str | None:
        """Return a directory beside the machines' directories."""
        return f"file://{state_home()}/store"

    def preempt(self, request: PreemptRequest) -> PreemptResult:
        """Reclaim a machine, by default with the notice that its job's options state."""
        provisioner = LocalProvisioner(self.options)
        provisioner.reclaim(request.instance_id, notice_seconds=request.notice_seconds)
        return PreemptResult()
