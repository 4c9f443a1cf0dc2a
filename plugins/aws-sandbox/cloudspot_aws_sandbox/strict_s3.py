"""moto's S3 made as strict as the real service: WSGI middleware around moto's server.

The middleware refuses requests that S3 refuses and moto accepts: wrong signatures, regions, checksums and
payload hashes, expired URLs, parts that are too small or do not match, failed conditions at the end of a
multipart upload. Faults are injected by rules (:mod:`cloudspot.emulation.api_faults`), and every request is
recorded.

Source: S3 API reference, the operations' pages and "Error responses" (checked 2026-11).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot_aws_sandbox.checksums import CHECKSUMS, is_right, unchunked
from cloudspot_aws_sandbox.query import ApiError, read_body
from cloudspot_aws_sandbox.rights import needs_of
from cloudspot_aws_sandbox.s3requests import RIGHTS, S3Request, is_for_s3, parse_request
from cloudspot_aws_sandbox.sigv4 import UNSIGNED, check_signature, read_signature

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

MIN_PART_BYTES = 5 << 20
MAX_PART_NUMBER = 10_000
MAX_KEY_BYTES = 1024
_WRITES = {"CompleteMultipartUpload", "PutObject"}
_ALONE = {"DeleteObject", "DeleteObjects", "GetObject", "ListObjects", "ListObjectsV2"}
"""moto fails if one of these actions runs at the same time as another or as a write: it closes the content of
an object that is replaced while others read it, and looks up listed keys that others delete.
"""
_PLAIN_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass
class _Part:
    size: int
    checksum: str | None


@dataclass
class _Multipart:
    algorithm: str | None
    begun_at: datetime
    parts: dict[int, _Part] = field(default_factory=dict)


class StrictS3:
    """WSGI middleware; requests to other services reach ``app`` unchanged. Thread-safe.

    ``secrets`` maps access keys to their secrets, and may grow. Access to ``foreign_buckets``, which belong
    to another account, is denied. ``is_granted``, if given, returns whether a key has a permission on a
    resource (an ARN), in a context.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        faults: Faults,
        secrets: Mapping[str, str],
        is_granted: Callable[[str, str, str, Mapping[str, str]], bool] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.foreign_buckets: set[str] = set()
        self._app = app
        self._faults = faults
        self._secrets = secrets
        self._is_granted = is_granted
        self._now = now
        self._uploads: dict[str, _Multipart] = {}
        self._lock = threading.Lock()
        self._writes = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        if not is_for_s3(environ):
            return self._app(environ, start_response)
        request = parse_request(environ)
        try:
            status, headers, body = self._answer(request)
            code = None if int(status.split()[0]) < HTTPStatus.BAD_REQUEST else _code_in(body, status)
        except ApiError as error:
            status, headers, body = self._refusal(request, error)
            code = error.code
        self._record(request, code)
        start_response(status, headers)
        return [] if request.environ["REQUEST_METHOD"] == "HEAD" else [body]

    # --- one request ------------------------------------------------------------------------------

    def _answer(self, request: S3Request) -> tuple[str, list[tuple[str, str]], bytes]:
        raw = read_body(request.environ)
        self._authenticate(request, raw)
        injected = self._faults.take(request.action)
        if injected is not None and not injected.happens:
            raise ApiError(injected.code, injected.message, status=injected.status)
        self._authorize(request)
        request.body = self._check_body(request, raw)
        self._check_request(request)
        if request.action in _WRITES:
            with self._writes:
                self._check_condition(request)
                answer = self._forward(request)
                self._take_note(request, *answer)
        elif request.action in _ALONE:
            with self._writes:
                answer = self._forward(request)
        else:
            answer = self._forward(request)
            self._take_note(request, *answer)
        if injected is not None:
            raise ApiError(injected.code, injected.message, status=injected.status)
        return answer

    def _authenticate(self, request: S3Request, raw: bytes) -> None:
        signature = read_signature(request.environ)
        if signature is None:
            raise ApiError("AccessDenied", "Access Denied", status=403)
        request.region, request.access_key = signature.region, signature.access_key
        if signature.access_key in self._faults.expired_keys:
            raise ApiError("ExpiredToken", "The provided token has expired.", status=400)
        secret = self._secrets.get(signature.access_key)
        if secret is None or signature.access_key in self._faults.rejected_keys:
            raise ApiError(
                "InvalidAccessKeyId",
                "The AWS Access Key Id you provided does not exist in our records.",
                status=403,
            )
        check_signature(request.environ, signature, secret, now=self._now())
        if signature.expires_seconds is not None:
            return
        claimed = request.header("x-amz-content-sha256")
        if claimed is None:
            raise ApiError("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
        if _PLAIN_HASH.fullmatch(claimed):
            if CHECKSUMS["sha256"](raw).hex() != claimed:
                raise ApiError(
                    "XAmzContentSHA256Mismatch",
                    "The provided 'x-amz-content-sha256' header does not match what was computed.",
                )
        elif claimed != UNSIGNED and not claimed.startswith("STREAMING-"):
            raise ApiError(
                "InvalidArgument",
                "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-..., or a valid sha256 value.",
            )

    def _authorize(self, request: S3Request) -> None:
        region = self._region_of(request.bucket)
        if region is not None and request.region != region:
            raise ApiError(
                "AuthorizationHeaderMalformed",
                f"The authorization header is malformed; the region '{request.region}' is wrong; "
                f"expecting '{region}'",
            )
        right = RIGHTS.get(request.action)
        is_denied = self._faults.is_denied(right, request.access_key)
        if self._is_granted is not None:
            call = Call("s3", request.action, {"Bucket": request.bucket, "Key": request.key}, "", None)
            is_denied = is_denied or not all(
                self._is_granted(request.access_key, one, arn, context)
                for one, arn, context in needs_of(call, account=DEFAULT_ACCOUNT_ID)
            )
        # S3 user guide, "Verifying bucket ownership with bucket owner condition" (checked 2026-11).
        is_strangers = request.header("x-amz-expected-bucket-owner") not in {None, DEFAULT_ACCOUNT_ID}
        if request.bucket in self.foreign_buckets and request.action == "CreateBucket":
            text = "The requested bucket name is not available."
            raise ApiError("BucketAlreadyExists", text, status=409)
        if request.bucket in self.foreign_buckets or is_strangers or is_denied:
            raise ApiError("AccessDenied", "Access Denied", status=403)
        # A caller who may not list objects must not learn that an object is missing.
        if (
            request.action in {"GetObject", "HeadObject"}
            and "s3:ListBucket" in self._faults.denied
            and self._object(request) is None
        ):
            raise ApiError("AccessDenied", "Access Denied", status=403)
        if region is None and request.bucket and request.action != "CreateBucket":
            raise ApiError("NoSuchBucket", "The specified bucket does not exist", status=404)

    def _check_body(self, request: S3Request, raw: bytes) -> bytes:
        """Verify the body against the checksums that were sent with it; return its content."""
        trailers: dict[str, str] = {}
        body = raw
        if (request.header("x-amz-content-sha256") or "").startswith("STREAMING-"):
            try:
                body, trailers = unchunked(raw)
            except ValueError as error:
                raise ApiError("IncompleteBody", "The request body terminated unexpectedly") from error
            if str(len(body)) != request.header("x-amz-decoded-content-length"):
                raise ApiError("IncompleteBody", "The request body is not as long as it was declared")
        sent = {name: self._checksum_of(request, name, trailers) for name in CHECKSUMS}
        given = {name: text for name, text in sent.items() if text is not None}
        if request.action == "CompleteMultipartUpload":
            return body  # For this action, these headers refer to the whole object.
        if len(given.keys() - {"md5"}) > 1:
            raise ApiError(
                "InvalidRequest",
                "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
            )
        for name, text in given.items():
            verdict = is_right(name, text, body)
            if verdict is None and name == "md5":
                raise ApiError("InvalidDigest", "The Content-MD5 you specified was invalid.")
            if verdict is None:
                raise ApiError("InvalidRequest", f"Value for x-amz-checksum-{name} header is invalid.")
            if not verdict:
                raise ApiError(
                    "BadDigest",
                    f"The {name.upper()} you specified did not match the calculated checksum.",
                )
        request.checksum = next((one for one in given.items() if one[0] != "md5"), None)
        return body

    def _check_request(self, request: S3Request) -> None:
        if len(request.key.encode()) > MAX_KEY_BYTES:
            raise ApiError("KeyTooLongError", "Your key is too long")
        if request.header("if-none-match") not in {None, "*"} and request.action in _WRITES:
            raise ApiError(
                "NotImplemented",
                "A header you provided implies functionality that is not implemented",
                status=501,
            )
        if request.action in {"PutObject", "UploadPart"} and not request.environ.get("CONTENT_LENGTH"):
            raise ApiError("MissingContentLength", "You must provide the Content-Length", status=411)
        if request.action in {"UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload"}:
            upload = self._uploads.get(request.query["uploadId"])
            if upload is None:
                raise ApiError("NoSuchUpload", "The specified upload does not exist.", status=404)
            if request.action == "UploadPart":
                _check_part(request, upload)
            if request.action == "CompleteMultipartUpload":
                _check_completion(request, upload)

    def _check_condition(self, request: S3Request) -> None:
        existing = self._object(request)
        is_heeded = "creates-twice" not in self._faults.contrary
        if request.header("if-none-match") == "*" and existing is not None and is_heeded:
            raise _failed_condition("If-None-Match")
        wanted = request.header("if-match")
        if wanted is None:
            return
        if existing is None:
            raise ApiError("NoSuchKey", "The specified key does not exist.", status=404)
        if existing.etag.strip('"') != wanted.strip('"'):
            raise _failed_condition("If-Match")

    def _forward(self, request: S3Request) -> tuple[str, list[tuple[str, str]], bytes]:
        """Let moto answer."""
        seen: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[[bytes], object]:
            seen.append((status, headers))
            return lambda _: None

        environ = dict(request.environ)
        if "creates-twice" in self._faults.contrary:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        answer = self._app(environ, start)
        try:
            body = b"".join(answer)
        finally:
            close = getattr(answer, "close", None)
            if close is not None:
                close()
        status, headers = seen[-1]
        if request.action == "ListMultipartUploads":
            body = self._with_times(body)
        return status, headers, body

    def _with_times(self, listed: bytes) -> bytes:
        """Return a listing of uploads with their real times of creation; moto dates all of them to 2010."""

        def timed(match: re.Match[bytes]) -> bytes:
            with self._lock:
                upload = self._uploads.get(_texts(match[0], "UploadId")[0])
            at = b"" if upload is None else f"{upload.begun_at:%Y-%m-%dT%H:%M:%S}.000Z".encode()
            return re.sub(rb"(?<=<Initiated>)[^<]*", at, match[0])

        return re.sub(rb"<Upload>.*?</Upload>", timed, listed, flags=re.DOTALL)

    def _take_note(
        self, request: S3Request, status: str, headers: list[tuple[str, str]], body: bytes
    ) -> None:
        """Remember an object's checksum, or the parts of an upload, because moto's own records lack them."""
        if not status.startswith("2"):
            return
        with self._lock:
            if request.action == "PutObject" and request.checksum is not None:
                stored = self._object(request)
                stored.checksum_algorithm, stored.checksum_value = request.checksum
                stored.checksum_type = "FULL_OBJECT"
            elif request.action == "CreateMultipartUpload":
                upload_id = _texts(body, "UploadId")[0]
                algorithm = request.header("x-amz-checksum-algorithm")
                self._uploads[upload_id] = _Multipart(algorithm.lower() if algorithm else None, self._now())
            elif request.action == "UploadPart":
                upload = self._uploads[request.query["uploadId"]]
                checksum = None
                if upload.algorithm is not None:
                    checksum = request.header(f"x-amz-checksum-{upload.algorithm}")
                upload.parts[int(request.query["partNumber"])] = _Part(len(request.body), checksum)
            elif request.action in {"CompleteMultipartUpload", "AbortMultipartUpload"}:
                self._uploads.pop(request.query["uploadId"], None)

    def _refusal(self, request: S3Request, error: ApiError) -> tuple[str, list[tuple[str, str]], bytes]:
        region = self._region_of(request.bucket)
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<Error>'
            f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>"
            + (f"<Region>{region}</Region>" if error.code == "AuthorizationHeaderMalformed" else "")
            + "<RequestId>4442587FB7D0A2F9</RequestId></Error>"
        ).encode()
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        if region is not None:
            headers.append(("x-amz-bucket-region", region))
        return f"{error.status} {HTTPStatus(error.status).phrase}", headers, body

    def _record(self, request: S3Request, code: str | None) -> None:
        parameters = {"Bucket": request.bucket, "Key": request.key, **request.query}
        for name in ("if-none-match", "if-match", "range", "x-amz-content-sha256", "expect"):
            value = request.header(name)
            if value is not None:
                parameters[name] = value
        self._faults.record(Call("s3", request.action, parameters, request.region, code, request.access_key))

    # --- moto's state -----------------------------------------------------------------------------

    def _region_of(self, bucket: str) -> str | None:
        found = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.get(bucket)
        return None if found is None else str(found.region_name)

    def _object(self, request: S3Request) -> Any:
        bucket = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.get(request.bucket)
        if bucket is None:
            return None
        found = bucket.keys.get(request.key)
        return None if found is None or type(found).__name__ == "FakeDeleteMarker" else found

    def _checksum_of(self, request: S3Request, name: str, trailers: Mapping[str, str]) -> str | None:
        if name == "md5":
            return request.header("content-md5")
        return request.header(f"x-amz-checksum-{name}") or trailers.get(f"x-amz-checksum-{name}")


def _check_part(request: S3Request, upload: _Multipart) -> None:
    number = request.query.get("partNumber", "")
    if not number.isdigit() or not 1 <= int(number) <= MAX_PART_NUMBER:
        raise ApiError(
            "InvalidArgument", f"Part number must be an integer between 1 and {MAX_PART_NUMBER}, inclusive"
        )
    sent = [
        name for name in CHECKSUMS if name != "md5" and request.header(f"x-amz-checksum-{name}") is not None
    ]
    if sent and sent != [upload.algorithm]:
        raise ApiError(
            "InvalidRequest",
            "Checksum Type mismatch occurred, expected checksum Type: "
            f"{upload.algorithm or 'null'}, actual checksum Type: {sent[0]}",
        )


def _check_completion(request: S3Request, upload: _Multipart) -> None:
    try:
        listed = [
            {child.tag.rpartition("}")[2]: child.text or "" for child in part}
            for part in ET.fromstring(request.body)  # noqa: S314 - a sandbox of one's own
        ]
        numbers = [int(part["PartNumber"]) for part in listed]
    except (ET.ParseError, KeyError, ValueError) as error:
        raise ApiError("MalformedXML", "The XML you provided was not well-formed") from error
    if not numbers:
        raise ApiError("MalformedXML", "The XML you provided did not validate against our published schema")
    if numbers != sorted(set(numbers)):
        raise ApiError("InvalidPartOrder", "The list of parts was not in ascending order.")
    for number, part in zip(numbers, listed, strict=True):
        held = upload.parts.get(number)
        if held is None:
            raise _invalid_part()
        if upload.algorithm is not None:
            named = part.get(f"Checksum{upload.algorithm.upper()}")
            if named is None:
                raise ApiError(
                    "InvalidRequest",
                    f"The upload was created using a {upload.algorithm} checksum. The complete request must "
                    f"include the checksum for each part. It was missing for part {number} in the request.",
                )
            if named != held.checksum:
                raise _invalid_part()
        if number != numbers[-1] and held.size < MIN_PART_BYTES:
            raise ApiError("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")


def _failed_condition(name: str) -> ApiError:
    return ApiError(
        "PreconditionFailed",
        f"At least one of the pre-conditions you specified did not hold ({name})",
        status=412,
    )


def _invalid_part() -> ApiError:
    return ApiError(
        "InvalidPart",
        "One or more of the specified parts could not be found. The part may not have been uploaded, "
        "or the specified entity tag may not match the part's entity tag.",
    )


def _code_in(body: bytes, status: str) -> str:
    try:
        found = _texts(body, "Code")
    except ET.ParseError:
        found = []
    return found[0] if found else status.split(maxsplit=1)[0]


def _texts(body: bytes, name: str) -> list[str]:
    root = ET.fromstring(body)  # noqa: S314 - moto's own answer
    return [element.text or "" for element in root.iter() if element.tag.rpartition("}")[2] == name]
