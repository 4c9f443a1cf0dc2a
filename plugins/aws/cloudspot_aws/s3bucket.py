"""A bucket of S3: where it is, the requests that it accepts, and the meaning of its errors."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import urlsplit

from urllib3.connection import HTTPConnection

from cloudspot.calls import LinkResult
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
    accept,
    require,
)
from cloudspot.plugin.multipart import Passing, UploadGone
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.s3reads import S3Reads, verify

FALLBACK_REGION = "us-east-1"
"""The region to ask for a bucket when none is configured; the response names the permission one."""
WRITER = "cloudspot-writer"
"""The metadata key that names an object's writer."""

_OTHERS_BUCKET = ", and the bucket policy's consent if another account owns it"
_CONFIG: dict[str, Any] = {
    # A profile may still ask for an older signature version, which newer regions refuse.
    "signature_version": "s3v4",
    # cloudspot computes the checksums that it sends; botocore would add its own, and verify all that is read.
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}


class S3Bucket(Bucket):
    """A bucket and a prefix in it. Thread-safe."""

    scheme: ClassVar[str] = "s3"
    names: ClassVar[re.Pattern[str]] = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
    errors = ERRORS
    kinds: ClassVar[Mapping[str, type[CloudspotError]]] = {
        "PreconditionFailed": ObjectExists,
        **dict.fromkeys(("NoSuchKey", "404"), ObjectMissing),
        **dict.fromkeys(("InvalidRange", "416"), RangeBeyondEnd),
        # Another write of the key was in progress; S3 wrote nothing and asks for a retry. Source: S3 API
        # reference, PutObject, If-None-Match (checked 2026-11).
        "ConditionalRequestConflict": Passing,
        "NoSuchBucket": StoreMissing,
        "NoSuchUpload": UploadGone,
        "NotImplemented": StoreRefused,
    }
    rights: ClassVar[Mapping[str, str]] = {
        "list": f"s3:ListBucket{_OTHERS_BUCKET}",
        "list uploads of": f"s3:ListBucketMultipartUploads{_OTHERS_BUCKET}",
        "read": f"s3:GetObject{_OTHERS_BUCKET}",
        "sign for": f"s3:GetObject{_OTHERS_BUCKET}",
        **dict.fromkeys(("write", "create"), f"s3:PutObject{_OTHERS_BUCKET}"),
        "delete": f"s3:DeleteObject{_OTHERS_BUCKET}",
    }
    deletes_many = True
    how_to_create: ClassVar[str] = "aws s3 mb s3://"

    def __init__(self, url: str, clients: AwsClients | None, sleep: Callable[[float], None]) -> None:
        super().__init__(url, sleep)
        if self.name.endswith("--x-s3"):
            raise SpecError(
                f"store {url}: a directory bucket does not list its objects in order; use a general purpose "
                "bucket"
            )
        self._clients = clients or AwsClients()
        self._reads: S3Reads
        """Set by ``connect``."""

    def connect(self) -> Any:
        """Return a client of the bucket's region, after asking S3 for that region.

        Raises:
            StoreMissing: the bucket does not exist.
            SpecError: the response is a bare 404, or the configuration is wrong.
        """
        pace(HTTPConnection)
        client = self._client_in(self._clients.region_or_none() or FALLBACK_REGION)
        try:
            answer = client.head_bucket(Bucket=self.name)
        except ERRORS.raised as error:
            region = _bucket_region(getattr(error, "response", {}))
            # A denied HEAD names the region as well; later requests show whether the permissions suffice.
            is_somewhere = region is not None or ERRORS.status_of(error) == HTTPStatus.FORBIDDEN
            if not is_somewhere or self.kind_of(error, "list") is SpecError:
                raise self.translated(self._with_reason(client, error), "list", "") from error
        else:
            region = _bucket_region(answer)
        if region is not None:
            client = self._client_in(region)
        self._reads = S3Reads(client, self._clients.core, self.name)
        return client

    def _with_reason(self, client: Any, error: Exception) -> Exception:
        """Return S3's own error for a 404 to a HEAD, which any server at a wrong endpoint may also return."""
        if self.kind_of(error, "list") is SpecError:
            try:
                client.list_objects_v2(Bucket=self.name, MaxKeys=1)
            except ERRORS.raised as explained:
                error = explained
        return error

    @property
    def has_checksums(self) -> bool:
        """Return whether payloads carry a checksum; botocore can be set not to, for other servers."""
        asked = self._clients.core.get_config_variable("request_checksum_calculation")
        return str(asked).lower() != "when_required"

    def translated(self, error: Exception, verb: str, key: str) -> CloudspotError:
        translation = super().translated(error, verb, key)
        is_refused = type(translation) in {CloudspotError, StoreRefused} and verb in {"write", "create"}
        if not is_refused or not self.has_checksums:
            return translation
        return type(translation)(
            f"{translation}; if this server of S3's protocol takes no checksums, set "
            "AWS_REQUEST_CHECKSUM_CALCULATION=when_required"
        )

    def kind_of(self, error: Exception, verb: str) -> type[CloudspotError] | None:
        # The response to a HEAD has no body, and so no code except the status.
        is_missing = ERRORS.code_of(error) == "404" and verb == "list"
        return SpecError if is_missing else super().kind_of(error, verb)

    def head(self, client: Any, name: str) -> Described:
        answer = client.head_object(Bucket=self.name, Key=name)
        etag = require(answer.get("ETag"), "an ETag")
        writer = answer.get("Metadata", {}).get(WRITER, "")
        size = require(answer.get("ContentLength"), "a size")
        return Described(size, require(answer.get("LastModified"), "a time"), writer, etag.strip('"'))

    def download(self, client: Any, name: str, span: tuple[int, int] | None) -> Download:
        # S3 returns no checksum for a range.
        mode = {"x-amz-checksum-mode": "ENABLED"} if self.has_checksums else {}
        if span is not None:
            mode = {"Range": f"bytes={span[0]}-{span[1]}"}
        answer = self._reads.get(name, mode)
        if not answer.headers.get("ETag"):
            answer.body.close()
            raise IncompleteAnswer("an ETag")
        is_partial = answer.status == HTTPStatus.PARTIAL_CONTENT
        check = partial(verify, answer.headers) if span is None else accept
        return Download(answer.body, answer.num_bytes, is_partial, check)

    def list_names(
        self, client: Any, prefix: str, *, after: str | None, token: str | None, limit: int
    ) -> tuple[Sequence[Listed], str | None]:
        start = {"StartAfter": after, "ContinuationToken": token}
        given = {name: value for name, value in start.items() if value is not None}
        answer = client.list_objects_v2(Bucket=self.name, Prefix=prefix, MaxKeys=limit, **given)
        is_truncated = require(answer.get("IsTruncated"), "whether more follows")
        listed = [
            Listed(one["Key"], one["Size"], one["LastModified"], one.get("ETag", "").strip('"'))
            for one in answer.get("Contents", ())
        ]
        return listed, answer.get("NextContinuationToken", "") if is_truncated else None

    def delete(self, client: Any, name: str) -> None:
        status = client.delete_object(Bucket=self.name, Key=name)["ResponseMetadata"]["HTTPStatusCode"]
        require(status == HTTPStatus.NO_CONTENT or None, "the status 204")

    def delete_names(self, client: Any, names: Sequence[str]) -> None:
        answer = client.delete_objects(
            Bucket=self.name, Delete={"Objects": [{"Key": name} for name in names]}
        )
        # S3 responds with status 200 and an error for each object that it did not delete; the first error is
        # raised.
        for refused in answer.get("Errors", ()):
            raise client.exceptions.ClientError({"Error": refused}, "DeleteObjects")
        deleted = {one["Key"] for one in answer.get("Deleted", ())}
        require(None if set(names) - deleted else True, "an object that was to be deleted")

    def disconnect(self, client: Any) -> None:
        client.close()

    def sign_get(self, client: Any, name: str, seconds: int) -> str:
        return self._reads.signed_url(name, seconds)

    def sign_link(self, client: Any, name: str, seconds: int, media_type: str) -> LinkResult:
        """Return the URL of a page to open in a browser; see Bucket.

        Source: S3 user guide, "Sharing objects with presigned URLs": a URL that was made with temporary
        credentials expires with them (checked 2026-11).
        """
        url = self._reads.signed_url(name, seconds, media_type=media_type)
        now = datetime.now(timezone.utc)
        ends_at, is_temporary = now + timedelta(seconds=seconds), self._reads.are_temporary
        over = self._reads.credentials_end
        if not is_temporary or (over is not None and over >= ends_at):
            return LinkResult(url=url, ends_at=ends_at)
        why = "it is signed with temporary credentials, and ends with them"
        if over is None:
            why += ": AWS has not said when that is"
        keys = "sign with an IAM user's access key for a link that lasts up to 7 days"
        return LinkResult(url=url, ends_at=over or ends_at, note=f"{why}; {keys}")

    def list_uploads(self, client: Any) -> Sequence[Begun]:
        pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=self.name, Prefix=self.prefix)
        return [
            Begun(one["Key"], one["UploadId"], one["Initiated"])
            for page in pages
            for one in page.get("Uploads", ())
        ]

    def check_settings(self) -> Sequence[CheckResult]:
        return (
            self.check_setting("bucket versioning", self._versioning),
            self.check_setting("bucket lifecycle", self._lifecycle),
        )

    def _versioning(self, client: Any) -> tuple[str, str]:
        if client.get_bucket_versioning(Bucket=self.name).get("Status", "Off") != "Enabled":
            return "off", ""
        return (
            "on: objects that cloudspot deletes stay as old versions and are billed",
            "add a lifecycle rule that expires noncurrent versions",
        )

    def _lifecycle(self, client: Any) -> tuple[str, str]:
        try:
            rules = client.get_bucket_lifecycle_configuration(Bucket=self.name).get("Rules", [])
        except client.exceptions.ClientError as error:
            if ERRORS.code_of(error) != "NoSuchLifecycleConfiguration":
                raise
            rules = []
        if any("AbortIncompleteMultipartUpload" in rule and rule["Status"] == "Enabled" for rule in rules):
            return "unfinished uploads are removed", ""
        return (
            "parts of an upload that a dying machine leaves behind stay and are billed",
            "add a rule with AbortIncompleteMultipartUpload",
        )

    def _client_in(self, region: str) -> Any:
        signs = {"payload_signing_enabled": False}
        client = self._clients.client("s3", region=region, num_attempts=1, s3=signs, **_CONFIG)
        if self.has_checksums and _is_guarded(client.meta.endpoint_url):
            return client
        # A signed hash lets the server verify the payload. On an open network, anybody who changes a payload
        # could also replace its unsigned checksum, if it has any.
        signs = {"payload_signing_enabled": True}
        return self._clients.client("s3", region=region, num_attempts=1, s3=signs, **_CONFIG)


def _is_guarded(endpoint_url: str) -> bool:
    """Return whether payloads cannot be changed in transit, because of TLS or on the same machine."""
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
