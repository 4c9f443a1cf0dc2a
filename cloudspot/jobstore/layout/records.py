"""The typed records in the bucket, most of them create-only.

Heartbeat, Summary, SettledLaunches, Suspicions, MarketSeen and Removal are overwritten.

Times (UTC) are by the store's clock, as their writer knows it; see ``store_clock``. Every
create-only record carries its writer's nonce: a writer that reads the key back after an error can
recognise its own put.

The types refuse values that no writer of ours writes, so that readers need not check them: times without a
time zone, numbers out of bounds, unknown words.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from datetime import date, datetime
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from cloudspot.decoding import (
    EARLIEST,
    Amount,
    Dated,
    ExitStatus,
    InstanceId,
    KeyWord,
    Metrics,
    NodeCount,
    Ordinal,
    OrdinalOrZero,
    Port,
    Price,
    Rank,
    Seconds,
    Sha256,
    SharedKey,
    Tally,
)
from cloudspot.host.names import printable
from cloudspot.jobstore.layout.seals import Rescue, Seal, parse_seal
from cloudspot.model import EndReason, LaunchRequest, Market, Offer

JobOutcome = Literal["succeeded", "failed", "stopped"]
JobState = (
    Literal["queued", "launching", "running", "holding", "draining", "waiting", "suspended", "stopping"]
    | JobOutcome
)
StopReason = Literal["user", "max_cost", "max_runtime", "idle_after", "image"]
VoidOutcome = Literal["capacity", "quota", "refused", "voided"]
"""The outcomes of a launch that never trained."""
LaunchOutcome = VoidOutcome | Literal["succeeded", "reclaimed", "stopped", "failed", "lost", "left"]
"""The outcomes of a launch without live nodes; ``left`` means that its nodes were not needed."""
NodeState = Literal[
    "setup", "staging", "restoring", "ready", "running", "draining", "uploading", "ending", "kept"
]
NodeOutcome = Literal["succeeded", "drained", "stopped", "failed", "left", "superseded"]
FailureKind = Literal["trainer-failed", "trainer-stuck", "not-connected", "not-restored"]
TransferKind = Literal["staging", "restoring", "uploading"]
CheckpointKind = Literal["session", "directory"]


def new_nonce() -> str:
    """Return a fresh writer nonce: 16 hex digits."""
    return secrets.token_hex(8)


class _Written(Dated, frozen=True, kw_only=True):
    """The fields about the writing of a create-only record."""

    at: datetime
    writer: str
    """The writer's nonce."""


class CheckpointId(msgspec.Struct, frozen=True, order=True):
    """A checkpoint of a job, named by its generation and step."""

    generation: OrdinalOrZero
    """The generation that made it, or 0 if the job was forked with it."""
    step: Tally

    def __str__(self) -> str:
        return f"{self.generation}-{self.step}"


class SaveId(msgspec.Struct, frozen=True, order=True):
    """One save of a checkpoint. A drain makes its own save, even at a step that is being saved already."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    """The round in which the ranks agreed on it (P4); 0 if there was none, as at the end of the loop."""

    @property
    def checkpoint(self) -> CheckpointId:
        """The checkpoint that the save becomes when it is committed."""
        return CheckpointId(self.generation, self.step)

    def __str__(self) -> str:
        return f"{self.generation}-{self.step}-{self.round}"


# --- submission ---------------------------------------------------------------------------------

FORMAT = 5
"""The format of a job's records; it grows when another version's submissions can no longer be driven."""


class StagedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """The archive from which machines install the agent if their image lacks this cloudspot."""

    sha256: Sha256
    """The hash of the archive, which is part of its key."""
    digest: str
    """The digest of the code in it; an image with the same digest does not need the archive."""
    requirements: tuple[str, ...]
    """The requirements of the distributions in the archive."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of another job."""

    job_id: str
    checkpoint: CheckpointId


class Submission(_Written, frozen=True, kw_only=True):
    """``jobs/<id>/spec``: everything that was submitted, and all that a controller needs."""

    writer: KeyWord
    job_id: str
    provider: str
    spec: dict[str, Any]
    """The validated job file as JSON values; see ``cloudspot.jobfile.spec.spec_from_json``."""
    code_sha256: Sha256
    code_bytes: Tally
    secret_names: tuple[str, ...]
    version: str
    """The version of cloudspot that submitted the job."""
    format: Ordinal = FORMAT
    """Jobs of another format are refused before the rest is read. A record without this field has format
    1."""
    agent: StagedAgent | None = None
    """None if the image has cloudspot."""
    has_own_code: bool = False
    """Whether code and agent are below the job's own prefix, because the shared ones were being deleted."""
    resumption: OrdinalOrZero = 0
    """The number of the resumption that the submission is for, or 0 for the job's first submission, which is
    stored under ``jobs/<id>/spec``. Others are stored under ``jobs/<id>/submissions/<hash>`` and count once a
    ``Resumed`` names them."""
    num_launches_before: OrdinalOrZero = 0
    """The number of launches when the job was resumed; their failures no longer count."""
    forked_from: Origin | None = None
    """The origin of the checkpoint with which the job began, as its generation 0."""
    bakes: bool = False
    """Whether its node only runs the setup, and then waits until an image of its disk is made."""
    store_id: KeyWord | None = None
    """The id of the store, if it has one; see ``ObjectStore.establish``."""

    @property
    def milliseconds(self) -> int:
        """When it was made, in milliseconds since 1970, for keys that sort by time."""
        return int((self.at - EARLIEST).total_seconds() * 1000)


class StopRequest(_Written, frozen=True, kw_only=True):
    """``jobs/<id>/stop``: the request to save a checkpoint and end the job."""

    reason: StopReason
    detail: str = ""
    """The values of a limit that was reached, for people."""


class SetupReady(Dated, frozen=True, kw_only=True):
    """``jobs/<id>/image``: the setup of a job that ``bakes`` is done and written to this machine's disk."""

    instance_id: InstanceId
    key: str
    """The key of the setup; see ``cloudspot.jobfile.setup_key``."""
    at: datetime


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """``index/<id>`` during the removal of a job: facts that are needed after its submission is deleted."""

    shared: tuple[SharedKey, ...]
    """The keys of the code and the agent that the job may share with others."""


# --- journal ------------------------------------------------------------------------------------


class Seat(NamedTuple):
    """The place of a node: the machine that claims it is this node permanently, and has its name."""

    launch: Ordinal
    rank: Rank
    """The rank within the launch."""

    def __str__(self) -> str:
        return f"{self.launch}.{self.rank}"


class Intent(_Written, frozen=True, kw_only=True, tag="intent"):
    """From now on, anyone may create launch ``launch`` of ``num_nodes`` seats, with exactly this request."""

    launch: Ordinal
    offer: Offer
    token: str
    request: LaunchRequest
    num_nodes: NodeCount
    stands_in_for: tuple[Seat | None, ...] = ()
    """By rank, the node whose place in the training this one takes once it is ready; it is empty if there is
    none."""
    why: str
    """The reason for the launch: ``first``, ``reclaimed``, ``notice``, ``growth``, ``moved``, ..."""
    detail: str = ""
    """The calculation behind it, for people."""

    @property
    def principals(self) -> dict[Seat, Seat]:
        """The nodes to be replaced, by stand-in."""
        named = enumerate(self.stands_in_for)
        return {Seat(self.launch, rank): seat for rank, seat in named if seat is not None}


class Finished(_Written, frozen=True, kw_only=True, tag="finished"):
    """The job is over; only a resumption or a move can follow in the journal."""

    outcome: JobOutcome
    detail: str
    exit_code: ExitStatus
    """0, the exit code of the training script if it failed, or 1."""


class Suspended(_Written, frozen=True, kw_only=True, tag="suspended"):
    """The job has waited for ``spot.max_wait``; a driver launches it again once there is capacity."""

    detail: str


class Resumed(_Written, frozen=True, kw_only=True, tag="resumed"):
    """The job continues with another submission, from its newest checkpoint."""

    resumption: Ordinal
    submission_sha256: Sha256
    """See ``submission.hash_of``."""


class Moved(_Written, frozen=True, kw_only=True, tag="moved"):
    """The ended job may only be resumed in another store; copies elsewhere may not."""

    to: str
    """The canonical URL of that store."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a generation."""

    launch: Ordinal
    rank: Rank
    """The node's rank within the launch."""
    instance_id: InstanceId
    address: str

    @property
    def seat(self) -> Seat:
        """The node's seat."""
        return Seat(self.launch, self.rank)


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a restore skipped because it did not verify."""

    checkpoint: CheckpointId
    reason: str


class Generation(_Written, frozen=True, kw_only=True, tag="generation"):
    """One start of the training on a fixed set of nodes."""

    number: Ordinal
    members: tuple[Member, ...]
    """In rank order: index i is the node rank i."""
    endpoint: str
    """``address:port`` of the rendezvous."""
    restore_from: CheckpointId | None
    """The checkpoint that was restored; None if the training starts at step 0."""
    skipped: tuple[Skipped, ...] = ()
    why: str
    """``first``, ``relaunched`` (all members are gone), ``regrouped`` (without a node), ``joined`` (others
    joined), ``handed-over`` (others replaced nodes that leave), ``drained``, ``trainer-failed``,
    ``trainer-stuck``, ``not-connected`` (the ranks could not connect), ``not-restored`` (its checkpoint does
    not verify), ``agent-restarted``."""

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The nodes' seats, in rank order."""
        return tuple(member.seat for member in self.members)

    def ranks(self, launch: int) -> tuple[int, ...]:
        """Return the ranks of the nodes that belong to this launch."""
        return tuple(member.rank for member in self.members if member.launch == launch)


class Commit(_Written, frozen=True, kw_only=True, tag="commit"):
    """From now on the checkpoint counts; its manifest exists and lists all its parts."""

    generation: OrdinalOrZero
    """The newest generation, or 0 in a job that was forked."""
    step: Tally
    """Greater than the step at which the generation began, and than those of its earlier commits."""
    round: OrdinalOrZero = 0
    """The round of the committed save; see ``Manifest``."""
    kind: CheckpointKind
    size: Tally
    """Bytes."""
    sealed_at: datetime
    """When the training had handed over the first part; later work is repeated after a restart."""
    shared: Tally = 0
    """The bytes that earlier checkpoints hold already and that were not sent again."""
    evidence: str | None = None
    """Why a script's own checkpoint was known to be complete; see ``Part``."""
    rescue: Rescue | None = None
    """The rescue, if survivors made the save."""
    is_last: bool = False
    """``session``: whether the training ended with it, at a drain or the end of the loop, so that no work of
    its generation is lost."""

    @property
    def id(self) -> CheckpointId:
        """The checkpoint."""
        return CheckpointId(self.generation, self.step)

    @property
    def save(self) -> SaveId:
        """The save that is committed."""
        return SaveId(self.generation, self.step, self.round)


class Repriced(_Written, frozen=True, kw_only=True, tag="repriced"):
    """The price of a launch's nodes changes from now on, because the market's price has changed."""

    launch: Ordinal
    price_per_hour: Price
    """The price of one node, in the currency of the launch's offer."""


class Kept(_Written, frozen=True, kw_only=True, tag="kept"):
    """The job has failed for good, and the machine of this node stays for inspection: ``limits.keep_failed``.

    No launch and no generation follows, only what was uploaded before, and the end of the job.
    """

    launch: Ordinal
    rank: Rank
    instance_id: InstanceId
    until: datetime
    """It ends by then, whatever becomes of its agent and of drivers."""
    detail: str
    """Why the job has failed."""
    exit_code: ExitStatus

    @property
    def seat(self) -> Seat:
        """Name the node."""
        return Seat(self.launch, self.rank)


Turn = Finished | Suspended | Resumed | Moved
"""Records about the job as a whole."""
JournalRecord = Intent | Generation | Commit | Repriced | Kept | Turn


class JournalCopy(msgspec.Struct, frozen=True, kw_only=True):
    """``jobs/<id>/journal-copies/<last>-<first>``: a run of the journal's records; may be absent."""

    first_writer: str
    """The nonce of the journal's first record, which distinguishes journals of jobs with the same id."""
    records: tuple[JournalRecord, ...]
    """The records, without the rendered requests of the launches."""


# --- nodes --------------------------------------------------------------------------------------


class Slot(_Written, frozen=True, kw_only=True):
    """``launches/k/nodes/<rank>``: a seat, claimed by a node or void. The first writer wins permanently."""

    instance_id: InstanceId | None
    """The machine, or None if the seat is void and no machine may ever take it."""
    address: str | None = None
    detail: str = ""
    machines: tuple[str, ...] = ()
    """For a void seat, the machines that were launched for it and whose end is not proven yet."""
    cause: str = ""
    """For a void seat, why its machine could not run the agent, from its console; it is empty if unknown."""

    @property
    def owed(self) -> tuple[str, ...]:
        """The machines whose end has to be proven."""
        return self.machines if self.instance_id is None else (self.instance_id,)


class Certificate(_Written, frozen=True, kw_only=True):
    """``launches/k/machines/<instance>``: proof that the machine has ended, and its line in the bill.

    A controller writes it when the provider reports the end.
    """

    launch: Ordinal
    rank: Rank | None
    """The seat that it claimed or was made for; None if unknown."""
    instance_id: InstanceId
    started_at: datetime
    ended_at: datetime
    end_reason: EndReason
    detail: str = ""
    """Why it ended, in the provider's words, and the last line of its console; it is empty if unknown."""


class Phase(Dated, frozen=True, kw_only=True):
    """A change in a node's activity."""

    state: NodeState | Literal["training"]
    """``training``: the script's loop over the steps has begun."""
    generation: OrdinalOrZero
    """The newest generation of the node; 0 before the first."""
    reached_step: Tally | None = None
    """Set with ``uploading``, which follows the end of a generation's training; see ``Exit.reached_step``."""
    at: datetime


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The failure of a generation's training on a node."""

    generation: OrdinalOrZero
    why: FailureKind
    """Why the next generation starts, unless a node was lost."""
    exit_code: ExitStatus
    fingerprint: str | None = None
    """A text that failures of the same kind share; None if the cause may lie outside the script."""
    unreachable: tuple[Seat, ...] | None = None
    """The members whose machines did not answer this one; None if it has not asked yet."""


class HeldState(msgspec.Struct, frozen=True, kw_only=True):
    """The newest boundary at which a rank still holds its state."""

    rank: Rank
    boundary: Tally
    """The number of the boundary within the generation."""
    before: Tally
    """The boundary before the newest step of its optimizer; other ranks may still hold that one."""
    step: Tally
    digest: str
    """A digest of samples of the weights: ranks with the same state have the same digest."""
    draws: bool
    """Whether the steps draw random numbers, so that each rank has generators of its own."""
    differs: bool
    """Whether ranks may differ in buffers of the model, of which rank 0's count."""
    holders: tuple[tuple[Rank, ...], ...] = ()
    """For each part of a sharded state, the ranks that hold it."""
    needs_all: bool = False
    """Whether each rank's place in the data is known only to itself."""
    keeps: tuple[Rank, ...] = ()
    """The other ranks whose private state at that boundary this rank also has."""


class RankLikeness(msgspec.Struct, frozen=True, kw_only=True):
    """How similar a rank is to the others; also kept for a lost rank, which can no longer be asked."""

    rank: Rank
    draws: bool | None
    """Whether its steps draw random numbers; None if unknown yet."""
    digests: Annotated[tuple[tuple[Tally, KeyWord], ...], msgspec.Meta(max_length=4)]
    """The newest boundaries with digests of samples of the weights, which are equal where the states are."""


class Survivors(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a node's ranks hold after others were lost or have failed."""

    generation: OrdinalOrZero
    attempt: Ordinal
    """The rescue attempt for which this was asked."""
    held: tuple[HeldState, ...]
    """The states; it is empty if none is useful."""
    given_up: Tally = 0
    """The newest attempt in which a rank here could not save; 0 if there is none."""


class RescueOrder(_Written, frozen=True, kw_only=True):
    """``rescues/<generation>-<attempt>``: the ranks that save their state, and the place; create-only."""

    generation: Ordinal
    attempt: Ordinal
    boundary: Tally
    step: Tally
    ranks: tuple[Rank, ...]
    """The ranks that save, in ascending order; the others count as lost."""
    keepers: tuple[tuple[Rank, Rank], ...] = ()
    """Lost ranks whose private state is saved anyway, in ascending order, each with the rank that saves
    it."""
    cause: Literal["lost", "failed"]
    is_exact: bool
    """See ``Rescue``."""

    @property
    def save(self) -> SaveId:
        """The save that carries it out; other saves have smaller numbers, of their rounds."""
        return SaveId(self.generation, self.step, 900_000 + self.attempt)


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the present staging, restore or upload of a node, in bytes."""

    what: TransferKind
    done: Tally
    total: Tally


class StagedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input of the job on a node's disk."""

    name: str
    num_files: Tally
    size: Tally
    """Bytes."""
    fetched: Tally
    """The bytes that had to be fetched; the others were already on the machine."""
    seconds: Seconds
    """The duration, including all waits."""


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Utilization(Dated, frozen=True, kw_only=True, omit_defaults=True):
    """A machine's average utilization over a period; fields are None if its agent cannot measure them.

    The whole machine counts, including other programs on it. The agent also adds these records to the log,
    under the source ``utilization``.
    """

    at: datetime
    """The end of the period."""
    seconds: Seconds
    """The length of the period."""
    step: Tally
    cpu: Share | None = None
    """The share of the time of all cores that was not idle."""
    memory: Share | None = None
    """The share of the memory that was not available, at the end of the period."""
    gpus: tuple[Share, ...] = ()
    """For each GPU, the share of the time during which a kernel ran on it."""
    gpu_memory: tuple[Share, ...] = ()
    """For each GPU, the share of its memory in use, at the end of the period."""
    disk_read: Rate | None = None
    """Bytes per second from all disks."""
    disk_written: Rate | None = None
    received: Rate | None = None
    """Bytes per second through all network interfaces except loopback."""
    sent: Rate | None = None
    network: Share | None = None
    """The used share of the speed of the busiest interface, in its busier direction; None if the interface
    does not report its speed."""
    step_seconds: Seconds | None = None
    """The time between two steps; None if there was none."""
    data_wait: Share | None = None
    """The share of the time during which the rank with the longest wait waited for batches."""


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """A node has not used its resources for at least ``limits.idle_after``."""

    seconds: Seconds
    """The duration, by the node's own clock."""
    cause: str
    """The newest measurement, such as ``GPUs at 0 %``."""

    @property
    def text(self) -> str:
        """The same as a phrase."""
        minutes = self.seconds / 60
        spent = f"{self.seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min"
        return f"idle for {spent if minutes < 120 else f'{minutes / 60:.1f} h'} ({self.cause})"


class LogStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How much of its log a node has delivered."""

    num_lines: Tally
    """The number of lines that it has numbered; those missing in the sink are on their way."""
    waiting_bytes: Tally
    """The bytes in its log files after these lines."""
    error: str = ""
    """Why the sink has not accepted the last lines; it is empty if it has."""


class SaveCost(msgspec.Struct, frozen=True, kw_only=True):
    """How a session's newest interval save was copied, and the cost of such saves to the training."""

    way: str
    """``boundary``: between two steps. ``overlapped``: large tensors next to the step that follows."""
    copy_seconds: Seconds
    """How long the copying took."""
    lost_seconds: Seconds | None = None
    """The time that a save adds until the next boundary, over the newest such saves; None if unknown."""


class Heartbeat(Dated, frozen=True, kw_only=True):
    """A node's report about itself, every few seconds; overwritten."""

    counter: Tally
    instance_id: InstanceId
    address: str
    port: Port
    """A port for the rendezvous of the next generation, free at the time of writing."""
    state: NodeState
    """``ready``: the node waits for the others."""
    generation: OrdinalOrZero
    """The node's newest generation; 0 before the first."""
    restored_step: Tally
    step: Tally
    """The newest step that any local rank has begun, or the restored step."""
    steps_total: Tally | None
    has_session: bool = True
    """Whether the script has opened a session in this generation; without one, steps are not counted."""
    metrics: Metrics
    committed: CheckpointId | None
    stall_seconds: Seconds | None
    """How long the last save stopped the training."""
    save_cost: SaveCost | None = None
    """None if no session here has made an interval save, or an earlier version has saved."""
    upload_seconds: Seconds | None
    """How long the upload and the commit of that save took."""
    notice_seconds: Seconds | None = None
    """The length of the provider's notices; None if this agent does not know it."""
    at_risk: bool = False
    """Whether the provider has hinted that it may reclaim the machine, without a notice."""
    transfer: Transfer | None = None
    """The present staging, restore or upload, if any."""
    moved_bytes: Tally = 0
    """The bytes that all agents of the machine have moved to and from the job's bucket."""
    staged: tuple[StagedInput, ...] = ()
    """The inputs of the job that are on its disk."""
    log: LogStanding | None = None
    """None if this agent does not know it."""
    idle: Idle | None = None
    """None if the node is not idle, or if its job sets no limit."""
    utilization: Utilization | None = None
    """The utilization of the newest half minute of the training; None if not measured yet."""
    warnings: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    """The node's activities since its agent started, oldest first; if there are very many, only the
    newest."""
    failed: Failed | None = None
    """The newest failure; it makes the other nodes end that generation, too."""
    survivors: Survivors | None = None
    """The state that the local ranks hold after others were lost, once they were asked."""
    likeness: tuple[RankLikeness, ...] = ()
    """The local ranks that have reported it."""
    agent: str = ""
    """A nonce of the agent's process, which requests to run commands must name. It is empty if it runs
    none."""
    at: datetime


HEARTBEAT_DIAGNOSTICS: Mapping[str, Any] = {
    "metrics": Metrics(),
    "stall_seconds": None,
    "save_cost": None,
    "upload_seconds": None,
    "notice_seconds": None,
    "transfer": None,
    "moved_bytes": 0,
    "staged": (),
    "log": None,
    "utilization": None,
    "warnings": (),
}
"""The fields of a heartbeat that no decision depends on, with their empty values."""


class InputVersion(_Written, frozen=True, kw_only=True):
    """``jobs/<id>/inputs/<name>``: the input's version on the first node, which the others compare."""

    version: Sha256
    """A hash of the names, sizes and versions of all files."""
    num_files: Tally
    size: Tally
    seat: Seat


class Notice(_Written, frozen=True, kw_only=True):
    """``nodes/<launch>/<rank>/notice``: the first notice that the node received."""

    launch: Ordinal
    rank: Rank
    deadline: datetime
    """The earlier of the stated time and the time of its arrival plus ``notice_seconds``."""
    action: str
    source: str
    step: Tally
    """The newest step begun by then."""


class RemoteCall(_Written, frozen=True, kw_only=True):
    """``nodes/<launch>/<rank>/call``: a request to the node to run a command."""

    launch: Ordinal
    rank: Rank
    instance_id: InstanceId
    agent: str
    """The agent in the node's heartbeat; no other agent answers."""
    user: str
    """The name that the caller states."""
    words: tuple[str, ...]
    """The program and its arguments."""
    rows: Tally = 0
    """The size of its terminal; 0 if it gets none."""
    columns: Tally = 0


class RemoteAnswer(_Written, frozen=True, kw_only=True):
    """``remote/<launch>/<rank>/<nonce>/answer``: the node's answer to a call."""

    refused: str = ""
    """Why it does not run the command; it is empty if it does."""


class RemoteCommand(_Written, frozen=True, kw_only=True):
    """``commands/<launch>-<rank>-<nonce>``: a command that a node has run, or still runs."""

    launch: Ordinal
    rank: Rank
    user: str
    """The name that the caller stated."""
    words: tuple[str, ...]
    has_terminal: bool
    agent: str = ""
    """The agent that runs it: it ends with that."""
    ended: datetime | None = None
    status: ExitStatus | None = None
    """The exit status, as in a shell; None if the command was interrupted."""
    why: str = ""
    """Why it was interrupted."""


class Final(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a finished training: the step, the hash of the weights and the last metrics."""

    step: Tally | None
    """None if the script had no session, so that steps were not counted."""
    weights_sha256: str | None
    are_weights_sharded: bool = False
    """Whether there is no hash because no rank held all the weights."""
    metrics: Metrics
    left_early: bool = False
    """Whether the script left its loop before the end."""
    planned: Tally | None = None
    """The planned number of steps of a loop that was left early, if known."""


class Exit(_Written, frozen=True, kw_only=True):
    """``nodes/<launch>/<rank>/exit.json``: the node's last record; it no longer runs user code."""

    launch: Ordinal
    rank: Rank
    instance_id: InstanceId
    outcome: NodeOutcome
    """``drained``: after a notice. ``left``: it waited in vain for enough other nodes. ``superseded``: the
    job continues without this node."""
    detail: str
    exit_code: ExitStatus
    """The exit code of the training script if the outcome is ``failed``, otherwise 0."""
    permanent: bool = False
    """Whether another machine would fail in the same way, so that the job ends."""
    waits_until: datetime | None = None
    """``failed``: until then the node waits for a driver to decide that the job has failed and that this
    machine is kept (``Kept``). It is set only if the job has ``limits.keep_failed``."""
    is_cut_off: bool = False
    """Whether the network to other members, which are alive, is interrupted."""
    fingerprint: str | None = None
    """``failed``: a text that failures of the same kind share; set if the node ended before a second try."""
    log_tail: tuple[str, ...] = ()
    generation: OrdinalOrZero
    restored_step: Tally
    step: Tally
    """The newest step begun; for a drained node, the step of its commit."""
    reached_step: Tally
    """The step after the newest one that the node has begun in the generation, or the restored one."""
    has_session: bool = True
    """Whether the script had a session in that generation."""
    committed: CheckpointId | None
    final: Final | None = None


# --- checkpoints --------------------------------------------------------------------------------


class ChunkHome(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a chunk that was sent with an earlier save of the job."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    rank: Rank
    number: Tally

    @property
    def save(self) -> SaveId:
        """The save that sent it."""
        return SaveId(self.generation, self.step, self.round)


class Chunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of a part's bytes, stored as one object."""

    size: Tally
    xxh3_128: str
    """The checksum in hex."""
    home: ChunkHome | None = None
    """Its place if an earlier save sent the same bytes; None if it was sent with its part."""
    stored: Tally | None = None
    """The number of bytes sent if it is stored compressed (``compression``); None if it is stored
    uncompressed. ``size`` and the checksum always refer to the uncompressed bytes."""


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a directory checkpoint; the part holds the files' bytes in list order, the oldest first."""

    path: str
    """The path, relative and ``/``-separated."""
    size: Tally
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)]
    raw_path: bytes | None = None
    """The path, in base64, if it is not UTF-8; ``path`` is then only for display."""
    is_link: bool = False
    """Whether it is a symbolic link; its bytes are then the target."""

    @property
    def name(self) -> str:
        """The path in the form that the system's functions accept."""
        return self.path if self.raw_path is None else os.fsdecode(self.raw_path)


def file_of(name: str, size: int, *, mode: int, is_link: bool = False) -> File:
    """Return the record of a file, whose name may be any that the system allows."""
    shown = printable(name)
    raw = None if shown == name else os.fsencode(name)
    return File(path=shown, size=size, mode=mode, raw_path=raw, is_link=is_link)


class Part(Dated, frozen=True, kw_only=True, dict=True):
    """``parts/<rank>``: the upload of one rank (of a session) or one node (of a directory)."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    rank: Rank
    num_parts: NodeCount
    """The number of parts of the whole checkpoint."""
    relieved: tuple[Rank, ...] = ()
    """Ranks without a part, because their machines were about to go; the other parts hold their private
    state."""
    kind: CheckpointKind
    size: Tally
    """The bytes of all chunks together."""
    chunks: tuple[Chunk, ...]
    seal: str | None = None
    """``session``: the trainer's seal exactly as written, with the table of items and the JSON state. It is a
    text because Python's json writes infinity, which strict JSON does not allow."""
    files: tuple[File, ...] = ()
    directory: str | None = None
    """``directory``: the base of the paths in ``files``: the working directory (``.``), or the checkpoint
    directory below it to which this part belongs."""
    evidence: str | None = None
    """``directory``: why the checkpoint was known to be complete; None if the writer's version does not state
    it."""
    rescue: Rescue | None = None
    """``session``: the rescue in the seal."""
    sealed_at: datetime
    writer: str

    @property
    def save(self) -> SaveId:
        """The save to which it belongs."""
        return SaveId(self.generation, self.step, self.round)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that bring a part of that save, in ascending order."""
        others = set(self.relieved)
        return tuple(rank for rank in range(self.num_parts + len(others)) if rank not in others)

    @cached_property
    def parsed_seal(self) -> Seal:
        """The parsed seal; its text is parsed only once.

        Raises:
            CorruptData: there is none, or it is malformed.
        """
        return parse_seal(self.seal or "", f"the seal of part {self.rank}")


class Manifest(_Written, frozen=True, kw_only=True):
    """``manifests/<generation>-<step>``: all parts of a checkpoint. The journal's commit makes it count."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    """The round of the save that was complete first; a step is committed only once in a generation."""
    kind: CheckpointKind
    size: Tally
    parts: tuple[Part, ...]
    """In rank order."""

    @property
    def id(self) -> CheckpointId:
        """The checkpoint."""
        return CheckpointId(self.generation, self.step)

    @property
    def save(self) -> SaveId:
        """The save whose parts it lists."""
        return SaveId(self.generation, self.step, self.round)

    @property
    def shared(self) -> int:
        """The bytes that were not sent with it, because earlier checkpoints hold them."""
        return sum(chunk.size for part in self.parts for chunk in part.chunks if chunk.home is not None)

    @property
    def sent(self) -> int:
        """The bytes that were sent with it: all that are not shared, in compressed form."""
        chunks = [chunk for part in self.parts for chunk in part.chunks if chunk.home is None]
        return sum(chunk.size if chunk.stored is None else chunk.stored for chunk in chunks)


class Damage(_Written, frozen=True, kw_only=True):
    """``manifests/<generation>-<step>.damaged``: a node found that a chunk does not verify."""

    reason: str


# --- advisory -----------------------------------------------------------------------------------


class Outlay(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a job's machines of one kind on one day."""

    day: date
    """The day in UTC."""
    provider: str
    market: Market
    zone: str
    currency: str
    purposes: dict[str, tuple[Seconds, Amount, Amount]]
    """By the ledger's purpose: the machines' seconds, the cost, and the cost of the same on demand."""


class Summary(Dated, frozen=True, kw_only=True):
    """``jobs/<id>/summary``: one small object per job, for ``ps``; overwritten, and possibly outdated."""

    job_id: str
    provider: str
    state: JobState
    step: Tally
    steps_total: Tally | None
    starts: OrdinalOrZero
    """The number of generations so far."""
    spent: Amount
    currency: str
    submitted_at: datetime
    metrics: Metrics
    detail: str
    at: datetime
    others: dict[str, Amount] = msgspec.field(default_factory=dict)
    """The cost in other currencies, on other providers."""
    num_nodes: OrdinalOrZero = 0
    """The number of nodes in the newest generation; 0 before the first."""
    max_nodes: OrdinalOrZero = 0
    """The most nodes that the job may have."""
    idle: str = ""
    """The nodes that do not use their resources; it is empty if none is known."""
    kept: Seat | None = None
    """The node whose machine is kept for inspection after the job's failure, if one is."""
    kept_until: datetime | None = None
    name: str | None = None
    """The name in the job file."""
    code_sha256: Sha256 | None = None
    started_at: datetime | None = None
    """When the first machine was requested."""
    finished_at: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """The labels in the job file."""
    outlays: tuple[Outlay, ...] | None = None
    """For a job that has ended, its costs for ``cost``; None if they were not added up."""
    driven_by: str = ""
    """The last driver of the job, such as ``run on laptop``; it is empty if unknown."""
    driven_at: datetime | None = None
    """The time of its last pass, by its own clock."""
    undone: str = ""
    """The tasks that it was asked for and does not do, with reasons; empty if none is known."""


class StandingDriver(Dated, frozen=True, kw_only=True):
    """``drivers/<name>``: a driver that regularly drives the store's jobs; overwritten about once a pass."""

    who: str
    """The driver's name, such as ``reconcile on host``."""
    every: Seconds | None
    """The time between two of its passes; None after its first pass."""
    providers: tuple[str, ...]
    """The providers whose plugins it has."""
    at: datetime


NUM_MARKET_AGES = 4
"""The number of distinguished ages of a market's state, as in ``cloudspot.market.hazards``."""
_MarketCounts = Annotated[
    tuple[Annotated[float, msgspec.Meta(ge=0, le=1e6)], ...],
    msgspec.Meta(min_length=NUM_MARKET_AGES, max_length=NUM_MARKET_AGES),
]


class PoolSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A job's observations of one pool of spot machines, by the age of the pool's state."""

    losses: _MarketCounts
    up_hours: _MarketCounts
    gains: _MarketCounts
    down_hours: _MarketCounts


class MarketSeen(Dated, frozen=True, kw_only=True):
    """``market/<provider>/<time>-<nonce>``: the observations of the spot market by a job that has ended."""

    pools: Annotated[dict[str, PoolSeen], msgspec.Meta(max_length=1000)]
    """By zone and machine type: ``zone/type``."""
    at: datetime


class SettledLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a launch's nodes, by rank, once they are final."""

    launch: Ordinal
    slots: dict[Rank, Slot]
    exits: dict[Rank, Exit]
    notices: dict[Rank, Notice]
    heartbeats: dict[Rank, Heartbeat]
    certificates: tuple[Certificate, ...]


class SettledLaunches(msgspec.Struct, frozen=True, kw_only=True):
    """``jobs/<id>/settled``: a copy of unchanging records; overwritten, possibly incomplete or absent."""

    submission: str
    """The nonce of the job's first submission."""
    launches: tuple[SettledLaunch, ...]
    """From the first launch on, without a gap."""


class ObservedDuration(Dated, frozen=True, kw_only=True):
    """The least time for which passes of drivers have observed the same, by the store's clock."""

    seconds: Seconds
    until: datetime | None
    """The moment, by the store's clock, up to which ``seconds`` count; None stands for the time of the put of
    the object that contains this, which its writer could not know."""


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A node that may be silent or gone."""

    seat: Seat
    instance_id: InstanceId
    counter: Tally
    """The counter of its newest heartbeat; 0 if it has none."""
    silent: ObservedDuration | None
    """How long the counter has not changed."""
    absent: ObservedDuration | None
    """How long listings have not shown the machine."""


class Ending(msgspec.Struct, frozen=True):
    """An event after which nodes have limited time to leave; it is never revoked."""

    what: Literal["over", "excluded", "stop", "finished"]
    """``over``: the node has written its exit record, or has provably ended. ``excluded``: the training
    continues without it. ``stop``: the job was asked to stop. ``finished``: the job is over."""
    seat: Seat | None = None
    """The node; None for the whole job."""
    resumption: OrdinalOrZero = 0
    """The resumption that was asked to stop, or that ended."""


class KnownEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How long drivers have known of an ending."""

    ending: Ending
    known: ObservedDuration


class Suspicions(Dated, frozen=True, kw_only=True):
    """``jobs/<id>/suspicions``: the observations of drivers with short passes; overwritten."""

    suspects: tuple[Suspect, ...]
    endings: tuple[KnownEnding, ...] = ()
    """The endings that machines have outlived so far."""
    at: datetime
    writer: str
    """A nonce that distinguishes this write from others."""
