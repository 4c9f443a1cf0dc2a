"""The interfaces that a provider plugin implements; all that a plugin author has to read.

Everything here is synchronous and must be thread-safe. A plugin translates its SDK's errors at its
edge into :mod:`cloudspot.errors` (``raise CapacityError(...) from error``), so that the core never
sees an SDK.

Three clouds stand on them, and none of the three has met its real cloud yet: until one has, the
interfaces may still move, and the changelog says so when they do.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import timezone
from types import TracebackType
from typing import Any, ClassVar

import msgspec

from cloudspot.errors import CloudspotError
from cloudspot.model import (
    BootProfile,
    CheckResult,
    Instance,
    InstanceGroup,
    LaunchRequest,
    LogPiece,
    LogRecord,
    NodeIdentity,
    ObjectMeta,
    ObjectPage,
    Offer,
    PreemptionNotice,
    Resources,
)

Data = bytes | bytearray | memoryview

_KEY_SEGMENT = re.compile(r"[\x20-\x7e]{1,255}")
_STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_key(key: str) -> None:
    """Raise ValueError unless the key is one that every ObjectStore takes."""
    for segment in key.split("/"):
        if segment in (".", "..") or _KEY_SEGMENT.fullmatch(segment) is None:
            raise ValueError(
                f"key {key!r} must be ASCII words of 1 to 255 bytes with / between, none . or .."
            )


def is_key(text: str) -> bool:
    """Say whether it is a key that every ObjectStore takes; a listing passes over what is none."""
    try:
        check_key(text)
    except ValueError:
        return False
    return True


def is_stream(text: str) -> bool:
    """Return whether the text can name a log stream."""
    return _STREAM.fullmatch(text) is not None


def check_stream(stream: str) -> None:
    """Raise ValueError unless the text can name a log stream."""
    if not is_stream(stream):
        raise ValueError(f"a stream name must be letters, digits and .-_: got {stream!r}")


class Provisioner(ABC):
    """Creates, lists and ends machines. Runs where the controller runs, never on a node."""

    token_seconds: ClassVar[float]
    """How long the provider honours an idempotency token, in seconds, at the least."""
    absence_proves_after_seconds: ClassVar[float]
    """A machine once seen and absent from ``instances()`` for this long is dead, in seconds."""

    @abstractmethod
    def render(self, group: InstanceGroup) -> LaunchRequest:
        """Return the very request that ``create`` will send.

        Pure: no I/O, and the same group gives the same request. It is what ``--dry-run`` prints and
        what the intent stores.
        """

    @abstractmethod
    def create(self, request: LaunchRequest, *, token: str) -> Sequence[Instance]:
        """Create all machines of the request, or none.

        Called again with the same token and request it returns the same machines and creates none,
        for at least ``token_seconds``. Returns as soon as the provider has accepted; the machines
        may still be pending. Placement (one zone, a cluster group) is arranged here.

        Raises:
            CapacityError: the offer has none now, or fewer than ``min_nodes``; nothing is left.
            QuotaError: the account's limit is reached; nothing is left.
            AuthError: credentials are missing or lack the right.
            ProvisionError: the request can never work (unknown image, bad name); nothing is left.
            TransientError: the outcome is unknown; call again with the same token and request.
        """

    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Make facts such as MASTER_ADDR known to the machines (tags, metadata); safe to repeat.

        The names are of ``model.ANNOUNCED``; a machine reads them by ``Provider.announced``. A provider that
        names its machines names each by ``Instance.node_name``. Any controller may announce at any time, also
        what has been announced before; nothing depends on it.

        Raises:
            TransientError: not all machines have the facts; call again.
        """
        return None

    @abstractmethod
    def instances(self, *, job_id: str | None = None) -> Sequence[Instance]:
        """Return the machines that carry cloudspot's tags: every page, recently ended ones too.

        An ended machine is reported with its reason for as long as the provider can tell. A listing
        may lag behind ``create``.

        Raises:
            TransientError: the listing failed; nothing is known.
        """

    @abstractmethod
    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Ask for the end of the machines and return without waiting.

        Unknown or already ended ids are no error, so it is safe to repeat.
        """

    def release(self, job_id: str, *, store_url: str = "") -> None:
        """Remove what was made for the job beside its machines, such as a placement group; safe to repeat.

        Called when the job is finished and all its machines have ended, by any controller. ``store_url`` is
        what its InstanceGroups had: another store may have a job of the same id.

        Raises:
            TransientError: it cannot be removed yet; call again.
        """
        return None

    @abstractmethod
    def offers(self, resources: Resources) -> Sequence[Offer]:
        """Return what can be bought for these resources: type x zone x market, with prices.

        In any order; the policy sorts. Empty when nothing fits.
        """


class PreemptionSource(ABC):
    """Tells a node that it will be taken. Runs on the node, on the standard library alone."""

    notice_seconds: float
    """How long this provider's notices are, in seconds: the deadline of one that states no time, and the
    most that a stated time is believed, since the node's wall clock may be wrong. Set it in the class,
    or per instance where the job decides."""
    poll_seconds: ClassVar[float] = 1.0
    """How often ``wait`` polls, in seconds."""

    @abstractmethod
    def poll(self) -> PreemptionNotice | None:
        """Return the standing notice, or None. Answers within seconds.

        Raises:
            TransientError: the metadata service did not answer; nothing is known.
        """

    def wait(self, timeout: float) -> PreemptionNotice | None:
        """Return as soon as there is a notice, or None after ``timeout`` seconds.

        The default polls; a provider with a long poll overrides it.
        """
        end = time.monotonic() + timeout
        while True:
            notice = self.poll()
            left = end - time.monotonic()
            if notice is not None or left <= 0:
                return notice
            time.sleep(min(self.poll_seconds, left))


class Upload(ABC):
    """A streamed put. Nothing is visible under the key until ``commit``, which makes it visible whole.

    Used as a context manager, an upload that was not committed is aborted. One that has ended takes no
    more: ``write`` and ``commit`` then raise ValueError.
    """

    @abstractmethod
    def write(self, data: Data) -> None:
        """Append bytes; may block on the network. The buffer is the caller's again when it returns."""

    @abstractmethod
    def commit(self) -> None:
        """Make the object visible, whole.

        Raises:
            ObjectExists: opened with ``if_absent`` and the key is taken.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop what was written; safe to repeat, and after ``commit`` it does nothing."""

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abort()


class ObjectStore(ABC):
    """A flat, strongly consistent map from keys to bytes, with create-if-absent.

    A key is ``/``-separated words of 1 to 255 printable ASCII characters, none of them ``.`` or ``..``;
    another is a ValueError (see ``check_key``). A put is atomic: no reader sees a part of it. After a put
    returns, every get and listing shows it. No hold of a caller's buffer is kept.

    All methods raise TransientError when the outcome is unknown (the caller reads back), and
    AuthError when a right is missing.
    """

    url: str
    """What the user wrote, without credentials."""

    @property
    def canonical_url(self) -> str:
        """Return the URL in a form that all spellings of it share, as far as can be told without a request.

        Machines carry it, to be told from those of another store's job of the same id.
        """
        scheme, separator, rest = self.url.partition("://")
        return scheme.lower() + separator + rest.rstrip("/")

    @abstractmethod
    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store ``data`` under ``key``, replacing what was there.

        Raises:
            ObjectExists: ``if_absent`` was given and the key is taken; nothing was changed. An SDK
                that retries may have met its own put: callers that care read the key back.
        """

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Return the whole object.

        Raises:
            ObjectMissing: no such key.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return bytes ``start`` (inclusive, from 0) to ``start + length`` (exclusive).

        Fewer bytes come back where the object ends earlier; none where ``start`` is at or past its end.

        Raises:
            ObjectMissing: no such key.
            ValueError: ``start`` or ``length`` is negative.
        """

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Read bytes from ``start`` (inclusive, from 0) into the buffer, and return how many there were.

        The buffer is writable and in one piece. It is filled, unless the object ends earlier; what lies
        behind the bytes that came is left undefined, and so is all of it after an error. For large reads
        again and again: a buffer that is kept costs a fraction of fresh memory. This goes by way of
        ``get_range``; override it where bytes can be read to where they belong.

        Raises:
            ObjectMissing: no such key.
            ValueError: ``start`` is negative.
        """
        with memoryview(buffer).cast("B") as view:
            data = self.get_range(key, start, len(view))
            view[: len(data)] = data
            return len(data)

    @abstractmethod
    def head(self, key: str) -> ObjectMeta:
        """Return what is known of the object without its bytes.

        Raises:
            ObjectMissing: no such key.
        """

    @abstractmethod
    def list_page(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """Return up to ``limit`` objects whose keys start with ``prefix`` and come after ``after``.

        Keys are in ascending order of their bytes. ``after`` need not be a key. A store may return fewer
        than ``limit`` and more to come.

        Raises:
            ValueError: ``limit`` is not positive.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; a missing key is no error."""

    @abstractmethod
    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put, for objects too large to hold in memory."""

    @abstractmethod
    def presign_get(self, key: str, *, seconds: float) -> str:
        """Return a URL that reads the object for ``seconds`` without other credentials."""

    def check(self) -> Sequence[CheckResult]:
        """Try whether the store can be used, and say what is missing and what it costs besides."""
        return ()

    def list_objects(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield every object under ``prefix`` in ascending order of keys."""
        after: str | None = None
        while True:
            page = self.list_page(prefix, after=after)
            yield from page.objects
            if page.next_after is None:
                return
            after = page.next_after


class LogSink(ABC):
    """Where log lines go and are read again after the machines are gone."""

    is_in_store: ClassVar[bool] = False
    """Its pieces are in the job's object store, and are removed with the job."""

    @abstractmethod
    def write(self, records: Sequence[LogRecord]) -> None:
        """Deliver records of one stream, in ascending ``seq``; returns when they are durable.

        Delivering a record again (same stream and ``seq``) is no error and shows it once.

        Raises:
            ValueError: the stream's name is not one that ``check_stream`` accepts.
            TransientError: some may not be delivered; the caller keeps them and tries again.
        """

    @abstractmethod
    def streams(self) -> Sequence[str]:
        """Return the names of the job's streams, sorted."""

    @abstractmethod
    def read(self, stream: str, *, after: int = -1) -> Iterator[LogRecord]:
        """Yield the stream's records with ``seq > after``, in order, each once."""

    def read_back(self, stream: str) -> Iterator[LogRecord]:
        """Yield the stream's records from the newest back to the first, each once.

        A caller takes what it needs and stops: the last lines, or those since a moment. This reads the whole
        stream first; override it where a stream can be read from its end, so that whoever attaches to an old
        job waits for no more than a screen of its log.
        """
        yield from reversed(list(self.read(stream)))

    def pieces(self) -> Sequence[LogPiece]:
        """Return what the log consists of, by stream and day, as far as the sink can tell.

        This reads all streams; override it where the pieces can be listed.
        """
        found = []
        for stream in self.streams():
            records = list(self.read(stream))
            days = [record.time.astimezone(timezone.utc).date() for record in records]
            if days:
                size = sum(len(record.text.encode("utf-8", "replace")) + 1 for record in records)
                found.append(
                    LogPiece(
                        stream=stream, name=stream, first_day=min(days), last_day=max(days), num_bytes=size
                    )
                )
        return found

    def remove(self, pieces: Sequence[LogPiece]) -> None:
        """Delete pieces for good; one that is gone is no error.

        A stream goes on behind what was removed from it.

        Raises:
            CloudspotError: nothing can be removed here; the message says what is done instead.
        """
        raise CloudspotError("this log cannot be pruned: where it is kept it ends by its retention alone")


class Provider(ABC):
    """What a plugin registers: lazy factories of the interfaces. Importing it imports no SDK."""

    name: ClassVar[str]
    """The entry point's name and the table ``[providers.NAME]`` of the job file."""
    options_type: ClassVar[type[msgspec.Struct]]
    """The type of that table; a field without a default is required."""
    announce_seconds: ClassVar[float] = 0.0
    """How long, in seconds, a node that is ready waits at most for what is announced to it. It can go on
    without; 0: it looks once."""

    def __init__(self, options: msgspec.Struct) -> None:
        """Keep the job's options, an ``options_type``; do no I/O."""
        self.options = options

    @abstractmethod
    def provisioner(self) -> Provisioner:
        """Return the provisioner; called where the controller runs."""

    @abstractmethod
    def preemption_source(self) -> PreemptionSource:
        """Return the source of notices; called on a node."""

    @abstractmethod
    def node_identity(self) -> NodeIdentity:
        """Say who this machine is; called on a node.

        Raises:
            TransientError: the metadata service is not up yet.
        """

    def announced(self) -> Mapping[str, str]:
        """Return what the provisioner has announced to this machine, as far as it shows; called on a node.

        Of ``model.ANNOUNCED``. Empty before it has come, and where a provider has no such thing.

        Raises:
            TransientError: the metadata service did not answer; nothing is known.
        """
        return {}

    @abstractmethod
    def boot_profile(self) -> BootProfile:
        """Say how this provider's machines come from a bare boot to the agent."""

    def pinned_options(self) -> Mapping[str, Any]:
        """Return options that this environment decides where the job leaves them out, such as a region.

        Asked once, on submission, and stored with the job: every controller and node then has the same,
        whatever its own environment says. A controller that looked for the machines elsewhere would see
        none, and take them for dead. JSON values by the option's name, which takes precedence over what
        the job's table says.

        Raises:
            SpecError: an option is wrong or missing.
            AuthError: there are no credentials.
        """
        return {}

    def default_store(self) -> str | None:
        """Return the URL of the store to use where neither the job nor the user names one; None: none."""
        return None

    def log_sink(self, store: ObjectStore, job_id: str) -> LogSink | None:
        """Return the sink for the job's logs; None keeps them in the object store."""
        return None

    def check(self, *, resources: Resources | None = None) -> Sequence[CheckResult]:
        """Try what a job needs (credentials, rights, network) and say what is missing.

        ``resources`` is what one node of the job must have; None: no job is known.
        """
        return ()

    def preempt(self, instance_id: str, *, notice_seconds: float | None = None) -> None:
        """Reclaim a machine on purpose, for drills; providers that cannot raise CloudspotError.

        ``notice_seconds`` of 0 takes it without notice; None uses the provider's usual notice.
        """
        raise CloudspotError(f"provider {self.name!r} cannot reclaim a machine on demand")
