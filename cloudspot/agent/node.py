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
from cloudspot.host.partial_files import write_whole
from cloudspot.host.private_directories import make_private
from cloudspot.jobstore.layout.records import StagedInput
from cloudspot.model import DATA_CACHE
from cloudspot.train.handoff import RESTORE_IN_MEMORY


@dataclass(eq=False)
class Node:
    """The boot script's facts, and the node's directories."""

    job_id: str
    launch: int
    store_url: str
    provider: str
    directory: Path
    """Holds all of the node's files; lost with the machine."""
    train_python: str
    arena: Path
    """In memory."""
    submission_sha256: str
    """Of the submission that the launch was requested for: nothing else is run."""
    shared_cache: Path | None = None
    """Where all jobs of the machine keep the files of inputs; None: each keeps them in its ``directory``."""
    store_id: str | None = None
    """The id of the job's store; see ``ObjectStore.hold_to``."""

    def __post_init__(self) -> None:
        """Name what lies in the directories."""
        directory, cache = self.directory, self.shared_cache
        self.work = directory / "work"
        """The working directory: the extracted code."""
        self.artifacts = directory / "artifacts"
        """What is synced to the bucket."""
        self.logs = directory / "logs"
        """The files that the log pump follows."""
        self.spill = directory / "spill"
        """Where arena slots go when memory is short."""
        self.staging = directory / "staging"
        """Where complete checkpoints of a script are set aside for their upload."""
        self.data_cache = directory / "data" if cache is None else cache / "cloudspot-data"
        """Where the files of inputs are kept, by their content: this user's alone."""
        self.torn = directory / "torn"
        """Where checkpoint directories go that a script has left half-written."""
        self.python_path = directory / "pythonpath"
        """From here the trainer imports this cloudspot, and nothing else."""
        self.programs = directory / "programs"
        """First on PATH in setup and training: ``python`` and ``pip``."""
        self.restore = directory / "restore"
        """Where a session's checkpoint is restored to, if not to memory."""
        self.restore_in_memory = self.arena / RESTORE_IN_MEMORY
        """Where it is restored to if memory is plentiful; removed when the training has read it."""
        self.fork_server = directory / "fork-server.socket"
        """Where the process listens from which trainings are forked."""
        self.fork_server_processes = directory / "fork-server.processes"
        """Which processes it is: see ``KeptProcesses``."""
        self.fork_server_log = self.logs / "fork-server.log"
        """Why that does not run, or did not fork a program."""
        self.lock = directory / "agent.lock"
        """The agent keeps it locked while it lives."""
        self.baked = directory / "image.json"
        """What setup an image of the disk holds. The boot script of machines that start from one keeps it."""
        self.agent_ended = directory / "agent-ended"
        """By this file the boot script says that no agent will run here any more."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Node:
        """Read what the boot script exported.

        Raises:
            CloudspotError: a variable is missing: this is not a node.
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
        """Return the slots that the training of any generation has left in the arena."""
        return [slot for directory in (self.arena, self.spill) for slot in directory.glob("slot-*")]

    def train_log(self, generation: int) -> Path:
        """Return the file that the training of a generation writes to."""
        return self.logs / f"train-{generation:06d}.log"

    def create_directories(self) -> None:
        """Make the directories that the agent itself fills.

        Raises:
            CloudspotError: another user has made the directory of the arena, or may write there.
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
    """Return a directory in memory. Its name cannot be guessed; all agents of a machine have the same."""
    shared = Path("/dev/shm")  # noqa: S108 - the kernel's memory file system
    if not (shared.is_dir() and os.access(shared, os.W_OK)):
        return str(directory / "arena")
    chosen = directory / "arena-name"
    if not chosen.exists():
        directory.mkdir(0o700, parents=True, exist_ok=True)
        write_whole(chosen, f"cloudspot-{os.urandom(8).hex()}".encode())
    return str(shared / chosen.read_text(encoding="ascii"))


class NodeMemory(msgspec.Struct, kw_only=True):
    """What survives the agent (not the machine): rewritten whole at each change."""

    code_ready: bool = False
    setup_done: bool = False
    kept_setup: str | None = None
    """Its key, if it was done on this machine's image already."""
    placed: list[str] = []
    """The paths at which inputs were put, or are just being put."""
    inputs_ready: list[str] = []
    """The names of those that are on the disk, or were found where they are read in place."""
    staged: tuple[StagedInput, ...] = ()
    """Those on the disk."""
    start_seconds: float | None = None
    """How long it took from the intent of this node's launch until it was first ready."""
    generation: int = 0
    """The newest generation that this node has started; 0 before the first."""
    restored_step: int = 0
    first_rank: int = 0
    """The lowest global rank that this node ran in it."""
    trainer_pid: int = 0
    """The process that has started that generation's training; 0: none, or its end was dealt with."""
    next_why: str = "agent-restarted"
    """Why the next generation starts once that one's end was dealt with: see ``records.Generation``."""
    generation_began_at: float = 0.0
    """When this node began to belong to that generation (monotonic)."""
    trainer_started_at: float = 0.0
    """Monotonic."""
    training_began_at: float = 0.0
    """When the script's loop over the steps began in it (monotonic); 0: it has not, or says nothing of it."""
    failed_at_step: int = -1
    """Where the last failure was that may be the script's own."""
    failed_with: str = ""
    """Its fingerprint."""
    kept_until: float = 0.0
    """When the machine, which is kept for inspection, ends (``boot_seconds``); 0: it is not kept."""

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
        with _saving:  # an older state must not replace a newer one
            write_whole(_path(node), msgspec.json.encode(self))


_saving = threading.Lock()


def _path(node: Node) -> Path:
    return node.directory / "agent.json"
