"""The files through which the agent and the training process communicate.

Both run on one machine, so times are values of ``time.monotonic()``, which is the same for all its processes.
Every file is written completely under a temporary name and then renamed into place. This module needs only
the standard library.

Each generation has its own directory, named by ``CLOUDSPOT_HANDOFF``::

    tuning.json            agent -> trainer  the save interval, and the measured time of uploads
    drain.json             agent -> trainer  save and leave
    seals/seal-G-S-N-R.json  trainer -> agent  a full arena slot; the agent renames it to taken-...,
                                             uploads it and unlinks it, and so frees the slot
    seals/held-G-S-N-R.json  trainer -> agent  the same, to be made a seal if the script ends with status 0
    wanted-R.json          trainer -> agent  the bytes that rank R reads of a checkpoint fetched on demand
    fetched-R              agent -> trainer  those bytes are in the checkpoint's files
    drained-R.json         trainer -> agent  rank R leaves, with its last part sealed or handed over, or
                                             without a save
    progress-R             trainer -> agent  three int64, mapped: see ``Progress``
    metrics-R.jsonl        trainer -> agent  a line for each run.log()
    final.json             trainer -> agent  the loop has ended or was left, and rank 0's state is sealed
    begun-loop-R           trainer -> agent  rank R has begun its loop
    ended-loop-R           trainer -> agent  rank R reached the end of its loop, or left it early with all
                                             ranks, and its last part is sealed
    worker-R.pid           trainer -> agent  rank R has a session and answers DUMP_SIGNAL
    failed-R.json          trainer -> agent  an uncaught error will end rank R
    survives-R.json        trainer -> agent  the state that rank R holds after a loss: see ``Survives``
    rescue.json            agent -> trainer  report that state, save it, or end
    rescued-R.json         trainer -> agent  rank R has sealed its part, or holds nothing any more
    own-state-R.json       trainer -> agent  rank R does not hand over its own state: {"problem"}
    likeness-R.json        trainer -> agent  how rank R may differ from others, if lost: `RankLikeness`
    imports-R.json         trainer -> agent  rank R's slow imports, which may be made once per machine
    variables-R            agent -> launcher additions of run.trackers to the environment of rank R
    started-R              launcher -> agent torchrun has started rank R
    exited-R               launcher -> agent the exit status of rank R, as shells report it

G is the generation, S the step, N the number of the round or 0, and R the global rank.
"""

from __future__ import annotations

import json
import re
import signal
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cloudspot.host.bounded_reads import read_at_most
from cloudspot.host.partial_files import write_whole

HANDOFF = "CLOUDSPOT_HANDOFF"
"""The generation's hand-off directory; not set if there is no agent."""
PROCESSES = "processes"
"""The subdirectory with the records of the generation's processes: see ``KeptProcesses``."""
RESTORE = "CLOUDSPOT_RESTORE"
"""The directory of the checkpoint to resume from; not set on a fresh start."""
RESTORE_IN_MEMORY = "restore"
"""The name of the restore directory if it is in memory, beside the arena's slots."""
ARENA = "CLOUDSPOT_ARENA"
"""The directory in memory (/dev/shm) for the arena's slots."""
ARENA_SPILL = "CLOUDSPOT_ARENA_SPILL"
"""The directory on the local disk for slots when memory is short."""
GENERATION = "CLOUDSPOT_GENERATION"
RESCUE = "CLOUDSPOT_RESCUE"
"""``1`` if the agent saves the state that surviving ranks hold after other ranks were lost."""
HAND_OVER = "CLOUDSPOT_HAND_OVER"
"""``SECRET@ADDRESS`` if ranks hand over their own states. All members of the generation know the secret, and
the other machines reach this machine at the address."""
MAX_JSON_BYTES = 1 << 20
MAX_NUMBER_BYTES = 64
"""The maximum size of a file that contains a number. The script can write to the directory, too, so sizes are
limited."""
JOB_ID = "CLOUDSPOT_JOB"
ARTIFACTS = "CLOUDSPOT_ARTIFACTS"
"""The directory that the agent syncs to the bucket."""

DUMP_SIGNAL = signal.SIGUSR1
"""The signal at which a trainer with a session prints the stacks of all its threads to stderr (faulthandler).

It ends a process that has no session, so send it only to the process in ``worker-R.pid``."""

RESTORE_MANIFEST = "restore.json"
ON_DEMAND = "on_demand"
"""The manifest's member that says that ranks must ask for the bytes that they read."""
SEAL_FORMAT = 1
PROGRESS = struct.Struct("<qqq")
DATA_WAIT = struct.Struct("<q")
"""Follows the progress in the same file: the time that the rank waited for batches (ns), or -1 if unknown."""
_SEAL = re.compile(r"(seal|taken)-(\d+)-(\d+)-(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class Drain:
    """``drain.json``: save at the next agreed step and leave."""

    kind: str
    """``notice`` if this machine will be reclaimed, ``join`` if newcomers are to be admitted, or ``stop``."""
    guard: float
    """The moment (monotonic) after which a save no longer helps: leave without a save."""


@dataclass(frozen=True)
class Tuning:
    """``tuning.json``: the values from which rank 0 determines when interval saves are due."""

    interval_seconds: float | None
    """The interval set in the job file, or None to compute it from the other values ("auto")."""
    upload_seconds: float
    """The newest checkpoint's time from seal to commit; 0 before the first checkpoint."""
    losses_per_second: float
    """The rate, over all nodes, at which machines are lost without a usable notice."""


@dataclass(frozen=True)
class Survives:
    """``survives-R.json``: the state that a rank holds after others were lost."""

    held: dict[str, Any] | None
    """The latest boundary at which its state still stands: the rank, and the fields of ``rescue.Held``."""
    problem: str
    """Why no such boundary exists."""
    attempt: int
    """The attempt about which the agent asked last; 0 if it has not asked yet."""
    is_ending: bool
    """Whether the process is waiting to end."""


HOLD, SAVE, RELEASE = "hold", "save", "release"


@dataclass(frozen=True)
class RescueCommand:
    """``rescue.json``: the agent's order about the state that the ranks hold."""

    do: str
    """``HOLD`` to pass no further boundary and report the state, ``SAVE`` to save it, ``RELEASE`` to end."""
    attempt: int
    order: Mapping[str, Any] = field(default_factory=dict)
    """With ``SAVE``, the order in the form that ``SaveOrder.to_json`` returns."""


class Progress(NamedTuple):
    """``progress-R``: the progress of a rank."""

    step: int
    """The current step: before the first step, the restored one; after the last step, the total."""
    total: int | None
    """The number of steps in the training, or None (-1 in the file) if it is unknown."""
    reached_step: int
    """The step after the latest step that was begun: a training resumed there repeats no step."""


@dataclass(frozen=True)
class SealName:
    """The parsed name of a seal file."""

    generation: int
    step: int
    round: int
    rank: int
    taken: bool

    @property
    def number(self) -> tuple[int, int, int, int]:
        """Return the parts of the name except ``taken``; they sort in the order in which seals are made."""
        return self.generation, self.step, self.round, self.rank

    @property
    def file_name(self) -> str:
        """Return the name that the trainer gives the file."""
        return "seal-{}-{}-{}-{}.json".format(*self.number)

    @property
    def held_name(self) -> str:
        """Return the trainer's name for the file while the agent must wait for the exit status."""
        return "held-{}-{}-{}-{}.json".format(*self.number)

    @property
    def taken_name(self) -> str:
        """Return the name that the agent gives to the file when the upload starts."""
        return "taken-{}-{}-{}-{}.json".format(*self.number)


def parse_seal_name(name: str) -> SealName | None:
    """Return the parts of a seal's file name, or None if it is not the name of a seal."""
    match = _SEAL.fullmatch(name)
    if match is None:
        return None
    generation, step, number, rank = map(int, match.groups()[1:])
    return SealName(generation, step, number, rank, match[1] == "taken")


def publish_held(handoff: Path) -> None:
    """Turn the held seals into seals, because the script has ended with status 0."""
    for path in seals_directory(handoff).glob("held-*.json"):
        path.rename(path.with_name(path.name.replace("held-", "seal-", 1)))


# A seal is a JSON object:
#   format      1
#   generation, step, round, rank, world_size
#   relieved    the ranks without a part, whose state was handed over to others
#   kind        "interval", "drain", "final" or "rescue"
#   rescue      for "rescue": {"cause": "lost" or "failed", "lost": the lost ranks, "kept": the lost ranks
#               whose own state, which they had handed over, a part holds, "is_exact"}
#   slot        absolute path of the arena slot
#   nbytes      the size of the part, which begins at the slot's first byte
#   plan        hex digest of the table of all parts' items: parts of one checkpoint must agree
#   items       [{"name", "dtype", "shape", "offset", "nbytes"}, ...] of this rank's part, by offset
#               and without holes; "dtype" is torch's name, bytes are little-endian. A tensor's shard also has
#               "global_shape" and "global_offset": the tensor's shape, and the shard's position in it
#   cuts        the offsets at which a chunk of the upload must end, ascending: between items that are trained
#               and items that are not, and around each large item that is not
#   objects     the JSON state that all ranks share; it is small, so every seal holds it. Readers use the seal
#               with the lowest rank's state: {"state": {object: tree}, "models": [names of objects that
#               are modules], "layouts": {item: {"strides", "device"}}, "seed", "position", "left"}
#   rank_states {rank: its JSON state (RNG, data position)}: of this rank, of the ranks that it has relieved,
#               and of lost ranks that had handed their states over to it
#   stall_seconds  how long the save held up the training
#   way, copy_seconds, lost_seconds  how it was copied, and the time that saves take: ``records.SaveCost``
#   boot, sealed_monotonic  when it was sealed: the name of the machine's boot, and its monotonic seconds
#
# ``restore.json`` is {"generation", "step", "world_size", "parts": [{"rank", "file", "seal"}, ...]}:
# "file" is relative to the restore directory and holds the part's bytes, already verified. With
# "on_demand": true, it holds only bytes that a rank has asked for with ``wanted-R.json``,
# {"nonce", "ranges": {file: [[start, end], ...]}}, once ``fetched-R`` repeats that nonce.


def seals_directory(handoff: Path) -> Path:
    """Return the directory of a generation's seals."""
    return handoff / "seals"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically: no reader sees an incomplete file."""
    write_whole(path, json.dumps(value).encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in the file, or None if there is no such file."""
    try:
        value: dict[str, Any] = json.loads(read_at_most(path, MAX_JSON_BYTES))
    except FileNotFoundError:
        return None
    return value


def write_drain(handoff: Path, drain: Drain) -> None:
    """Ask the trainer to save and leave."""
    write_json(handoff / "drain.json", asdict(drain))


def read_drain(handoff: Path) -> Drain | None:
    """Return the latest request to leave, or None."""
    value = read_json(handoff / "drain.json")
    return None if value is None else Drain(**value)


def write_tuning(handoff: Path, tuning: Tuning) -> None:
    """Give the trainer the values from which it determines its save interval."""
    write_json(handoff / "tuning.json", asdict(tuning))


def read_tuning(handoff: Path) -> Tuning | None:
    """Return the latest tuning, or None."""
    value = read_json(handoff / "tuning.json")
    return None if value is None else Tuning(**value)


def wanted_path(handoff: Path, rank: int) -> Path:
    """Return the file in which a rank asks for bytes of a checkpoint fetched on demand."""
    return handoff / f"wanted-{rank}.json"


def fetched_path(handoff: Path, rank: int) -> Path:
    """Return the file that repeats a request's nonce once the requested bytes have been fetched."""
    return handoff / f"fetched-{rank}"


def answer_to(wanted: Path) -> Path:
    """Return the ``fetched_path`` of the rank whose ``wanted_path`` is ``wanted``."""
    return wanted.with_name(wanted.stem.replace("wanted-", "fetched-"))


def drained_path(handoff: Path, rank: int) -> Path:
    """Return the file in which a rank reports that it leaves: {"step": S, or null without a save}.

    A relieved rank writes this file when another rank has sealed its state. At the end of the loop, a rank
    writes this file only if its last state could not be saved.
    """
    return handoff / f"drained-{rank}.json"


def progress_path(handoff: Path, rank: int) -> Path:
    """Return the mapped file of a rank's progress."""
    return handoff / f"progress-{rank}"


def metrics_path(handoff: Path, rank: int) -> Path:
    """Return the file of a rank's metrics: JSON lines {"step", "time", "values": {...}}."""
    return handoff / f"metrics-{rank}.jsonl"


def final_path(handoff: Path) -> Path:
    """Return the file that rank 0 writes at the end of the loop, after its part is sealed.

    It holds {"step", "weights_sha256", "are_weights_sharded", "left_early", "planned"}. The hash is null if
    there is no model, or no rank holds the whole model. "planned" is the loop's planned number of steps, or
    null if it is unknown.
    """
    return handoff / "final.json"


def begun_loop_path(handoff: Path, rank: int) -> Path:
    """Return the file in which a rank reports, before the first step, that its loop has begun."""
    return handoff / f"begun-loop-{rank}"


def ended_loop_path(handoff: Path, rank: int) -> Path:
    """Return the file in which a rank reports that its loop has ended and its last part is sealed."""
    return handoff / f"ended-loop-{rank}"


def worker_pid_path(handoff: Path, rank: int) -> Path:
    """Return the file with the process id of a rank that has a session."""
    return handoff / f"worker-{rank}.pid"


def failed_path(handoff: Path, rank: int) -> Path:
    """Return the file in which a rank reports the error that ends it: {"type", "message", "causes"}.

    It is written after the traceback; ``atexit`` functions may still be running.
    """
    return handoff / f"failed-{rank}.json"


def survives_path(handoff: Path, rank: int) -> Path:
    """Return the file in which a rank reports the state that it holds: see ``Survives``."""
    return handoff / f"survives-{rank}.json"


def rescue_path(handoff: Path) -> Path:
    """Return the file with the agent's order about the state that the ranks hold."""
    return handoff / "rescue.json"


def likeness_path(handoff: Path, rank: int) -> Path:
    """Return the file in which a rank reports how it may differ from others: {"rank", "draws", "digests"}."""
    return handoff / f"likeness-{rank}.json"


def rescued_path(handoff: Path, rank: int) -> Path:
    """Return the file in which a rank answers an order to save: {"attempt", "step": S, or null}."""
    return handoff / f"rescued-{rank}.json"


def own_state_path(handoff: Path, rank: int) -> Path:
    """Return the file in which a rank reports why it does not hand over its own state: {"problem"}."""
    return handoff / f"own-state-{rank}.json"


def write_rescue(handoff: Path, command: RescueCommand) -> None:
    """Send the ranks the agent's order about the state that they hold."""
    write_json(rescue_path(handoff), asdict(command))


def read_rescue(handoff: Path) -> RescueCommand | None:
    """Return the agent's order, or None if there is none."""
    value = read_json(rescue_path(handoff))
    return None if value is None else RescueCommand(**value)


def imports_path(handoff: Path, rank: int) -> Path:
    """Return the file of a rank's slow imports, by names for run.preload: {"seconds": {name: seconds}}."""
    return handoff / f"imports-{rank}.json"


def variables_path(handoff: Path, rank: int) -> Path:
    """Return the file with shell assignments, which the rank's launcher reads if the file exists."""
    return handoff / f"variables-{rank}"


def started_path(handoff: Path, rank: int) -> Path:
    """Return the file that exists once torchrun has started the rank."""
    return handoff / f"started-{rank}"


def exited_path(handoff: Path, rank: int) -> Path:
    """Return the file with the rank's exit status; 128 + N if signal N ended the rank."""
    return handoff / f"exited-{rank}"


def read_exited(handoff: Path, rank: int) -> int | None:
    """Return the rank's exit status, or None while it runs or if it was killed with its launcher."""
    try:
        return int(read_at_most(exited_path(handoff, rank), MAX_NUMBER_BYTES))
    except FileNotFoundError:
        return None


def read_data_wait(handoff: Path, rank: int) -> int | None:
    """Return how long a rank has waited for its batches (ns), or None if unknown."""
    try:
        with progress_path(handoff, rank).open("rb") as file:
            data = file.read(PROGRESS.size + DATA_WAIT.size)[PROGRESS.size :]
    except FileNotFoundError:
        return None
    (waited,) = DATA_WAIT.unpack(data) if len(data) == DATA_WAIT.size else (-1,)
    return None if waited < 0 else int(waited)


def read_progress(handoff: Path, rank: int) -> Progress | None:
    """Return a rank's progress, or None if the rank has not reported it yet."""
    try:
        with progress_path(handoff, rank).open("rb") as file:
            data = file.read(PROGRESS.size)
    except FileNotFoundError:
        return None
    if len(data) < PROGRESS.size:
        return None
    step, total, reached_step = PROGRESS.unpack_from(data)
    return Progress(step, None if total < 0 else total, reached_step)
