"""The records in the bucket, typed, most of them create-only.

Overwritten are Heartbeat, Summary, SettledLaunches, Suspicions, MarketSeen and Removal.

Times (UTC) are by the store's clock, as their writer knows it; see ``store_clock``. Every
create-only record carries its writer's nonce: a writer that reads the key back after an error can then tell
its own put from another's.

The types refuse what no writer of ours writes, so that no reader has to check it: times without a zone,
numbers out of their bounds, words that no fold knows.
"""

from __future__ import annotations

import os
import secrets
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
"""How a launch ends that never trained."""
LaunchOutcome = VoidOutcome | Literal["succeeded", "reclaimed", "stopped", "failed", "lost", "left"]
"""How a launch ended of which nothing is live any more; ``left``: its nodes were not needed."""
NodeState = Literal["setup", "staging", "restoring", "ready", "running", "draining", "uploading", "ending"]
NodeOutcome = Literal["succeeded", "drained", "stopped", "failed", "left", "superseded"]
FailureKind = Literal["trainer-failed", "trainer-stuck", "not-connected", "not-restored"]
TransferKind = Literal["staging", "restoring", "uploading"]
CheckpointKind = Literal["session", "directory"]


def new_nonce() -> str:
    """Return a fresh writer nonce: 16 hex digits."""
    return secrets.token_hex(8)


class _Written(Dated, frozen=True, kw_only=True):
    """What a record that is written once says of its writing."""

    at: datetime
    writer: str
    """The nonce."""


class CheckpointId(msgspec.Struct, frozen=True, order=True):
    """A checkpoint of a job, named by the generation that made it and its step."""

    generation: OrdinalOrZero
    """0: the job was forked with it."""
    step: Tally

    def __str__(self) -> str:
        return f"{self.generation}-{self.step}"


class SaveId(msgspec.Struct, frozen=True, order=True):
    """One save of a checkpoint. A drain has one of its own, even at a step that is being saved already."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    """In which the ranks agreed on it (P4); 0: in none, as at the end of the loop."""

    @property
    def checkpoint(self) -> CheckpointId:
        """Name the checkpoint that it is when it is committed."""
        return CheckpointId(self.generation, self.step)

    def __str__(self) -> str:
        return f"{self.generation}-{self.step}-{self.round}"


# --- submission ---------------------------------------------------------------------------------

FORMAT = 5
"""The format of a job's records; it grows when a cloudspot can no longer drive what another has submitted."""


class StagedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """The archive from which machines install the agent if their image does not have this cloudspot."""

    sha256: Sha256
    """The archive's, which names it in the store."""
    digest: str
    """The digest of the code in it; an image with the same digest does not need the archive."""
    requirements: tuple[str, ...]
    """The distributions of that code."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of another job."""

    job_id: str
    checkpoint: CheckpointId


class Submission(_Written, frozen=True, kw_only=True):
    """``jobs/<id>/spec``: all that was submitted; whatever a controller needs comes from here."""

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
    """Jobs of another format are refused before the rest is read; without this field it is 1."""
    agent: StagedAgent | None = None
    """None: the image has cloudspot."""
    has_own_code: bool = False
    """Code and agent lie below the job's own prefix, as somebody was deleting those that jobs share."""
    resumption: OrdinalOrZero = 0
    """0: the job's first submission, under ``jobs/<id>/spec``. Else the number of the resumption that it is
    for; it lies under ``jobs/<id>/submissions/<hash>``, and counts once a ``Resumed`` names it."""
    num_launches_before: OrdinalOrZero = 0
    """How many launches the job had when it was resumed: their failures count no more."""
    forked_from: Origin | None = None
    """Where the checkpoint came from with which the job began, as its generation 0."""
    bakes: bool = False
    """Its node only runs the setup, and waits until an image of its disk is made."""
    store_id: KeyWord | None = None
    """The id of the store, if it has one; see ``ObjectStore.establish``."""

    @property
    def milliseconds(self) -> int:
        """Return when it was made, since 1970, as keys have it that sort by time."""
        return int((self.at - EARLIEST).total_seconds() * 1000)


class StopRequest(_Written, frozen=True, kw_only=True):
    """``jobs/<id>/stop``: checkpoint and end the job."""

    reason: StopReason
    detail: str = ""
    """The figures of a limit that was reached, for people."""


class SetupReady(Dated, frozen=True, kw_only=True):
    """``jobs/<id>/image``: the setup of a job that ``bakes`` is done, and all on the disk of this machine."""

    instance_id: InstanceId
    key: str
    """Of the setup; see ``cloudspot.jobfile.setup_key``."""
    at: datetime


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """``index/<id>`` while the job is being removed: what must be known after its submission is gone."""

    shared: tuple[SharedKey, ...]
    """The keys of the code and the agent that the job may share with others."""


# --- journal ------------------------------------------------------------------------------------


class Seat(NamedTuple):
    """The place of a node: the machine that claims it is this node for good, and gives it its name."""

    launch: Ordinal
    rank: Rank
    """Within the launch."""

    def __str__(self) -> str:
        return f"{self.launch}.{self.rank}"


class Intent(_Written, frozen=True, kw_only=True, tag="intent"):
    """From now on anyone may create launch ``launch``, with this very request: ``num_nodes`` seats."""

    launch: Ordinal
    offer: Offer
    token: str
    request: LaunchRequest
    num_nodes: NodeCount
    stands_in_for: tuple[Seat | None, ...] = ()
    """By rank: the node whose place in the training this one takes once it is ready. Empty: nobody's."""
    why: str
    """What made this launch necessary: ``first``, ``reclaimed``, ``notice``, ``growth``, ``moved``, ..."""
    detail: str = ""
    """The reckoning behind it, for people."""

    @property
    def principals(self) -> dict[Seat, Seat]:
        """Return, by stand-in, the node whose place it takes."""
        named = enumerate(self.stands_in_for)
        return {Seat(self.launch, rank): seat for rank, seat in named if seat is not None}


class Finished(_Written, frozen=True, kw_only=True, tag="finished"):
    """The job is over; only its resumption follows in the journal."""

    outcome: JobOutcome
    detail: str
    exit_code: ExitStatus
    """0, the training script's own exit code if it failed, or 1."""


class Suspended(_Written, frozen=True, kw_only=True, tag="suspended"):
    """The job has waited for ``spot.max_wait``; a driver launches it again once there is capacity."""

    detail: str


class Resumed(_Written, frozen=True, kw_only=True, tag="resumed"):
    """The job goes on with another submission, from its newest checkpoint."""

    resumption: Ordinal
    submission_sha256: Sha256
    """See ``submission.hash_of``."""


class Moved(_Written, frozen=True, kw_only=True, tag="moved"):
    """The job, which has ended, goes on in another store or not at all: no copy elsewhere may be resumed."""

    to: str
    """That store's URL in its one form."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a generation."""

    launch: Ordinal
    rank: Rank
    """The node's rank within the launch."""
    instance_id: InstanceId
    address: str

    @property
    def seat(self) -> Seat:
        """Name the node."""
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
    """None: from the beginning."""
    skipped: tuple[Skipped, ...] = ()
    why: str
    """``first``, ``relaunched`` (all members are gone), ``regrouped`` (without a node), ``joined`` by others,
    ``handed-over`` (others in the place of nodes that leave), ``drained``, ``trainer-failed``,
    ``trainer-stuck``, ``not-connected`` (the ranks did not come together), ``not-restored`` (its
    checkpoint does not verify), ``agent-restarted``."""

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Name the nodes, in rank order."""
        return tuple(member.seat for member in self.members)

    def ranks(self, launch: int) -> tuple[int, ...]:
        """Return the ranks of those nodes that are of this launch."""
        return tuple(member.rank for member in self.members if member.launch == launch)


class Commit(_Written, frozen=True, kw_only=True, tag="commit"):
    """From now on the checkpoint counts; its manifest stands, and names all of its parts."""

    generation: OrdinalOrZero
    """The newest one, or 0 in a job that was forked."""
    step: Tally
    """Beyond the step from which the generation began, and those that it has committed."""
    round: OrdinalOrZero = 0
    """Of the save that is committed: see ``Manifest``."""
    kind: CheckpointKind
    size: Tally
    """Bytes."""
    sealed_at: datetime
    """When the training had handed over the first part; what it did later is repeated after a restart."""
    shared: Tally = 0
    """Bytes of it that earlier checkpoints hold too, and that were not sent again."""
    evidence: str | None = None
    """How a script's own checkpoint was known to be complete: see ``Part``."""
    rescue: Rescue | None = None
    """Of a save that survivors have made."""
    is_last: bool = False
    """``session``: the training stopped with it, at a drain or the end of the loop, so nothing of its
    generation is lost."""

    @property
    def id(self) -> CheckpointId:
        """Name this checkpoint."""
        return CheckpointId(self.generation, self.step)

    @property
    def save(self) -> SaveId:
        """Name the save that is committed."""
        return SaveId(self.generation, self.step, self.round)


class Repriced(_Written, frozen=True, kw_only=True, tag="repriced"):
    """The nodes of a launch cost something else from now on: the market's price has changed."""

    launch: Ordinal
    price_per_hour: Price
    """Of one node, in the currency of the launch's offer."""


Turn = Finished | Suspended | Resumed | Moved
"""What the journal says of the job as a whole."""
JournalRecord = Intent | Generation | Commit | Repriced | Turn


class JournalCopy(msgspec.Struct, frozen=True, kw_only=True):
    """``jobs/<id>/journal-copies/<last>-<first>``: a run of the journal's records; perhaps absent."""

    first_writer: str
    """The nonce of the journal's first record, which tells it from the journal of another job of this id."""
    records: tuple[JournalRecord, ...]
    """Without the rendered requests of the launches."""


# --- nodes --------------------------------------------------------------------------------------


class Slot(_Written, frozen=True, kw_only=True):
    """``launches/k/nodes/<rank>``: a seat, claimed by a node or void. The first writer wins for good."""

    instance_id: InstanceId | None
    """None: void; no machine may ever take this seat."""
    address: str | None = None
    detail: str = ""
    machines: tuple[str, ...] = ()
    """Of a void seat: the machines that were there for it, which have yet to end."""
    cause: str = ""
    """Of a void seat: why its machine could not run the agent, by its console; empty: unknown."""

    @property
    def owed(self) -> tuple[str, ...]:
        """Return the machines whose end has to be proven."""
        return self.machines if self.instance_id is None else (self.instance_id,)


class Certificate(_Written, frozen=True, kw_only=True):
    """``launches/k/machines/<instance>``: proof that the machine runs nothing any more; its line in the bill.

    A controller writes it on the provider's word.
    """

    launch: Ordinal
    rank: Rank | None
    """The seat that it had claimed, or was made for; None: unknown."""
    instance_id: InstanceId
    started_at: datetime
    ended_at: datetime
    end_reason: EndReason
    detail: str = ""
    """Why it ended, in its provider's words, and the last line of its console; empty: nobody knows more."""


class Phase(Dated, frozen=True, kw_only=True):
    """A change in what a node does."""

    state: NodeState | Literal["training"]
    """``training``: the script's loop over the steps has begun."""
    generation: OrdinalOrZero
    """The newest generation that the node was in; 0 before the first."""
    reached_step: Tally | None = None
    """With ``uploading``, which follows the end of a generation's training: see ``Exit.reached_step``."""
    at: datetime


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The failure of a generation's training on a node."""

    generation: OrdinalOrZero
    why: FailureKind
    """Why the next one starts unless a node was lost."""
    exit_code: ExitStatus
    fingerprint: str | None = None
    """The same for failures of the same kind; None: it may have come from outside the script."""
    unreachable: tuple[Seat, ...] | None = None
    """The members whose machines did not answer this one; None: it has not yet asked."""


class HeldState(msgspec.Struct, frozen=True, kw_only=True):
    """The newest boundary at which a rank still holds its state."""

    rank: Rank
    boundary: Tally
    """As the ranks number them within a generation."""
    before: Tally
    """The boundary that it held before the newest step of its optimizer; others may still hold that."""
    step: Tally
    digest: str
    """Of samples of the weights: ranks that hold the same state have the same."""
    draws: bool
    """Whether the steps draw random numbers, so that each rank has generators of its own."""
    differs: bool
    """Whether ranks may differ in buffers of the model, of which rank 0's count."""
    holders: tuple[tuple[Rank, ...], ...] = ()
    """Of each part of a sharded state, the ranks that hold it."""
    needs_all: bool = False
    """Whether each rank alone knows its place in the data."""
    keeps: tuple[Rank, ...] = ()
    """The other ranks of which this one has what they alone had at that boundary."""


class RankLikeness(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rank is like the others; also of one that is lost and can no longer be asked."""

    rank: Rank
    draws: bool | None
    """Whether its steps draw random numbers; None: it is not known yet."""
    digests: Annotated[tuple[tuple[Tally, KeyWord], ...], msgspec.Meta(max_length=4)]
    """Some of the newest boundaries, and of samples of the weights there: equal where ranks hold the same."""


class Survivors(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a node's ranks hold after others were lost, or failed."""

    generation: OrdinalOrZero
    attempt: Ordinal
    """The attempt to save it for which this was asked."""
    held: tuple[HeldState, ...]
    """Empty: nothing of use."""
    given_up: Tally = 0
    """The newest attempt in which a rank here could not save; 0: none."""


class RescueOrder(_Written, frozen=True, kw_only=True):
    """``rescues/<generation>-<attempt>``: which ranks save what they hold, and where; create-only."""

    generation: Ordinal
    attempt: Ordinal
    boundary: Tally
    step: Tally
    ranks: tuple[Rank, ...]
    """Those that save, ascending; the others count as lost."""
    keepers: tuple[tuple[Rank, Rank], ...] = ()
    """Lost ranks whose own state is saved all the same, ascending, each with the saver that has it."""
    cause: Literal["lost", "failed"]
    is_exact: bool
    """See ``Rescue``."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of what a node now stages, restores or uploads, in bytes."""

    what: TransferKind
    done: Tally
    total: Tally


class StagedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input of the job that is on a node's disk."""

    name: str
    num_files: Tally
    size: Tally
    """Bytes."""
    fetched: Tally
    """How many of them had to be fetched; the others were on the machine."""
    seconds: Seconds
    """How long it took, with all waiting."""


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Utilization(Dated, frozen=True, kw_only=True, omit_defaults=True):
    """What a machine did over a stretch of time, on average; None: its agent cannot measure that.

    All of the machine counts, whatever else runs on it. These are also the lines that the agent adds to the
    log, under the source ``utilization``.
    """

    at: datetime
    """The end of the stretch."""
    seconds: Seconds
    """Its length."""
    step: Tally
    cpu: Share | None = None
    """The share of the time of all cores that was not idle."""
    memory: Share | None = None
    """The share of the memory that is not available any more, at the end."""
    gpus: tuple[Share, ...] = ()
    """For each GPU, the share of the time in which a kernel ran on it."""
    gpu_memory: tuple[Share, ...] = ()
    """For each GPU, the share of its memory that is in use, at the end."""
    disk_read: Rate | None = None
    """Bytes a second, of all disks; so ``disk_written``."""
    disk_written: Rate | None = None
    received: Rate | None = None
    """Bytes a second, of all network interfaces but loopback; so ``sent``."""
    sent: Rate | None = None
    network: Share | None = None
    """The share of the speed of the busiest interface that was used, in its busier direction; None if the
    interface does not tell its speed."""
    step_seconds: Seconds | None = None
    """The time between two steps; None if none was made."""
    data_wait: Share | None = None
    """The share of the time for which the ranks waited for batches: that of the rank that waited longest."""


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """A node has not used what is paid for, for ``limits.idle_after`` or longer."""

    seconds: Seconds
    """How long, by its own clock."""
    cause: str
    """What it last measured, such as ``GPUs at 0 %``."""

    @property
    def text(self) -> str:
        """Tell it in a phrase."""
        minutes = self.seconds / 60
        spent = f"{self.seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min"
        return f"idle for {spent if minutes < 120 else f'{minutes / 60:.1f} h'} ({self.cause})"


class LogStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How far a node has delivered its log."""

    num_lines: Tally
    """How many lines it has numbered; those missing in the sink are on their way."""
    waiting_bytes: Tally
    """The bytes that its log files hold beyond these lines."""
    error: str = ""
    """Why the sink has not taken the last lines; empty if it has."""


class SaveCost(msgspec.Struct, frozen=True, kw_only=True):
    """How a session's newest interval save was copied, and what such saves cost the training."""

    way: str
    """``boundary``: between two steps. ``overlapped``: large tensors next to the step that follows."""
    copy_seconds: Seconds
    """How long the copying took."""
    lost_seconds: float | None = None
    """How much longer a save makes the time to the next boundary, by the newest such saves; None: unknown."""


class Heartbeat(Dated, frozen=True, kw_only=True):
    """A node's report of itself, every few seconds; overwritten."""

    counter: Tally
    instance_id: InstanceId
    address: str
    port: Port
    """A port, free when this was written, for the rendezvous of the next generation."""
    state: NodeState
    """``ready``: it waits for the other nodes."""
    generation: OrdinalOrZero
    """0 before the first."""
    restored_step: Tally
    step: Tally
    """The newest step any local rank has begun, or the restored one."""
    steps_total: Tally | None
    has_session: bool = True
    """Whether the script has opened a session in this generation; without one, steps are not counted."""
    metrics: Metrics
    committed: CheckpointId | None
    stall_seconds: Seconds | None
    """How long the last save held up the training."""
    save_cost: SaveCost | None = None
    """Of the sessions here; None: none has saved yet, or its version did not say."""
    upload_seconds: Seconds | None
    """How long its upload and commit took."""
    notice_seconds: Seconds | None = None
    """The length of the provider's notices; None: unknown to this agent."""
    at_risk: bool = False
    """The provider has hinted that it may take the machine, but has given no notice."""
    transfer: Transfer | None = None
    """What it stages, restores or uploads now, if anything."""
    moved_bytes: Tally = 0
    """What all agents of the machine have moved between it and the job's bucket, in both directions."""
    staged: tuple[StagedInput, ...] = ()
    """The inputs of the job that are on its disk."""
    log: LogStanding | None = None
    """None: unknown to this agent."""
    idle: Idle | None = None
    """None: it is not idle, or its job does not ask."""
    utilization: Utilization | None = None
    """Of the newest half minute of the training; None: it is not measured yet."""
    warnings: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    """What the node has done since its agent started, oldest first; only the newest of very many."""
    failed: Failed | None = None
    """The newest failure; it tells the other nodes to end that generation too."""
    survivors: Survivors | None = None
    """The state that the ranks here hold after others were lost, once they were asked."""
    likeness: tuple[RankLikeness, ...] = ()
    """Of the ranks here that have told it."""
    agent: str = ""
    """A nonce of the agent's process; who asks it to run a command names it. Empty: it runs none."""
    at: datetime


class InputVersion(_Written, frozen=True, kw_only=True):
    """``jobs/<id>/inputs/<name>``: what the first node has staged of an input, for the others to compare."""

    version: Sha256
    """Of the names, sizes and versions of all files."""
    num_files: Tally
    size: Tally
    seat: Seat


class Notice(_Written, frozen=True, kw_only=True):
    """``nodes/<launch>/<rank>/notice``: the first notice that reached the node."""

    launch: Ordinal
    rank: Rank
    deadline: datetime
    """The earlier of the stated time and the time it was seen plus notice_seconds."""
    action: str
    source: str
    step: Tally
    """The newest step begun by then."""


class RemoteCall(_Written, frozen=True, kw_only=True):
    """``nodes/<launch>/<rank>/call``: somebody asks the node to run a command."""

    launch: Ordinal
    rank: Rank
    instance_id: InstanceId
    agent: str
    """As the node's heartbeat says it: another agent does not answer."""
    user: str
    """Who asks, by their own word."""
    words: tuple[str, ...]
    """The program and its arguments."""
    rows: Tally = 0
    """Of the terminal that it gets; 0: it gets none."""
    columns: Tally = 0


class RemoteAnswer(_Written, frozen=True, kw_only=True):
    """``remote/<launch>/<rank>/<nonce>/answer``: what the node says to a call."""

    refused: str = ""
    """Why it does not run the command; empty: it does."""


class RemoteCommand(_Written, frozen=True, kw_only=True):
    """``commands/<launch>-<rank>-<nonce>``: a command that a node has run, or still runs."""

    launch: Ordinal
    rank: Rank
    user: str
    """Who has asked for it, by their own word."""
    words: tuple[str, ...]
    has_terminal: bool
    ended: datetime | None = None
    status: ExitStatus | None = None
    """As a shell tells it; None: it was cut off."""
    why: str = ""
    """Why it was cut off."""


class Final(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a finished training: the step, the weights' hash and the last metrics."""

    step: Tally | None
    """None: the script had no session, so steps were not counted."""
    weights_sha256: str | None
    are_weights_sharded: bool = False
    """Whether there is no hash because no rank held all of the weights."""
    metrics: Metrics
    left_early: bool = False
    """Whether the script has left its loop before the end."""
    planned: Tally | None = None
    """How many steps a loop that was left early was to have, if it said so."""


class Exit(_Written, frozen=True, kw_only=True):
    """``nodes/<launch>/<rank>/exit.json``: the node's last record; it no longer runs user code."""

    launch: Ordinal
    rank: Rank
    instance_id: InstanceId
    outcome: NodeOutcome
    """``drained``: after a notice. ``left``: it has waited long enough for too few others. ``superseded``:
    the job goes on without this node."""
    detail: str
    exit_code: ExitStatus
    """The training script's if the outcome is ``failed``, else 0."""
    permanent: bool = False
    """No other machine would fare better: the job ends."""
    is_cut_off: bool = False
    """The network to other members, who live, is cut."""
    fingerprint: str | None = None
    """``failed``: the same for failures of the same kind, which the node's end cuts short of a second try."""
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
        """Name the save that sent it."""
        return SaveId(self.generation, self.step, self.round)


class Chunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of a part's bytes, stored as one object."""

    size: Tally
    xxh3_128: str
    """Hex."""
    home: ChunkHome | None = None
    """Where it is, if an earlier save sent the same bytes; None: it was sent with its part."""
    stored: Tally | None = None
    """How many bytes were sent, if it is stored compressed (``compression``); None: it is stored as it is.
    ``size`` and the checksum are always of the bytes themselves."""


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a directory checkpoint; the part holds the files' bytes in list order, the oldest first."""

    path: str
    """Relative, ``/``-separated."""
    size: Tally
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)]
    raw_path: bytes | None = None
    """The path, in base64, if it is not UTF-8; ``path`` then only shows it."""
    is_link: bool = False
    """Whether it is a symbolic link, of which the bytes are the target."""

    @property
    def name(self) -> str:
        """Return the path as the system's functions take it."""
        return self.path if self.raw_path is None else os.fsdecode(self.raw_path)


def file_of(name: str, size: int, *, mode: int, is_link: bool = False) -> File:
    """Describe a file whose name may be any that the system has."""
    shown = printable(name)
    raw = None if shown == name else os.fsencode(name)
    return File(path=shown, size=size, mode=mode, raw_path=raw, is_link=is_link)


class Part(Dated, frozen=True, kw_only=True, dict=True):
    """``parts/<rank>``: what one rank (of a session) or one node (of a directory) has uploaded."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    rank: Rank
    num_parts: NodeCount
    """How many parts the whole checkpoint has."""
    relieved: tuple[Rank, ...] = ()
    """Ranks that bring no part, as their machines were about to go: what only they had is in others'."""
    kind: CheckpointKind
    size: Tally
    """Bytes of all chunks together."""
    chunks: tuple[Chunk, ...]
    seal: str | None = None
    """``session``: the trainer's seal as it was written, with the table of items and the JSON state. It is
    text, since Python's json writes infinity, which strict JSON does not have."""
    files: tuple[File, ...] = ()
    directory: str | None = None
    """``directory``: to what the paths of ``files`` are relative: the working directory (``.``), or, below
    it, the one checkpoint directory of which this is a part."""
    evidence: str | None = None
    """``directory``: how the checkpoint was known to be complete; None: by a version that does not say."""
    rescue: Rescue | None = None
    """``session``: as the seal has it."""
    sealed_at: datetime
    writer: str

    @property
    def save(self) -> SaveId:
        """Name the save that it is a part of."""
        return SaveId(self.generation, self.step, self.round)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that bring a part of that save, ascending."""
        others = set(self.relieved)
        return tuple(rank for rank in range(self.num_parts + len(others)) if rank not in others)

    @cached_property
    def parsed_seal(self) -> Seal:
        """Return what the seal says; its text is parsed once.

        Raises:
            CorruptData: there is none, or it is malformed.
        """
        return parse_seal(self.seal or "", f"the seal of part {self.rank}")


class Manifest(_Written, frozen=True, kw_only=True):
    """``manifests/<generation>-<step>``: all parts of a checkpoint. The journal's commit makes it count."""

    generation: OrdinalOrZero
    step: Tally
    round: OrdinalOrZero
    """Of the save that was whole first: there is one commit of a step in a generation."""
    kind: CheckpointKind
    size: Tally
    parts: tuple[Part, ...]
    """In rank order."""

    @property
    def id(self) -> CheckpointId:
        """Name this checkpoint."""
        return CheckpointId(self.generation, self.step)

    @property
    def save(self) -> SaveId:
        """Name the save that it is."""
        return SaveId(self.generation, self.step, self.round)

    @property
    def shared(self) -> int:
        """Count its bytes that were not sent with it, as earlier checkpoints hold them."""
        return sum(chunk.size for part in self.parts for chunk in part.chunks if chunk.home is not None)

    @property
    def sent(self) -> int:
        """Count the bytes that were sent with it: those that are not shared, as they were compressed."""
        chunks = [chunk for part in self.parts for chunk in part.chunks if chunk.home is None]
        return sum(chunk.size if chunk.stored is None else chunk.stored for chunk in chunks)


class Damage(_Written, frozen=True, kw_only=True):
    """``manifests/<generation>-<step>.damaged``: a node has found that a chunk does not verify."""

    reason: str


# --- advisory -----------------------------------------------------------------------------------


class Outlay(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has paid for machines of one kind on one day."""

    day: date
    """In UTC."""
    provider: str
    market: Market
    zone: str
    currency: str
    purposes: dict[str, tuple[Seconds, Amount, Amount]]
    """By the ledger's word for it: the machines' seconds, what was spent, and what that costs on demand."""


class Summary(Dated, frozen=True, kw_only=True):
    """``jobs/<id>/summary``: one small object per job, for ``ps``; overwritten, and perhaps stale."""

    job_id: str
    provider: str
    state: JobState
    step: Tally
    steps_total: Tally | None
    starts: OrdinalOrZero
    """How many generations have begun."""
    spent: Amount
    currency: str
    submitted_at: datetime
    metrics: Metrics
    detail: str
    at: datetime
    others: dict[str, Amount] = msgspec.field(default_factory=dict)
    """What was spent in other currencies, on other providers."""
    num_nodes: OrdinalOrZero = 0
    """How many are in the newest generation; 0 before the first."""
    max_nodes: OrdinalOrZero = 0
    """How many the job may have."""
    idle: str = ""
    """Which nodes do not use what is paid for; empty: none, as far as is known."""
    name: str | None = None
    """The job file's."""
    code_sha256: Sha256 | None = None
    started_at: datetime | None = None
    """When the first machine was requested."""
    finished_at: datetime | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """The job file's."""
    outlays: tuple[Outlay, ...] | None = None
    """Of a job that has ended, for ``cost``; None: nobody has added them up."""
    driven_by: str = ""
    """What last drove the job, such as ``run on laptop``; empty: nobody knows."""
    driven_at: datetime | None = None
    """When it last did, by its own clock."""


class StandingDriver(Dated, frozen=True, kw_only=True):
    """``drivers/<name>``: what drives all jobs of the store now and then; overwritten at each pass or so."""

    who: str
    """Such as ``reconcile on host``."""
    every: Seconds | None
    """How long it is from one of its passes to the next; None: it has come once."""
    providers: tuple[str, ...]
    """Those whose plugins it has."""
    at: datetime


NUM_MARKET_AGES = 4
"""How many ages of a market's state are told apart: those of ``cloudspot.market.hazards``."""
_MarketCounts = Annotated[
    tuple[Annotated[float, msgspec.Meta(ge=0, le=1e6)], ...],
    msgspec.Meta(min_length=NUM_MARKET_AGES, max_length=NUM_MARKET_AGES),
]


class PoolSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has seen of one pool of spot machines, by the age of the pool's state."""

    losses: _MarketCounts
    up_hours: _MarketCounts
    gains: _MarketCounts
    down_hours: _MarketCounts


class MarketSeen(Dated, frozen=True, kw_only=True):
    """``market/<provider>/<time>-<nonce>``: what a job that has ended has seen of the spot market."""

    pools: Annotated[dict[str, PoolSeen], msgspec.Meta(max_length=1000)]
    """By zone and machine type: ``zone/type``."""
    at: datetime


class SettledLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes of a launch have written, if nothing new can come; by rank."""

    launch: Ordinal
    slots: dict[Rank, Slot]
    exits: dict[Rank, Exit]
    notices: dict[Rank, Notice]
    heartbeats: dict[Rank, Heartbeat]
    certificates: tuple[Certificate, ...]


class SettledLaunches(msgspec.Struct, frozen=True, kw_only=True):
    """``jobs/<id>/settled``: a copy of records that never change; overwritten, perhaps short or absent."""

    submission: str
    """The nonce of the job's first submission."""
    launches: tuple[SettledLaunch, ...]
    """From the first on, without a gap."""


class ObservedDuration(Dated, frozen=True, kw_only=True):
    """How long, at least, the passes of drivers have seen the same thing, by the store's clock."""

    seconds: Seconds
    until: datetime | None
    """The moment, by the store's clock, up to which ``seconds`` count; None: the moment at which the object
    that holds this was written, which its writer could not know."""


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A node that may be silent, or gone."""

    seat: Seat
    instance_id: InstanceId
    counter: Tally
    """The newest heartbeat's; 0: it has none."""
    silent: ObservedDuration | None
    """How long the counter has not moved."""
    absent: ObservedDuration | None
    """How long no listing has shown the machine."""


class Ending(msgspec.Struct, frozen=True):
    """An event after which nodes have limited time to leave; never taken back."""

    what: Literal["over", "excluded", "stop", "finished"]
    """``over``: the node has said its last word, or has provably ended. ``excluded``: the training goes on
    without it. ``stop``: the job was asked to stop. ``finished``: it is over."""
    seat: Seat | None = None
    """The node; None: the whole job."""
    resumption: OrdinalOrZero = 0
    """The resumption that was asked to stop, or ended."""


class KnownEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How long drivers have known of an ending."""

    ending: Ending
    known: ObservedDuration


class Suspicions(Dated, frozen=True, kw_only=True):
    """``jobs/<id>/suspicions``: what drivers that come and go have seen in turn; overwritten."""

    suspects: tuple[Suspect, ...]
    endings: tuple[KnownEnding, ...] = ()
    """Those that machines have outlived so far."""
    at: datetime
    writer: str
    """Tells one write from the next."""
