"""A bucket of Cloud Storage: how it is asked, and what its errors mean."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import google_crc32c
from google.api_core.exceptions import from_http_response

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
from cloudspot_gcp.clients import TIMEOUT, GcpClients, endpoint
from cloudspot_gcp.errors import SDK_ERRORS, THROTTLED, UNUSABLE, error_code, status_of, translation

WRITER = "cloudspot-writer"
"""The metadata by which a writer knows its own object where an answer was lost."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_GO_ON = 308
"""What Storage says of an upload that has not all yet."""
_NO_BUCKET = "bucket does not exist"
_RIGHTS = {
    "list": "storage.objects.list",
    "read": "storage.objects.get",
    "write": "storage.objects.create, and storage.objects.delete to replace one",
    "delete": "storage.objects.delete",
    "ask for": "storage.buckets.get",
    "sign for": "roles/iam.serviceAccountTokenCreator of the service account on itself",
}

# Below the logger whose lines an agent delivers with its job's log.
_log = logging.getLogger("cloudspot.gcp.gcs")


class Bucket:
    """One bucket and the prefix in it that a store's URL names. Thread-safe.

    Requests are made once: whoever makes them knows whether they may be repeated, and how long that is
    worth it (see :mod:`cloudspot.jobstore.patience` and :mod:`cloudspot.jobstore.creation`).
    """

    def __init__(self, url: str, clients: GcpClients, sleep: Callable[[float], None] = time.sleep) -> None:
        """Read ``gs://bucket/prefix``; no I/O.

        Raises:
            SpecError: the URL is none of Cloud Storage's.
        """
        self.url = url
        self.name, self.prefix = _parse_url(url)
        self.clients = clients
        self.sleep = sleep
        if google_crc32c.implementation != "c":
            _log.warning(
                "google-crc32c was installed without its compiled part: checksums take longer than the "
                "network; install a wheel of it for this platform"
            )

    def full(self, key: str) -> str:
        """Return the key in the bucket.

        Raises:
            ValueError: it is no key.
        """
        check_key(key)
        return self.prefix + key

    def handle(self) -> Any:
        """Return the SDK's ``Bucket``; no I/O."""
        return self.clients.storage().bucket(self.name)

    @contextmanager
    def asking(self, verb: str, key: str) -> Iterator[None]:
        """Raise what goes wrong with a request as cloudspot's errors."""
        try:
            yield
        except SDK_ERRORS as error:
            raise self._translation(error, verb, key) from error

    def send(self, method: str, path: str, **options: Any) -> Any:
        """Make a request by the JSON API, with a bearer token, and return the ``requests.Response``.

        For contents, which the SDK would copy several times. ``path`` is below the endpoint, or a whole URL.
        To be used within ``asking``.

        Raises:
            GoogleAPICallError: the answer is an error.
            requests.RequestException: there was none.
            TransientError: somebody else answered, such as a network's own page that asks to log in.
        """
        url = path if "://" in path else endpoint("storage") + path
        answer = self.clients.session().request(
            method, url, timeout=TIMEOUT, allow_redirects=False, **options
        )
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            with answer:
                raise from_http_response(answer)
        if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES and answer.status_code != _GO_ON:
            answer.close()
            raise TransientError(
                f"{self.url}: the answer leads elsewhere (HTTP status {answer.status_code}): is a proxy or a "
                "login page between?"
            )
        return answer

    def persist(self, call: Callable[[], T], *, kind: type[TransientError] = TransientError) -> T:
        """Return what ``call`` returns; after a ``kind`` it is made again, some times."""
        return retry(call, sleep=self.sleep, kind=kind)

    def writer_of(self, key: str) -> str | None:
        """Return who wrote the object that stands there ("" unknown), or None where there is none."""
        with self.asking("read", key):
            blob = self.handle().blob(self.full(key))
            try:
                blob.reload(retry=None, timeout=TIMEOUT)
            except SDK_ERRORS as error:
                if isinstance(self._translation(error, "read", key), ObjectMissing):
                    return None
                raise
        return str((blob.metadata or {}).get(WRITER, ""))

    def _translation(self, error: Exception, verb: str, key: str) -> CloudspotError:
        status, code = status_of(error), error_code(error)
        what = f"{self.url}: cannot {verb} {key}".rstrip()
        if status == HTTPStatus.PRECONDITION_FAILED:
            return ObjectExists(f"{self.url}: {key} exists")
        if status == HTTPStatus.NOT_FOUND and (_NO_BUCKET in str(error) or verb in {"list", "ask for"}):
            return self._no_bucket()
        if status == HTTPStatus.NOT_FOUND and verb in {"read", "delete"}:
            return ObjectMissing(f"{self.url}: no object {key}")
        if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
            return UploadGone(f"{what}: its resumable upload is gone")
        if status == HTTPStatus.TOO_MANY_REQUESTS or code in THROTTLED:
            return Passing(str(translation(error, what)))
        if status == HTTPStatus.NOT_IMPLEMENTED:
            return StoreRefused(f"{what}: the server lacks what cloudspot stands on: {error_code(error)}")
        found = translation(error, what)
        if status == HTTPStatus.BAD_REQUEST and "match calculated" in str(error):
            return TransientError(f"{found}: the bytes changed on the way")
        if status == HTTPStatus.FORBIDDEN and isinstance(found, AuthError) and code not in UNUSABLE:
            return AuthError(f"{found}; it takes {_RIGHTS[verb]}")
        return found

    def _no_bucket(self) -> SpecError:
        return SpecError(
            f"store {self.url}: there is no bucket {self.name!r}; make it (gcloud storage buckets create "
            f"gs://{self.name}) or mend the name"
        )


def _parse_url(url: str) -> tuple[str, str]:
    expected = "store must be gs://bucket or gs://bucket/prefix"
    scheme, separator, rest = url.partition("://")
    name, _, path = rest.partition("/")
    if scheme.lower() != "gs" or not separator or "@" in name:
        # Whatever stands before an @ may be a password.
        raise SpecError(f"{expected}: got another form")
    if _NAME.fullmatch(name) is None or ".." in name or name.startswith("goog"):
        raise SpecError(f"{expected}: {name!r} is no name of a bucket")
    path = path.rstrip("/")
    if not path:
        return name, ""
    try:
        check_key(path)
    except ValueError as error:
        raise SpecError(f"store {url}: its prefix is no key: {error}") from None
    return name, path + "/"
