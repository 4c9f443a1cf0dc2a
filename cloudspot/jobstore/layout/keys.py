"""Every object key that cloudspot uses."""

from __future__ import annotations

import re
from urllib.parse import quote

from cloudspot.jobstore.layout.records import CheckpointId, SaveId

JOB_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""A job id is a DNS label, so that it can be a tag, a label or a host name anywhere."""
_SECRETS = re.compile(r"jobs/[^/]+/secrets(\.[0-9]+)?")
_OF_JOB = re.compile(
    rf"""jobs/({JOB_ID.pattern})/(?:
        spec | code | image | summary | settled | suspicions | secrets(?:\.\d+)?
        | inputs/[a-z][a-z0-9_-]*(?:\.\d+)? | (?:submissions|agents)/[0-9a-f]{{64}}
        | journal/\d{{8,}} | journal-copies/\d{{8,12}}-\d{{8,12}} | journal-copy | told/[^/]+
        | launches/\d{{6,}}/(?:nodes/\d{{4,}}|machines/[^/]+)
        | nodes/(?:stop(?:\.\d+)?|\d{{6,}}/\d{{4,}}/(?:heartbeat|notice|exit\.json))
        | manifests/\d{{6,}}-\d{{12,}}(?:\.damaged)?
        | checkpoints/\d{{6,}}-\d{{12,}}-\d{{6,}}/(?:
            parts/\d{{4,}} | chunks/\d{{4,}}/\d{{6,}}(?:\.z)? | bases/\d{{4,}}/\d{{6,}}-\d{{12,}}
        )
        | logs/\d+-\d+/\d{{4}}-\d\d-\d\d/\d{{12,}} | artifacts/[\w.~%/-]+
    )""",
    re.ASCII | re.VERBOSE,
)
_SHARED = re.compile(r"(?:agents|code)/[0-9a-f]{64}")


STORE_ID = "store-id"
"""The mark of a store in a directory: a random id, which an empty mount point or another disk lacks."""


def index_prefix() -> str:
    """Return the prefix of the list of jobs: one small object for each."""
    return "index/"


def index(job_id: str) -> str:
    """Return the key of the job's entry in the list of jobs; create-only, it also reserves the id.

    The removal of a job replaces it with a note, and deletes it last.
    """
    return f"index/{job_id}"


def live_prefix() -> str:
    """Return the prefix of the marks of jobs that may be live: one empty object for each."""
    return "live/"


def live(job_id: str, writer: str) -> str:
    """Return the key of a job's mark; ``writer`` is its submission's nonce."""
    return f"live/{job_id}.{writer}"


def recent_prefix() -> str:
    """Return the prefix of the list of jobs by their age: one empty object for each, the newest first."""
    return "recent/"


def recent(job_id: str, *, milliseconds: int) -> str:
    """Return the key of a job's entry in that list; ``milliseconds`` is when it was submitted, since 1970."""
    return f"recent/{max(0, 10**13 - milliseconds):013d}-{job_id}"


def market_prefix(provider: str) -> str:
    """Return the prefix of what jobs that have ended saw of a provider's spot market, the newest first."""
    return f"market/{provider}/"


def market_seen(provider: str, nonce: str, *, milliseconds: int) -> str:
    """Return the key of what one job saw: its first submission's nonce and time, as in ``recent``.

    It does not name the job, which may be removed long before.
    """
    return f"{market_prefix(provider)}{max(0, 10**13 - milliseconds):013d}-{nonce}"


def drivers_prefix() -> str:
    """Return the prefix of what drives the store's jobs by itself: one small object for each."""
    return "drivers/"


def driver(name: str) -> str:
    """Return the key of one of those; overwritten."""
    return drivers_prefix() + name


def job_prefix(job_id: str) -> str:
    """Return the prefix of everything that belongs to the job."""
    return f"jobs/{job_id}/"


def spec(job_id: str) -> str:
    """Return the key of the job's first submission; create-only."""
    return f"jobs/{job_id}/spec"


def setup_ready(job_id: str) -> str:
    """Return the key by which a machine says that an image can be made of it; overwritten."""
    return f"jobs/{job_id}/image"


def submissions_prefix(job_id: str) -> str:
    """Return the prefix of the submissions with which the job was resumed, or was to be."""
    return f"jobs/{job_id}/submissions/"


def submission(job_id: str, sha256: str) -> str:
    """Return the key of one of those, by ``submission.hash_of`` it; create-only."""
    return submissions_prefix(job_id) + sha256


def secrets(job_id: str, resumption: int) -> str:
    """Return the key of the job's secrets; deleted when the job ends.

    Each resumption (0: none yet) has its own, so that a driver that is late deletes none that are needed.
    """
    return f"jobs/{job_id}/secrets" + (f".{resumption}" if resumption else "")


def input_version(job_id: str, name: str, resumption: int) -> str:
    """Return the key of what the first node has staged of an input; create-only, as in ``secrets``."""
    return f"jobs/{job_id}/inputs/{name}" + (f".{resumption}" if resumption else "")


def is_secret(key: str) -> bool:
    """Return whether the key is that of some job's secrets."""
    return _SECRETS.fullmatch(key) is not None


def summary(job_id: str) -> str:
    """Return the key of the advisory summary that ``ps`` reads; overwritten."""
    return f"jobs/{job_id}/summary"


def suspicions(job_id: str) -> str:
    """Return the key of what passing drivers saw silent or missing; overwritten, or absent."""
    return f"jobs/{job_id}/suspicions"


def settled_launches(job_id: str) -> str:
    """Return the key of the copy of what nodes can no longer change; overwritten, or absent."""
    return f"jobs/{job_id}/settled"


def stop(job_id: str, resumption: int) -> str:
    """Return the key of the request to stop; create-only. Each resumption (0: none yet) has its own.

    It is among what the nodes say, so that whoever lists that sees it without a request of its own.
    """
    return f"{nodes_prefix(job_id)}stop" + (f".{resumption}" if resumption else "")


def journal_prefix(job_id: str) -> str:
    """Return the prefix of the journal."""
    return f"jobs/{job_id}/journal/"


def journal(job_id: str, number: int) -> str:
    """Return the key of journal record ``number``, counted from 1; create-only."""
    return f"jobs/{job_id}/journal/{number:08d}"


def journal_copies_prefix(job_id: str) -> str:
    """Return the prefix of the copies of runs of the journal's records."""
    return f"jobs/{job_id}/journal-copies/"


def journal_copy(job_id: str, first: int, last: int) -> str:
    """Return the key of the copy of the records with the numbers ``first`` to ``last`` (inclusive)."""
    return f"jobs/{job_id}/journal-copies/{last:08d}-{first:08d}"


def told_prefix(job_id: str) -> str:
    """Return the prefix of the marks of the events that people were told."""
    return f"jobs/{job_id}/told/"


def told(job_id: str, event: str) -> str:
    """Return the key of one such mark; create-only: who creates it sends the message."""
    return told_prefix(job_id) + event


def launches_prefix(job_id: str) -> str:
    """Return the prefix of the launches: their seats, and the certificates of their machines."""
    return f"jobs/{job_id}/launches/"


def slots_prefix(job_id: str, launch: int) -> str:
    """Return the prefix of the slots of a launch."""
    return f"jobs/{job_id}/launches/{launch:06d}/nodes/"


def slot(job_id: str, launch: int, rank: int) -> str:
    """Return the key of one slot; create-only: the first writer owns the rank of that launch."""
    return f"jobs/{job_id}/launches/{launch:06d}/nodes/{rank:04d}"


def certificate(job_id: str, launch: int, instance_id: str) -> str:
    """Return the key of the proof that a machine has ended; create-only. The id is percent-encoded."""
    name = quote(instance_id, safe="").replace(".", "%2E")  # "." and ".." are no names
    return f"jobs/{job_id}/launches/{launch:06d}/machines/{name}"


def nodes_prefix(job_id: str) -> str:
    """Return the prefix of what the nodes report."""
    return f"jobs/{job_id}/nodes/"


def launch_nodes_prefix(job_id: str, launch: int) -> str:
    """Return the prefix of what the nodes of one launch report."""
    return f"jobs/{job_id}/nodes/{launch:06d}/"


def heartbeat(job_id: str, launch: int, rank: int) -> str:
    """Return the key of a node's heartbeat; overwritten."""
    return f"jobs/{job_id}/nodes/{launch:06d}/{rank:04d}/heartbeat"


def notice(job_id: str, launch: int, rank: int) -> str:
    """Return the key of the notice that a node received; create-only."""
    return f"jobs/{job_id}/nodes/{launch:06d}/{rank:04d}/notice"


def exit_record(job_id: str, launch: int, rank: int) -> str:
    """Return the key of a node's exit record; create-only, and proof that it runs no user code."""
    return f"jobs/{job_id}/nodes/{launch:06d}/{rank:04d}/exit.json"


def checkpoints_prefix(job_id: str) -> str:
    """Return the prefix of all checkpoints."""
    return f"jobs/{job_id}/checkpoints/"


def manifests_prefix(job_id: str) -> str:
    """Return the prefix of the manifests; apart from the chunks, to keep a listing short."""
    return f"jobs/{job_id}/manifests/"


def manifest(job_id: str, generation: int, step: int) -> str:
    """Return the key of a checkpoint's manifest; create-only, and deleted first."""
    return f"jobs/{job_id}/manifests/{generation:06d}-{step:012d}"


def damage(job_id: str, checkpoint: CheckpointId) -> str:
    """Return the key of the note that a chunk of a checkpoint was found damaged; create-only."""
    return manifest(job_id, checkpoint.generation, checkpoint.step) + ".damaged"


def save_prefix(job_id: str, save: SaveId) -> str:
    """Return the prefix of one save's parts and chunks."""
    return f"jobs/{job_id}/checkpoints/{save.generation:06d}-{save.step:012d}-{save.round:06d}/"


def parts_prefix(job_id: str, save: SaveId) -> str:
    """Return the prefix of one save's part records."""
    return save_prefix(job_id, save) + "parts/"


def part(job_id: str, save: SaveId, rank: int) -> str:
    """Return the key of a part record: what global rank ``rank`` has uploaded; create-only."""
    return parts_prefix(job_id, save) + f"{rank:04d}"


def chunk(job_id: str, save: SaveId, rank: int, number: int, *, is_compressed: bool = False) -> str:
    """Return the key of chunk ``number`` of a rank's part, counted from 0.

    A compressed chunk has a key of its own, so no late put can leave an object of another kind than a part's
    record says.
    """
    suffix = ".z" if is_compressed else ""
    return save_prefix(job_id, save) + f"chunks/{rank:04d}/{number:06d}{suffix}"


def base_mark(job_id: str, save: SaveId, rank: int, base: CheckpointId) -> str:
    """Return the key of the mark that a rank's part of a save may name chunks of the checkpoint ``base``."""
    return save_prefix(job_id, save) + f"bases/{rank:04d}/{base.generation:06d}-{base.step:012d}"


def logs_prefix(job_id: str) -> str:
    """Return the prefix of the job's logs in the object store."""
    return f"jobs/{job_id}/logs/"


def log_segment(job_id: str, stream: str, date: str, first_seq: int) -> str:
    """Return the key of a log segment: stream, UTC date ``YYYY-MM-DD``, its first line's number."""
    return f"jobs/{job_id}/logs/{stream}/{date}/{first_seq:012d}"


def artifacts_prefix(job_id: str) -> str:
    """Return the prefix of the job's artifacts."""
    return f"jobs/{job_id}/artifacts/"


def job_of(key: str) -> str | None:
    """Return the id of the job whose key it is; None: no function of this module returns such a key.

    A store may be the root of a bucket in which others have a ``jobs/`` of their own.
    """
    found = _OF_JOB.fullmatch(key)
    return found[1] if found else None


def is_shared(key: str) -> bool:
    """Return whether the key is ``agent`` or ``code`` of some hash.

    A store may be the root of a bucket in which others have an ``agents/`` or a ``code/`` of their own.
    """
    return _SHARED.fullmatch(key) is not None


def agent(sha256: str) -> str:
    """Return the key of the wheels that stock images install as their agent; shared by jobs, create-only."""
    return f"agents/{sha256}"


def own_agent(job_id: str, sha256: str) -> str:
    """Return the key of the same where a job has them for itself."""
    return f"jobs/{job_id}/agents/{sha256}"


def own_code(job_id: str) -> str:
    """Return the key of a code bundle that a job has for itself."""
    return f"jobs/{job_id}/code"


def removals_prefix(shared: str) -> str:
    """Return the prefix of the marks of those who may be deleting what jobs share under ``shared``."""
    return f"{shared}.removals/"


def removal(shared: str, job_id: str) -> str:
    """Return the key of one such mark: the removal of the job has it from its first look to its end."""
    return removals_prefix(shared) + job_id


def code(sha256: str) -> str:
    """Return the key of a code bundle, by the SHA-256 of its bytes in hex; create-only."""
    return f"code/{sha256}"


def probe(nonce: str) -> str:
    """Return a key for the store's probe; deleted at once."""
    return f"probe/{nonce}"
