"""A bucket of OSS: where it is, the requests that it accepts, and the meaning of its errors.

Sources: OSS API reference, PutObject (x-oss-forbid-overwrite), GetBucketInfo, "Error responses" (checked
2026-11).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from http import HTTPStatus
from typing import Any, ClassVar, Final

import oss2
import oss2.credentials
from urllib3.connection import HTTPConnection

from cloudspot.calls import LinkResult
from cloudspot.decoding import whole_number
from cloudspot.errors import (
    CloudspotError,
    ObjectExists,
    ObjectMissing,
    SpecError,
    StoreMissing,
    StoreRefused,
)
from cloudspot.host.paced_http import pace
from cloudspot.model import CheckResult
from cloudspot.plugin.bucket import (
    Begun,
    Bucket,
    Described,
    Download,
    IncompleteAnswer,
    Listed,
    RangeBeyondEnd,
    require,
)
from cloudspot.plugin.multipart import Passing, UploadGone
from cloudspot_aliyun.clients import (
    CONNECT_SECONDS,
    OSS_DOMAINS,
    READ_SECONDS,
    USER_AGENT,
    AliyunClients,
    is_inside,
    oss_domain,
    oss_endpoint,
)
from cloudspot_aliyun.credentials import CredentialsSource
from cloudspot_aliyun.errors import ERRORS
from cloudspot_aliyun.osspayload import compare

FALLBACK_REGION: Final = "cn-hangzhou"
"""The region to ask for a bucket when none is configured; the refusal names the permission one."""
MAX_CONNECTIONS: Final = 32
WRITER: Final = "x-oss-meta-cloudspot-writer"
"""The header that names an object's writer."""

_ENDPOINT = re.compile(r"oss-([a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com")
# Without this header, OSS returns the whole object for a range that begins or ends past its end.
_STANDARD = {"x-oss-range-behavior": "standard"}
_OTHERS_BUCKET = ", and the bucket policy's consent if another account owns it"


class PositionTaken(CloudspotError):
    """The object is longer than the append expected; nothing was appended."""


class NotAppendable(CloudspotError):
    """The object was uploaded as a whole, and so cannot be appended to."""


class OssBucket(Bucket):
    """A bucket and a prefix in it. Thread-safe."""

    scheme: ClassVar[str] = "oss"
    names: ClassVar[re.Pattern[str]] = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
    errors = ERRORS
    kinds: ClassVar[Mapping[str, type[CloudspotError]]] = {
        "FileAlreadyExists": ObjectExists,
        "InvalidRange": RangeBeyondEnd,
        "NoSuchBucket": StoreMissing,
        "NoSuchKey": ObjectMissing,
        "NoSuchUpload": UploadGone,
        "ObjectNotAppendable": NotAppendable,
        "PositionNotEqualToLength": PositionTaken,
    }
    rights: ClassVar[Mapping[str, str]] = {
        "append to": f"oss:PutObject{_OTHERS_BUCKET}",
        "list": f"oss:ListObjects{_OTHERS_BUCKET}",
        "list uploads of": f"oss:ListMultipartUploads{_OTHERS_BUCKET}",
        "read": f"oss:GetObject{_OTHERS_BUCKET}",
        "sign for": f"oss:GetObject{_OTHERS_BUCKET}",
        **dict.fromkeys(("write", "create"), f"oss:PutObject{_OTHERS_BUCKET}"),
        "delete": f"oss:DeleteObject{_OTHERS_BUCKET}",
    }
    deletes_many = True
    how_to_create: ClassVar[str] = "ossutil mb oss://"

    def __init__(self, url: str, clients: AliyunClients | None, sleep: Callable[[float], None]) -> None:
        super().__init__(url, sleep)
        if self.prefix.startswith("\\"):
            raise SpecError(f"store {url}: OSS accepts no key that begins with a backslash")
        self._clients = clients or AliyunClients()
        self._keys: _Keys | None = None

    def connect(self) -> oss2.Bucket:
        """Return a client of the endpoint of the bucket's region, after asking OSS for that region.

        Raises:
            StoreMissing: the bucket does not exist.
            SpecError: the configuration is wrong.
            StoreRefused: versioning is on, so create-only writes do not work.
        """
        pace(HTTPConnection)
        region = self._clients.region_or_none() or FALLBACK_REGION
        client = self._client_in(region)
        tried = {region}
        while True:
            try:
                info = client.get_bucket_info()
            except ERRORS.raised as error:
                elsewhere = _right_region(error)
                if elsewhere is not None and elsewhere not in tried:
                    client = self._client_in(elsewhere)
                    tried.add(elsewhere)
                    continue
                if ERRORS.code_of(error) not in ERRORS.denied:
                    raise self.translated(error, "list", "") from error
                # A caller who may read and write objects may lack permission to read the bucket's settings;
                # the responses to writes show whether versioning is on.
                return client
            if info.versioning_status:
                raise self._versioned(f"versioning {info.versioning_status}")
            return client

    def kind_of(self, error: Exception, verb: str) -> type[CloudspotError] | None:
        code, status = ERRORS.code_of(error), ERRORS.status_of(error)
        if code in ERRORS.expired and self._keys is not None and self._keys.renew():
            return Passing
        if status == HTTPStatus.NOT_IMPLEMENTED:
            return StoreRefused
        # The response to a HEAD has no body, and so no code.
        if not code and status == HTTPStatus.NOT_FOUND:
            return ObjectMissing
        return super().kind_of(error, verb)

    def translation(self, error: Exception, what: str) -> CloudspotError:
        if ERRORS.code_of(error) == "PublicEndpointForbidden":
            return StoreRefused(
                f"{what}: OSS does not let this account use the bucket's public endpoint, like all accounts "
                "that opened OSS since 2025-03-20: bind a domain of yours to the bucket and set "
                f"{OSS_DOMAINS}={self.name}=https://..., or work on an ECS machine in the bucket's region; "
                "see docs/aliyun.md"
            )
        return super().translation(error, what)

    def head(self, client: Any, name: str) -> Described:
        answer = client.head_object(name)
        writer = str(answer.headers.get(WRITER, ""))
        modified_at = _moment(require(answer.last_modified, "a time"))
        etag = str(answer.etag or "").strip('"')
        return Described(require(answer.content_length, "a size"), modified_at, writer, etag)

    def download(self, client: Any, name: str, span: tuple[int, int] | None) -> Download:
        answer = client.get_object(name, byte_range=span, headers={} if span is None else _STANDARD)

        def verify(data: memoryview) -> None:
            if span is None:  # OSS returns only the checksum of the whole object.
                compare(answer.headers, data, f"{self.url}: {name}")

        is_partial = answer.status == HTTPStatus.PARTIAL_CONTENT
        return Download(answer.resp.response.raw, whole_number(answer.content_length), is_partial, verify)

    def list_names(
        self, client: Any, prefix: str, *, after: str | None, token: str | None, limit: int
    ) -> tuple[Sequence[Listed], str | None]:
        answer = client.list_objects_v2(
            prefix=prefix, start_after=after or "", continuation_token=token or "", max_keys=limit
        )
        found = [
            Listed(one.key, one.size, _moment(one.last_modified), str(one.etag or "").strip('"'))
            for one in answer.object_list
        ]
        return found, str(answer.next_continuation_token) if answer.is_truncated else None

    def delete(self, client: Any, name: str) -> None:
        require(client.delete_object(name).status == HTTPStatus.NO_CONTENT or None, "the status 204")

    def delete_names(self, client: Any, names: Sequence[str]) -> None:
        deleted = client.batch_delete_objects(list(names)).deleted_keys
        require(None if set(names).difference(deleted) else True, "an object that was to be deleted")

    def sign_get(self, client: Any, name: str, seconds: int) -> str:
        url: str = client.sign_url("GET", name, seconds, slash_safe=True)
        return url

    def sign_link(self, client: Any, name: str, seconds: int, media_type: str) -> LinkResult:
        """Return the URL of a page to open in a browser; see Bucket.

        Raises:
            CloudspotError: the bucket has only its default domain, under which browsers download HTML.
        Source: OSS user guide, "How to ensure an object is previewed when you access the object", and "Map a
        custom domain name to the default domain name of a bucket" (checked 2026-11).
        """
        if oss_domain(self.name) is None:
            raise CloudspotError(
                f"{self.url}: browsers download pages from OSS's default domain and do not show them; bind "
                "a domain of your own to the bucket and set CLOUDSPOT_OSS_DOMAINS, or send the file that "
                "`cloudspot report` writes"
            )
        key = self._clients.credentials.get()
        url: str = client.sign_url(
            "GET", name, seconds, slash_safe=True, params={"response-content-type": media_type}
        )
        ends_at = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        if not key.security_token or (key.expires_at is not None and key.expires_at >= ends_at):
            return LinkResult(url=url, ends_at=ends_at)
        why = "it is signed with a temporary key, and ends with that"
        if key.expires_at is None:
            why += ", whose end is not known"
        longer = "sign with a RAM user's AccessKey for a link that lasts up to 7 days"
        return LinkResult(url=url, ends_at=key.expires_at or ends_at, note=f"{why}; {longer}")

    def list_uploads(self, client: Any) -> Sequence[Begun]:
        found = oss2.MultipartUploadIterator(client, prefix=self.prefix)
        return [Begun(one.key, one.upload_id, _moment(one.initiation_date)) for one in found]

    def check_settings(self) -> Sequence[CheckResult]:
        return (
            self.check_setting("bucket versioning", _versioning),
            self.check_setting("bucket lifecycle", _lifecycle),
        )

    def check_create(self, headers: Mapping[str, str]) -> None:
        """Raise StoreRefused if a write's response shows versioning, as it may have replaced an object."""
        if "x-oss-version-id" in headers:
            raise self._versioned("versions")

    def _client_in(self, region: str) -> oss2.Bucket:
        if self._keys is None:
            self._keys = _Keys(self._clients.credentials)
        return _client(self._keys, self.name, region)

    def _versioned(self, state: str) -> StoreRefused:
        return StoreRefused(
            f"store {self.url}: bucket {self.name!r} has {state}: OSS then ignores the condition of a "
            "create-only write, and two writers could both win; use a bucket that never had versioning"
        )


def bucket_client(clients: AliyunClients, name: str) -> oss2.Bucket:
    """Return a client of a bucket in the clients' region, which need not exist; errors are the SDK's."""
    pace(HTTPConnection)
    return _client(_Keys(clients.credentials), name, clients.region)


def _client(keys: _Keys, name: str, region: str) -> oss2.Bucket:
    domain = oss_domain(name)
    return oss2.Bucket(
        oss2.ProviderAuthV4(keys),
        domain or oss_endpoint(region, is_internal=is_inside(region)),
        name,
        is_cname=domain is not None,
        session=_Session(pool_size=MAX_CONNECTIONS),
        connect_timeout=(CONNECT_SECONDS, READ_SECONDS),
        app_name=USER_AGENT,
        enable_crc=False,  # osspayload computes the checksum about forty times as fast.
        region=region,
    )


class _Session(oss2.Session):  # type: ignore[misc]
    """Treats a response as successful only if it comes from OSS itself."""

    def do_request(self, req: Any, timeout: Any) -> Any:
        """Make a request; see oss2.

        Raises:
            IncompleteAnswer: the response lacks the request id that all of OSS's responses have ("Common
                response headers", checked 2026-11).
        """
        answer = super().do_request(req, timeout)
        if answer.status < HTTPStatus.BAD_REQUEST and not answer.request_id:
            answer.response.close()
            raise IncompleteAnswer("a request id")
        return answer


class _Keys(oss2.credentials.CredentialsProvider):  # type: ignore[misc]
    """Supplies oss2 with the currently valid key."""

    def __init__(self, source: CredentialsSource) -> None:
        self._source = source
        self._used = threading.local()

    def get_credentials(self) -> oss2.credentials.Credentials:
        """Return the key; oss2 calls this for each request."""
        key = self._source.get()
        self._used.key_id = key.access_key_id
        return oss2.credentials.Credentials(key.access_key_id, key.access_key_secret, key.security_token)

    def renew(self) -> bool:
        """Return whether there is a key other than the one that signed this thread's last request."""
        return self._source.renew(getattr(self._used, "key_id", ""))


def _right_region(error: Exception) -> str | None:
    details = getattr(error, "details", None) or {}
    match = _ENDPOINT.fullmatch(str(details.get("Endpoint") or ""))
    return match[1] if match else None


def _versioning(client: Any) -> tuple[str, str]:
    client.get_bucket_info()
    return "off", ""  # If versioning were on, the bucket would have been refused.


def _lifecycle(client: Any) -> tuple[str, str]:
    try:
        rules = client.get_bucket_lifecycle().rules
    except ERRORS.raised as error:
        if ERRORS.code_of(error) != "NoSuchLifecycle":
            raise
        rules = []
    if any(rule.abort_multipart_upload is not None and rule.status == "Enabled" for rule in rules):
        return "unfinished uploads are removed", ""
    return (
        "parts of an upload that a dying machine leaves behind stay and are billed",
        "add a rule with AbortMultipartUpload",
    )


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, tz=timezone.utc)
