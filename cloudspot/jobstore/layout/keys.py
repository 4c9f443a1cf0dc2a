"""Every object key that cloudspot uses: one table, which writes keys and recognizes them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from datetime import date
from typing import Any, Generic, NamedTuple, ParamSpec, get_args
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec

from cloudspot.decoding import (
    KeyWord,
    OrdinalOrZero,
    Rank,
    Sha256,
    SharedKey,
    StreamName,
    Tally,
)
from cloudspot.jobstore.layout.records import CheckpointId, SaveId

JOB_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""A job id is a DNS label, so that it can be a tag, a label or a host name anywhere."""
REAPER = "reap."
"""The prefix of the names of a reaper's marks; job ids contain no dots."""
_MAX_MILLISECONDS = 10**13

Values = ParamSpec("Values")


class _Field(NamedTuple):
    """The variable segment of a key."""

    pattern: str
    """A regular expression for the strings that ``write`` returns."""
    write: Callable[[Any], str] = str
    read: Callable[[str], Any] = str
    """The inverse of ``write``; raises ValueError for a string that matches but that ``write`` does not
    return.
    """


class Key(Generic[Values]):
    """A form of keys: writes a key from the values of its fields, and reads the values from a key.

    A form only reads keys that it would write. A form that ends in ``/``, ``-`` or ``.`` is a prefix.
    """

    def __init__(self, form: str) -> None:
        texts = re.split(r"\{(\w+)\}", form)
        self.form = form
        self.fields = tuple(texts[1::2])
        self._texts = texts[::2]
        self._kinds = [_FIELDS[name] for name in self.fields]
        self._reads = [(i, kind.read) for i, kind in enumerate(self._kinds) if kind.read is not str]
        patterns = ["", *(f"({kind.pattern})" for kind in self._kinds)]
        parts = zip(patterns, self._texts, strict=True)
        self._pattern = re.compile("".join(field + re.escape(text) for field, text in parts))

    def __call__(self, *values: Values.args, **named: Values.kwargs) -> str:
        """Return the key with these values, in the order of the fields."""
        assert not named, "the values of a key have no names"
        written = [kind.write(value) for kind, value in zip(self._kinds, values, strict=True)]
        return "".join(map(str.__add__, self._texts, [*written, ""]))

    def match(self, key: str) -> tuple[Any, ...] | None:
        """Return the values of the key's fields, or None if the key does not have this form."""
        found = self._pattern.fullmatch(key)
        if found is None:
            return None
        values: list[Any] = list(found.groups())
        try:
            for i, read in self._reads:
                values[i] = read(values[i])
        except ValueError:
            return None
        return tuple(values)


def _number(num_digits: int, type_: Any) -> _Field:
    """Return the field for a number of that type, padded with zeros so that keys sort numerically."""
    bounds = get_args(type_)[1]
    most = bounds.lt - 1 if bounds.le is None else bounds.le
    further = len(str(most)) - num_digits
    longer = rf"|[1-9][0-9]{{{num_digits},{num_digits + further - 1}}}" if further > 0 else ""

    def read(text: str) -> int:
        number = int(text)
        if number > most:
            raise ValueError(f"{text} is larger than {most}")
        return number

    return _Field(rf"(?:[0-9]{{{num_digits}}}{longer})", f"{{:0{num_digits}d}}".format, read)


def _text(type_: Any) -> _Field:
    """Return the field for a string of that type."""
    return _Field(get_args(type_)[1].pattern.removeprefix("^").removesuffix("$"))


def _joined(form: Callable[..., Any], *parts: _Field) -> _Field:
    """Return the field for a value that consists of several numbers, joined by ``-``."""

    def write(value: Any) -> str:
        numbers = msgspec.structs.astuple(value)
        return "-".join(part.write(number) for part, number in zip(parts, numbers, strict=True))

    def read(text: str) -> Any:
        return form(*(part.read(number) for part, number in zip(parts, text.split("-"), strict=True)))

    return _Field("-".join(part.pattern for part in parts), write, read)


def _encoded(pattern: str, write: Callable[[str], str], decode: Callable[[str], str]) -> _Field:
    """Return the field for a percent-encoded string, in its canonical encoding only."""

    def read(text: str) -> str:
        value = decode(text)
        if write(value) != text:
            raise ValueError(f"{text} is not in its canonical encoding")
        return value

    return _Field(pattern, write, read)


def _read_date(text: str) -> str:
    return date.fromisoformat(text).isoformat()


_ordinal, _step = _number(6, OrdinalOrZero), _number(12, Tally)
_FIELDS = {
    "job": _Field(JOB_ID.pattern),
    "writer": _Field(r"[A-Za-z0-9_-]+"),  # A nonce; a resumption adds a number.
    "nonce": _text(KeyWord),
    "sha256": _text(Sha256),
    "shared": _text(SharedKey),
    "remover": _Field(rf"{JOB_ID.pattern}|{re.escape(REAPER)}[0-9a-f]{{8}}"),
    "provider": _Field(r"[^/]+"),
    "driver": _Field(r"[A-Za-z0-9-]{1,64}"),
    "event": _Field(r"[^/]+"),
    "input": _Field(r"[a-z][a-z0-9_-]*"),
    "newest_first": _Field(
        r"[0-9]{13}",
        lambda milliseconds: f"{max(0, _MAX_MILLISECONDS - milliseconds):013d}",
        lambda text: _MAX_MILLISECONDS - int(text),
    ),
    "resumption": _Field(
        r"(?:\.[1-9][0-9]{0,8})?",
        lambda resumption: f".{resumption}" if resumption else "",
        lambda text: int(text[1:] or "0"),
    ),
    "record": _number(8, Tally),
    "launch": _ordinal,
    "generation": _ordinal,
    "step": _step,
    "rank": _number(4, Rank),
    "number": _number(6, Tally),
    "line": _number(12, Tally),
    "checkpoint": _joined(CheckpointId, _ordinal, _step),
    "save": _joined(SaveId, _ordinal, _step, _ordinal),
    "machine": _encoded(
        r"[A-Za-z0-9_~%-]+",
        lambda instance_id: quote(instance_id, safe="").replace(".", "%2E"),  # "." and ".." are invalid
        unquote,
    ),
    "stream": _text(StreamName),
    "date": _Field(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", str, _read_date),
    "artifact": _encoded(
        r"[A-Za-z0-9_.~%/-]+",
        lambda name: quote(os.fsencode(name)),
        lambda text: os.fsdecode(unquote_to_bytes(text)),
    ),
}

# --- the store and its lists --------------------------------------------------------------------------

STORE_ID = "store-id"
"""The random id of a store in a directory, which an empty mount point or another disk lacks."""
index_prefix = Key[[]]("index/")
"""The list of jobs: one small object per job."""
index = Key[[str]]("index/{job}")
"""A job's entry in the list of jobs. The entry is create-only, so it also reserves the id. The removal of a
job replaces the entry with a note, and deletes it last.
"""
live_prefix = Key[[]]("live/")
"""The marks of jobs that may be live: one empty object per mark."""
live_marks_prefix = Key[[str]]("live/{job}.")
"""The marks of one job."""
live = Key[[str, str]]("live/{job}.{writer}")
"""A mark of a job, with the nonce of the job's submission as the writer."""
recent_prefix = Key[[]]("recent/")
"""The list of jobs by age: one empty object per job, the newest first."""
recent = Key[[int, str]]("recent/{newest_first}-{job}")
"""A job's entry in the list by age, with the time of its submission in milliseconds since 1970."""
market_prefix = Key[[str]]("market/{provider}/")
"""Observations of a provider's spot market by jobs that have ended, the newest first."""
market_seen = Key[[str, int, str]]("market/{provider}/{newest_first}-{nonce}")
"""One job's observations, with the time (as in ``recent``) and the nonce of its first submission. The key
does not name the job, because the job may be removed long before.
"""
drivers_prefix = Key[[]]("drivers/")
"""The drivers that serve the store's jobs regularly: one small object per driver."""
driver = Key[[str]]("drivers/{driver}")
"""A driver's note about itself; overwritten."""
agents_prefix = Key[[]]("agents/")
agent = Key[[str]]("agents/{sha256}")
"""The wheels from which stock images install the agent; shared by jobs, create-only."""
code_prefix = Key[[]]("code/")
code = Key[[str]]("code/{sha256}")
"""A code bundle, by the SHA-256 of its bytes in hex; shared by jobs, create-only."""
removals_prefix = Key[[str]]("{shared}.removals/")
"""The marks of removals and reapers that may be deleting a shared object."""
removal = Key[[str, str]]("{shared}.removals/{remover}")
"""The mark of one removal or reaper, from its first look for users of the object until it has ended."""
probe = Key[[str]]("probe/{nonce}")
"""An object of a store probe; deleted immediately."""

# --- a job ----------------------------------------------------------------------------------------

job_prefix = Key[[str]]("jobs/{job}/")
"""All objects that belong to the job."""
spec = Key[[str]]("jobs/{job}/spec")
"""The job's first submission; create-only."""
submissions_prefix = Key[[str]]("jobs/{job}/submissions/")
submission = Key[[str, str]]("jobs/{job}/submissions/{sha256}")
"""A submission that resumed the job, or was meant to resume it, by its ``submission.hash_of``; create-only.
"""
own_code = Key[[str]]("jobs/{job}/code")
"""A code bundle that belongs to the job alone."""
own_agents_prefix = Key[[str]]("jobs/{job}/agents/")
own_agent = Key[[str, str]]("jobs/{job}/agents/{sha256}")
"""The agent's wheels that belong to the job alone."""
secrets = Key[[str, int]]("jobs/{job}/secrets{resumption}")
"""The job's secrets; deleted when the job ends. Each resumption (0: the first submission) has its own
secrets, so that a late driver does not delete secrets that are needed.
"""
input_version = Key[[str, str, int]]("jobs/{job}/inputs/{input}{resumption}")
"""The version of an input that the first node has staged; create-only, one per resumption as in
``secrets``."""
setup_ready = Key[[str]]("jobs/{job}/image")
"""A machine's report that an image can be made of its disk; overwritten."""
summary = Key[[str]]("jobs/{job}/summary")
"""The advisory summary that ``ps`` reads; overwritten."""
suspicions = Key[[str]]("jobs/{job}/suspicions")
"""Suspicions of silent or missing nodes, from drivers with short passes; overwritten, possibly absent."""
settled_launches = Key[[str]]("jobs/{job}/settled")
"""The copy of records that nodes can no longer change; overwritten, possibly absent."""
journal_prefix = Key[[str]]("jobs/{job}/journal/")
journal = Key[[str, int]]("jobs/{job}/journal/{record}")
"""A record of the journal, by its number, counted from 1; create-only."""
journal_copies_prefix = Key[[str]]("jobs/{job}/journal-copies/")
journal_copy = Key[[str, int, int]]("jobs/{job}/journal-copies/{record}-{record}")
"""The copy of a run of records, by the numbers of its last and its first record."""
notified_prefix = Key[[str]]("jobs/{job}/told/")
"""The marks of the events about which a message was sent."""
notified = Key[[str, str]]("jobs/{job}/told/{event}")
"""The mark of one event; create-only, and its creator sends the message."""
shared_pages_prefix = Key[[str]]("jobs/{job}/shared/")
shared_page = Key[[str, str]]("jobs/{job}/shared/{event}.html")
"""A page about the job for people who have its link, under a random name; deleted to revoke the link."""
artifacts_prefix = Key[[str]]("jobs/{job}/artifacts/")
artifact = Key[[str, str]]("jobs/{job}/artifacts/{artifact}")
"""A file of the job, by its path; overwritten. Any path that a file system allows is possible."""
outputs_prefix = Key[[str]]("jobs/{job}/outputs/")
output = Key[[str, str]]("jobs/{job}/outputs/{artifact}")
"""A file that the training wrote below its working directory, by the path there; overwritten, and deleted
when newer files need its space.
"""

# --- its nodes ------------------------------------------------------------------------------------

launches_prefix = Key[[str]]("jobs/{job}/launches/")
"""The launches: their seats, and their machines' certificates."""
slots_prefix = Key[[str, int]]("jobs/{job}/launches/{launch}/nodes/")
slot = Key[[str, int, int]]("jobs/{job}/launches/{launch}/nodes/{rank}")
"""A seat of a launch; create-only: the first writer owns that rank of the launch."""
certificates_prefix = Key[[str, int]]("jobs/{job}/launches/{launch}/machines/")
certificate = Key[[str, int, str]]("jobs/{job}/launches/{launch}/machines/{machine}")
"""The proof that a machine has ended; create-only. The machine's id is percent-encoded."""
nodes_prefix = Key[[str]]("jobs/{job}/nodes/")
"""The nodes' reports."""
launch_nodes_prefix = Key[[str, int]]("jobs/{job}/nodes/{launch}/")
heartbeat = Key[[str, int, int]]("jobs/{job}/nodes/{launch}/{rank}/heartbeat")
"""A node's heartbeat; overwritten."""
notice = Key[[str, int, int]]("jobs/{job}/nodes/{launch}/{rank}/notice")
"""The first notice that a node received; create-only."""
exit_record = Key[[str, int, int]]("jobs/{job}/nodes/{launch}/{rank}/exit.json")
"""A node's exit record, which proves that it runs no user code; create-only."""
stop = Key[[str, int]]("jobs/{job}/nodes/stop{resumption}")
"""The stop request; create-only. Each resumption (0: the first submission) has its own request. The request
is stored among the nodes' reports, so that their listing shows it without another request.
"""
remote_call = Key[[str, int, int]]("jobs/{job}/nodes/{launch}/{rank}/call")
"""A request to a node to run a command; overwritten by the next request. The request is stored here so that
the listing of the nodes' reports shows it.
"""
task = Key[[str, str]]("jobs/{job}/nodes/tasks/{event}/asked")
"""A request to the drivers for periodic work, by the name of a plugin's task; overwritten, and deleted to end
the work. The request is stored here so that the listing of the nodes' reports shows it.
"""
task_done = Key[[str, str]]("jobs/{job}/nodes/tasks/{event}/done")
"""A mark that a driver has started a task's work; overwritten, and dated by the store."""
REPORTS: tuple[Key[[str, int, int]], ...] = (heartbeat, notice, exit_record)
"""The forms of a node's reports."""
logs_prefix = Key[[str]]("jobs/{job}/logs/")
"""The job's logs in the object store."""
log_stream_prefix = Key[[str, str]]("jobs/{job}/logs/{stream}/")
log_day_prefix = Key[[str, str, str]]("jobs/{job}/logs/{stream}/{date}/")
log_segment = Key[[str, str, str, int]]("jobs/{job}/logs/{stream}/{date}/{line}")
"""A segment of a log: its stream, UTC date ``YYYY-MM-DD``, and the number of its first line."""

# --- commands that people run on nodes -- --------------------------------------------------------

remote_prefix = Key[[str]]("jobs/{job}/remote/")
"""The answers, inputs and outputs of commands; all of them are deleted at the end."""
remote_node_prefix = Key[[str, int, int]]("jobs/{job}/remote/{launch}/{rank}/")
remote_command_prefix = Key[[str, int, int, str]]("jobs/{job}/remote/{launch}/{rank}/{nonce}/")
remote_answer = Key[[str, int, int, str]]("jobs/{job}/remote/{launch}/{rank}/{nonce}/answer")
"""The node's answer to a call, by the call's nonce; create-only."""
remote_input = Key[[str, int, int, str, int]]("jobs/{job}/remote/{launch}/{rank}/{nonce}/in/{record}")
remote_output = Key[[str, int, int, str, int]]("jobs/{job}/remote/{launch}/{rank}/{nonce}/out/{record}")
"""A piece of a command's input or output, counted from 0; create-only."""
remote_commands_prefix = Key[[str]]("jobs/{job}/commands/")
remote_command = Key[[str, int, int, str]]("jobs/{job}/commands/{launch}-{rank}-{nonce}")
"""The record of who ran a command on a node, and how it ended; the node overwrites it once, at the end."""

# --- its checkpoints ------------------------------------------------------------------------------

manifests_prefix = Key[[str]]("jobs/{job}/manifests/")
"""The manifests, apart from the chunks so that a listing of them is short."""
manifest = Key[[str, int, int]]("jobs/{job}/manifests/{generation}-{step}")
"""A checkpoint's manifest; create-only, and deleted before the checkpoint's other objects."""
damage = Key[[str, CheckpointId]]("jobs/{job}/manifests/{checkpoint}.damaged")
"""The note that a chunk of a checkpoint was found to be damaged; create-only."""
rescue_order = Key[[str, int, int]]("jobs/{job}/rescues/{generation}-{number}")
"""The order that tells ranks to save their state after others were lost, by the attempt's number;
create-only.
"""
begun = Key[[str, CheckpointId]]("jobs/{job}/manifests/{checkpoint}.begun")
"""The empty note that a node is uploading its part of a checkpoint that scripts saved on all nodes, so that
other nodes follow.
"""
checkpoints_prefix = Key[[str]]("jobs/{job}/checkpoints/")
"""The parts and chunks of all checkpoints."""
saves_prefix = Key[[str, CheckpointId]]("jobs/{job}/checkpoints/{checkpoint}-")
"""All saves of one checkpoint."""
save_prefix = Key[[str, SaveId]]("jobs/{job}/checkpoints/{save}/")
parts_prefix = Key[[str, SaveId]]("jobs/{job}/checkpoints/{save}/parts/")
part = Key[[str, SaveId, int]]("jobs/{job}/checkpoints/{save}/parts/{rank}")
"""A part record: the upload of one global rank; create-only."""
chunk = Key[[str, SaveId, int, int]]("jobs/{job}/checkpoints/{save}/chunks/{rank}/{number}")
"""A chunk of a rank's part, by its number, counted from 0."""
compressed_chunk = Key[[str, SaveId, int, int]]("jobs/{job}/checkpoints/{save}/chunks/{rank}/{number}.z")
"""A compressed chunk. The key differs from the uncompressed chunk's, so that a late put of one form cannot
replace an object of the other form that a part's record describes.
"""
base_mark = Key[[str, SaveId, int, CheckpointId]]("jobs/{job}/checkpoints/{save}/bases/{rank}/{checkpoint}")
"""The mark that a rank's part of a save may name chunks of that checkpoint."""

Form = Key[...]
_OF_JOB: list[Form] = [
    key
    for key in list(vars().values())
    if isinstance(key, Key) and key.form.startswith(job_prefix.form) and key.form[-1] not in "/-"
]


def recognize(key: str, forms: Iterable[Form]) -> tuple[Form, tuple[Any, ...]] | None:
    """Return the first of the forms that fits the key, with its fields' values, or None if none fits."""
    for form in forms:
        values = form.match(key)
        if values is not None:
            return form, values
    return None


def job_of(key: str) -> str | None:
    """Return the id of the job to which a key belongs, or None if the key fits no form of job keys.

    A store may be the root of a shared bucket in which other programs have their own ``jobs/``.
    """
    found = recognize(key, _OF_JOB)
    return None if found is None else str(found[1][0])


def is_shared(key: str) -> bool:
    """Return whether the key is that of an ``agent`` or a ``code`` object.

    A store may be the root of a shared bucket in which other programs have their own ``agents/`` or
    ``code/``.
    """
    return agent.match(key) is not None or code.match(key) is not None


_PASSING: tuple[Form, ...] = (agent, code, removal, market_seen, driver, probe, live, recent)


def is_passing(key: str) -> bool:
    """Return whether the key may exist in a store without jobs, so that it holds nobody's work.

    Examples are agents and code that no job needs any more, and market observations.
    """
    return recognize(key, _PASSING) is not None
