"""A bucket of OSS: where it is, how it is asked, and what its errors mean.

Sources: OSS API reference, PutObject (x-oss-forbid-overwrite), GetBucketInfo, "Error responses" (checked
2026-11).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

import oss2
import oss2.credentials

from cloudspot.errors import (
    AuthError,
    CloudspotError,
    ObjectExists,
    ObjectMissing,
    SpecError,
    StoreRefused,
)
from cloudspot.interfaces import check_key
from cloudspot.plugin.multipart import Passing, UploadGone
from cloudspot.retrying import T, retry
from cloudspot_aliyun.clients import (
    CONNECT_SECONDS,
    READ_SECONDS,
    USER_AGENT,
    AliyunClients,
    oss_endpoint,
    region_of_this_machine,
)
from cloudspot_aliyun.credentials import CredentialsSource, is_on_ecs
from cloudspot_aliyun.errors import DENIED, EXPIRED, SDK_ERRORS, THROTTLED, error_code, status_of, translation

FALLBACK_REGION: Final = "cn-hangzhou"
"""Where a bucket is asked for when no region is configured: the refusal tells the right one."""
MAX_CONNECTIONS: Final = 32

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_ENDPOINT = re.compile(r"oss-([a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com")
_ACTIONS = {
    "append to": "oss:PutObject",
    "list": "oss:ListObjects",
    "read": "oss:GetObject",
    "write": "oss:PutObject",
    "delete": "oss:DeleteObject",
}


class PositionTaken(CloudspotError):
    """An append found the object longer than it knew; nothing was appended."""


class NotAppendable(CloudspotError):
    """An object of this key was put in one piece."""


class OssBucket:
    """One bucket and the prefix in it that a store's URL names. Thread-safe.

    Requests are made once: whoever makes them knows whether they may be repeated, and how long that is
    worth it.
    """

    def __init__(self, url: str, clients: AliyunClients, sleep: Callable[[float], None] = time.sleep) -> None:
        """Read ``oss://bucket/prefix``; no I/O.

        Raises:
            SpecError: the URL is none of OSS's.
        """
        self.url = url
        self.name, self.prefix = _parse_url(url)
        self.sleep = sleep
        self._clients = clients
        self._lock = threading.Lock()
        self._keys: _Keys | None = None
        self._client: oss2.Bucket | None = None

    def full(self, key: str) -> str:
        """Return the key in the bucket.

        Raises:
            ValueError: it is no key.
        """
        check_key(key)
        return self.prefix + key

    def client(self) -> oss2.Bucket:
        """Return a client of the endpoint where the bucket is; the first call asks OSS about the bucket.

        Raises:
            SpecError: there is no such bucket, or the configuration is wrong.
            StoreRefused: the bucket has versions, and so no create-only writes.
            AuthError: no credentials, or OSS does not accept them.
            TransientError: OSS does not answer.
        """
        with self._lock:
            if self._client is None:
                self._client = self._locate()
            return self._client

    @contextmanager
    def asking(self, verb: str, key: str) -> Iterator[oss2.Bucket]:
        """Lend the client; raise what goes wrong with it as cloudspot's errors."""
        client = self.persist(self.client)
        try:
            yield client
        except SDK_ERRORS as error:
            raise self._translation(error, verb, key) from error

    def persist(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns; where OSS did nothing it is made again, some times."""
        return retry(call, sleep=self.sleep, kind=Passing)

    def check_create(self, headers: Mapping[str, str]) -> None:
        """Look at the answer to a write whether the bucket has got versions since it was first asked.

        Raises:
            StoreRefused: it has, and the write took no notice of what was there.
        """
        if "x-oss-version-id" in headers:
            raise self._versioned("versions")

    def info(self) -> Any:
        """Return what OSS says of the bucket: region, endpoints, versioning."""
        with self.asking("list", "") as client:
            return client.get_bucket_info()

    # --- where it is ------------------------------------------------------------------------------

    def _locate(self) -> oss2.Bucket:
        region = self._clients.region_or_none() or FALLBACK_REGION
        client = self._client_in(region)
        try:
            info = client.get_bucket_info()
        except SDK_ERRORS as error:
            elsewhere = _right_region(error)
            if elsewhere is None or elsewhere == region:
                if error_code(error) not in DENIED:
                    raise self._translation(error, "list", "") from error
                # Whoever may read and write objects need not see the bucket's settings: what the answers to
                # writes say of versions must do then.
                return client
            client = self._client_in(elsewhere)
            try:
                info = client.get_bucket_info()
            except SDK_ERRORS as again:
                if error_code(again) not in DENIED:
                    raise self._translation(again, "list", "") from again
                return client
        if info.versioning_status:
            raise self._versioned(f"versioning {info.versioning_status}")
        return client

    def _client_in(self, region: str) -> oss2.Bucket:
        if self._keys is None:
            self._keys = _Keys(self._clients.credentials)
        # Within the machine's region the internal endpoint costs nothing, and needs no way to the internet:
        # a machine that has none could not even ask for the bucket at the other.
        is_internal = is_on_ecs() and region_of_this_machine() == region
        return oss2.Bucket(
            oss2.ProviderAuthV4(self._keys),
            oss_endpoint(region, is_internal=is_internal),
            self.name,
            session=oss2.Session(pool_size=MAX_CONNECTIONS),
            connect_timeout=(CONNECT_SECONDS, READ_SECONDS),
            app_name=USER_AGENT,
            enable_crc=False,  # We compute it ourselves, some forty times as fast.
            region=region,
        )

    # --- what went wrong --------------------------------------------------------------------------

    def _translation(self, error: Exception, verb: str, key: str) -> CloudspotError:
        code = error_code(error)
        what = f"{self.url}: cannot {verb} {key}".rstrip()
        if code == "FileAlreadyExists":
            return ObjectExists(f"{self.url}: {key} exists")
        if code == "NoSuchBucket":
            return SpecError(
                f"store {self.url}: there is no bucket {self.name!r}; make it (ossutil mb oss://{self.name}) "
                "or mend the name"
            )
        if code == "NoSuchUpload":
            return UploadGone(f"{what}: its multipart upload is gone")
        if code == "NoSuchKey" or (not code and status_of(error) == HTTPStatus.NOT_FOUND):
            return ObjectMissing(f"{self.url}: no object {key}")
        if code == "PositionNotEqualToLength":
            return PositionTaken(f"{what}: others have appended to it")
        if code == "ObjectNotAppendable":
            return NotAppendable(f"{what}: it was put in one piece")
        if code in EXPIRED and self._renew():
            return Passing(f"{what}: the credentials had expired, and are renewed")
        found = translation(error, what)
        if code in THROTTLED:
            return Passing(str(found))
        if status_of(error) == HTTPStatus.NOT_IMPLEMENTED:
            return StoreRefused(f"{found}; the server lacks what cloudspot stands on")
        if code in DENIED:
            return AuthError(
                f"{found}; it takes {_ACTIONS[verb]}, and the bucket policy's consent if another account "
                "owns it"
            )
        return found

    def _renew(self) -> bool:
        return self._keys is not None and self._keys.renew()

    def _versioned(self, state: str) -> StoreRefused:
        return StoreRefused(
            f"store {self.url}: bucket {self.name!r} has {state}, with which OSS ignores that a write is to "
            "create only, so that two writers could both win; use a bucket that never had versioning"
        )


class _Keys(oss2.credentials.CredentialsProvider):  # type: ignore[misc]
    """Gives oss2 the key that holds at this moment."""

    def __init__(self, source: CredentialsSource) -> None:
        self._source = source
        self._used = threading.local()

    def get_credentials(self) -> oss2.credentials.Credentials:
        """Return the key; it is asked for with each request."""
        key = self._source.get()
        self._used.key_id = key.access_key_id
        return oss2.credentials.Credentials(key.access_key_id, key.access_key_secret, key.security_token)

    def renew(self) -> bool:
        """Say whether there is another key than this thread's last request was signed with."""
        return self._source.renew(getattr(self._used, "key_id", ""))


def _right_region(error: Exception) -> str | None:
    """Return the region that a refusal names, of a bucket that was asked for at another's endpoint."""
    details = getattr(error, "details", None) or {}
    match = _ENDPOINT.fullmatch(str(details.get("Endpoint") or ""))
    return match[1] if match else None


def _parse_url(url: str) -> tuple[str, str]:
    expected = "store must be oss://bucket or oss://bucket/prefix"
    scheme, separator, rest = url.partition("://")
    name, _, path = rest.partition("/")
    if scheme.lower() != "oss" or not separator or "@" in name:
        # Whatever stands before an @ may be a password.
        raise SpecError(f"{expected}: got another form")
    if _NAME.fullmatch(name) is None:
        raise SpecError(f"{expected}: {name!r} is no name of a bucket")
    path = path.rstrip("/")
    if not path:
        return name, ""
    try:
        check_key(path)
    except ValueError as error:
        raise SpecError(f"store {url}: its prefix is no key: {error}") from None
    if path.startswith("\\"):
        raise SpecError(f"store {url}: OSS takes no key that begins with a backslash")
    return name, path + "/"
