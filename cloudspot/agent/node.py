"""A node's paths, and the memory that its agent keeps when it is killed and restarted."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError
from cloudspot.host.partial_files import write_whole
from cloudspot.host.private_directories import make_private
from cloudspot.jobstore.layout.records import StagedInput
from cloudspot.model import DATA_CACHE
from cloudspot.train.handoff import RESTORE_IN_MEMORY


@dataclass(eq=False)
class Node:
    """The values from the boot script, and the paths of the node's files."""

    job_id: str
    launch: int
    store_url: str
    provider: str
    directory: Path
    """The directory that contains all of the node's files; it is lost with the machine."""
    train_python: str
    arena: Path
    """The directory for slots in memory."""
    submission_sha256: str
    """The hash of the submission for which the launch was requested; no other submission is run."""
    shared_cache: Path | None = None
    """The directory for the inputs of all jobs on the machine; if None, each job uses its ``directory``."""
    store_id: str | None = None
    """The id of the job's store; see ``ObjectStore.hold_to``."""

    def __post_init__(self) -> None:
        """Set the paths of the files and directories."""
        directory, cache = self.directory, self.shared_cache
        self.work = directory / "work"
        """The working directory, which contains the extracted code."""
        self.artifacts = directory / "artifacts"
        """The directory that is synced to the bucket."""
        self.logs = directory / "logs"
        """The files that the log pump follows."""
        self.spill = directory / "spill"
        """The directory for arena slots when memory is short."""
        self.staging = directory / "staging"
        """The directory where a script's complete checkpoints are set aside for upload."""
        self.data_cache = directory / "data" if cache is None else cache / "cloudspot-data"
        """The directory of input files, which are named by their content; only this user can access it."""
        self.torn = directory / "torn"
        """The directory to which scripts' incomplete checkpoint directories are moved."""
        self.python_path = directory / "pythonpath"
        """The directory from which the trainer imports cloudspot, and which contains nothing else."""
        self.programs = directory / "programs"
        """The first directory on PATH in setup and training; it contains ``python`` and ``pip``."""
        self.restore = directory / "restore"
        """The directory on the disk to which a session's checkpoint is restored."""
        self.restore_in_memory = self.arena / RESTORE_IN_MEMORY
        """The directory used instead if there is enough memory; removed once the training has read it."""
        self.fork_server = directory / "fork-server.socket"
        """The socket of the fork server, from which trainings are forked."""
        self.fork_server_processes = directory / "fork-server.processes"
        """The fork server's processes: see ``KeptProcesses``."""
        self.fork_server_log = self.logs / "fork-server.log"
        """The fork server's log."""
        self.lock = directory / "agent.lock"
        """The lock file that the agent holds while it lives."""
        self.baked = directory / "image.json"
        """The description of the setup in the disk image; the boot script of such a machine keeps it."""
        self.agent_ended = directory / "agent-ended"
        """The file by which the boot script shows that no agent will run here any more."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Node:
        """Read the variables that the boot script exports.

        Raises:
            CloudspotError: a variable is missing, so this is not a node.
        """
        try:
            directory = Path(environ["CLOUDSPOT_NODE_DIR"])
            data_cache = environ.get(DATA_CACHE)
            return cls(
                job_id=environ["CLOUDSPOT_JOB"],
                launch=int(environ["CLOUDSPOT_LAUNCH"]),
                store_url=environ["CLOUDSPOT_STORE"],
                provider=environ["CLOUDSPOT_PROVIDER"],
                directory=directory,
                train_python=environ["CLOUDSPOT_TRAIN_PYTHON"],
                arena=Path(environ.get("CLOUDSPOT_ARENA") or _default_arena(directory)),
                submission_sha256=environ["CLOUDSPOT_SUBMISSION"],
                shared_cache=Path(data_cache) if data_cache else None,
                store_id=environ.get("CLOUDSPOT_STORE_ID"),
            )
        except KeyError as error:
            message = f"the agent runs on a node, started by the boot script: {error.args[0]} is not set"
            raise CloudspotError(message) from error

    def handoff(self, generation: int) -> Path:
        """Return the hand-off directory of a generation."""
        return self.directory / "generations" / f"{generation:06d}"

    def arena_slots(self) -> list[Path]:
        """Return the slots left in the arena by the trainings of all generations."""
        return [slot for directory in (self.arena, self.spill) for slot in directory.glob("slot-*")]

    def train_log(self, generation: int) -> Path:
        """Return the file to which a generation's training writes its output."""
        return self.logs / f"train-{generation:06d}.log"

    def create_directories(self) -> None:
        """Create the directories whose files the agent itself writes.

        Raises:
            CloudspotError: another user owns the arena's directory or may write to it.
        """
        for path in (self.work, self.artifacts, self.logs, self.staging):
            path.mkdir(parents=True, exist_ok=True)
        for path in (self.spill, self.arena):
            try:
                make_private(path)
            except PermissionError as error:
                raise CloudspotError(error.strerror) from error
        self.python_path.mkdir(exist_ok=True)
        package = Path(__file__).resolve().parent.parent
        link = self.python_path / package.name
        if not link.is_symlink():
            link.symlink_to(package)


def _default_arena(directory: Path) -> str:
    """Return a directory in memory with a secret name, the same for all agents of the machine."""
    shared = Path("/dev/shm")  # noqa: S108 - the kernel's memory file system
    if not (shared.is_dir() and os.access(shared, os.W_OK)):
        return str(directory / "arena")
    chosen = directory / "arena-name"
    if not chosen.exists():
        directory.mkdir(0o700, parents=True, exist_ok=True)
        write_whole(chosen, f"cloudspot-{os.urandom(8).hex()}".encode())
    return str(shared / chosen.read_text(encoding="ascii"))


class NodeMemory(msgspec.Struct, kw_only=True):
    """The state that survives the agent, but not the machine; the whole file is rewritten at each change."""

    code_ready: bool = False
    setup_done: bool = False
    kept_setup: str | None = None
    """The key of the setup, if this machine's image already has it."""
    placed: list[str] = []
    """The paths at which inputs were put or are being put."""
    inputs_ready: list[str] = []
    """The names of the inputs that are on the disk or, if they are read in place, were found."""
    staged: tuple[StagedInput, ...] = ()
    """The inputs on the disk."""
    start_seconds: float | None = None
    """The time from the intent of this node's launch until the node was first ready."""
    generation: int = 0
    """The newest generation that this node has started; 0 before the first."""
    restored_step: int = 0
    first_rank: int = 0
    """The node's lowest global rank in that generation."""
    trainer_pid: int = 0
    """The process that started that generation's training; 0 if none did, or its end has been handled."""
    next_why: str = "agent-restarted"
    """Why the next generation starts, once that end has been handled: see ``records.Generation``."""
    generation_began_at: float = 0.0
    """When this node joined that generation (monotonic)."""
    trainer_started_at: float = 0.0
    """When the trainer was started (monotonic)."""
    training_began_at: float = 0.0
    """When the script's loop began in that generation (monotonic); 0 if that is unknown."""
    failed_at_step: int = -1
    """The step of the last failure that the script may have caused, or -1."""
    failed_with: str = ""
    """The fingerprint of that failure."""
    kept_until: float = 0.0
    """When the inspection of a kept machine ends (``boot_seconds``); 0 if the machine is not kept."""

    @classmethod
    def load(cls, node: Node) -> NodeMemory:
        """Return the memory stored by an earlier agent of this machine, or a new one."""
        try:
            memory: NodeMemory = decode(_path(node).read_bytes(), cls)
            return memory
        except FileNotFoundError:
            return cls()

    def save(self, node: Node) -> None:
        """Store the whole memory; thread-safe."""
        with _saving:  # an older state must not replace a newer one
            write_whole(_path(node), msgspec.json.encode(self))


_saving = threading.Lock()


def _path(node: Node) -> Path:
    return node.directory / "agent.json"
