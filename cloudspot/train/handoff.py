"""The files through which the agent and the training process talk; needs only the standard library.

Both sides run on one machine, so moments are values of ``time.monotonic()``, which all its processes
share. Every file is written whole under a temporary name and renamed into place.

A generation has a directory of its own, named by ``CLOUDSPOT_HANDOFF``::

    tuning.json            agent -> trainer  the save interval, and what uploads have cost so far
    drain.json             agent -> trainer  save and leave
    seals/seal-G-S-N-R.json  trainer -> agent  a full arena slot; the agent renames it to taken-...,
                                             uploads it and unlinks it, and so frees the slot
    seals/held-G-S-N-R.json  trainer -> agent  the same, to be made a seal if the script ends with status 0
    wanted-R.json          trainer -> agent  what rank R reads of a checkpoint that is fetched on demand
    fetched-R              agent -> trainer  that is in the checkpoint's files
    drained-R.json         trainer -> agent  rank R leaves, with its last part sealed or handed over, or
                                             without a save
    progress-R             trainer -> agent  three int64, mapped: see ``Progress``
    metrics-R.jsonl        trainer -> agent  a line for each run.log()
    final.json             trainer -> agent  the loop has ended or was left, and rank 0's state is sealed
    begun-loop-R           trainer -> agent  rank R has begun its loop
    ended-loop-R           trainer -> agent  rank R came to the end of its loop, or left it by itself as all
                                             ranks did, and its last part is sealed
    worker-R.pid           trainer -> agent  rank R has a session and answers DUMP_SIGNAL
    failed-R.json          trainer -> agent  rank R met an error that nobody caught, and will end
    survives-R.json        trainer -> agent  what rank R still holds after others were lost: see ``Survives``
    rescue.json            agent -> trainer  say that; save it; or end, as it is needed no more
    rescued-R.json         trainer -> agent  rank R has sealed its part, or holds nothing any more
    own-state-R.json       trainer -> agent  rank R hands over nothing of what it alone has: {"problem"}
    likeness-R.json        trainer -> agent  how far rank R is like the others, if it is lost: `RankLikeness`
    imports-R.json         trainer -> agent  what rank R imports slowly, and may be imported once a machine
    variables-R            agent -> launcher what run.trackers adds to the environment of rank R
    started-R              launcher -> agent torchrun has started rank R
    exited-R               launcher -> agent the exit status of rank R, as a shell tells it

G is the generation, S the step, N the number of the round or 0, R the global rank.
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
"""The generation's hand-off directory. Unset: there is no agent."""
PROCESSES = "processes"
"""In that directory, the directory that says which processes are the generation's: see ``KeptProcesses``."""
RESTORE = "CLOUDSPOT_RESTORE"
"""The directory of the checkpoint to resume from; unset on a fresh start."""
RESTORE_IN_MEMORY = "restore"
"""The name of that directory, beside the arena's slots, if it is in memory."""
ARENA = "CLOUDSPOT_ARENA"
"""Where the arena's slots go first: a directory in memory (/dev/shm)."""
ARENA_SPILL = "CLOUDSPOT_ARENA_SPILL"
"""Where they go when memory is short: a directory on local disk."""
GENERATION = "CLOUDSPOT_GENERATION"
RESCUE = "CLOUDSPOT_RESCUE"
"""``1``: the agent saves what survivors hold after others were lost."""
HAND_OVER = "CLOUDSPOT_HAND_OVER"
"""``SECRET@ADDRESS``: ranks hand over what each alone has. All members of the generation know the secret, and
the others reach this machine at the address."""
MAX_JSON_BYTES = 1 << 20
MAX_NUMBER_BYTES = 64
"""What is longer was not written by cloudspot: the script may write into the directory, too."""
JOB_ID = "CLOUDSPOT_JOB"
ARTIFACTS = "CLOUDSPOT_ARTIFACTS"
"""The directory that the agent syncs to the bucket."""

DUMP_SIGNAL = signal.SIGUSR1
"""A trainer with a session answers with the stacks of all its threads on stderr (faulthandler).

Without a session the signal would end the process: send it only to the process in ``worker-R.pid``.
"""

RESTORE_MANIFEST = "restore.json"
ON_DEMAND = "on_demand"
"""The member of it that says that ranks have to ask for what they read."""
SEAL_FORMAT = 1
PROGRESS = struct.Struct("<qqq")
DATA_WAIT = struct.Struct("<q")
"""Behind the progress, in the same file: nanoseconds for which the rank waited for batches; -1: unknown."""
_SEAL = re.compile(r"(seal|taken)-(\d+)-(\d+)-(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class Drain:
    """``drain.json``: save at the next agreed step and leave."""

    kind: str
    """``notice``: this machine is about to go. ``stop``, or ``join``: newcomers are to be taken in."""
    guard: float
    """The monotonic moment after which a save no longer helps: leave without one."""


@dataclass(frozen=True)
class Tuning:
    """``tuning.json``: what rank 0 needs to choose the moment of interval saves."""

    interval_seconds: float | None
    """Fixed by the job; None: choose it from the rest ("auto")."""
    upload_seconds: float
    """Seal to commit of the newest checkpoint; 0 before the first."""
    losses_per_second: float
    """How many machines are lost without a usable notice, over all nodes."""


@dataclass(frozen=True)
class Survives:
    """``survives-R.json``: the state that a rank holds after others were lost."""

    held: dict[str, Any] | None
    """The newest boundary at which its state still stands: its rank, and ``rescue.Held``."""
    problem: str
    """Why there is none."""
    attempt: int
    """For which the agent has asked last; 0: it has not yet."""
    is_ending: bool
    """Whether the process waits to end."""


HOLD, SAVE, RELEASE = "hold", "save", "release"


@dataclass(frozen=True)
class RescueWord:
    """``rescue.json``: how the ranks go on with the state that they hold."""

    do: str
    """``HOLD``: pass no further boundary, and say what you hold. ``SAVE`` it. ``RELEASE``: end."""
    attempt: int
    order: Mapping[str, Any] = field(default_factory=dict)
    """Of ``SAVE``: as ``SaveOrder.to_json`` returns it."""


class Progress(NamedTuple):
    """``progress-R``: how far a rank has come."""

    step: int
    """The step begun; before the first the one that was restored, after the last the total."""
    total: int | None
    """How many steps the training is to make; -1 in the file: it has not said so."""
    reached_step: int
    """The step after the newest one begun: who resumes there makes no step again."""


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
        """Return all but whether it is taken, in the order in which seals are made."""
        return self.generation, self.step, self.round, self.rank

    @property
    def file_name(self) -> str:
        """Return the name that the trainer gives it."""
        return "seal-{}-{}-{}-{}.json".format(*self.number)

    @property
    def held_name(self) -> str:
        """Return the name that the trainer gives it where the agent is to wait for the exit status."""
        return "held-{}-{}-{}-{}.json".format(*self.number)

    @property
    def taken_name(self) -> str:
        """Return the name that the agent gives it when its upload starts."""
        return "taken-{}-{}-{}-{}.json".format(*self.number)


def parse_seal_name(name: str) -> SealName | None:
    """Return what the file name says, or None if it is not a seal's."""
    match = _SEAL.fullmatch(name)
    if match is None:
        return None
    generation, step, number, rank = map(int, match.groups()[1:])
    return SealName(generation, step, number, rank, match[1] == "taken")


def publish_held(handoff: Path) -> None:
    """Make seals of the held ones: the script has ended with status 0."""
    for path in seals_directory(handoff).glob("held-*.json"):
        path.rename(path.with_name(path.name.replace("held-", "seal-", 1)))


# A seal is a JSON object:
#   format      1
#   generation, step, round, rank, world_size
#   relieved    ranks that bring no part: what only they had was handed to others
#   kind        "interval", "drain", "final" or "rescue"
#   rescue      of the last kind: {"cause": "lost" or "failed", "lost": the ranks that are lost, "kept": those
#               of them whose own state a part holds, as they had handed it over, "is_exact"}
#   slot        absolute path of the arena slot
#   nbytes      how many of its first bytes are the part
#   plan        hex digest of the table of all parts' items: parts of one checkpoint must agree
#   items       [{"name", "dtype", "shape", "offset", "nbytes"}, ...] of this rank's part, by offset
#               and without holes; "dtype" is torch's name, bytes are little-endian. The shard of a tensor has
#               "global_shape" and "global_offset" too: the tensor's shape, and where in it the shard begins
#   cuts        the offsets before which a chunk of the upload ends: where items that are not trained follow
#               others, or others follow them, and around each large one of them; ascending
#   objects     the JSON state that all ranks share, in every seal as it is small; readers take that of the
#               seal with the lowest rank's state: {"state": {object: tree}, "models": [names of objects that
#               are modules], "layouts": {item: {"strides", "device"}}, "seed", "position", "left"}
#   rank_states {rank: its JSON state (RNG, data position)}: of this rank, of those that it has relieved, and
#               of those that are lost and had handed theirs over to it
#   stall_seconds  how long the save held up the training
#   way, copy_seconds, lost_seconds  how it was copied, and what such saves cost: see ``records.SaveCost``
#   boot, sealed_monotonic  when it was sealed: the name of the machine's boot, and its monotonic seconds
#
# ``restore.json`` is {"generation", "step", "world_size", "parts": [{"rank", "file", "seal"}, ...]}:
# "file" is relative to the restore directory and holds the part's bytes, already verified. With
# "on_demand": true it holds only those that a rank has asked for by ``wanted-R.json``,
# {"nonce", "ranges": {file: [[start, end], ...]}} in bytes, once ``fetched-R`` repeats that nonce.


def seals_directory(handoff: Path) -> Path:
    """Return the directory of a generation's seals."""
    return handoff / "seals"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically: readers see all of it or nothing."""
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
    """Return the standing request to leave, or None."""
    value = read_json(handoff / "drain.json")
    return None if value is None else Drain(**value)


def write_tuning(handoff: Path, tuning: Tuning) -> None:
    """Tell the trainer what it needs to choose its save interval."""
    write_json(handoff / "tuning.json", asdict(tuning))


def read_tuning(handoff: Path) -> Tuning | None:
    """Return the newest tuning, or None."""
    value = read_json(handoff / "tuning.json")
    return None if value is None else Tuning(**value)


def wanted_path(handoff: Path, rank: int) -> Path:
    """Return the file by which a rank says what it reads of a checkpoint that is fetched on demand."""
    return handoff / f"wanted-{rank}.json"


def fetched_path(handoff: Path, rank: int) -> Path:
    """Return the file that repeats the nonce of what is wanted once that is there."""
    return handoff / f"fetched-{rank}"


def answer_to(wanted: Path) -> Path:
    """Return the ``fetched_path`` of the rank whose ``wanted_path`` this is."""
    return wanted.with_name(wanted.stem.replace("wanted-", "fetched-"))


def drained_path(handoff: Path, rank: int) -> Path:
    """Return the file by which a rank says that it leaves: {"step": S, or null without a save}.

    A rank that was relieved writes it when another has sealed what it had.
    At the end of the loop a rank writes it only if its last state could not be saved.
    """
    return handoff / f"drained-{rank}.json"


def progress_path(handoff: Path, rank: int) -> Path:
    """Return the mapped file of a rank's progress."""
    return handoff / f"progress-{rank}"


def metrics_path(handoff: Path, rank: int) -> Path:
    """Return the file of a rank's metrics: JSON lines {"step", "time", "values": {...}}."""
    return handoff / f"metrics-{rank}.jsonl"


def final_path(handoff: Path) -> Path:
    """Return the file of rank 0 at the end of the loop, with its part sealed.

    {"step", "weights_sha256", "are_weights_sharded", "left_early", "planned"}: the hash is null without
    a model, or if no rank holds all of it; "planned" is how many steps the loop was to have, or null if that
    is not known.
    """
    return handoff / "final.json"


def begun_loop_path(handoff: Path, rank: int) -> Path:
    """Return the file by which a rank says that its loop has begun, before the first step."""
    return handoff / f"begun-loop-{rank}"


def ended_loop_path(handoff: Path, rank: int) -> Path:
    """Return the file by which a rank says that its loop has ended or was left, with its last part sealed."""
    return handoff / f"ended-loop-{rank}"


def worker_pid_path(handoff: Path, rank: int) -> Path:
    """Return the file that holds the process id of a rank with a session."""
    return handoff / f"worker-{rank}.pid"


def failed_path(handoff: Path, rank: int) -> Path:
    """Return the file by which a rank says that an error ends it: {"type", "message", "causes"}.

    It is written after the traceback; ``atexit`` functions may still be running.
    """
    return handoff / f"failed-{rank}.json"


def survives_path(handoff: Path, rank: int) -> Path:
    """Return the file by which a rank says what it holds: see ``Survives``."""
    return handoff / f"survives-{rank}.json"


def rescue_path(handoff: Path) -> Path:
    """Return the file by which the agent says what is to become of what ranks hold."""
    return handoff / "rescue.json"


def likeness_path(handoff: Path, rank: int) -> Path:
    """Return the file by which a rank says how far it is like the others: {"rank", "draws", "digests"}."""
    return handoff / f"likeness-{rank}.json"


def rescued_path(handoff: Path, rank: int) -> Path:
    """Return the file by which a rank answers an order to save: {"attempt", "step": S, or null}."""
    return handoff / f"rescued-{rank}.json"


def own_state_path(handoff: Path, rank: int) -> Path:
    """Return the file by which a rank says why it hands over nothing of what it alone has: {"problem"}."""
    return handoff / f"own-state-{rank}.json"


def write_rescue(handoff: Path, word: RescueWord) -> None:
    """Tell the ranks what is to become of what they hold."""
    write_json(rescue_path(handoff), asdict(word))


def read_rescue(handoff: Path) -> RescueWord | None:
    """Return what the agent has said, or None."""
    value = read_json(rescue_path(handoff))
    return None if value is None else RescueWord(**value)


def imports_path(handoff: Path, rank: int) -> Path:
    """Return the file of a rank's slow imports: {"seconds": {name: seconds}}, by what run.preload takes."""
    return handoff / f"imports-{rank}.json"


def variables_path(handoff: Path, rank: int) -> Path:
    """Return the file of shell assignments that the rank's launcher reads, if it is there."""
    return handoff / f"variables-{rank}"


def started_path(handoff: Path, rank: int) -> Path:
    """Return the file that exists once torchrun has started the rank."""
    return handoff / f"started-{rank}"


def exited_path(handoff: Path, rank: int) -> Path:
    """Return the file that holds the exit status of the rank; 128 + N if signal N ended it."""
    return handoff / f"exited-{rank}"


def read_exited(handoff: Path, rank: int) -> int | None:
    """Return the exit status of the rank, or None while it runs (or has been killed with its launcher)."""
    try:
        return int(read_at_most(exited_path(handoff, rank), MAX_NUMBER_BYTES))
    except FileNotFoundError:
        return None


def read_data_wait(handoff: Path, rank: int) -> int | None:
    """Return for how many nanoseconds a rank has waited for its batches; None: that is not known."""
    try:
        with progress_path(handoff, rank).open("rb") as file:
            data = file.read(PROGRESS.size + DATA_WAIT.size)[PROGRESS.size :]
    except FileNotFoundError:
        return None
    (waited,) = DATA_WAIT.unpack(data) if len(data) == DATA_WAIT.size else (-1,)
    return None if waited < 0 else int(waited)


def read_progress(handoff: Path, rank: int) -> Progress | None:
    """Return how far a rank has come; None before it has said anything."""
    try:
        with progress_path(handoff, rank).open("rb") as file:
            data = file.read(PROGRESS.size)
    except FileNotFoundError:
        return None
    if len(data) < PROGRESS.size:
        return None
    step, total, reached_step = PROGRESS.unpack_from(data)
    return Progress(step, None if total < 0 else total, reached_step)
