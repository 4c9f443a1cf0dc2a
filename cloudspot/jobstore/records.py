"""The records in the bucket, typed. All are create-only, but for Heartbeat, Summary, Suspicions and Removal.

Times are advice (a writer's wall clock, UTC); decisions use the reader's own monotonic clock. Each
create-only record carries its writer's nonce, so that after an error a writer that reads the key
back can tell its own put from another's.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Any

import msgspec

from cloudspot.model import LaunchRequest, Offer


def new_nonce() -> str:
    """Return a fresh writer nonce: 16 hex digits."""
    return secrets.token_hex(8)


class CheckpointId(msgspec.Struct, frozen=True, order=True):
    """Names a checkpoint of a job: the generation that made it, and its step."""

    generation: int
    step: int

    def __str__(self) -> str:
        return f"{self.generation}-{self.step}"


# --- submission ---------------------------------------------------------------------------------


class StagedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """The wheels that a job's machines install where their image has no such cloudspot."""

    sha256: str
    """Of the archive, by which it is found in the store."""
    digest: str
    """Of the code in it; an image with the same needs no archive."""
    requirements: tuple[str, ...]
    """The distributions to install from it."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """``jobs/<id>/spec``: what was submitted, whole; the source of everything a controller needs."""

    job_id: str
    provider: str
    spec: dict[str, Any]
    """The validated job file as JSON values; ``cloudspot.jobfile.spec`` reads it back."""
    code_sha256: str
    code_bytes: int
    secret_names: tuple[str, ...]
    version: str
    """Of the cloudspot that submitted."""
    at: datetime
    writer: str
    agent: StagedAgent | None = None
    """None: the image has cloudspot."""
    has_own_code: bool = False
    """Code and agent lie below the job's own prefix, as somebody was deleting those that jobs share."""


class StopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``jobs/<id>/stop``: checkpoint and end the job."""

    reason: str
    """``user``, ``max_cost`` or ``max_runtime``."""
    at: datetime
    writer: str


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """``index/<id>``, while the job is being removed: what has to be known when its submission is gone."""

    shared: tuple[str, ...]
    """The keys of the code and the agent that the job may share with others."""


# --- journal ------------------------------------------------------------------------------------


class Intent(msgspec.Struct, frozen=True, kw_only=True, tag="intent"):
    """Launch ``launch`` may be created from now on, by anyone, with these very bytes."""

    launch: int
    offer: Offer
    token: str
    request: LaunchRequest
    num_nodes: int
    why: str
    """``first``, ``reclaimed``, ``failed``, ``capacity``, ...: what made this launch necessary."""
    at: datetime
    writer: str


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's line in the bill."""

    instance_id: str
    rank: int | None
    started_at: datetime
    ended_at: datetime
    end_reason: str


class Closed(msgspec.Struct, frozen=True, kw_only=True, tag="closed"):
    """Launch ``launch`` can never train again; the next intent may be written."""

    launch: int
    outcome: str
    """``capacity``, ``quota``, ``refused``, ``voided`` (never trained); else how the attempt ended:
    ``succeeded``, ``reclaimed``, ``stopped``, ``failed``, ``lost``."""
    detail: str
    machines: tuple[Machine, ...]
    at: datetime
    writer: str


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The job is over; nothing follows in the journal."""

    outcome: str
    """``succeeded``, ``failed`` or ``stopped``."""
    detail: str
    exit_code: int
    """0, or the training script's own exit code where it failed, or 1."""
    at: datetime
    writer: str


JournalRecord = Intent | Closed | Finished


# --- nodes --------------------------------------------------------------------------------------


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """``launches/k/nodes/<rank>``: claimed by a node, or void. The first writer wins for ever."""

    instance_id: str | None
    """None: void, no machine may take this rank of this launch."""
    address: str | None = None
    detail: str = ""
    at: datetime
    writer: str


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """That a node began to do something else."""

    state: str
    """As in ``Heartbeat.state``; also ``training``: the script's loop over the steps has begun."""
    generation: int
    """The newest that the node was in; 0 before the first."""
    at: datetime


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """That the training of a generation has failed on a node."""

    generation: int
    why: str
    """``trainer-failed``, ``trainer-stuck`` or ``not-connected``: why the next one starts, unless a node was
    lost."""
    exit_code: int
    unreachable: tuple[int, ...] | None = None
    """The members whose machines did not answer this one; None: it has not asked them yet."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """How far a node is with the bytes that it moves now."""

    what: str
    """``restoring`` or ``uploading``."""
    done: int
    """Bytes."""
    total: int
    """Bytes."""


class LogStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How far a node has come with the delivery of its log."""

    num_lines: int
    """How many lines it has numbered so far; those that the sink lacks of them are on their way."""
    waiting_bytes: int
    """Of what its log files hold beyond these."""
    error: str = ""
    """Why the sink has not taken the last ones; empty: it has."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself every few seconds; overwritten."""

    counter: int
    instance_id: str
    address: str
    port: int
    """A port that was free when this was written, for the next generation's rendezvous."""
    state: str
    """``setup``, ``restoring``, ``ready`` (waits for the other nodes), ``running``, ``draining``,
    ``uploading``, ``ending``."""
    generation: int
    """0 before the first."""
    restored_step: int
    step: int
    """The newest step any local rank has begun, or the restored one."""
    steps_total: int | None
    has_session: bool = True
    """Whether the script has opened a session in this generation; without one nobody counts its steps."""
    metrics: dict[str, float]
    committed: CheckpointId | None
    stall_seconds: float | None
    """How long the last save held up the training."""
    upload_seconds: float | None
    """How long its upload and commit took."""
    notice_seconds: float | None = None
    """How long before it takes a machine the provider says so; None: an agent that does not tell."""
    transfer: Transfer | None = None
    """What it moves now; None: nothing."""
    log: LogStanding | None = None
    """None: an agent that does not tell."""
    warnings: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    """What the node has done since its agent started, oldest first; of very many only the newest."""
    failed: Failed | None = None
    """The newest failure: the others end that generation too, and need not find out by themselves."""
    at: datetime


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a generation."""

    rank: int
    """The node's rank within the launch."""
    instance_id: str
    address: str


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that did not verify at restore and was passed over."""

    checkpoint: CheckpointId
    reason: str


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """``generations/<g>``: one start of torchrun on a fixed set of nodes."""

    number: int
    launch: int
    members: tuple[Member, ...]
    """In rank order: index i is node rank i of torchrun."""
    endpoint: str
    """``address:port`` of the rendezvous."""
    restore_from: CheckpointId | None
    sealed_at: datetime | None = None
    """When the state that ``restore_from`` holds was handed over by the training: what was done later is
    made again. None: from the beginning, or not known."""
    committed_at: datetime | None = None
    """When ``restore_from`` was committed; None as above."""
    reached_step: int | None = None
    """The newest step that the proposer had begun in the generation before this one; None: it was not in
    it, or its script counts no steps."""
    skipped: tuple[Skipped, ...] = ()
    why: str
    """``first``, ``relaunched``, ``regrouped`` (without a node), ``drained``, ``trainer-failed``,
    ``trainer-stuck``, ``not-connected`` (the ranks did not come together), ``agent-restarted``."""
    at: datetime
    writer: str


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """``nodes/<launch>/<rank>/notice``: the first notice that reached the node."""

    launch: int
    rank: int
    deadline: datetime
    """The earlier of the stated time and the time seen + notice_seconds."""
    action: str
    source: str
    step: int
    """The newest step begun when it came."""
    at: datetime
    writer: str


class Final(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished training leaves: the step, the weights' hash and the last metrics."""

    step: int | None
    """None: the script had no session, so nobody has counted."""
    weights_sha256: str | None
    metrics: dict[str, float]


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """``nodes/<launch>/<rank>/exit.json``: the node's last word; it runs no user code any more."""

    launch: int
    rank: int
    instance_id: str
    outcome: str
    """``succeeded``, ``drained`` (after a notice), ``stopped``, ``failed``, ``left`` (too few nodes were
    left to go on), ``superseded`` (the job goes on without this node)."""
    detail: str
    exit_code: int
    """Of the training script, where the outcome is ``failed``; else 0."""
    permanent: bool = False
    """A failure that no other machine will mend: the job ends."""
    log_tail: tuple[str, ...] = ()
    generation: int
    restored_step: int
    step: int
    """The newest step begun; where the node drained, the step of its commit."""
    has_session: bool = True
    """Whether the script had a session in that generation."""
    committed: CheckpointId | None
    final: Final | None = None
    at: datetime
    writer: str


# --- checkpoints --------------------------------------------------------------------------------


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a part's bytes, stored as one object."""

    size: int
    xxh3_128: str
    """Hex."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a directory checkpoint; its bytes follow each other in the part, in list order."""

    path: str
    """Relative, ``/``-separated."""
    size: int
    mode: int


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """``parts/<rank>``: what one rank (of a session) or one node (of a directory) has uploaded."""

    generation: int
    step: int
    rank: int
    num_parts: int
    """How many parts make the checkpoint whole."""
    kind: str
    """``session`` or ``directory``."""
    size: int
    """Bytes of all chunks together."""
    chunks: tuple[Chunk, ...]
    seal: str | None = None
    """``session``: the trainer's seal as it wrote it: the table of items and the JSON state. Text, since
    what Python's json writes for a state that holds infinity is no strict JSON."""
    files: tuple[File, ...] = ()
    directory: str | None = None
    """``directory``: the checkpoint directory, relative to the working directory."""
    sealed_at: datetime
    writer: str


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """``commits/<generation>-<step>``: the manifest. The checkpoint exists when this does."""

    generation: int
    step: int
    kind: str
    size: int
    parts: tuple[Part, ...]
    """All of them, in rank order."""
    at: datetime
    writer: str

    @property
    def id(self) -> CheckpointId:
        """Name this checkpoint."""
        return CheckpointId(self.generation, self.step)


# --- advisory -----------------------------------------------------------------------------------


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """``jobs/<id>/summary``: one small object a job for ``ps``; overwritten, may be stale."""

    job_id: str
    provider: str
    state: str
    step: int
    steps_total: int | None
    attempts: int
    spent: float
    currency: str
    submitted_at: datetime
    metrics: dict[str, float]
    detail: str
    at: datetime
    # What follows has come later: an older summary does not say it.
    name: str | None = None
    """In the job file."""
    code_sha256: str | None = None
    started_at: datetime | None = None
    """When the first machine was requested."""
    finished_at: datetime | None = None


class Lasting(msgspec.Struct, frozen=True, kw_only=True):
    """For how long the passes of drivers have seen the same, at the least, by the store's clock."""

    seconds: float
    until: datetime | None
    """The moment of the store's clock up to which ``seconds`` count; None: that of the write of the object
    that holds this, which its writer could not know."""


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the open launch that may be silent, or gone."""

    rank: int
    instance_id: str
    counter: int
    """Of its newest heartbeat; 0: it has none."""
    silent: Lasting | None
    """For how long the counter has stood there."""
    absent: Lasting | None
    """For how long no listing has shown the machine."""


class Ending(msgspec.Struct, frozen=True):
    """What leaves nodes only so much time; it is never taken back."""

    launch: int | None = None
    """The launch that was closed; None: the whole job was asked to stop."""
    rank: int | None = None
    """The node of that launch that is proven to run nothing any more; None: the launch was closed."""


class KnownEnding(msgspec.Struct, frozen=True, kw_only=True):
    """For how long drivers have known of an ending."""

    ending: Ending
    known: Lasting


class Suspicions(msgspec.Struct, frozen=True, kw_only=True):
    """``jobs/<id>/suspicions``: what drivers that come and go have seen, one after the other; overwritten."""

    launch: int
    """The open one, whose nodes the suspects are; 0: none is open."""
    suspects: tuple[Suspect, ...]
    endings: tuple[KnownEnding, ...] = ()
    """Those after which machines still run."""
    at: datetime
    writer: str
    """Tells one write from the next."""
