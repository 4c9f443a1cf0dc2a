"""The typed records in the bucket, most of which are create-only.

Heartbeat, Summary, SettledLaunches, Suspicions, MarketSeen and Removal are overwritten.

Times (UTC) are by the store's clock, as far as their writer knows it; see ``store_clock``. Every create-only
record carries its writer's nonce: a writer that reads the key back after an error can recognise its own put.

The types reject values that cloudspot never writes, so that readers need not check for these: times without a
time zone, numbers out of bounds, unknown keywords.
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
    """The fields that record the time and the writer of a create-only record."""

    at: datetime
    writer: str
    """The writer's nonce."""


class CheckpointId(msgspec.Struct, frozen=True, order=True):
    """A checkpoint of a job, named by its generation and step."""

    generation: OrdinalOrZero
    """The generation that made the checkpoint, or 0 if the job was forked with it."""
    step: Tally

    def __str__(self) -> str:
        return f"{self.generation}-{self.step}"


class SaveId(msgspec.Struct, frozen=True, order=True):
    """One save of a checkpoint. A drain makes its own save, even at a step that is already being saved."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    """The round in which the ranks agreed on the save (P4), or 0 if it had no round, as at the end of the
    loop.
    """

    @property
    def checkpoint(self) -> CheckpointId:
        """The checkpoint that the save becomes when it is committed."""
        return CheckpointId(self.generation, self.step)

    def __str__(self) -> str:
        return f"{self.generation}-{self.step}-{self.round}"


# --- submission ---------------------------------------------------------------------------------

FORMAT = 5
"""The format of a job's records, raised when another version's submissions can no longer be driven."""


class StagedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """The archive from which machines install the agent if their image lacks this cloudspot."""

    sha256: Sha256
    """The hash of the archive, which is part of its key."""
    digest: str
    """The digest of the code in the archive; an image with the same digest does not need the archive."""
    requirements: tuple[str, ...]
    """The requirements of the distributions in the archive."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of another job."""

    job_id: str
    checkpoint: CheckpointId


class Submission(_Written, frozen=True, kw_only=True):
    """``jobs/<id>/spec``: all data that was submitted, and all that a controller needs."""

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
    """Jobs of another format are refused before the rest is read. Without this field, the format is 1."""
    agent: StagedAgent | None = None
    """The staged agent, or None if the image has cloudspot."""
    has_own_code: bool = False
    """Whether code and agent are below the job's own prefix, because the shared ones were being deleted."""
    resumption: OrdinalOrZero = 0
    """The number of the resumption for which the submission was made, or 0 for the job's first submission,
    which is stored under ``jobs/<id>/spec``. Later submissions are stored under
    ``jobs/<id>/submissions/<hash>`` and count once a ``Resumed`` names them.
    """
    num_launches_before: OrdinalOrZero = 0
    """The number of launches before the job was resumed, whose failures no longer count."""
    forked_from: Origin | None = None
    """The origin of the checkpoint with which the job began, as its generation 0."""
    bakes: bool = False
    """Whether the job's node only runs the setup, and then waits until an image of its disk is made."""
    store_id: KeyWord | None = None
    """The id of the store, if it has one; see ``ObjectStore.establish``."""

    @property
    def milliseconds(self) -> int:
        """The time of the submission, in milliseconds since 1970, for keys that sort by time."""
        return int((self.at - EARLIEST).total_seconds() * 1000)


class StopRequest(_Written, frozen=True, kw_only=True):
    """``jobs/<id>/stop``: the request to save a checkpoint and end the job."""

    reason: StopReason
    detail: str = ""
    """The values of the limit that was reached, for people to read."""


class SetupReady(Dated, frozen=True, kw_only=True):
    """``jobs/<id>/image``: the setup of a job that ``bakes`` is complete and on this machine's disk."""

    instance_id: InstanceId
    key: str
    """The key of the setup; see ``cloudspot.jobfile.setup_key``."""
    at: datetime


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """``index/<id>`` during a job's removal: details that are needed after its submission is deleted."""

    shared: tuple[SharedKey, ...]
    """The keys of the code and the agent that the job may share with other jobs."""


# --- journal ------------------------------------------------------------------------------------


class Seat(NamedTuple):
    """The identity of a node: the machine that claims a seat is this node permanently, and has its name."""

    launch: Ordinal
    rank: Rank
    """The rank within the launch."""

    def __str__(self) -> str:
        return f"{self.launch}.{self.rank}"


class Intent(_Written, frozen=True, kw_only=True, tag="intent"):
    """Permits anyone to create launch ``launch`` of ``num_nodes`` seats, with exactly this request."""

    launch: Ordinal
    offer: Offer
    token: str
    request: LaunchRequest
    num_nodes: NodeCount
    stands_in_for: tuple[Seat | None, ...] = ()
    """By rank, the node that the new node replaces in the training once it is ready; empty if it replaces
    none.
    """
    why: str
    """The reason for the launch: ``first``, ``reclaimed``, ``notice``, ``growth``, ``moved``, ..."""
    detail: str = ""
    """The calculation behind the reason, for people to read."""

    @property
    def principals(self) -> dict[Seat, Seat]:
        """The nodes to be replaced, each by its stand-in's seat."""
        named = enumerate(self.stands_in_for)
        return {Seat(self.launch, rank): seat for rank, seat in named if seat is not None}


class Finished(_Written, frozen=True, kw_only=True, tag="finished"):
    """The job is over; only a resumption or a move can follow in the journal."""

    outcome: JobOutcome
    detail: str
    exit_code: ExitStatus
    """The exit code of the training script if it failed; otherwise 0 or 1."""


class Suspended(_Written, frozen=True, kw_only=True, tag="suspended"):
    """The job has waited for ``spot.max_wait``; a driver launches it again once there is capacity."""

    detail: str


class Resumed(_Written, frozen=True, kw_only=True, tag="resumed"):
    """The job continues with another submission, from its newest checkpoint."""

    resumption: Ordinal
    submission_sha256: Sha256
    """See ``submission.hash_of``."""


class Moved(_Written, frozen=True, kw_only=True, tag="moved"):
    """From now on, the ended job may only be resumed in the store ``to``; its other copies may not."""

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
    """A checkpoint that a restore skipped because verification failed."""

    checkpoint: CheckpointId
    reason: str


class Generation(_Written, frozen=True, kw_only=True, tag="generation"):
    """One start of the training on a fixed set of nodes."""

    number: Ordinal
    members: tuple[Member, ...]
    """The members in rank order: index i is the node rank i."""
    endpoint: str
    """The rendezvous endpoint as ``address:port``."""
    restore_from: CheckpointId | None
    """The checkpoint that was restored, or None if the training starts at step 0."""
    skipped: tuple[Skipped, ...] = ()
    why: str
    """The reason: ``first``, ``relaunched`` (all members are gone), ``regrouped`` (a node is gone),
    ``joined`` (nodes joined), ``handed-over`` (nodes replaced nodes that leave), ``drained``,
    ``trainer-failed``, ``trainer-stuck``, ``not-connected`` (the ranks could not connect), ``not-restored``
    (the checkpoint did not verify), ``agent-restarted``.
    """

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The nodes' seats, in rank order."""
        return tuple(member.seat for member in self.members)

    def ranks(self, launch: int) -> tuple[int, ...]:
        """Return the ranks of the nodes that belong to this launch."""
        return tuple(member.rank for member in self.members if member.launch == launch)


class Commit(_Written, frozen=True, kw_only=True, tag="commit"):
    """Makes the checkpoint count from now on; its manifest exists and lists all its parts."""

    generation: OrdinalOrZero
    """The newest generation, or 0 in a job that was forked."""
    step: Tally
    """The step, which is greater than the generation's first step and the steps of its earlier commits."""
    round: OrdinalOrZero = 0
    """The round of the committed save; see ``Manifest``."""
    kind: CheckpointKind
    size: Tally
    """Bytes."""
    sealed_at: datetime
    """The time at which the training had handed over the first part; a restart repeats any later work."""
    shared: Tally = 0
    """The number of bytes that earlier checkpoints already hold, so that they were not sent again."""
    evidence: str | None = None
    """The evidence that a script's own checkpoint was complete; see ``Part``."""
    rescue: Rescue | None = None
    """The rescue, if survivors made the save."""
    is_last: bool = False
    """``session``: whether the training ended with this checkpoint, at a drain or the end of the loop, so
    that no work of its generation is lost.
    """

    @property
    def id(self) -> CheckpointId:
        """The checkpoint."""
        return CheckpointId(self.generation, self.step)

    @property
    def save(self) -> SaveId:
        """The save that this record commits."""
        return SaveId(self.generation, self.step, self.round)


class Repriced(_Written, frozen=True, kw_only=True, tag="repriced"):
    """Changes the price of a launch's nodes from now on, because the market's price has changed."""

    launch: Ordinal
    price_per_hour: Price
    """The price of one node, in the currency of the launch's offer."""


class Kept(_Written, frozen=True, kw_only=True, tag="kept"):
    """The job has failed for good, and this node's machine is kept for inspection (``limits.keep_failed``).

    No launch and no generation follows: only commits of earlier uploads, and the end of the job.
    """

    launch: Ordinal
    rank: Rank
    instance_id: InstanceId
    until: datetime
    """The time by which the machine ends, even if its agent and all drivers fail."""
    detail: str
    """The reason for which the job has failed."""
    exit_code: ExitStatus

    @property
    def seat(self) -> Seat:
        """Name the node."""
        return Seat(self.launch, self.rank)


Turn = Finished | Suspended | Resumed | Moved
"""Records about the job as a whole."""
JournalRecord = Intent | Generation | Commit | Repriced | Kept | Turn


class JournalCopy(msgspec.Struct, frozen=True, kw_only=True):
    """``jobs/<id>/journal-copies/<last>-<first>``: a run of the journal's records; possibly absent."""

    first_writer: str
    """The nonce of the journal's first record, which distinguishes journals of jobs with the same id."""
    records: tuple[JournalRecord, ...]
    """The records, without the rendered requests of the launches."""


# --- nodes --------------------------------------------------------------------------------------


class Slot(_Written, frozen=True, kw_only=True):
    """``launches/k/nodes/<rank>``: a seat, claimed by a node or void. The first writer wins for good."""

    instance_id: InstanceId | None
    """The machine, or None if the seat is void, so that no machine may ever take it."""
    address: str | None = None
    detail: str = ""
    machines: tuple[str, ...] = ()
    """For a void seat, the machines that were launched for it and have not provably ended yet."""
    cause: str = ""
    """For a void seat, the reason why its machine could not run the agent, from the console; empty if
    unknown.
    """

    @property
    def owed(self) -> tuple[str, ...]:
        """The machines whose end has yet to be proven."""
        return self.machines if self.instance_id is None else (self.instance_id,)


class Certificate(_Written, frozen=True, kw_only=True):
    """``launches/k/machines/<instance>``: proof that the machine has ended, and its line in the bill.

    A controller writes it when the provider reports the end.
    """

    launch: Ordinal
    rank: Rank | None
    """The seat that the machine claimed or was launched for; None if unknown."""
    instance_id: InstanceId
    started_at: datetime
    ended_at: datetime
    end_reason: EndReason
    detail: str = ""
    """The reason for the end in the provider's words, and the last line of the machine's console; empty if
    unknown.
    """


class Phase(Dated, frozen=True, kw_only=True):
    """A change in a node's activity."""

    state: NodeState | Literal["training"]
    """``training`` means that the script's loop over the steps has begun."""
    generation: OrdinalOrZero
    """The newest generation of the node; 0 before the first."""
    reached_step: Tally | None = None
    """The step that the training reached; set only for ``uploading``, which follows the end of a generation's
    training; see ``Exit.reached_step``.
    """
    at: datetime


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The failure of a generation's training on a node."""

    generation: OrdinalOrZero
    why: FailureKind
    """The reason for the next generation, unless a node was lost."""
    exit_code: ExitStatus
    fingerprint: str | None = None
    """A string that failures of the same kind share; None if the cause may be outside the script."""
    unreachable: tuple[Seat, ...] | None = None
    """The members whose machines did not answer this node; None if this node has not asked yet."""


class HeldState(msgspec.Struct, frozen=True, kw_only=True):
    """The newest boundary at which a rank still holds its state."""

    rank: Rank
    boundary: Tally
    """The number of the boundary within the generation."""
    before: Tally
    """The boundary before the newest step of the rank's optimizer, which other ranks may still hold."""
    step: Tally
    digest: str
    """A digest of samples of the weights, the same for ranks with the same state."""
    draws: bool
    """Whether the steps draw random numbers, so that each rank has generators of its own."""
    differs: bool
    """Whether ranks may differ in the model's buffers, of which only rank 0's count."""
    holders: tuple[tuple[Rank, ...], ...] = ()
    """For each part of a sharded state, the ranks that hold it."""
    needs_all: bool = False
    """Whether no other rank can derive this rank's position in the data."""
    keeps: tuple[Rank, ...] = ()
    """The other ranks whose private state at that boundary this rank also has."""


class RankLikeness(msgspec.Struct, frozen=True, kw_only=True):
    """The similarity of a rank to the others; also kept for a lost rank, which can no longer be asked."""

    rank: Rank
    draws: bool | None
    """Whether the rank's steps draw random numbers; None if unknown so far."""
    digests: Annotated[tuple[tuple[Tally, KeyWord], ...], msgspec.Meta(max_length=4)]
    """The newest boundaries with digests of samples of the weights; equal states have equal digests."""


class Survivors(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a node's ranks still hold after other ranks were lost or have failed."""

    generation: OrdinalOrZero
    attempt: Ordinal
    """The rescue attempt for which the ranks were asked."""
    held: tuple[HeldState, ...]
    """The states that the ranks hold; empty if none is useful."""
    given_up: Tally = 0
    """The newest attempt in which a local rank could not save; 0 if none failed."""


class RescueOrder(_Written, frozen=True, kw_only=True):
    """``rescues/<generation>-<attempt>``: the ranks that save their state, and the boundary; create-only."""

    generation: Ordinal
    attempt: Ordinal
    boundary: Tally
    step: Tally
    ranks: tuple[Rank, ...]
    """The ranks that save, in ascending order; all other ranks count as lost."""
    keepers: tuple[tuple[Rank, Rank], ...] = ()
    """The lost ranks whose private state is saved anyway, in ascending order, each with the rank that saves
    it.
    """
    cause: Literal["lost", "failed"]
    is_exact: bool
    """See ``Rescue``."""

    @property
    def save(self) -> SaveId:
        """The save that carries it out; other saves have smaller numbers, of their rounds."""
        return SaveId(self.generation, self.step, 900_000 + self.attempt)


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a node's present staging, restore or upload, in bytes."""

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
    """The number of bytes that had to be fetched; the rest were already on the machine."""
    seconds: Seconds
    """The duration, including all waits."""


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Utilization(Dated, frozen=True, kw_only=True, omit_defaults=True):
    """A machine's average utilization over a period; fields are None if its agent cannot measure them.

    The figures cover the whole machine, including other programs. The agent also adds these records to the
    log, under the source ``utilization``.
    """

    at: datetime
    """The end of the period."""
    seconds: Seconds
    """The length of the period."""
    step: Tally
    cpu: Share | None = None
    """The share of the period, over all cores, that was not idle."""
    memory: Share | None = None
    """The share of the memory that was not available, at the end of the period."""
    gpus: tuple[Share, ...] = ()
    """For each GPU, the share of the time during which a kernel ran on it."""
    gpu_memory: tuple[Share, ...] = ()
    """For each GPU, the share of its memory in use, at the end of the period."""
    disk_read: Rate | None = None
    """The bytes per second read from all disks."""
    disk_written: Rate | None = None
    received: Rate | None = None
    """The bytes per second received through all network interfaces except loopback."""
    sent: Rate | None = None
    network: Share | None = None
    """The used share of the speed of the busiest interface, in its busier direction; None if the interface
    does not report its speed."""
    step_seconds: Seconds | None = None
    """The time between two steps; None if the period had none."""
    data_wait: Share | None = None
    """The share of the period in which the rank with the longest wait waited for batches."""


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """A node has not used its resources for at least ``limits.idle_after``."""

    seconds: Seconds
    """The duration, by the node's own clock."""
    cause: str
    """The newest measurement, such as ``GPUs at 0 %``."""

    @property
    def text(self) -> str:
        """The duration and the cause as a phrase."""
        minutes = self.seconds / 60
        spent = f"{self.seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min"
        return f"idle for {spent if minutes < 120 else f'{minutes / 60:.1f} h'} ({self.cause})"


class LogStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How much of its log a node has delivered."""

    num_lines: Tally
    """The number of lines that the node has numbered; lines missing in the sink are on their way."""
    waiting_bytes: Tally
    """The number of bytes in the node's log files after these lines."""
    error: str = ""
    """Why the sink has not accepted the last lines; empty if it has accepted them."""


class SaveCost(msgspec.Struct, frozen=True, kw_only=True):
    """How a session's newest interval save was copied, and how much such saves cost the training."""

    way: str
    """``boundary``: between two steps. ``overlapped``: large tensors concurrently with the next step."""
    copy_seconds: Seconds
    """The duration of the copying."""
    lost_seconds: Seconds | None = None
    """The time that a save adds until the next boundary, measured over the newest such saves; None if
    unknown.
    """


class Heartbeat(Dated, frozen=True, kw_only=True):
    """A node's report about itself, put every few seconds; overwritten."""

    counter: Tally
    instance_id: InstanceId
    address: str
    port: Port
    """A port for the rendezvous of the next generation, free at the time of the report."""
    state: NodeState
    """The node's state; ``ready`` means that the node waits for the others."""
    generation: OrdinalOrZero
    """The node's newest generation; 0 before the first."""
    restored_step: Tally
    step: Tally
    """The newest step that any local rank has begun, or the restored step."""
    steps_total: Tally | None
    has_session: bool = True
    """Whether the script has opened a session in this generation; without a session, steps are not counted.
    """
    metrics: Metrics
    committed: CheckpointId | None
    stall_seconds: Seconds | None
    """The time for which the last save stopped the training."""
    save_cost: SaveCost | None = None
    """The cost of saves; None if no session here has made an interval save, or an earlier version did."""
    upload_seconds: Seconds | None
    """The duration of that save's upload and commit."""
    notice_seconds: Seconds | None = None
    """The length of the provider's notices; None if this agent does not know it."""
    at_risk: bool = False
    """Whether the provider has hinted that it may reclaim the machine, without a notice."""
    transfer: Transfer | None = None
    """The present staging, restore or upload, if any."""
    moved_bytes: Tally = 0
    """The bytes that all agents of the machine have moved to and from the job's bucket."""
    staged: tuple[StagedInput, ...] = ()
    """The job's inputs that are on the node's disk."""
    log: LogStanding | None = None
    """The state of the log, or None if this agent does not know it."""
    idle: Idle | None = None
    """The idleness, or None if the node is not idle or if its job sets no limit."""
    utilization: Utilization | None = None
    """The utilization in the newest half minute of the training; None if not measured yet."""
    warnings: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    """The node's activities since its agent started, oldest first; if they are very many, only the newest."""
    failed: Failed | None = None
    """The newest failure, which makes the other nodes end that generation, too."""
    survivors: Survivors | None = None
    """The state that the local ranks hold after others were lost, once the local ranks were asked."""
    likeness: tuple[RankLikeness, ...] = ()
    """The likeness of the local ranks that have reported it."""
    agent: str = ""
    """A nonce of the agent's process, which requests to run commands must name. The nonce is empty if the
    agent runs no commands.
    """
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
    """``jobs/<id>/inputs/<name>``: the input's version on the first node, which other nodes compare."""

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
    """The earlier of the deadline that the notice states and its arrival plus ``notice_seconds``."""
    action: str
    source: str
    step: Tally
    """The newest step begun before the notice."""


class RemoteCall(_Written, frozen=True, kw_only=True):
    """``nodes/<launch>/<rank>/call``: a request to the node to run a command."""

    launch: Ordinal
    rank: Rank
    instance_id: InstanceId
    agent: str
    """The agent's nonce from the node's heartbeat; no other agent answers."""
    user: str
    """The name that the caller states."""
    words: tuple[str, ...]
    """The program and its arguments."""
    rows: Tally = 0
    """The number of rows of the caller's terminal; 0 if the command gets no terminal."""
    columns: Tally = 0


class RemoteAnswer(_Written, frozen=True, kw_only=True):
    """``remote/<launch>/<rank>/<nonce>/answer``: the node's answer to a call."""

    refused: str = ""
    """Why the node does not run the command; empty if the node runs it."""


class RemoteCommand(_Written, frozen=True, kw_only=True):
    """``commands/<launch>-<rank>-<nonce>``: a command that a node has run, or still runs."""

    launch: Ordinal
    rank: Rank
    user: str
    """The name that the caller stated."""
    words: tuple[str, ...]
    has_terminal: bool
    agent: str = ""
    """The agent that runs the command, which ends with the agent."""
    ended: datetime | None = None
    status: ExitStatus | None = None
    """The exit status, as in a shell; None if the command was interrupted."""
    why: str = ""
    """The reason for the interruption."""


class Final(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a finished training: the step, the hash of the weights and the last metrics."""

    step: Tally | None
    """The step, or None if the script had no session, so that steps were not counted."""
    weights_sha256: str | None
    are_weights_sharded: bool = False
    """Whether the hash is missing because no rank held all the weights."""
    metrics: Metrics
    left_early: bool = False
    """Whether the script left its loop before the end."""
    planned: Tally | None = None
    """The planned number of steps of a loop that was left early, if known."""


class Exit(_Written, frozen=True, kw_only=True):
    """``nodes/<launch>/<rank>/exit.json``: the node's last record, after which it runs no user code."""

    launch: Ordinal
    rank: Rank
    instance_id: InstanceId
    outcome: NodeOutcome
    """``drained``: after a notice. ``left``: the node waited in vain for enough other nodes. ``superseded``:
    the job continues without this node.
    """
    detail: str
    exit_code: ExitStatus
    """The exit code of the training script if the outcome is ``failed``, otherwise 0."""
    permanent: bool = False
    """Whether another machine would fail in the same way, so that the job ends."""
    waits_until: datetime | None = None
    """``failed``: until this time, the node waits for a driver to decide that the job has failed and that
    this machine is kept (``Kept``). The time is set only if the job has ``limits.keep_failed``.
    """
    is_cut_off: bool = False
    """Whether the network is interrupted to other members, which are alive."""
    fingerprint: str | None = None
    """``failed``: a string shared by failures of the same kind; set if the node ended before a second try."""
    log_tail: tuple[str, ...] = ()
    generation: OrdinalOrZero
    restored_step: Tally
    step: Tally
    """The newest step begun; for a drained node, the step of its commit."""
    reached_step: Tally
    """The step after the newest one that the node has begun in the generation, or the restored step."""
    has_session: bool = True
    """Whether the script had a session in that generation."""
    committed: CheckpointId | None
    final: Final | None = None


# --- checkpoints --------------------------------------------------------------------------------


class ChunkHome(msgspec.Struct, frozen=True, kw_only=True):
    """The location of a chunk that was sent with an earlier save of the job."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    rank: Rank
    number: Tally

    @property
    def save(self) -> SaveId:
        """The save with which the chunk was sent."""
        return SaveId(self.generation, self.step, self.round)


class Chunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of a part's bytes, stored as one object."""

    size: Tally
    xxh3_128: str
    """The checksum of the uncompressed bytes, in hex."""
    home: ChunkHome | None = None
    """The location if an earlier save sent the same bytes; None if the chunk was sent with this part."""
    stored: Tally | None = None
    """The number of bytes sent if the chunk is stored compressed (``compression``), otherwise None. ``size``
    and the checksum always refer to the uncompressed bytes.
    """


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a directory checkpoint, whose part holds the files' bytes in list order, the oldest first."""

    path: str
    """The path, relative and separated by ``/``."""
    size: Tally
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)]
    raw_path: bytes | None = None
    """The path, in base64, if it is not valid UTF-8; ``path`` is then only for display."""
    is_link: bool = False
    """Whether the file is a symbolic link, so that its bytes are the target."""

    @property
    def name(self) -> str:
        """The path in the form that the operating system's functions accept."""
        return self.path if self.raw_path is None else os.fsdecode(self.raw_path)


def file_of(name: str, size: int, *, mode: int, is_link: bool = False) -> File:
    """Return the record of a file, whose name may be any that the operating system allows."""
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
    """Ranks without a part, because their machines were about to be reclaimed; the other parts hold their
    private state.
    """
    kind: CheckpointKind
    size: Tally
    """The total bytes of all chunks."""
    chunks: tuple[Chunk, ...]
    seal: str | None = None
    """``session``: the trainer's seal exactly as written, with the table of items and the JSON state. The
    seal is kept as a string, because Python's json writes infinity, which strict JSON does not allow.
    """
    files: tuple[File, ...] = ()
    directory: str | None = None
    """``directory``: the base of the paths in ``files``: the working directory (``.``), or the checkpoint
    directory below it to which this part belongs."""
    evidence: str | None = None
    """``directory``: the evidence that the checkpoint was complete; None if the writer's version does not
    state it.
    """
    rescue: Rescue | None = None
    """``session``: the rescue as stated in the seal."""
    sealed_at: datetime
    writer: str

    @property
    def save(self) -> SaveId:
        """The save to which the part belongs."""
        return SaveId(self.generation, self.step, self.round)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that bring a part of that save, in ascending order."""
        others = set(self.relieved)
        return tuple(rank for rank in range(self.num_parts + len(others)) if rank not in others)

    @cached_property
    def parsed_seal(self) -> Seal:
        """The parsed seal; the text is parsed only once.

        Raises:
            CorruptData: the part has no seal, or the seal is malformed.
        """
        return parse_seal(self.seal or "", f"the seal of part {self.rank}")


class Manifest(_Written, frozen=True, kw_only=True):
    """``manifests/<generation>-<step>``: all parts of a checkpoint, which counts once it is committed."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    """The round of the save that was complete first; a generation commits a step only once."""
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
        """The save whose parts the manifest lists."""
        return SaveId(self.generation, self.step, self.round)

    @property
    def shared(self) -> int:
        """The number of bytes that were not sent with this save, because earlier checkpoints hold them."""
        return sum(chunk.size for part in self.parts for chunk in part.chunks if chunk.home is not None)

    @property
    def sent(self) -> int:
        """The number of bytes that were sent with this save: all that are not shared, as compressed."""
        chunks = [chunk for part in self.parts for chunk in part.chunks if chunk.home is None]
        return sum(chunk.size if chunk.stored is None else chunk.stored for chunk in chunks)


class Damage(_Written, frozen=True, kw_only=True):
    """``manifests/<generation>-<step>.damaged``: a node found that a chunk fails verification."""

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
    """By the ledger's purpose: the machines' seconds, their cost, and their cost at on-demand prices."""


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
    """The maximum number of nodes of the job."""
    idle: str = ""
    """The nodes that do not use their resources; empty if none is known."""
    kept: Seat | None = None
    """The node whose machine is kept for inspection after the job's failure, if any."""
    kept_until: datetime | None = None
    name: str | None = None
    """The name in the job file."""
    code_sha256: Sha256 | None = None
    started_at: datetime | None = None
    """The time at which the first machine was requested."""
    finished_at: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """The labels in the job file."""
    outlays: tuple[Outlay, ...] | None = None
    """For a job that has ended, its costs for ``cost``; None if the costs were not added up."""
    driven_by: str = ""
    """The last driver of the job, such as ``run on laptop``; empty if unknown."""
    driven_at: datetime | None = None
    """The time of the driver's last pass, by its own clock."""
    undone: str = ""
    """The tasks that were requested and that the driver does not do, with reasons; empty if none is known."""


class StandingDriver(Dated, frozen=True, kw_only=True):
    """``drivers/<name>``: a driver that regularly serves the store's jobs; overwritten about once a pass."""

    who: str
    """The driver's name, such as ``reconcile on host``."""
    every: Seconds | None
    """The time between two passes of the driver; None after its first pass."""
    providers: tuple[str, ...]
    """The providers whose plugins the driver has."""
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
    """The observations by zone and machine type, as ``zone/type``."""
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
    """The launches from the first one on, without a gap."""


class ObservedDuration(Dated, frozen=True, kw_only=True):
    """The shortest time for which drivers' passes have observed the same state, by the store's clock."""

    seconds: Seconds
    until: datetime | None
    """The moment, by the store's clock, up to which ``seconds`` count; None stands for the time of this
    object's own put, which the writer could not know.
    """


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A node that may be silent, or whose machine may no longer exist."""

    seat: Seat
    instance_id: InstanceId
    counter: Tally
    """The counter of the node's newest heartbeat; 0 if it has none."""
    silent: ObservedDuration | None
    """The time for which the counter has not changed."""
    absent: ObservedDuration | None
    """The time for which listings have not shown the machine."""


class Ending(msgspec.Struct, frozen=True):
    """An event after which nodes have limited time to leave, and which is never revoked."""

    what: Literal["over", "excluded", "stop", "finished"]
    """``over``: the node has written its exit record, or has provably ended. ``excluded``: the training
    continues without the node. ``stop``: the job was asked to stop. ``finished``: the job is over.
    """
    seat: Seat | None = None
    """The node, or None if the event concerns the whole job."""
    resumption: OrdinalOrZero = 0
    """The resumption that was asked to stop, or that ended."""


class KnownEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The time for which drivers have known of an ending."""

    ending: Ending
    known: ObservedDuration


class Suspicions(Dated, frozen=True, kw_only=True):
    """``jobs/<id>/suspicions``: the observations of drivers with short passes; overwritten."""

    suspects: tuple[Suspect, ...]
    endings: tuple[KnownEnding, ...] = ()
    """The endings that machines have outlived so far."""
    at: datetime
    writer: str
    """A nonce that distinguishes this write from other writes."""
