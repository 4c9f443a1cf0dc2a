"""The interfaces that a provider plugin implements. Plugin authors need to read nothing else.

A plugin provides a :class:`Provider`, which makes a :class:`Provisioner` (machines), a
:class:`PreemptionSource` (notices) and, where the cloud has them, a :class:`LogSink` (logs). An
:class:`ObjectStore` (bucket) is opened by its URL and need not belong to a provider. A :class:`Notifier`
sends a job's messages to people, a :class:`Tracker` lets its runs in an experiment tracker continue, and a
:class:`DriverTask` is work that its drivers do periodically.

Everything is synchronous and must be thread-safe. A plugin catches its SDK's errors and raises those of
:mod:`cloudspot.errors` (``raise CapacityError(...) from error``), so that the core never sees an SDK. Unless
a method's docstring states otherwise, the method raises TransientError when a service does not answer, and
AuthError when credentials are missing or lack a permission.

A call that may later need more arguments or results takes one request and returns one result, both from
:mod:`cloudspot.calls`. Later versions add fields with defaults, so existing plugins keep working. Each
request has a ``deadline``. A plugin need not enforce it, but should stop waiting by then: later results are
ignored, and the call is repeated. ``CALLS`` in :mod:`cloudspot.calls.guard` lists how long each call may
take; docs/plugin-kits.md describes how cloudspot handles calls that take longer or fail in other ways.

A change that would break existing plugins increments ``cloudspot.hookspecs.API_VERSION``.
"""

from __future__ import annotations

import functools
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, get_args
from urllib.parse import quote

import msgspec

from cloudspot.calls import (
    CheckRequest,
    CheckResults,
    CreateRequest,
    CreateResult,
    InstancesRequest,
    InstancesResult,
    LinkRequest,
    LinkResult,
    OffersRequest,
    OffersResult,
    PreemptRequest,
    PreemptResult,
    SetupRequest,
    TaskRequest,
    TaskResult,
    TerminateRequest,
    TerminateResult,
    TrackingRequest,
)
from cloudspot.calls.guard import Guarded, check_answers
from cloudspot.decoding import MAX_PRICE, MAX_TALLY, StreamName, fault_of, is_possible_time
from cloudspot.errors import CloudspotError, ProvisionError, StoreRefused, TransientError
from cloudspot.host.names import MAX_SEGMENT_BYTES, is_safe_name
from cloudspot.model import (
    Asset,
    BootProfile,
    Capability,
    DriverFunction,
    FunctionStatus,
    Instance,
    InstanceGroup,
    InstanceState,
    LaunchRequest,
    LogPiece,
    LogRecord,
    MachineImage,
    Message,
    NodeIdentity,
    ObjectMeta,
    ObjectPage,
    Offer,
    PartState,
    PreemptionNotice,
    RegistryLogin,
    SetupSettings,
    UnfinishedUpload,
)

Options = TypeVar("Options", bound=msgspec.Struct)
"""The type of a provider's options, for classes that are generic in it."""
if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultedTypeVar

    # A plain ``Provider`` has options of any type. typing supports defaults since Python 3.13.
    _Options = DefaultedTypeVar("_Options", bound=msgspec.Struct, default=Any)
else:
    _Options = Options

Data = bytes | bytearray | memoryview

_STREAM = re.compile(get_args(StreamName)[1].pattern)


def is_key(text: str) -> bool:
    """Return whether the text is a valid key, which every ObjectStore accepts.

    A key is printable ASCII: names of 1 to 255 bytes, separated by ``/``, none of them ``.`` or ``..``. If a
    store's service does not accept some of these characters, such as the backslash, the store escapes them so
    that keys keep their order and prefixes remain prefixes.
    """
    return text.isascii() and text.isprintable() and is_safe_name(text)


def check_key(key: str) -> None:
    """Raise ValueError unless the key is valid."""
    if not is_key(key):
        raise ValueError(
            f"key {key!r} must consist of ASCII words of 1 to 255 bytes, separated by slashes, and no word "
            "may be . or .."
        )


def is_stream(text: str) -> bool:
    """Return whether the text can name a log stream."""
    return _STREAM.fullmatch(text) is not None


def check_stream(stream: str) -> None:
    """Raise ValueError unless the text can name a log stream."""
    if not is_stream(stream):
        raise ValueError(
            f"a stream name must consist of letters, digits, dots, hyphens and underscores: got {stream!r}"
        )


class Provisioner(Guarded, ABC):
    """Creates, lists and ends machines. It runs where the controller runs, never on a node.

    ``render`` is never called for an offer on a market that this version of cloudspot does not know.
    The results of ``instances``, ``offers`` and ``current_price`` are checked before a caller sees them: each
    machine must belong to a job, and to the requested job if the request names one; each number must lie
    within the bounds of its field. If a result fails this check, the call raises TransientError.
    """

    token_seconds: float
    """The provider honours an idempotency token for at least this long."""
    absence_proves_after_seconds: float
    """A machine that was listed once and has then been absent from ``instances()`` for this long is dead. Set
    both attributes in the class or on each instance."""

    @abstractmethod
    def render(self, group: InstanceGroup) -> LaunchRequest:
        """Return the request that ``create`` will send; ``--dry-run`` prints it and the intent stores it.

        This does no I/O, and the same group always gives the same request.
        """

    @abstractmethod
    def create(self, request: CreateRequest) -> CreateResult:
        """Create the machines of the request: at least ``min_nodes`` and at most ``num_nodes``, or none.

        For at least ``token_seconds``, a repeated call with the same token and request creates nothing and
        returns the same machines, including those that have ended since, if the provider still knows them. If
        the provider no longer knows any of them, the call raises ProvisionError. The call returns as soon as
        the provider has accepted the request; the machines may still be pending. It also arranges their
        placement, such as a common zone or a cluster group.

        Raises:
            CapacityError: the offer lacks capacity for ``min_nodes`` machines now; none is left running.
            QuotaError: the account has reached its limit; none is left running.
            ProvisionError: the request can never succeed (unknown image, bad name); none is left running.
            TransientError: the outcome is unknown; call again with the same token and request.
        """

    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Publish facts such as MASTER_ADDR to the machines (tags, metadata); safe to repeat.

        ``model.ANNOUNCED`` lists the names. Cloudspot itself does not read these facts: they are for people
        and for the job's own scripts, and may appear in the machine's metadata late or not at all. A provider
        that names its machines uses ``Instance.node_name``. Any controller may announce at any time, and may
        repeat an earlier announcement.

        Raises:
            TransientError: some machines lack the facts; call again.
        """
        return None

    @abstractmethod
    def instances(self, request: InstancesRequest) -> InstancesResult:
        """Return the machines with cloudspot's tags, from all pages, including recently ended machines.

        Return exactly the machines that the request ``wants``. Report an ended machine, with the reason for
        its end, for as long as the provider knows it. A listing may lag behind ``create``.

        Raises:
            TransientError: the listing failed or is inconsistent, so nothing is known about the machines.
        """

    @abstractmethod
    def terminate(self, request: TerminateRequest) -> TerminateResult:
        """Ask the provider to end the machines; return each refusal with its reason, without waiting.

        Every machine is tried, even if others fail. Safe to repeat: unknown or ended ids are no error.

        Raises:
            AuthError: none of the machines could be ended, because a permission is missing.
            TransientError: none of the machines could be ended; call again.
        """

    def console(self, instance: Instance) -> str:
        """Return the machine's console output since its boot, if the provider has it (CONSOLE).

        Drivers call this for a machine that does not come up, to show the reason. The end of the output may
        be missing, as may the beginning of a long output.
        """
        return ""

    def release(self, job_id: str, *, store_url: str = "") -> None:
        """Remove the job's resources other than its machines, such as a placement group; safe to repeat.

        Any controller calls this once the job is finished and all its machines have ended. ``store_url`` is
        the one in the job's InstanceGroups; a job in another store may have the same id.

        Raises:
            TransientError: a resource cannot be removed yet; call again.
        """
        return None

    @abstractmethod
    def offers(self, request: OffersRequest) -> OffersResult:
        """Return the offers that satisfy the resources (type x zone x market, with prices), possibly none.

        ``Offer.billing`` describes the time for which a machine is charged: its minimum, its increment, and
        the time that is free if a spot machine is reclaimed. By default, each second that has begun is
        charged.
        """

    def current_price(self, offer: Offer) -> float | None:
        """Return the offer's current hourly price per node, computed as in ``offers``; None if unchanged.

        It is called every few minutes for each running spot launch; the bill and ``limits.max_cost`` follow
        it. The default suits markets whose prices stay constant while a machine runs.

        Raises:
            TransientError: the price is unknown at the moment.
        """
        return None


class FunctionHost(Guarded, ABC):
    """Runs a small program on a schedule, without any of the user's machines.

    Each method may be interrupted at any point and repeated; the repeated call continues the work.
    """

    @abstractmethod
    def plan(self, function: DriverFunction) -> Sequence[str]:
        """Return what ``deploy`` would create and its monthly cost, one line per item; change nothing.

        Raises:
            SpecError: the function cannot run here; the message states what must change.
        """

    @abstractmethod
    def deploy(self, function: DriverFunction) -> None:
        """Create or update the function, its schedule and its minimal role; then run the function once.

        The function also runs whenever the provider reports that it reclaims a machine of the account.
        Deploying the same function again changes nothing.

        Raises:
            AuthError: a permission is missing.
            CloudspotError: the function does not run; the message contains its output.
        """

    @abstractmethod
    def status(self, name: str) -> FunctionStatus | None:
        """Return the provider's report about the function, or None if there is no function of that name."""

    @abstractmethod
    def remove(self, name: str) -> Sequence[str]:
        """Remove the function and everything that ``deploy`` created for it; return what was removed.

        Safe to repeat: a missing resource is no error.
        """


class ImageHost(Guarded, ABC):
    """Keeps machine images on which a job's setup has already run; later machines start from them.

    It handles only images that ``save`` made, in the region that the options name. ``Provisioner.offers``
    starts machines from the image that has the options' ``setup_key`` and was made from the image named in
    the options. If there is no such image, it uses the image named in the options.
    """

    @abstractmethod
    def find(self, key: str) -> MachineImage | None:
        """Return the image with this key, or None if there is none.

        Once it is ready, ``offers`` starts machines from it. A failed image is returned only if there is no
        other.
        """

    @abstractmethod
    def images(self) -> Sequence[MachineImage]:
        """Return all images, in any order."""

    @abstractmethod
    def save(self, instance: Instance, *, key: str, job_name: str) -> MachineImage:
        """Start making an image of a running machine's disk, and return the image in its present state.

        The machine has already written everything to its disk, and keeps running. It must not end before the
        image is ready. If ``find`` already returns an image for the key, and that image has not failed,
        return it and make nothing.

        Raises:
            AuthError: a permission is missing; the message names it.
            CloudspotError: the provider refuses the request.
        """

    @abstractmethod
    def remove(self, image_id: str) -> None:
        """Delete the image and everything billed for it; safe to repeat: an unknown id is no error."""


class SetupPart(Guarded, ABC):
    """A resource that an account needs before its first job, such as a bucket or a role.

    Kind and name identify the part in the record of everything that ``cloudspot setup`` created.
    """

    kind: str
    """The everyday word for such a resource: ``bucket``."""
    name: str
    """The provider's name for the resource, unique among the parts of its kind."""
    purpose: str
    """Why the resource is needed, in one line."""
    cost: str
    """Its cost per month, in words: ``no charge``."""
    rights: tuple[str, ...]
    """The permissions that the part grants, one line each, with the reason; empty if it grants none."""
    commands: tuple[str, ...]
    """Commands of the provider's own command-line tool that do the same as ``make``, for a POSIX shell."""
    is_store: bool
    """Whether the part is the bucket that stores the jobs."""

    @abstractmethod
    def look(self, *, is_own: bool) -> PartState:
        """Return the present state of the part in the account; change nothing.

        ``is_own`` means that, according to the record, this setup created the resource or began to. In that
        case ``lacks`` reports any difference from the part, and ``make`` corrects it. A resource that someone
        else created is never changed: ``lacks`` lists what it does not allow, ``excess`` what it allows
        beyond the part.
        """

    @abstractmethod
    def make(self) -> None:
        """Create the part, or add what it lacks; safe to repeat after an interruption at any point.

        Raises:
            AuthError: a permission is missing, or a policy of the organisation forbids it.
            CloudspotError: the provider refuses; the message states what to do instead.
        """

    @abstractmethod
    def remove(self) -> str | None:
        """Remove the part and nothing else; return None, or why it stays, for example for other users.

        Safe to repeat: a missing part is no error. If the part is a bucket, the caller empties it first.

        Raises:
            CloudspotError: the part is in use.
        """


class AccountSetup(Guarded, ABC):
    """The parts and settings that an account needs before its first job, for ``cloudspot setup``."""

    @abstractmethod
    def account(self) -> str:
        """Return the account to which the credentials belong, with the location if its parts have one.

        This name identifies the record of the created parts, so it must be the same for all users of the
        account.
        """

    @abstractmethod
    def parts(self, request: SetupRequest) -> Sequence[SetupPart]:
        """Return the parts that the account needs, in the order in which they can be created; create nothing.

        Raises: SpecError: the request names something that does not exist or must not be given permissions.
        """

    @abstractmethod
    def settings(self, request: SetupRequest) -> SetupSettings:
        """Return the settings for the user's config file; called once all parts exist."""


class Inventory(Guarded, ABC):
    """All resources of one kind that cloudspot created in one location, for ``cloudspot reap``."""

    title: str
    """A title for messages: ``volumes in us-east-1``."""

    @abstractmethod
    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return all resources that carry cloudspot's tag, or its name if their kind has no tags.

        Return no others, however similar they look. Resources in use are included: the caller decides which
        are orphans. ``store_urls`` are the stores that the caller knows, written as in InstanceGroups. If a
        resource's name has room only for a digest of the URL, compare digests to find the store.
        """

    @abstractmethod
    def end(self, asset: Asset) -> None:
        """End one of these resources, or request its end without waiting.

        Safe to repeat: a missing resource is no error.

        Raises:
            TransientError: the resource cannot be ended yet, such as a placement group that still has a
                machine.
            CloudspotError: the provider refuses the request.
        """


class MachineInventory(Inventory):
    """The machines of a provisioner that have not ended."""

    title = "machines"

    def __init__(self, provisioner: Provisioner) -> None:
        """Do no I/O."""
        self._provisioner = provisioner

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return the machines; see Inventory."""
        return [
            Asset(
                kind="machine",
                id=one.id,
                where=one.zone or "",
                job_id=one.job_id,
                store_url=one.store_url,
                created_at=one.launched_at,
                detail=", ".join(filter(None, (one.instance_type, one.market and one.market.value))),
            )
            for one in self._provisioner.instances(InstancesRequest()).instances
            if one.state is not InstanceState.ENDED
        ]

    def end(self, asset: Asset) -> None:
        """Terminate the machine."""
        for one in self._provisioner.terminate(TerminateRequest(instance_ids=(asset.id,))).refused:
            raise CloudspotError(one.reason)


class PreemptionSource(Guarded, ABC):
    """Reports that this machine will be reclaimed. It runs on the node and uses only the standard library."""

    notice_seconds: float
    """The usual length of this provider's notices. It is the deadline of a notice without a time, and the
    upper bound for a notice with one, because the node's clock may be wrong. It does not bound
    ``deadline_monotonic``. Set it in the class, or on each instance if it depends on the job."""
    poll_seconds: ClassVar[float] = 1.0
    """How often ``wait`` polls, in seconds."""

    @abstractmethod
    def poll(self) -> PreemptionNotice | None:
        """Return the current notice, or None. The call returns within seconds.

        Raises:
            TransientError: the metadata service did not answer, so it is unknown whether there is a notice.
        """

    def is_at_risk(self) -> bool:
        """Return whether the provider reports an elevated risk of reclaiming this machine.

        The result reflects what ``poll`` last saw, without I/O. A risk is a hint, not a notice: training
        continues, and a driver may buy a replacement in advance. The default suits providers without such
        hints.
        """
        return False

    def wait(self, timeout: float) -> PreemptionNotice | None:
        """Wait for a notice and return it, or return None after ``timeout`` seconds.

        The default calls ``poll`` repeatedly; override it if the provider has a long poll.
        """
        end = time.monotonic() + timeout
        while True:
            notice = self.poll()
            left = end - time.monotonic()
            if notice is not None or left <= 0:
                return notice
            time.sleep(min(self.poll_seconds, left))


class Upload(Guarded, ABC):
    """A streamed put. Nothing is visible under the key until ``commit`` publishes the whole object.

    Leaving the context manager aborts an upload that was not committed. After ``commit`` or ``abort``,
    ``write`` and ``commit`` raise ValueError.
    """

    _has_ended: bool = False

    def _may_refuse(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return self._has_ended and name != "abort"

    def _note_call(self, name: str) -> None:
        self._has_ended = self._has_ended or name != "write"

    @abstractmethod
    def write(self, data: Data) -> None:
        """Append bytes; this may block on the network.

        The caller may reuse the buffer after the call returns.
        """

    @abstractmethod
    def commit(self) -> None:
        """Make the whole object visible.

        Raises:
            ObjectExists: the upload was opened with ``if_absent``, and the key is taken.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard the upload. Safe to repeat; after ``commit`` it does nothing."""

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()


MAX_GET_BYTES: Final = 128 << 20
"""The size limit for objects that are read whole. The largest of them are code bundles, of at most 100 MiB.
Records that may be larger, such as a manifest covering very many ranks, are read in ranges."""
MAX_LISTED: Final = 10_000_000
"""This exceeds the number of objects of any job and of files of any input. It protects callers, which keep
listings in memory, from a server that invents keys without end."""


class ObjectStore(Guarded, ABC):
    """A flat, strongly consistent map from keys to bytes, with create-if-absent.

    A key is a sequence of ``/``-separated words of 1 to 255 printable ASCII characters, none of them ``.`` or
    ``..``; every method raises ValueError for anything else. A store escapes characters that its service does
    not accept, and callers never see the escaped form. A put is atomic: no reader sees a partial object. Once
    a put returns, every get and listing reflects it. A store does not keep a reference to a caller's buffer.

    A TransientError means that the outcome is unknown, so the caller reads the key back.

    Listings decide which objects are deleted, so each page is checked before a caller sees it: its keys must
    be valid, have the prefix and be in order, its sizes and times must be possible, and the next page must
    start after it. The result of ``head`` is checked in the same way. If a check fails, the call raises
    StoreRefused.
    """

    url: str
    """The URL as the user wrote it, without credentials."""

    def _may_refuse(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        if name in {"list_page", "list_pages"}:
            return int(kwargs.get("limit", 1)) < 1  # a prefix need not be a valid key
        values = [*args, *(value for name, value in kwargs.items() if name != "cursor")]
        if name == "delete_many":
            values += args[0]
        return (
            kwargs.get("limit") == 0
            or any(isinstance(one, str) and not is_key(one) for one in values)
            or any(isinstance(one, int) and one < 0 for one in values)
        )

    @property
    def canonical_url(self) -> str:
        """The URL in a form shared by all its spellings, as far as this is possible without a request.

        Machines carry it as a tag, which distinguishes them from machines of a job with the same id in
        another store.
        """
        scheme, separator, rest = self.url.partition("://")
        return scheme.lower() + separator + rest.rstrip("/")

    def establish(self) -> str | None:
        """Create the store's root if it is missing, bind to it (``hold_to``), and return the id in its mark.

        Only a submission calls this; nothing else creates a store's root. The default does nothing and
        returns None, which suits stores that are not mounted and whose owner creates them, such as buckets.

        Raises:
            TransientError: the store is bound to an existing root, which is missing.
        """
        return None

    def find_id(self) -> str | None:
        """Return the id in the store's mark, or None if there is no mark."""
        return None

    def hold_to(self, store_id: str | None = None) -> None:
        """Make later requests raise TransientError while the store's root is missing or has another id.

        ``store_id`` is the result of ``establish``, perhaps on another computer. With None, the first request
        accepts any id, and later requests accept only that id. This call does no I/O. The default does
        nothing.
        """

    @abstractmethod
    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store ``data`` under ``key``, replacing any existing object.

        Raises:
            ObjectExists: ``if_absent`` was given and the key is taken; nothing was changed. The existing
                object may come from an earlier attempt by the SDK: read the key back if that matters.
        """

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Return the whole object, of at most ``MAX_GET_BYTES``; never read more than that.

        Others can write to the store, so a caller cannot rely on an object's size. Read larger objects with
        ``get_range``.

        Raises:
            ObjectMissing: no such key.
            CorruptData: the object is larger than ``MAX_GET_BYTES``.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return the bytes from ``start`` (inclusive, counted from 0) to ``start + length`` (exclusive).

        The result is shorter if the object ends first, and empty if ``start`` is at or after the object's
        end.

        Raises:
            ObjectMissing: no such key.
            ValueError: ``start`` or ``length`` is negative.
        """

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Fill the buffer with the bytes from ``start`` (inclusive, counted from 0); return their number.

        This number is less than the buffer's size only if the object ends first. The rest of the buffer is
        then undefined, and after an error the whole buffer is. Reusing a buffer costs a fraction of
        allocating a new one. The default calls ``get_range``; override it if the service can write into a
        buffer.

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
        """Return the object's metadata, such as its size and time.

        Raises:
            ObjectMissing: no such key.
        """

    @abstractmethod
    def list_page(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, cursor: str = ""
    ) -> ObjectPage:
        """Return up to ``limit`` objects whose keys start with ``prefix`` and come after ``after``.

        ``cursor`` comes from the previous page, together with ``next_after``, which is passed as ``after``.
        It is for services that continue a listing only with a token; a store whose pages have no cursor never
        receives one. A store with cursors may still receive ``after`` alone, from a reader that continues
        later. It then lists from the beginning and omits the keys up to ``after``.

        Keys are in ascending order of their bytes. ``after`` need not be a valid key. A page may hold fewer
        than ``limit`` objects even if more follow. Names that are not valid keys are skipped; stores that can
        report them do so in ``ObjectPage.skipped``.

        Raises:
            ValueError: ``limit`` is not positive.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; a missing key is no error."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, in any order; missing keys are no error. After an error, some may remain.

        The default deletes the objects one by one; override it if the service can delete many in one request.
        """
        for key in keys:
            self.delete(key)

    @abstractmethod
    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put, for objects too large to hold in memory.

        If the service accepts an object only in one request, the upload may keep the bytes in a file and send
        them at ``commit``. An unfinished upload must not be billed forever: either the service removes it, or
        ``unfinished_uploads`` yields it.
        """

    @abstractmethod
    def presign_get(self, key: str, *, seconds: float) -> str:
        """Return a URL from which anyone can read the object for ``seconds`` without credentials.

        Raises:
            CloudspotError: the store does not support such URLs.
        """

    def link(self, request: LinkRequest) -> LinkResult:
        """Return a URL that a browser without credentials shows as a page, and the time when it expires.

        A link signed with temporary credentials expires with them. The default suits stores that cannot make
        such links.

        Raises:
            CloudspotError: the store cannot make the link; the message gives the reason and a remedy.
        """
        raise CloudspotError(f"{self.url} cannot make links for a browser")

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """Yield the uploads that are neither committed nor aborted, including those still in progress.

        The default suits stores that have no unfinished uploads or do not charge for them.
        """
        return iter(())

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Abort one of these uploads; safe to repeat: an upload that no longer exists is no error."""
        return None

    def close(self) -> None:
        """Release the store's resources, such as connections; safe to repeat.

        The command or agent that opened the store calls this at its end, unless it is killed. The default
        does nothing.
        """

    def check(self, request: CheckRequest) -> CheckResults:
        """Check whether the store can be used, what is missing, and what it costs in addition."""
        return CheckResults()

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectMeta]:
        """Yield every object under ``prefix`` whose key comes after ``after``, in ascending order of keys.

        Raises:
            StoreRefused: there are more than ``MAX_LISTED`` objects.
        """
        left = MAX_LISTED
        for page in self.list_pages(prefix, after=after):
            yield from page.objects
            left -= len(page.objects)
            if left < 0:
                raise _refused(self, f"the listing of {prefix} has more than {MAX_LISTED} objects")

    def list_pages(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectPage]:
        """Yield the pages of the listing that ``list_objects`` returns."""
        given: dict[str, Any] = {}
        while True:
            page = self.list_page(prefix, after=after, **given)
            yield page
            if page.next_after is None:
                return
            after, given = page.next_after, {"cursor": page.cursor} if page.cursor else {}


def _checked_page(list_page: Callable[..., ObjectPage]) -> Callable[..., ObjectPage]:
    @functools.wraps(list_page)
    def checked(
        self: ObjectStore, prefix: str, *, after: str | None = None, limit: int = 1000, cursor: str = ""
    ) -> ObjectPage:
        given = {"cursor": cursor} if cursor else {}
        page = list_page(self, prefix, after=after, limit=limit, **given)
        _check_page(self, page, prefix, after)
        if page.cursor and page.cursor == cursor:
            where = prefix or "all objects"
            raise _refused(self, f"the listing of {where} does not move forward: it repeats its cursor")
        return page

    return checked


def _checked_pages(list_pages: Callable[..., Iterator[ObjectPage]]) -> Callable[..., Iterator[ObjectPage]]:
    @functools.wraps(list_pages)
    def checked(self: ObjectStore, prefix: str, *, after: str | None = None) -> Iterator[ObjectPage]:
        for page in list_pages(self, prefix, after=after):
            _check_page(self, page, prefix, after)
            yield page
            after = page.next_after

    return checked


def _checked_head(head: Callable[..., ObjectMeta]) -> Callable[..., ObjectMeta]:
    @functools.wraps(head)
    def checked(self: ObjectStore, key: str) -> ObjectMeta:
        meta = head(self, key)
        if meta.key != key:
            raise _refused(self, f"asked for {key!r}, it answers with {meta.key[:200]!r}")
        _check_meta(self, meta)
        return meta

    return checked


def _checked_render(render: Callable[..., LaunchRequest]) -> Callable[..., LaunchRequest]:
    @functools.wraps(render)
    def checked(self: Provisioner, group: InstanceGroup) -> LaunchRequest:
        market = group.offer.market
        if not market.is_known:
            raise ProvisionError(f"cloudspot does not know the market {market.value!r}; upgrade cloudspot")
        return render(self, group)

    return checked


def _checked_instances(instances: Callable[..., InstancesResult]) -> Callable[..., InstancesResult]:
    @functools.wraps(instances)
    def checked(self: Provisioner, request: InstancesRequest) -> InstancesResult:
        found = instances(self, request)
        for one in found.instances:
            if (fault := _machine_fault(one, request)) is not None:
                raise TransientError(f"the provider's list of machines is ignored: {one.id[:200]!r} {fault}")
        return found

    return checked


def _machine_fault(machine: Instance, request: InstancesRequest) -> str | None:
    """Return the impossible value in a provider's report of a machine, or None if there is none."""
    if (fault := fault_of(machine)) is not None:
        return f"has an impossible field ({fault})"
    if len(quote(machine.id, safe="", errors="surrogatepass")) > MAX_SEGMENT_BYTES:
        return "has an id that is too long"
    if not machine.job_id or request.job_id not in {None, machine.job_id}:
        return f"has job {machine.job_id[:200]!r}" + (f", not {request.job_id!r}" if request.job_id else "")
    if not request.wants(machine):
        return f"has store {machine.store_url[:200]!r}, not {request.store_url!r}"
    moments = (machine.launched_at, machine.ended_at)
    if any(moment is not None and not is_possible_time(moment) for moment in moments):
        return f"has impossible times: {machine.launched_at} to {machine.ended_at}"
    return None


def _checked_offers(offers: Callable[..., OffersResult]) -> Callable[..., OffersResult]:
    @functools.wraps(offers)
    def checked(self: Provisioner, request: OffersRequest) -> OffersResult:
        found = offers(self, request)
        for one in found.offers:
            if (fault := fault_of(one)) is not None:
                raise TransientError(f"the offers are ignored: {one.key[:200]} is impossible ({fault})")
        return found

    return checked


def _checked_price(current_price: Callable[..., float | None]) -> Callable[..., float | None]:
    @functools.wraps(current_price)
    def checked(self: Provisioner, offer: Offer) -> float | None:
        price = current_price(self, offer)
        if price is not None and not 0 <= price <= MAX_PRICE:
            raise TransientError(
                f"the provider reports an impossible price for {offer.key}: {min(max(price, -1), 1e30):.3g}"
            )
        return price

    return checked


def _checked_identity(node_identity: Callable[..., NodeIdentity]) -> Callable[..., NodeIdentity]:
    @functools.wraps(node_identity)
    def checked(self: Provider) -> NodeIdentity:
        found: NodeIdentity = node_identity.__get__(self, type(self))()
        if (fault := fault_of(found)) is not None:
            raise TransientError(f"the metadata service reports an impossible identity: {fault}")
        return found

    return checked


def _check_page(store: ObjectStore, page: ObjectPage, prefix: str, after: str | None) -> None:
    last = after or ""
    where = prefix or "all objects"
    for meta in page.objects:
        if not meta.key.startswith(prefix):
            fault = f"also holds {meta.key[:200]!r}, so it ignores the prefix"
            raise _refused(store, f"the listing of {where} {fault}")
        if meta.key <= last:
            fault = f"does not move forward: after {last[:200]!r} comes {meta.key[:200]!r}"
            raise _refused(store, f"the listing of {where} {fault}")
        _check_meta(store, meta)
        last = meta.key
    following = page.next_after
    # The last name of a page need not be a valid key and may be empty, as for a directory marker at the
    # store's root.
    if following is not None and (
        following == after or following < max(last, prefix if after is None else "")
    ):
        raise _refused(
            store,
            f"the listing of {where} does not move forward: its next page is after {following[:200]!r} again",
        )


def _check_meta(store: ObjectStore, meta: ObjectMeta) -> None:
    if not is_key(meta.key):
        raise _refused(store, f"it lists {meta.key[:200]!r}, which is not a key")
    if not 0 <= meta.size <= MAX_TALLY:
        raise _refused(store, f"it reports {min(max(meta.size, -1), 10**30):.3g} bytes for {meta.key}")
    if not is_possible_time(meta.modified_at):
        raise _refused(store, f"it reports {meta.modified_at.isoformat()} as the time of {meta.key}")


def _refused(store: ObjectStore, fault: str) -> StoreRefused:
    return StoreRefused(f"{store.url}: {fault}; remove the proxy in between, or use another store")


class LogSink(Guarded, ABC):
    """Stores a job's log lines so that they can be read after the machines are gone."""

    is_in_store: ClassVar[bool] = False
    """Whether the pieces are in the job's object store and so are removed with the job."""

    def _may_refuse(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return name == "write" and any(not is_stream(one.stream) for one in args[0])

    @abstractmethod
    def write(self, records: Sequence[LogRecord]) -> None:
        """Store records of one stream in ascending order of ``seq``; return once they are durable.

        A record that is written twice (same stream and ``seq``) is shown once.

        Raises:
            ValueError: ``check_stream`` does not accept the stream's name.
            TransientError: some records may not be stored; the caller keeps them and tries again.
        """

    @abstractmethod
    def streams(self) -> Sequence[str]:
        """Return the names of the job's streams, sorted."""

    @abstractmethod
    def read(self, stream: str, *, after: int = -1) -> Iterator[LogRecord]:
        """Yield the stream's records with ``seq > after``, in order, each once."""

    def read_back(self, stream: str) -> Iterator[LogRecord]:
        """Yield the stream's records from newest to oldest, each once.

        Callers stop early, for example after the last screen of an old job's log. The default
        reads the whole stream first; override it if the service can read a stream from its end.
        """
        yield from reversed(list(self.read(stream)))

    def pieces(self) -> Sequence[LogPiece]:
        """Return the pieces that make up the log, by stream and day, as far as the sink knows them.

        The default reads all streams; override it if the service can list pieces.
        """
        pieces = []
        for stream in self.streams():
            records = list(self.read(stream))
            days = [record.time.astimezone(timezone.utc).date() for record in records]
            if days:
                size = sum(len(record.text.encode("utf-8", "replace")) + 1 for record in records)
                pieces.append(
                    LogPiece(
                        stream=stream, name=stream, first_day=min(days), last_day=max(days), num_bytes=size
                    )
                )
        return pieces

    def remove(self, pieces: Sequence[LogPiece]) -> None:
        """Delete pieces permanently; a missing piece is no error. Their streams can still be written to.

        Raises:
            CloudspotError: the sink cannot remove pieces; the message states how they are removed instead.
        """
        raise CloudspotError(
            "this log cannot be pruned here: set the retention period in the service that keeps it"
        )


CAPABILITY_METHODS: Final = {
    Capability.LOGS: "log_sink",
    Capability.REGISTRY: "registry_login",
    Capability.IMAGES: "image_host",
    Capability.FUNCTIONS: "function_host",
    Capability.PREEMPT: "preempt",
    Capability.SETUP: "account_setup",
}
"""The method of Provider for each capability."""
_LACKS: Final = {
    Capability.IMAGES: (
        "makes no images of machines; run.image can name a container that has what the job needs"
    ),
    Capability.FUNCTIONS: "runs no functions; run cloudspot reconcile from cron instead",
    Capability.PREEMPT: "cannot reclaim a machine on demand",
    Capability.SETUP: "has no account to set up",
}


class Provider(Guarded, ABC, Generic[_Options]):
    """The class that a plugin registers; it creates the objects of the other interfaces.

    Importing its module imports no SDK.

    It is generic in its options: ``class AcmeProvider(Provider[AcmeOptions])``.

    The result of ``node_identity`` is checked before a caller sees it: a number outside the bounds of its
    field raises TransientError.
    """

    name: ClassVar[str]
    """The name of the entry point and of the job file's table ``[providers.NAME]``."""
    options_type: ClassVar[type[msgspec.Struct]]
    """The type of this table; a field without a default is required."""
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    """The provider's abilities beyond machines. Override the methods of a capability if and only if you
    declare it. An undeclared capability's method is not called, unless its default returns a value."""
    cut_network_advice: ClassVar[str] = ""
    """Why the provider's machines may be unable to reach one another, and what to change; the message that
    reports such a failure includes it."""
    made_by: ClassVar[str] = ""
    """The plugin's distribution and version; cloudspot sets it when it imports the plugin."""
    driver_options: ClassVar[frozenset[str]] = frozenset()
    """The options that name a resource of the driver's computer, such as a profile or a file with
    credentials. A driver takes their values from its own note of the job or from its user's config file,
    never from a stored job. On a node these options have their defaults."""

    def __init__(self, options: _Options) -> None:
        """Keep the job's options, of type ``options_type``; do no I/O."""
        self.options = options

    @classmethod
    def require(cls, capability: Capability) -> None:
        """Raise CloudspotError, with an alternative, unless the provider has declared the capability."""
        if capability not in cls.capabilities:
            lack = _LACKS.get(capability, f"does not declare {capability.value!r}")
            raise CloudspotError(f"provider {cls.name!r} {lack}")

    @abstractmethod
    def provisioner(self) -> Provisioner:
        """Return the provisioner; called where the controller runs."""

    @abstractmethod
    def preemption_source(self) -> PreemptionSource:
        """Return the machine's source of notices; called on a node."""

    @abstractmethod
    def node_identity(self) -> NodeIdentity:
        """Return the identity of this machine; called on a node.

        Raises:
            TransientError: the metadata service is not up yet.
        """

    @abstractmethod
    def boot_profile(self) -> BootProfile:
        """Return how this provider's machines get from their first boot to a running agent."""

    def pinned_options(self) -> Mapping[str, Any]:
        """Return values for the options that the job omits and the environment determines, such as a region.

        It is called once, at submission, and the result is stored with the job, so that every controller and
        node uses the same values; a controller that looked in another region would consider the machines
        dead. The result maps option names to JSON values, which override the job's table.

        Raises:
            SpecError: an option is wrong or missing.
        """
        return {}

    def function_host(self) -> FunctionHost:
        """Return the service that runs drivers as functions, without a computer of the user's (FUNCTIONS)."""
        raise NotImplementedError

    def image_host(self) -> ImageHost:
        """Return the service that keeps machine images (IMAGES). Its options have a field ``setup_key``."""
        raise NotImplementedError

    def account_setup(self) -> AccountSetup:
        """Return the service that prepares an account for its first job (SETUP)."""
        raise NotImplementedError

    def registry_login(self, registry: str) -> RegistryLogin | None:
        """Return new credentials for a registry of this provider's container images (REGISTRY), or None.

        ``registry`` is the host in an image's name. It is called where a job is submitted and on its nodes
        before each pull; each caller uses its own credentials and permissions.

        Raises:
            AuthError: a permission is missing; the message names it.
        """
        return None

    def inventories(self, *, all_regions: bool) -> Sequence[Inventory]:
        """Return the inventories of everything that cloudspot creates in the account, in deletion order.

        If ``all_regions``, cover every region of the account instead of those in the options. The default
        lists only machines.
        """
        return (MachineInventory(self.provisioner()),)

    def default_store(self) -> str | None:
        """Return the URL of the store to use if neither the job nor the user names one, or None."""
        return None

    def log_sink(self, store: ObjectStore, job_id: str) -> LogSink | None:
        """Return the sink for the job's logs (LOGS), or None to keep them in the object store."""
        return None

    def check(self, request: CheckRequest) -> CheckResults:
        """Test what a job needs (credentials, permissions, network); return what works and what does not."""
        return CheckResults()

    def preempt(self, request: PreemptRequest) -> PreemptResult:
        """Reclaim a machine on purpose, for drills (PREEMPT).

        Raises:
            CloudspotError: the provider cannot reclaim this machine, or cannot give this notice.
        """
        raise NotImplementedError


class Notifier(Guarded, ABC):
    """Sends a job's messages. None of its errors may contain a URL or a part of one.

    Messages are sent from a separate process, several at once; the process is killed if it takes too long.
    The URLs come from the job's submission, so anyone who can write to the bucket chooses them. Therefore
    that process connects only to public addresses and to hosts that the user has named on this computer; any
    other connection raises an OSError.
    """

    name: ClassVar[str]
    """The name in ``notify.through`` and in the entry point."""

    @abstractmethod
    def holds_credential(self, url: str) -> bool:
        """Return whether the URL itself holds a password or a token; does no I/O.

        Raises:
            SpecError: no message can be sent to the URL; the message states why.
        """

    @abstractmethod
    def send(self, url: str, message: Message) -> None:
        """Send the message once; return when the service has accepted it.

        Raises:
            CloudspotError: the message was not accepted; the error states why, as in ``answered 500``.
        """


class Tracker(Guarded, ABC):
    """Lets a training's run in an experiment tracker continue, whichever machines the training uses."""

    name: ClassVar[str]
    """The name in ``run.trackers`` and in the entry point."""

    @abstractmethod
    def variables(self, request: TrackingRequest) -> Mapping[int, Mapping[str, str]]:
        """Return the environment variables for each rank, by rank, before the ranks start.

        It is called on the machine, at each start of the training. Variables that the job file sets take
        precedence. This call also writes any files that the tracker needs into the working directory.

        Raises:
            CloudspotError: the run may be unable to continue; training starts all the same, and people are
                warned.
        """


class DriverTask(Guarded, ABC):
    """Work that a job's drivers do periodically, as long as a record of the job asks for it.

    To request the work, write the record ``keys.task(job_id, name)``; to end it, delete the record. A driver
    notices the record without an extra request, and does the work if no driver has done it for
    ``every_seconds``. It works in another thread, and two drivers may do the work at the same time. Each job
    has its own task object, which may keep state between calls; a driver that only makes a single pass
    creates a new object each time. ``show`` reports a task that failed or that a driver lacks.
    """

    name: ClassVar[str]
    """The name in the record's key and in the entry point."""
    every_seconds: ClassVar[float]

    @abstractmethod
    def run(self, store: ObjectStore, request: TaskRequest) -> TaskResult:
        """Do the work once.

        Raises:
            CloudspotError: the work was not done; it is tried again the next time.
        """


check_answers(
    Provisioner,
    render=_checked_render,
    instances=_checked_instances,
    offers=_checked_offers,
    current_price=_checked_price,
)
check_answers(ObjectStore, list_page=_checked_page, list_pages=_checked_pages, head=_checked_head)
check_answers(Provider, node_identity=_checked_identity)
