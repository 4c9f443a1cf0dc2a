"""A bucket of S3: where it is, how it is asked, and what its errors mean."""

from __future__ import annotations

import ipaddress
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from cloudspot.errors import (
    AuthError,
    CloudspotError,
    ObjectExists,
    ObjectMissing,
    SpecError,
    StoreRefused,
    TransientError,
)
from cloudspot.interfaces import check_key
from cloudspot.plugin.multipart import Passing, UploadGone
from cloudspot.retrying import T, retry
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import DENIED, THROTTLED, error_code, one_line, status_of, translation

FALLBACK_REGION = "us-east-1"
"""Where a bucket is asked for when no region is configured: it tells the right one."""
CONFLICT = "ConditionalRequestConflict"
"""Another write of the key was on its way; S3 did nothing and asks to try again. Source: S3 API
reference, PutObject, If-None-Match (checked 2026-11)."""

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ACTIONS = {
    "list": "s3:ListBucket",
    "read": "s3:GetObject",
    "write": "s3:PutObject",
    "delete": "s3:DeleteObject",
}


class Bucket:
    """One bucket and the prefix in it that a store's URL names. Thread-safe.

    Requests are made once: whoever makes them knows whether they may be repeated, and how long that is
    worth it (see :mod:`cloudspot.jobstore.patience` and :mod:`cloudspot.jobstore.creation`).
    """

    def __init__(self, url: str, clients: AwsClients, sleep: Callable[[float], None] = time.sleep) -> None:
        """Read ``s3://bucket/prefix``; no I/O.

        Raises:
            SpecError: the URL is none of S3's.
        """
        self.url = url
        self.name, self.prefix = _parse_url(url)
        self.sleep = sleep
        self._clients = clients
        self._lock = threading.Lock()
        self._client: Any = None

    def full(self, key: str) -> str:
        """Return the key in the bucket.

        Raises:
            ValueError: it is no key.
        """
        check_key(key)
        return self.prefix + key

    def client(self) -> Any:
        """Return a client of the region where the bucket is; the first call asks S3 which that is.

        Raises:
            SpecError: there is no such bucket, or the configuration is wrong.
            AuthError: no credentials, or S3 does not accept them.
            TransientError: S3 does not answer.
        """
        with self._lock:
            if self._client is None:
                self._client = self._locate()
            return self._client

    @contextmanager
    def asking(self, verb: str, key: str) -> Iterator[Any]:
        """Lend the client; raise what goes wrong with it as cloudspot's errors."""
        client = self.client()
        try:
            yield client
        except (ClientError, BotoCoreError) as error:
            raise self._translation(error, verb, key) from error

    def persist(self, call: Callable[[], T], *, kind: type[TransientError] = TransientError) -> T:
        """Return what ``call`` returns; after a ``kind`` it is made again, some times."""
        return retry(call, sleep=self.sleep, kind=kind)

    def _locate(self) -> Any:
        client = self._client_in(self._clients.region_or_none() or FALLBACK_REGION)
        try:
            answer = client.head_bucket(Bucket=self.name)
        except (ClientError, BotoCoreError) as error:
            found = _bucket_region(getattr(error, "response", {}))
            code = error_code(error)
            if code in {"404", "NoSuchBucket"}:
                raise self._no_bucket() from error
            # A denied HEAD names the region as well: whether the rights suffice, each request tells.
            if found is None and status_of(error) != HTTPStatus.FORBIDDEN:
                raise self._translation(error, "list", "") from error
        else:
            found = _bucket_region(answer)
        return client if found is None else self._client_in(found)

    def _client_in(self, region: str) -> Any:
        signs = {"payload_signing_enabled": False}
        client = self._clients.client("s3", region=region, num_attempts=1, s3=signs, **_CONFIG)
        if _is_guarded(client.meta.endpoint_url):
            return client
        # On an open network the checksum alone would guard the payload, and anybody can compute that.
        signs = {"payload_signing_enabled": True}
        return self._clients.client("s3", region=region, num_attempts=1, s3=signs, **_CONFIG)

    def _translation(self, error: ClientError | BotoCoreError, verb: str, key: str) -> CloudspotError:
        code = error_code(error)
        what = f"{self.url}: cannot {verb} {key}".rstrip()
        if code in {"PreconditionFailed", "412"}:
            return ObjectExists(f"{self.url}: {key} exists")
        if code in {"NoSuchKey", "404"}:
            return ObjectMissing(f"{self.url}: no object {key}")
        if code == "NoSuchBucket":
            return self._no_bucket()
        if code == "NoSuchUpload":
            return UploadGone(f"{what}: its multipart upload is gone")
        if code == CONFLICT or code in THROTTLED:
            return Passing(str(translation(error, what, {CONFLICT: Passing})))
        if code == "NotImplemented":
            return StoreRefused(f"{what}: the server lacks what cloudspot stands on: {one_line(str(error))}")
        found = translation(error, what)
        if code in DENIED:
            return AuthError(
                f"{found}; it takes {_ACTIONS[verb]}, and the bucket policy's consent if another account "
                "owns it"
            )
        return found

    def _no_bucket(self) -> SpecError:
        return SpecError(
            f"store {self.url}: there is no bucket {self.name!r}; make it (aws s3 mb s3://{self.name}) "
            "or mend the name"
        )


_CONFIG: dict[str, Any] = {
    # By default a presigned URL would be of the old kind, which newer regions refuse.
    "signature_version": "s3v4",
    # We compute one checksum and send it; botocore would compute its own, and one of all that is read.
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}


def _parse_url(url: str) -> tuple[str, str]:
    expected = "store must be s3://bucket or s3://bucket/prefix"
    scheme, separator, rest = url.partition("://")
    name, _, path = rest.partition("/")
    if scheme.lower() != "s3" or not separator or "@" in name:
        # Whatever stands before an @ may be a password.
        raise SpecError(f"{expected}: got another form")
    if _NAME.fullmatch(name) is None or ".." in name:
        raise SpecError(f"{expected}: {name!r} is no name of a bucket")
    if name.endswith("--x-s3"):
        raise SpecError(f"store {url}: a directory bucket lists in no order; use a general purpose bucket")
    path = path.rstrip("/")
    if not path:
        return name, ""
    try:
        check_key(path)
    except ValueError as error:
        raise SpecError(f"store {url}: its prefix is no key: {error}") from None
    return name, path + "/"


def _is_guarded(endpoint_url: str) -> bool:
    """Say whether nobody on the way can change a payload: by TLS, or since it stays in this machine."""
    parts = urlsplit(endpoint_url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _bucket_region(answer: Any) -> str | None:
    region = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region")
    return str(region) if region else None
