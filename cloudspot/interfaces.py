"""The interfaces that a provider plugin implements; all that a plugin author has to read.

A plugin provides a :class:`Provider`, which makes a :class:`Provisioner` (machines), a
:class:`PreemptionSource` (notices) and, where the cloud has them, a :class:`LogSink` (logs). An
:class:`ObjectStore` (buckets) is opened by URL and need not belong to a provider. A :class:`Notifier` tells
people what happens to a job, a :class:`Tracker` keeps its run in an experiment tracker one, and a
:class:`DriverTask` is done by its drivers now and then.

Everything is synchronous and must be thread-safe. A plugin translates its SDK's errors at its edge into
:mod:`cloudspot.errors` (``raise CapacityError(...) from error``), so that the core never sees an SDK.
Unless a method says otherwise, it raises TransientError when a service does not answer, and AuthError when
credentials are missing or lack a right.

A call that may have to say more one day takes one request and returns one result, both of
:mod:`cloudspot.calls`: later versions add fields with defaults, which no plugin notices. Each request has a
``deadline``. A plugin need not keep it, but whatever it waits for should end by then: nobody takes a later
result, and a call that was abandoned is made again. ``CALLS`` in :mod:`cloudspot.calls.guard` says how long
each call may take, and docs/plugin-kits.md what becomes of one that takes longer, or fails in another way.

Whatever a plugin that nobody touches would notice raises ``cloudspot.hookspecs.API_VERSION``.
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

    # A plain ``Provider`` is one of any options. typing has defaults from Python 3.13 on.
    _Options = DefaultedTypeVar("_Options", bound=msgspec.Struct, default=Any)
else:
    _Options = Options

Data = bytes | bytearray | memoryview

_STREAM = re.compile(get_args(StreamName)[1].pattern)


def is_key(text: str) -> bool:
    """Return whether the text is a valid key, which every ObjectStore accepts.

    A key is printable ASCII: names of 1 to 255 bytes with ``/`` between them, of which none is ``.`` or
    ``..``. A store that cannot keep some of them as they are, such as those with a backslash, escapes them,
    so that they sort as before and a prefix stays one.
    """
    return text.isascii() and text.isprintable() and is_safe_name(text)


def check_key(key: str) -> None:
    """Raise ValueError unless the key is valid."""
    if not is_key(key):
        raise ValueError(f"key {key!r} must be ASCII words of 1 to 255 bytes with / between, none . or ..")


def is_stream(text: str) -> bool:
    """Return whether the text can name a log stream."""
    return _STREAM.fullmatch(text) is not None


def check_stream(stream: str) -> None:
    """Raise ValueError unless the text can name a log stream."""
    if not is_stream(stream):
        raise ValueError(f"a stream name must be letters, digits and .-_: got {stream!r}")


class Provisioner(Guarded, ABC):
    """Creates, lists and ends machines. Runs where the controller runs, never on a node.

    ``render`` is never called for an offer on a market that this version of cloudspot does not know.
    What ``instances``, ``offers`` and ``current_price`` return is checked before a caller sees it: a machine
    that is not of the job asked for, or of no job, is never taken for ours, and no number lies outside the
    bounds of its field. Otherwise they raise TransientError, and nothing is known.
    """

    token_seconds: float
    """For at least this many seconds the provider honours an idempotency token."""
    absence_proves_after_seconds: float
    """A machine that was seen once and is absent from ``instances()`` for this many seconds is dead. Both are
    set in the class, or per instance."""

    @abstractmethod
    def render(self, group: InstanceGroup) -> LaunchRequest:
        """Return the request that ``create`` will send, as ``--dry-run`` prints it and the intent stores it.

        Pure: no I/O, and the same group gives the same request.
        """

    @abstractmethod
    def create(self, request: CreateRequest) -> CreateResult:
        """Create the machines of the request: all, or as many as there is room for, or none.

        A repeated call with the same token and request creates nothing and returns the same machines, however
        many they were, for at least ``token_seconds``: also those that have ended since, as far as the
        provider knows them. If it knows none of them any more, it raises ProvisionError. Returns as soon as
        the provider has accepted; the machines may still be pending. Placement (one zone, a cluster group) is
        arranged here.

        Raises:
            CapacityError: the offer has no room now for ``min_nodes`` machines; none is left running.
            QuotaError: the account's limit is reached; none is left running.
            ProvisionError: the request can never work (unknown image, bad name); none is left running.
            TransientError: the outcome is unknown; call again with the same token and request.
        """

    def announce(self, instances: Sequence[Instance], facts: Mapping[str, str]) -> None:
        """Publish facts such as MASTER_ADDR to the machines (tags, metadata); safe to repeat.

        The names are in ``model.ANNOUNCED``. Nothing of cloudspot reads them: they are for people, and for
        scripts of the job's own, which may find them in the machine's metadata, late or not at all. A
        provider that names its machines uses ``Instance.node_name``. Any controller may announce at any time,
        and repeat what was announced before.

        Raises:
            TransientError: some machines do not have the facts; call again.
        """
        return None

    @abstractmethod
    def instances(self, request: InstancesRequest) -> InstancesResult:
        """Return the machines that carry cloudspot's tags, from every page and including recently ended ones.

        They are those that the request ``wants``, and no others. An ended machine is reported with its reason
        for as long as the provider knows it. A listing may lag behind ``create``.

        Raises:
            TransientError: the listing failed, or says something impossible; nothing is known.
        """

    @abstractmethod
    def terminate(self, request: TerminateRequest) -> TerminateResult:
        """Ask for the end of the machines and return without waiting; say which ones were refused, and why.

        All are tried, whatever becomes of the others. Safe to repeat: unknown or ended ids are no error.

        Raises:
            AuthError: none of the machines could be ended, since a right is missing.
            TransientError: none of them could be ended; call again.
        """

    def console(self, instance: Instance) -> str:
        """Return what the machine has printed since its boot, as far as the provider has it (CONSOLE).

        Drivers ask while a machine that was launched has not come up, to say why. The end may be missing, and
        the beginning of a long text.
        """
        return ""

    def release(self, job_id: str, *, store_url: str = "") -> None:
        """Remove what was made for the job besides its machines, such as a placement group; safe to repeat.

        Any controller calls it once the job is finished and all its machines have ended. ``store_url`` is
        what the job's InstanceGroups had: another store may hold a job of the same id.

        Raises:
            TransientError: it cannot be removed yet; call again.
        """
        return None

    @abstractmethod
    def offers(self, request: OffersRequest) -> OffersResult:
        """Return what can be bought for the resources (type x zone x market, with prices).

        Empty when nothing fits. ``Offer.billing`` says what time of a machine is charged for (a least time,
        an increment, what is free when a spot machine is taken back); left out, it is each second begun.
        """

    def current_price(self, offer: Offer) -> float | None:
        """Return what a node of the offer costs an hour now, as ``offers`` counts it; None: what it did then.

        Asked every few minutes for each spot launch that runs; the bill and ``limits.max_cost`` follow it.
        The default is for markets whose prices stay while a machine runs.

        Raises:
            TransientError: it cannot be told now.
        """
        return None


class FunctionHost(Guarded, ABC):
    """Where a provider runs a small program now and then, although none of the user's machines is on.

    Each method may be cut off at any call and repeated; it then goes on where it stood.
    """

    @abstractmethod
    def plan(self, function: DriverFunction) -> Sequence[str]:
        """Return what ``deploy`` would make and what it costs a month, a line each, without making anything.

        Raises:
            SpecError: the function cannot run here; the message says what has to be different.
        """

    @abstractmethod
    def deploy(self, function: DriverFunction) -> None:
        """Make the function, its schedule and its least role, or bring them up to date; then run it once.

        It also runs whenever the provider tells that it takes a machine of the account. A second deployment
        of the same function changes nothing.

        Raises:
            AuthError: a right is missing.
            CloudspotError: the function does not run; the message holds what it printed.
        """

    @abstractmethod
    def status(self, name: str) -> FunctionStatus | None:
        """Return what the provider tells of the function; None: there is none of that name."""

    @abstractmethod
    def remove(self, name: str) -> Sequence[str]:
        """Remove the function and all that ``deploy`` has made for it; return what was there.

        Safe to repeat: what is not there is no error.
        """


class ImageHost(Guarded, ABC):
    """Where a provider keeps images of machines, from which others start with a job's setup done.

    It knows those that ``save`` has made, in the region of the options, and no others. ``Provisioner.offers``
    starts machines from the one that has the options' ``setup_key`` and was made of the image that the
    options name; without one, from that image itself.
    """

    @abstractmethod
    def find(self, key: str) -> MachineImage | None:
        """Return the image from which ``offers`` starts machines with this key, or will once it is ready.

        None: there is none. One that could not be made is returned if there is no other.
        """

    @abstractmethod
    def images(self) -> Sequence[MachineImage]:
        """Return all of them, in any order."""

    @abstractmethod
    def save(self, instance: Instance, *, key: str, job_name: str) -> MachineImage:
        """Begin to make an image of the disk of a machine that runs, and return it as it stands then.

        The machine has written everything to its disk, and goes on. It must not end before the image is
        ready. If ``find`` has one for the key, that is returned, and nothing is made, unless it has failed.

        Raises:
            AuthError: a right is missing; the message names it.
            CloudspotError: the provider refuses.
        """

    @abstractmethod
    def remove(self, image_id: str) -> None:
        """Delete the image and what it is billed for; safe to repeat: an unknown one is no error."""


class SetupPart(Guarded, ABC):
    """One thing that an account needs before its first job, such as a bucket or a role.

    Kind and name identify it in the record of what ``cloudspot setup`` has made.
    """

    kind: str
    """What it is, as people call it: ``bucket``."""
    name: str
    """As the provider calls it; unique among the parts of its kind."""
    purpose: str
    """Why it is needed, in a line."""
    cost: str
    """What it costs a month, in words: ``no charge``."""
    rights: tuple[str, ...]
    """Each right that it grants, with the reason: a line each, and none where it grants none."""
    commands: tuple[str, ...]
    """The commands of the provider's own command line that do what ``make`` does, for a POSIX shell."""
    is_store: bool
    """Whether it is the bucket that keeps the jobs."""

    @abstractmethod
    def look(self, *, is_own: bool) -> PartState:
        """Return what stands in its place, without changing anything.

        ``is_own``: the record says that this setup has made it, or begun to. What differs from the part is
        then lacking, and ``make`` mends it. What another has made is never changed: it may be narrower than
        the part, which it ``lacks``, and whatever it allows beyond the part is ``excess``.
        """

    @abstractmethod
    def make(self) -> None:
        """Make it, or whatever it lacks; safe to repeat after it was cut off at any call.

        Raises:
            AuthError: a right is missing, or a policy of the organisation forbids it.
            CloudspotError: the provider refuses; the message says what to do instead.
        """

    @abstractmethod
    def remove(self) -> str | None:
        """Remove it and nothing else; return None, or why it stays, such as that others may use it by now.

        Safe to repeat: what is not there is no error. A bucket is empty by then.

        Raises:
            CloudspotError: it is in use.
        """


class AccountSetup(Guarded, ABC):
    """What an account needs before its first job, for ``cloudspot setup``."""

    @abstractmethod
    def account(self) -> str:
        """Return the account that the credentials belong to, with the place if parts belong to one.

        The record of what was made has this name: it must be the same for each user of the account.
        """

    @abstractmethod
    def parts(self, request: SetupRequest) -> Sequence[SetupPart]:
        """Return the parts in the order in which they can be made, without making anything.

        Those that the account does not need are not among them.

        Raises:
            SpecError: the request names what does not exist or must not be given rights.
        """

    @abstractmethod
    def settings(self, request: SetupRequest) -> SetupSettings:
        """Return what the user's config file needs, once all parts are made."""


class Inventory(Guarded, ABC):
    """What cloudspot has made of one kind, in one place, for ``cloudspot reap``."""

    title: str
    """What it lists, for messages: ``volumes in us-east-1``."""

    @abstractmethod
    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return all that carries cloudspot's tag, or its name where this kind of thing has no tags.

        Nothing else, whatever it looks like. Those that live are listed as well: the caller decides what is
        an orphan. ``store_urls`` are stores that the caller knows, as InstanceGroups have them: where a name
        has room only for a digest, it can be told by them.
        """

    @abstractmethod
    def end(self, asset: Asset) -> None:
        """End one of these assets, or ask for its end and return.

        Safe to repeat: what is gone is no error.

        Raises:
            TransientError: it cannot be ended yet, such as a placement group with a machine in it.
            CloudspotError: the provider refuses.
        """


class MachineInventory(Inventory):
    """The machines that a provisioner lists and that have not ended."""

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
    """Tells a node that it will be taken. Runs on the node, on the standard library alone."""

    notice_seconds: float
    """How long this provider's notices are, in seconds: the deadline of a notice that states no time, and the
    longest that a stated time is believed, since the node's clock may be wrong (not so
    ``deadline_monotonic``). Set it in the class, or per instance where the job decides."""
    poll_seconds: ClassVar[float] = 1.0
    """How often ``wait`` polls, in seconds."""

    @abstractmethod
    def poll(self) -> PreemptionNotice | None:
        """Return the standing notice, or None. Answers within seconds.

        Raises:
            TransientError: the metadata service did not answer; nothing is known.
        """

    def is_at_risk(self) -> bool:
        """Return whether the provider holds it likelier than usual that it takes this machine.

        As far as ``poll`` has seen, without I/O. It is a hint and no notice: the training goes on, and a
        driver may buy a machine that takes this one's place. The default is for providers without such hints.
        """
        return False

    def wait(self, timeout: float) -> PreemptionNotice | None:
        """Return as soon as there is a notice, or None after ``timeout`` seconds.

        The default polls; override it where the provider has a long poll.
        """
        end = time.monotonic() + timeout
        while True:
            notice = self.poll()
            left = end - time.monotonic()
            if notice is not None or left <= 0:
                return notice
            time.sleep(min(self.poll_seconds, left))


class Upload(Guarded, ABC):
    """A streamed put. Nothing is visible under the key until ``commit``, which shows the whole object.

    Leaving it as a context manager aborts an upload that was not committed. After either end, ``write`` and
    ``commit`` raise ValueError.
    """

    _has_ended: bool = False

    def _may_refuse(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return self._has_ended and name != "abort"

    def _note_call(self, name: str) -> None:
        self._has_ended = self._has_ended or name != "write"

    @abstractmethod
    def write(self, data: Data) -> None:
        """Append bytes; may block on the network. The buffer is the caller's again when it returns."""

    @abstractmethod
    def commit(self) -> None:
        """Make the whole object visible.

        Raises:
            ObjectExists: the upload was opened with ``if_absent``, and the key is taken.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop what was written. Safe to repeat; after ``commit`` it does nothing."""

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()


MAX_GET_BYTES: Final = 128 << 20
"""The largest objects that are read at once are code bundles, of 100 MiB at the most. A larger record, like
the manifest of very many ranks, is read in ranges."""
MAX_LISTED: Final = 10_000_000
"""No job has as many objects, nor an input as many files; a server could invent keys for ever. Callers keep
what is listed, so that this bounds their memory too."""


class ObjectStore(Guarded, ABC):
    """A flat, strongly consistent map from keys to bytes, with create-if-absent.

    A key is ``/``-separated words of 1 to 255 printable ASCII characters, none of them ``.`` or ``..``;
    every method raises ValueError for anything else. A store escapes what its service does not take in a
    name, and nobody else hears of it. A put is atomic: no reader sees a part of it. Once it returns, every
    get and listing shows it. No reference to a caller's buffer is kept.

    TransientError means that the outcome is unknown: the caller reads back.

    Listings decide what is deleted, so each page that a store returns is checked before a caller sees it:
    its keys are valid, lie below the prefix and come in order, its sizes and times are possible, and the next
    page lies further on. ``head`` is checked in the same way. Otherwise they raise StoreRefused.
    """

    url: str
    """What the user wrote, without credentials."""

    def _may_refuse(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        if name in {"list_page", "list_pages"}:
            return int(kwargs.get("limit", 1)) < 1  # a prefix need be no key
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
        """The URL in the one form that all its spellings share, as far as that shows without a request.

        Machines carry it, so that those of another store's job of the same id can be told apart.
        """
        scheme, separator, rest = self.url.partition("://")
        return scheme.lower() + separator + rest.rstrip("/")

    def establish(self) -> str | None:
        """Make the store's place if there is none, hold to it (``hold_to``), and return the id in its mark.

        Only a submission calls this, and nothing else makes a store's place. The default does nothing and
        returns None. It is for stores that nobody mounts and whose place their owner makes, such as buckets.

        Raises:
            TransientError: the store is held to a place, which is not there.
        """
        return None

    def find_id(self) -> str | None:
        """Return the id in the mark of the store; None: there is none."""
        return None

    def hold_to(self, store_id: str | None = None) -> None:
        """Let each request from now on raise TransientError while the store's place is missing or another's.

        ``store_id`` is what ``establish`` returned, perhaps on another computer. With None, the first request
        accepts any id, and later ones only that id. No I/O. The default does nothing.
        """

    @abstractmethod
    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Store ``data`` under ``key``, replacing what was there.

        Raises:
            ObjectExists: ``if_absent`` was given and the key is taken; nothing was changed. An SDK that
                retries may have met its own put: callers to whom it matters read the key back.
        """

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Return the whole object, which has at most ``MAX_GET_BYTES``; no more than that is read.

        Others may write to the store, so its size is not the caller's to know. What may be larger is read
        by ranges.

        Raises:
            ObjectMissing: no such key.
            CorruptData: it is larger than whatever is read at once.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return bytes ``start`` (inclusive, from 0) to ``start + length`` (exclusive).

        Returns fewer where the object ends earlier, and none from its end on.

        Raises:
            ObjectMissing: no such key.
            ValueError: ``start`` or ``length`` is negative.
        """

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        """Fill the buffer with the bytes from ``start`` (inclusive, from 0); return how many there were.

        There are fewer than the buffer holds only where the object ends earlier. The rest of the buffer is
        then undefined, as is all of it after an error. A buffer used again and again costs a fraction of
        fresh memory. The default goes through ``get_range``; override it where bytes can be read in place.

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
        """Return the object's size and time.

        Raises:
            ObjectMissing: no such key.
        """

    @abstractmethod
    def list_page(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, cursor: str = ""
    ) -> ObjectPage:
        """Return up to ``limit`` objects whose keys start with ``prefix`` and come after ``after``.

        ``cursor`` is that of the page before, whose ``next_after`` is ``after``; a store that never returns
        one is never given one. It is for services that go on from a token of theirs and from no name. Such a
        store still gets ``after`` without a cursor, as from a reader that goes on later: it then lists from
        the start, and leaves out what does not come after.

        Keys are in ascending order of their bytes. ``after`` need not be a key. A page may hold fewer than
        ``limit`` objects although more follow. Names that are not valid keys are skipped, and told as
        ``ObjectPage.skipped`` by stores that can.

        Raises:
            ValueError: ``limit`` is not positive.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; a missing key is no error."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, in any order; missing keys are no error. After an error some may be left.

        The default asks for one after the other; override it where the service takes many at once.
        """
        for key in keys:
            self.delete(key)

    @abstractmethod
    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        """Start a streamed put, for objects too large to hold in memory.

        Where the service takes an object only at once, the upload may keep what is written in a file, and put
        that at ``commit``. Nothing of an upload that never ends may be billed for ever: either the service
        drops it by itself, or ``unfinished_uploads`` yields it.
        """

    @abstractmethod
    def presign_get(self, key: str, *, seconds: float) -> str:
        """Return a URL that reads the object for ``seconds`` without other credentials.

        Raises:
            CloudspotError: the store has no such URLs.
        """

    def link(self, request: LinkRequest) -> LinkResult:
        """Return a URL that a browser without credentials shows as a page, and when it really ends.

        A link that is signed with temporary credentials ends with them. The default is for stores that have
        no such links.

        Raises:
            CloudspotError: there is no such link; the message says why, and what would help.
        """
        raise CloudspotError(f"{self.url} has no links that a browser shows")

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """Yield the uploads that were begun and neither committed nor aborted, those under way included.

        The default is for stores that keep none, or that nobody is charged for.
        """
        return iter(())

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Drop one of those; one that no longer exists is no error."""
        return None

    def close(self) -> None:
        """Give back what the store holds, such as connections; safe to repeat.

        Called once the command or the agent that opened the store is over, however it ended, unless it was
        killed. The default does nothing.
        """

    def check(self, request: CheckRequest) -> CheckResults:
        """Find out whether the store can be used, what is missing, and what it costs besides."""
        return CheckResults()

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectMeta]:
        """Yield every object under ``prefix`` whose key comes after ``after``, in ascending order of keys.

        Raises:
            StoreRefused: there are more than ``MAX_LISTED``.
        """
        left = MAX_LISTED
        for page in self.list_pages(prefix, after=after):
            yield from page.objects
            left -= len(page.objects)
            if left < 0:
                raise _refused(self, f"the listing of {prefix} has more than {MAX_LISTED} objects")

    def list_pages(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectPage]:
        """Yield the pages of that listing."""
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
            raise ProvisionError(f"nothing is bought on the market {market.value!r}: upgrade cloudspot")
        return render(self, group)

    return checked


def _checked_instances(instances: Callable[..., InstancesResult]) -> Callable[..., InstancesResult]:
    @functools.wraps(instances)
    def checked(self: Provisioner, request: InstancesRequest) -> InstancesResult:
        found = instances(self, request)
        for one in found.instances:
            if (fault := _machine_fault(one, request)) is not None:
                raise TransientError(f"the list of machines has {one.id[:200]!r} {fault}: nothing is known")
        return found

    return checked


def _machine_fault(machine: Instance, request: InstancesRequest) -> str | None:
    """Return what a provider cannot say of a machine of cloudspot's; None: it is all possible."""
    if (fault := fault_of(machine)) is not None:
        return f"with an impossible field ({fault})"
    if len(quote(machine.id, safe="", errors="surrogatepass")) > MAX_SEGMENT_BYTES:
        return "which cannot be an id"
    if not machine.job_id or request.job_id not in {None, machine.job_id}:
        return f"of job {machine.job_id[:200]!r}" + (f", not {request.job_id!r}" if request.job_id else "")
    if not request.wants(machine):
        return f"of store {machine.store_url[:200]!r}, not {request.store_url!r}"
    moments = (machine.launched_at, machine.ended_at)
    if any(moment is not None and not is_possible_time(moment) for moment in moments):
        return f"that ran from {machine.launched_at} to {machine.ended_at}"
    return None


def _checked_offers(offers: Callable[..., OffersResult]) -> Callable[..., OffersResult]:
    @functools.wraps(offers)
    def checked(self: Provisioner, request: OffersRequest) -> OffersResult:
        found = offers(self, request)
        for one in found.offers:
            if (fault := fault_of(one)) is not None:
                raise TransientError(f"the offer {one.key[:200]} is impossible ({fault}): nothing is known")
        return found

    return checked


def _checked_price(current_price: Callable[..., float | None]) -> Callable[..., float | None]:
    @functools.wraps(current_price)
    def checked(self: Provisioner, offer: Offer) -> float | None:
        price = current_price(self, offer)
        if price is not None and not 0 <= price <= MAX_PRICE:
            raise TransientError(
                f"the price of {offer.key} is said to be {min(max(price, -1), 1e30):.3g}, so it is not known"
            )
        return price

    return checked


def _checked_identity(node_identity: Callable[..., NodeIdentity]) -> Callable[..., NodeIdentity]:
    @functools.wraps(node_identity)
    def checked(self: Provider) -> NodeIdentity:
        found: NodeIdentity = node_identity.__get__(self, type(self))()
        if (fault := fault_of(found)) is not None:
            raise TransientError(f"the metadata service tells an impossible identity: {fault}")
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
    # The last name of a page may be no key, or even empty: a directory's marker at the top of the store.
    if following is not None and (
        following == after or following < max(last, prefix if after is None else "")
    ):
        raise _refused(
            store,
            f"the listing of {where} does not move forward: it goes on after {following[:200]!r} once more",
        )


def _check_meta(store: ObjectStore, meta: ObjectMeta) -> None:
    if not is_key(meta.key):
        raise _refused(store, f"it lists {meta.key[:200]!r}, which is not a key")
    if not 0 <= meta.size <= MAX_TALLY:
        raise _refused(store, f"it says that {meta.key} has {min(max(meta.size, -1), 10**30):.3g} bytes")
    if not is_possible_time(meta.modified_at):
        raise _refused(store, f"it says that {meta.key} was modified at {meta.modified_at.isoformat()}")


def _refused(store: ObjectStore, fault: str) -> StoreRefused:
    return StoreRefused(f"{store.url}: {fault}; remove the proxy in between, or use another store")


class LogSink(Guarded, ABC):
    """Where a job's log lines go, and where they can be read after the machines are gone."""

    is_in_store: ClassVar[bool] = False
    """Its pieces lie in the job's object store and are removed with the job."""

    def _may_refuse(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return name == "write" and any(not is_stream(one.stream) for one in args[0])

    @abstractmethod
    def write(self, records: Sequence[LogRecord]) -> None:
        """Deliver records of one stream in ascending ``seq``; return when they are durable.

        A record that is delivered again (same stream and ``seq``) is shown once.

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

        Callers stop when they have what they need, such as the last screen of an old job's log. The default
        reads the whole stream first; override it where a stream can be read from its end.
        """
        yield from reversed(list(self.read(stream)))

    def pieces(self) -> Sequence[LogPiece]:
        """Return what the log consists of, by stream and day, as far as the sink can tell.

        The default reads all streams; override it where pieces can be listed.
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
        """Delete pieces for good; a missing one is no error. The stream can be written to as before.

        Raises:
            CloudspotError: nothing can be removed here; the message says what happens instead.
        """
        raise CloudspotError(
            "this log cannot be pruned: only the retention of the service that keeps it ends it"
        )


CAPABILITY_METHODS: Final = {
    Capability.LOGS: "log_sink",
    Capability.REGISTRY: "registry_login",
    Capability.IMAGES: "image_host",
    Capability.FUNCTIONS: "function_host",
    Capability.PREEMPT: "preempt",
    Capability.SETUP: "account_setup",
}
"""The methods of Provider that belong to one capability."""
_LACKS: Final = {
    Capability.IMAGES: (
        "makes no images of machines; run.image can name a container that has what the job needs"
    ),
    Capability.FUNCTIONS: "runs no functions; cloudspot reconcile drives jobs too, from cron, say",
    Capability.PREEMPT: "cannot reclaim a machine on demand",
    Capability.SETUP: "has no account to set up",
}


class Provider(Guarded, ABC, Generic[_Options]):
    """What a plugin registers: factories of the interfaces. Importing its module imports no SDK.

    It is generic in its options: ``class AcmeProvider(Provider[AcmeOptions])``.

    ``node_identity`` is checked before a caller sees it: a number outside the bounds of its field raises
    TransientError.
    """

    name: ClassVar[str]
    """The entry point's name, and that of the job file's table ``[providers.NAME]``."""
    options_type: ClassVar[type[msgspec.Struct]]
    """The type of that table; a field without a default is required."""
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    """What it can do. A method that belongs to one of them is overridden just where that is declared; nobody
    calls one that is left to the interface, unless it says what it returns there."""
    cut_network_advice: ClassVar[str] = ""
    """What may keep its machines from reaching one another, and what to change, for the message that they do
    not."""
    made_by: ClassVar[str] = ""
    """Its plugin's distribution and version; written by whoever imports the plugin."""
    driver_options: ClassVar[frozenset[str]] = frozenset()
    """The options that name something of the computer that drives, such as a profile or a file with
    credentials. A driver takes them from its own note of the job or from its user's config file, never
    because a stored job names them. On a node they have their defaults."""

    def __init__(self, options: _Options) -> None:
        """Keep the job's options, an ``options_type``; do no I/O."""
        self.options = options

    @classmethod
    def require(cls, capability: Capability) -> None:
        """Raise CloudspotError, with what to do instead, unless the provider has declared the capability."""
        if capability not in cls.capabilities:
            lack = _LACKS.get(capability, f"does not declare {capability.value!r}")
            raise CloudspotError(f"provider {cls.name!r} {lack}")

    @abstractmethod
    def provisioner(self) -> Provisioner:
        """Return the provisioner; called where the controller runs."""

    @abstractmethod
    def preemption_source(self) -> PreemptionSource:
        """Return the source of notices; called on a node."""

    @abstractmethod
    def node_identity(self) -> NodeIdentity:
        """Return who this machine is; called on a node.

        Raises:
            TransientError: the metadata service is not up yet.
        """

    @abstractmethod
    def boot_profile(self) -> BootProfile:
        """Return how this provider's machines get from a bare boot to the agent."""

    def pinned_options(self) -> Mapping[str, Any]:
        """Return the options, such as a region, that this environment decides where the job leaves them out.

        Asked once, on submission, and stored with the job, so that every controller and node uses the same
        values: a controller that looked in another region would take the machines for dead. JSON values by
        option name; they override the job's table.

        Raises:
            SpecError: an option is wrong or missing.
        """
        return {}

    def function_host(self) -> FunctionHost:
        """Return where a driver can run as a function, for jobs that nobody is awake to drive (FUNCTIONS)."""
        raise NotImplementedError

    def image_host(self) -> ImageHost:
        """Return where images of machines are kept (IMAGES). Its options then have a field ``setup_key``."""
        raise NotImplementedError

    def account_setup(self) -> AccountSetup:
        """Return what an account needs before its first job (SETUP)."""
        raise NotImplementedError

    def registry_login(self, registry: str) -> RegistryLogin | None:
        """Return a new log-in for a registry of container images of this provider's (REGISTRY), or None.

        ``registry`` is the host in an image's name. Asked where a job is submitted and, before each pull, on
        its nodes: with the credentials and the rights that each has.

        Raises:
            AuthError: a right is missing; the message names it.
        """
        return None

    def inventories(self, *, all_regions: bool) -> Sequence[Inventory]:
        """Return the lists of all that cloudspot makes in the account, in the order in which to end it.

        ``all_regions`` asks for every region of the account rather than those of the options. The default
        knows the machines only.
        """
        return (MachineInventory(self.provisioner()),)

    def default_store(self) -> str | None:
        """Return the URL of the store to use where neither the job nor the user names one, or None."""
        return None

    def log_sink(self, store: ObjectStore, job_id: str) -> LogSink | None:
        """Return the sink for the job's logs (LOGS); None keeps them in the object store."""
        return None

    def check(self, request: CheckRequest) -> CheckResults:
        """Try what a job needs (credentials, rights, network), and return what works and what is missing."""
        return CheckResults()

    def preempt(self, request: PreemptRequest) -> PreemptResult:
        """Reclaim a machine on purpose, for drills (PREEMPT).

        Raises:
            CloudspotError: the provider cannot take this one, or not with this notice.
        """
        raise NotImplementedError


class Notifier(Guarded, ABC):
    """What sends a job's messages; no error of its may show a URL, nor a part of one.

    Messages are sent from a process of their own, several at once, which is killed after some seconds. The
    URLs come from the job's submission: whoever may write to the bucket chooses them. So that process
    connects to public addresses only, unless the user has named the host on this very computer: another
    connection raises an OSError.
    """

    name: ClassVar[str]
    """As in ``notify.through`` and the entry point."""

    @abstractmethod
    def holds_credential(self, url: str) -> bool:
        """Return whether the URL itself holds a password or a token; does no I/O.

        Raises:
            SpecError: it cannot be sent to; the message says why.
        """

    @abstractmethod
    def send(self, url: str, message: Message) -> None:
        """Send the message once; return when it was accepted.

        Raises:
            CloudspotError: it was not; the message says why, as in ``answered 500``.
        """


class Tracker(Guarded, ABC):
    """What makes a training's run in an experiment tracker continue, whatever machines it runs on."""

    name: ClassVar[str]
    """As in ``run.trackers`` and the entry point."""

    @abstractmethod
    def variables(self, request: TrackingRequest) -> Mapping[int, Mapping[str, str]]:
        """Return the environment variables of ranks, by rank, before these start.

        It is called on the machine, at each start of the training. Variables that the job file sets go
        first. What the tracker has to put into the working directory it puts there now.

        Raises:
            CloudspotError: the run may not continue; the training starts all the same, and people are warned.
        """


class DriverTask(Guarded, ABC):
    """Work that whatever drives a job does now and then, as long as a record of the job asks for it.

    The record is ``keys.task(job_id, name)``: whoever wants the work writes it, and deletes it to end it. A
    driver sees it without a request of its own, and does what nobody has done for ``every_seconds``, in
    another thread: two drivers may still do it at once. There is an object for each job, which may keep what
    it knows from one time to the next; a driver that passes by has a new one each time. A task that a driver
    does not have, or that fails, is told by ``show``.
    """

    name: ClassVar[str]
    """As in the key of the record and the entry point."""
    every_seconds: ClassVar[float]

    @abstractmethod
    def run(self, store: ObjectStore, request: TaskRequest) -> TaskResult:
        """Do it once.

        Raises:
            CloudspotError: it was not done; the next time it is tried again.
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
