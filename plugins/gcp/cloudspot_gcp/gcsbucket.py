"""A bucket of Cloud Storage: the requests that it accepts, and the meaning of its errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import quote

from google.api_core.datetime_helpers import from_rfc3339
from google.api_core.exceptions import NotFound
from urllib3.connection import HTTPConnection

from cloudspot.calls import LinkResult
from cloudspot.decoding import whole_number
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
from cloudspot.host.paced_http import pace
from cloudspot.model import CheckResult
from cloudspot.plugin.bucket import (
    Bucket,
    Described,
    Download,
    IncompleteAnswer,
    Listed,
    RangeBeyondEnd,
    require,
)
from cloudspot.plugin.multipart import Passing, UploadGone
from cloudspot_gcp.clients import TIMEOUT, GcpClients, endpoint
from cloudspot_gcp.errors import ERRORS, UNUSABLE, error_of
from cloudspot_gcp.gcspayload import extend_crc32c, shown_crc32c
from cloudspot_gcp.gcssettings import check_settings

WRITER = "cloudspot-writer"
"""The metadata key that names an object's writer."""

_NO_BUCKET = "bucket does not exist"
_CHANGED = "match calculated"
"""Part of Storage's message about a checksum that differs."""
_NOT_MET = frozenset({"conditionNotMet", "412"})
"""The codes of a 412 that is caused by a write's own condition; another cause is orgPolicyConstraintFailed.
Google's storage-testbench and fake-gcs-server state no reason, so that the code is the status. Source: Cloud
Storage JSON API, "HTTP status and error codes for JSON" (checked 2026-11)."""
_OBJECT = "size,crc32c,updated,generation,metadata"
# An empty listing has only the field ``kind``.
_LISTED = "kind,items(name,size,crc32c,updated,generation),nextPageToken"
_CRC32C = re.compile(r"(?:^|,)\s*crc32c=([^,\s]+)")
_KINDS: Mapping[int, type[CloudspotError]] = {
    HTTPStatus.GONE: UploadGone,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: RangeBeyondEnd,
    HTTPStatus.TOO_MANY_REQUESTS: Passing,
    HTTPStatus.NOT_IMPLEMENTED: StoreRefused,
}
_MISSING: Mapping[str, type[CloudspotError]] = {
    **dict.fromkeys(("list", "ask for"), SpecError),
    **dict.fromkeys(("read", "delete"), ObjectMissing),
}
"""The error for a 404, by verb."""


class GcsBucket(Bucket):
    """A bucket and a prefix in it; its client is the SDK's ``Bucket``. Thread-safe."""

    scheme: ClassVar[str] = "gs"
    names: ClassVar[re.Pattern[str]] = re.compile(r"(?!goog|.*\.\.)[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
    errors = ERRORS
    rights: ClassVar[Mapping[str, str]] = {
        "list": "storage.objects.list",
        "read": "storage.objects.get",
        "write": "storage.objects.create, and storage.objects.delete to replace one",
        "create": "storage.objects.create",
        "delete": "storage.objects.delete",
        "ask for": "storage.buckets.get",
        "sign for": "roles/iam.serviceAccountTokenCreator of the service account on itself",
    }
    how_to_create: ClassVar[str] = "gcloud storage buckets create gs://"

    def __init__(self, url: str, clients: GcpClients | None, sleep: Callable[[float], None]) -> None:
        super().__init__(url, sleep)
        self.clients = clients or GcpClients()

    def connect(self) -> Any:
        """Return the SDK's bucket; this does no I/O. Raise AuthError if there are no credentials."""
        pace(HTTPConnection)
        return self.clients.storage().bucket(self.name)

    def kind_of(self, error: Exception, verb: str) -> type[CloudspotError] | None:
        status, code = ERRORS.status_of(error), ERRORS.code_of(error)
        if status == HTTPStatus.NOT_FOUND:
            return StoreMissing if _NO_BUCKET in str(error) else _MISSING.get(verb, UploadGone)
        if status == HTTPStatus.FORBIDDEN and code not in UNUSABLE | ERRORS.throttled:
            return AuthError
        if code in ERRORS.throttled:
            return Passing
        return ObjectExists if code in _NOT_MET else _KINDS.get(status)

    def translation(self, error: Exception, what: str) -> CloudspotError:
        found = super().translation(error, what)
        if ERRORS.status_of(error) == HTTPStatus.BAD_REQUEST and _CHANGED in str(error):
            return TransientError(f"{found}: the bytes were damaged in transit")
        return found

    def head(self, client: Any, name: str) -> Described:
        found = fields_of(self.send("GET", self._path(name), params={"fields": _OBJECT}))
        writer = str((found.get("metadata") or {}).get(WRITER, ""))
        return Described(*_size_and_time(found), writer, str(found.get("generation", "")))

    def download(self, client: Any, name: str, span: tuple[int, int] | None) -> Download:
        headers = {"Accept-Encoding": "identity"}
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1]}"
        answer = self.send("GET", self._path(name), params={"alt": "media"}, headers=headers, stream=True)
        if "x-goog-generation" not in answer.headers:
            answer.close()
            raise IncompleteAnswer("a generation")
        is_partial = answer.status_code == HTTPStatus.PARTIAL_CONTENT

        def verify(data: memoryview) -> None:
            """Compare an object that was read whole with its checksum, which covers the whole object."""
            _, _, total = answer.headers.get("Content-Range", "").partition("/")
            checksum = _CRC32C.search(answer.headers.get("x-goog-hash", ""))
            if checksum is None or (is_partial and total != str(len(data))):
                return
            if shown_crc32c(extend_crc32c(0, data)) != checksum[1]:
                raise TransientError(f"{self.url}: {name} arrived damaged; read it again")

        num_bytes = whole_number(answer.headers.get("Content-Length"))
        return Download(answer.raw, num_bytes, is_partial, verify)

    def list_names(
        self, client: Any, prefix: str, *, after: str | None, token: str | None, limit: int
    ) -> tuple[Sequence[Listed], str | None]:
        asked = {
            "prefix": prefix,
            # Storage includes the name from which a listing starts. In the order of keys, none lies between
            # ``after`` and ``after`` followed by the smallest character.
            "startOffset": None if after is None else f"{after} ",
            "pageToken": token,
            "maxResults": limit,
            "fields": _LISTED,
        }
        listing = fields_of(self.send("GET", self._path(), params=asked))
        require(listing.get("kind"), "its kind")
        found = [
            Listed(str(one["name"]), *_size_and_time(one), str(one.get("generation", "")))
            for one in listing.get("items", ())
        ]
        return found, listing.get("nextPageToken")

    def delete(self, client: Any, name: str) -> None:
        with self.send("DELETE", self._path(name)) as answer:
            is_told = answer.status_code == HTTPStatus.NO_CONTENT
        if not is_told:
            # storage-testbench and fake-gcs-server answer 200, as a login page does, so check that it no
            # longer exists.
            with suppress(NotFound):
                self.head(client, name)
                raise IncompleteAnswer("status 204")

    def sign_get(self, client: Any, name: str, seconds: int) -> str:
        """Return a URL that reads the object; see Bucket.

        The URL is signed with a service account's key or, on a machine, which has no key, by IAM.

        Raises:
            CloudspotError: the credentials are a user's own login, which cannot sign.
        """
        from cloudspot_gcp.signing import signer

        url: str = client.blob(name).generate_signed_url(
            version="v4",
            expiration=timedelta(seconds=seconds),
            credentials=signer(self.clients),
            api_access_endpoint=endpoint("storage"),
        )
        return url

    def sign_link(self, client: Any, name: str, seconds: int, media_type: str) -> LinkResult:
        """Return the URL of a page to open in a browser; see Bucket.

        A service account signs it, and the signature remains valid after the token that was used to request
        it.

        Raises:
            CloudspotError: the credentials are a user's own login, which cannot sign.
        """
        from cloudspot_gcp.signing import signer

        url: str = client.blob(name).generate_signed_url(
            version="v4",
            expiration=timedelta(seconds=seconds),
            credentials=signer(self.clients),
            api_access_endpoint=endpoint("storage"),
            response_type=media_type,
        )
        return LinkResult(url=url, ends_at=datetime.now(timezone.utc) + timedelta(seconds=seconds))

    def check_settings(self) -> Sequence[CheckResult]:
        try:
            with self.asking("ask for", "the bucket's settings") as client:
                client.reload(retry=None, timeout=TIMEOUT)
        except AuthError:
            why = f"the permission to ask is missing ({self.rights['ask for']})"
            return (CheckResult(name="bucket settings", ok=True, is_known=False, detail=why),)
        except CloudspotError as error:
            return (CheckResult(name="bucket settings", ok=False, detail=str(error)),)
        return check_settings(client, self.prefix)

    def _path(self, name: str | None = None) -> str:
        objects = f"/storage/v1/b/{quote(self.name, safe='')}/o"
        return objects if name is None else f"{objects}/{quote(name, safe='')}"

    def send(self, method: str, path: str, **options: Any) -> Any:
        """Make a request by the JSON API, with a bearer token, and return the ``requests.Response``.

        The method is for contents, which the SDK would copy several times. ``path`` is a path at the
        endpoint, or a whole URL. Call this within ``asking``.

        Raises:
            GoogleAPICallError: the answer is an error.
            requests.RequestException: there was no answer.
            TransientError: another server answered, such as a network's own login page.
        """
        url = path if "://" in path else endpoint("storage") + path
        answer = self.clients.session().request(
            method, url, timeout=TIMEOUT, allow_redirects=False, **options
        )
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            with answer:
                raise error_of(answer)
        # Storage responds with status 308 while an upload is incomplete.
        is_redirect = HTTPStatus.MULTIPLE_CHOICES <= answer.status_code != HTTPStatus.PERMANENT_REDIRECT
        if is_redirect:
            answer.close()
            raise TransientError(
                f"{self.url}: the answer (HTTP status {answer.status_code}) is not Cloud Storage's: is there "
                "a proxy or a login page in between?"
            )
        return answer


def fields_of(answer: Any) -> dict[str, Any]:
    """Return a response's JSON fields; raise IncompleteAnswer if it has none. Call this within ``asking``."""
    value = answer.json()
    return require(value if isinstance(value, dict) else None, "JSON fields")


def _size_and_time(described: Mapping[str, Any]) -> tuple[int, datetime]:
    updated = require(described.get("updated"), "a time")
    size = described.get("size")
    if size is None and described.get("crc32c") == shown_crc32c(0):
        size = "0"  # storage-testbench omits the size of an empty object
    return require(whole_number(size), "a size"), from_rfc3339(updated)
