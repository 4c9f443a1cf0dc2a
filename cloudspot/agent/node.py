"""Where things lie on a node, and what its agent remembers when it is killed and started again."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError


@dataclass(frozen=True)
class Node:
    """The boot script's facts, and the node's directories."""

    job_id: str
    launch: int
    store_url: str
    provider: str
    directory: Path
    """All of the node's files; lost with the machine."""
    train_python: str
    arena: Path
    """In memory."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Node:
        """Read what the boot script exported.

        Raises:
            CloudspotError: a variable is missing: this is not a node.
        """
        try:
            directory = Path(environ["CLOUDSPOT_NODE_DIR"])
            return cls(
                job_id=environ["CLOUDSPOT_JOB"],
                launch=int(environ["CLOUDSPOT_LAUNCH"]),
                store_url=environ["CLOUDSPOT_STORE"],
                provider=environ["CLOUDSPOT_PROVIDER"],
                directory=directory,
                train_python=environ["CLOUDSPOT_TRAIN_PYTHON"],
                arena=Path(environ.get("CLOUDSPOT_ARENA") or _default_arena(directory)),
            )
        except KeyError as error:
            message = f"the agent runs on a node, started by the boot script: {error.args[0]} is not set"
            raise CloudspotError(message) from error

    @property
    def work(self) -> Path:
        """Return the working directory: the extracted code."""
        return self.directory / "work"

    @property
    def artifacts(self) -> Path:
        """Return the directory that is synced to the bucket."""
        return self.directory / "artifacts"

    @property
    def logs(self) -> Path:
        """Return the directory of the files that the log pump follows."""
        return self.directory / "logs"

    @property
    def spill(self) -> Path:
        """Return where arena slots go when memory is short."""
        return self.directory / "spill"

    @property
    def staging(self) -> Path:
        """Return where checkpoint directories are hard-linked before their upload."""
        return self.directory / "staging"

    @property
    def torn(self) -> Path:
        """Return where checkpoint directories go that a script has left half-written."""
        return self.directory / "torn"

    @property
    def python_path(self) -> Path:
        """Return the directory from which the trainer imports this cloudspot, and nothing else."""
        return self.directory / "pythonpath"

    @property
    def restore(self) -> Path:
        """Return where a session's checkpoint is restored to."""
        return self.directory / "restore"

    @property
    def lock(self) -> Path:
        """Return the file that the agent keeps locked while it lives."""
        return self.directory / "agent.lock"

    @property
    def agent_ended(self) -> Path:
        """Return the file by which the boot script says that no agent will run here any more."""
        return self.directory / "agent-ended"

    def handoff(self, generation: int) -> Path:
        """Return the hand-off directory of a generation."""
        return self.directory / "generations" / f"{generation:06d}"

    def train_log(self, generation: int) -> Path:
        """Return the file that torchrun of a generation writes to."""
        return self.logs / f"train-{generation:06d}.log"

    def create_directories(self) -> None:
        """Make the directories that the agent itself fills."""
        for path in (self.work, self.artifacts, self.logs, self.spill, self.staging, self.arena):
            path.mkdir(parents=True, exist_ok=True)
        self.python_path.mkdir(exist_ok=True)
        package = Path(__file__).resolve().parent.parent
        link = self.python_path / package.name
        if not link.is_symlink():
            link.symlink_to(package)


def _default_arena(directory: Path) -> str:
    shared = Path("/dev/shm")  # noqa: S108 - the kernel's memory file system
    if shared.is_dir() and os.access(shared, os.W_OK):
        return str(shared / "cloudspot")
    return str(directory / "arena")


class NodeMemory(msgspec.Struct, kw_only=True):
    """What survives the agent (not the machine): rewritten whole at each change."""

    code_ready: bool = False
    setup_done: bool = False
    generation: int = 0
    """The newest generation that this node has started; 0 before the first."""
    restored_step: int = 0
    first_rank: int = 0
    """The lowest global rank that this node ran in it."""
    trainer_pid: int = 0
    """The process group of that generation's torchrun; 0 when none was started, or its end was dealt with."""
    next_why: str = "agent-restarted"
    """Why the next generation starts once that one's end was dealt with: see ``records.Generation``."""
    trainer_started_at: float = 0.0
    """Monotonic."""
    failure_streak: int = 0
    """Failures in a row, none of which began a later step than the one before."""
    failed_at_step: int = -1

    @classmethod
    def load(cls, node: Node) -> NodeMemory:
        """Return what an earlier agent of this machine has saved, or a fresh memory."""
        try:
            memory: NodeMemory = decode(_path(node).read_bytes(), cls)
            return memory
        except FileNotFoundError:
            return cls()

    def save(self, node: Node) -> None:
        """Write the memory whole, from any thread."""
        path = _path(node)
        temporary = path.with_suffix(".tmp")
        with _saving:
            temporary.write_bytes(msgspec.json.encode(self))
            temporary.replace(path)


_saving = threading.Lock()


def _path(node: Node) -> Path:
    return node.directory / "agent.json"
