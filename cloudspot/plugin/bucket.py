"""The bucket that a store's URL names: its keys, and the requests and errors that differ between clouds."""

from __future__ import annotations

import functools
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, Protocol

from cloudspot.calls import LinkResult
from cloudspot.calls.retrying import T, retry
from cloudspot.errors import (
    AuthError,
    CloudspotError,
    ObjectExists,
    ObjectMissing,
    SpecError,
    StoreMissing,
    StoreRefused,
    TransientError,
)
from cloudspot.interfaces import check_key
from cloudspot.model import CheckResult
from cloudspot.plugin.answers import UNREADABLE
from cloudspot.plugin.multipart import Passing, UploadGone
from cloudspot.plugin.sdkerrors import SdkErrors


class RangeBeyondEnd(CloudspotError):
    """The requested range begins at or after the object's end."""


class IncompleteAnswer(Exception):
    """An answer lacks data that the cloud includes in every answer of its kind, so it is not the cloud's."""


class Listed(NamedTuple):
    """An object in a listing."""

    name: str
    """The object's name in the bucket, which is the store's prefix followed by the key."""
    size: int
    modified_at: datetime
    etag: str = ""
    """See ``ObjectMeta``."""


class Begun(NamedTuple):
    """An upload in parts that is neither completed nor aborted."""

    name: str
    """The name in the bucket of the object that the upload will become."""
    id: str
    begun_at: datetime


class Described(NamedTuple):
    """The bucket's metadata about an object."""

    size: int
    modified_at: datetime
    writer: str
    """The writer that the object's upload named; "" if it named none."""
    etag: str = ""
    """See ``ObjectMeta``."""


class Body(Protocol):
    """The bytes of an answer, as they arrive from the socket."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, or none at the end."""
        ...

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer with the available bytes, and return their number."""
        ...

    def close(self) -> None:
        """Return the connection to its pool, or close it if the body was not read to its end."""
        ...


def accept(data: memoryview) -> None:
    """Accept bytes that arrived without a checksum."""


class Chunks:
    """The body of an answer for which an SDK returns an iterator of pieces instead of a file."""

    def __init__(self, pieces: Iterable[bytes], close: Callable[[], None] = lambda: None) -> None:
        """Take the pieces, none of which may be empty, and the function that releases the connection."""
        self._pieces = iter(pieces)
        self._close = close
        self._rest = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, or none at the end."""
        return bytes(self._next(size))

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer from the current piece, and return the number of bytes."""
        piece = self._next(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Release the connection."""
        self._close()

    def _next(self, size: int) -> memoryview:
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


@dataclass(frozen=True)
class Download:
    """The answer to a read."""

    body: Body
    num_bytes: int | None
    """The length of the body, or None if the answer does not state it."""
    is_partial: bool
    """Whether the body is the requested range rather than the whole object."""
    verify: Callable[[memoryview], None] = accept
    """Compares the bytes with the checksum in the answer; raises TransientError if they differ."""


class Bucket(ABC):
    """One bucket and the store's prefix in it. Thread-safe.

    A plugin implements the requests. Each request makes one attempt with the client that it is given, and
    raises the SDK's errors, which this class translates. Names are the object names in the bucket, including
    the store's prefix.

    ``BucketStore`` constructs it as ``bucket_type(url, clients, sleep)``. So a subclass needs a constructor
    that passes on ``url`` and ``sleep``, and keeps ``clients``, which is the store's argument (None means the
    environment's clients)::

        def __init__(self, url: str, clients: MyClients | None, sleep: Callable[[float], None]) -> None:
            super().__init__(url, sleep)
            self._clients = clients or MyClients()

    Each request has a verb, which messages and ``rights`` use: ``list``, ``read`` (for ``head`` and
    ``download``), ``write``, ``create`` (a write on the condition that the object does not exist),
    ``delete``, ``sign for``, ``list uploads of``, and any verbs of the plugin.
    """

    scheme: ClassVar[str]
    names: ClassVar[re.Pattern[str]]
    """The pattern of a bucket's name."""
    errors: ClassVar[SdkErrors]
    """The plugin's translation of its SDK's errors."""
    kinds: ClassVar[Mapping[str, type[CloudspotError]]]
    """The error class for each code of the service, except throttling and denials; see ``kind_of``."""
    rights: ClassVar[Mapping[str, str]]
    """The permission that each verb needs; messages name it if it is missing."""
    deletes_many: ClassVar[bool] = False
    """Whether ``delete_names`` removes many objects in one request."""
    lists_by_token: ClassVar[bool] = False
    """Whether the service continues a listing only from its own token, so that ``list_names`` can ignore
    ``after``."""
    how_to_create: ClassVar[str]
    """The shell command that creates a bucket, up to the bucket's name."""

    def __init_subclass__(cls) -> None:
        """Wrap the class's requests so that an unreadable answer raises IncompleteAnswer."""
        super().__init_subclass__()
        for name in ("connect", "head", "download", "list_names", "list_uploads", "delete_names"):
            if name in cls.__dict__:
                setattr(cls, name, _reading(cls.__dict__[name]))

    def __init__(self, url: str, sleep: Callable[[float], None]) -> None:
        """Read ``scheme://bucket/prefix``, without I/O.

        Raises:
            SpecError: the URL does not name a bucket of this cloud.
        """
        self.url = url
        self.name, self.prefix = _parse_url(url, self.scheme, self.names)
        self.sleep = sleep
        self._lock = threading.Lock()
        self._client: Any = None

    # --- implemented by a plugin ------------------------------------------------------------------

    @abstractmethod
    def connect(self) -> Any:
        """Return the client for all requests; this is called once, at first use."""

    def kind_of(self, error: Exception, verb: str) -> type[CloudspotError] | None:
        """Return the error class that corresponds to an SDK's error in a store, or None if there is none.

        The classes are ObjectExists (only for the verb ``create``), ObjectMissing, StoreMissing (the service
        reports that the bucket does not exist), SpecError (the bucket seems not to exist), UploadGone,
        Passing (nothing was done), RangeBeyondEnd, StoreRefused (the server lacks the function) and AuthError
        (a permission is missing).
        """
        code = self.errors.code_of(error)
        if code in self.errors.throttled:
            return Passing
        return AuthError if code in self.errors.denied else self.kinds.get(code)

    def translation(self, error: Exception, what: str) -> CloudspotError:
        """Return the plugin's usual translation of an SDK's error; its message begins with ``what``."""
        return self.errors.translation(error, what)

    @abstractmethod
    def head(self, client: Any, name: str) -> Described:
        """Return the object's metadata."""

    @abstractmethod
    def download(self, client: Any, name: str, span: tuple[int, int] | None) -> Download:
        """Start reading the object, or its bytes from the first to the last of ``span``, both inclusive."""

    @abstractmethod
    def list_names(
        self, client: Any, prefix: str, *, after: str | None, token: str | None, limit: int
    ) -> tuple[Sequence[Listed], str | None]:
        """Return a page of names that come after ``after``, in byte order, and the next page's token.

        The last page's token is None; a page may be empty without being the last. ``token`` comes from an
        empty page with the same arguments or, if ``lists_by_token``, from the previous page.
        """

    @abstractmethod
    def delete(self, client: Any, name: str) -> None:
        """Remove the object; ObjectMissing is no error."""

    def delete_names(self, client: Any, names: Sequence[str]) -> None:
        """Remove up to a thousand objects, some of which may be missing; raise an error if any remain."""
        raise NotImplementedError

    def disconnect(self, client: Any) -> None:  # noqa: B027 (not every SDK needs it)
        """Close the client's connections; by default they are closed when the process ends."""

    @abstractmethod
    def sign_get(self, client: Any, name: str, seconds: int) -> str:
        """Return a URL that reads the object and is valid for ``seconds``."""

    def sign_link(self, client: Any, name: str, seconds: int, media_type: str) -> LinkResult:
        """Return a URL with which a browser shows the object as ``media_type``; see ``ObjectStore.link``.

        The default suits clouds without such URLs.
        """
        raise CloudspotError(f"{self.url} cannot make links that a browser can show")

    def list_uploads(self, client: Any) -> Sequence[Begun]:
        """Return the uploads below the prefix that are neither completed nor aborted.

        The default suits clouds where such uploads expire and cost nothing.
        """
        return ()

    def check_settings(self) -> Sequence[CheckResult]:
        """Report settings of the bucket that cost money or would keep jobs from working."""
        return ()

    # --- used by a plugin -------------------------------------------------------------------------

    def full(self, key: str) -> str:
        """Return the key's name in the bucket; raise ValueError if the key is invalid."""
        check_key(key)
        return self.prefix + key

    @contextmanager
    def asking(self, verb: str, key: str) -> Iterator[Any]:
        """Yield the client, and translate its errors into cloudspot's."""
        try:
            with self._lock:
                if self._client is None:
                    self._client = self.connect()
            yield self._client
        except self.errors.raised as error:
            raise self.translated(error, verb, key) from error
        except IncompleteAnswer as missing:
            what = f"{self.url}: cannot {verb} {key}".rstrip()
            raise TransientError(
                f"{what}: the answer is not {self.errors.cloud}'s, since it lacks {missing}: is there a "
                "proxy or a login page in between?"
            ) from missing

    def close(self) -> None:
        """Call the plugin's ``disconnect`` if a client was made."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            self.disconnect(client)

    def ask(self, verb: str, key: str, call: Callable[[Any], T]) -> T:
        """Return the result of ``call`` with the client; ``call`` is repeated if the service did nothing."""

        def attempt() -> T:
            with self.asking(verb, key) as client:
                return call(client)

        return retry(attempt, sleep=self.sleep, kind=Passing)

    def check_setting(self, name: str, ask: Callable[[Any], tuple[str, str]]) -> CheckResult:
        """Return a line for ``check_settings``: the finding and advice of ``ask``, or why it is unknown."""
        try:
            detail, advice = self.ask("list", "", ask)
            return CheckResult(name=name, ok=True, detail=detail, remedy=advice)
        except AuthError:
            return CheckResult(name=name, ok=True, is_known=False, detail="the permission to ask is missing")
        except CloudspotError as error:
            return CheckResult(name=name, ok=False, detail=str(error))

    def translated(self, error: Exception, verb: str, key: str) -> CloudspotError:
        """Translate an SDK's error into one of cloudspot's."""
        kind, attempt = self.kind_of(error, verb), f"{self.url}: cannot {verb} {key}".rstrip()
        if kind is ObjectExists and verb != "create":
            kind = None  # The request that failed had no such condition.
        if kind is ObjectExists:
            return ObjectExists(f"{self.url}: {key} already exists")
        if kind is ObjectMissing:
            return ObjectMissing(f"{self.url}: no object {key}")
        if kind is SpecError or kind is StoreMissing:
            return kind(
                f"store {self.url}: there is no bucket {self.name!r}; create it ({self.how_to_create}"
                f"{self.name}) or correct the name"
            )
        if kind is UploadGone:
            return UploadGone(f"{attempt}: its upload is gone; upload again")
        translation = self.translation(error, attempt)
        if kind is AuthError:
            return AuthError(f"{translation}; this needs {self.rights[verb]}")
        if kind is StoreRefused:
            return StoreRefused(
                f"{translation}; the server lacks a feature that cloudspot needs: use another store"
            )
        return translation if kind is None else kind(str(translation))

    def cut_off(self, key: str, num_read: int, num_bytes: int) -> TransientError:
        """Return the error for an answer that ends before its stated length."""
        return TransientError(
            f"{self.url}: cannot read {key}: the connection broke after {num_read} of {num_bytes} bytes"
        )


def _reading(request: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(request)
    def read(self: Bucket, *arguments: Any, **options: Any) -> T:
        try:
            return request(self, *arguments, **options)
        except self.errors.raised:
            raise
        except UNREADABLE as error:
            raise IncompleteAnswer("readable content") from error

    return read


def require(value: T | None, what: str) -> T:
    """Return a value that the cloud includes in every answer of this kind.

    Raises:
        IncompleteAnswer: the answer lacks the value.
    """
    if value is None or value == "":
        raise IncompleteAnswer(what)
    return value


def _parse_url(url: str, scheme: str, names: re.Pattern[str]) -> tuple[str, str]:
    """Return the bucket's name and the prefix, which is empty or ends with a slash."""
    expected = f"store must be {scheme}://bucket or {scheme}://bucket/prefix"
    found, separator, rest = url.partition("://")
    name, _, path = rest.partition("/")
    if found.lower() != scheme or not separator or "@" in name:
        # The text before an @ may be a password.
        raise SpecError(f"{expected}: got a URL of another form")
    if names.fullmatch(name) is None:
        raise SpecError(f"{expected}: {name!r} is not a bucket name")
    path = path.rstrip("/")
    if not path:
        return name, ""
    try:
        check_key(path)
    except ValueError as error:
        raise SpecError(f"store {url}: its prefix is not a valid key: {error}") from None
    return name, path + "/"
