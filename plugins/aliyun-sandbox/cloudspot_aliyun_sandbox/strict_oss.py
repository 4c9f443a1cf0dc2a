"""OSS as strict as the real one, in memory, behind HTTP: a WSGI application.

The service verifies signatures of both versions, security tokens and their expiry. Like OSS, it refuses
create-only writes of existing objects (unless versioning is on: OSS then ignores the condition), parts that
are too small or do not match, appends at a wrong position, and unknown parameters and headers. Faults are
injected by rules (:mod:`cloudspot.emulation.api_faults`), and every request is recorded.

Source: OSS API reference, the operations' pages and "Error responses" (checked 2026-11). The wording of some
    messages is from memory, as is the rule that an upload stays when a create-only completion is refused.
"""

from __future__ import annotations

import base64
import secrets as randomness
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from email.utils import format_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from cloudspot.emulation.api_faults import Call, Faults
from cloudspot.emulation.role_credentials import RoleKeys
from cloudspot_aliyun_sandbox import ossxml
from cloudspot_aliyun_sandbox.ossbuckets import MAX_KEY_BYTES, NAME, HeldBucket, Multipart, Stored, etag_of
from cloudspot_aliyun_sandbox.osserrors import REQUEST_ID, OssRefusal
from cloudspot_aliyun_sandbox.ossreads import CONDITIONS, check_conditions, range_of
from cloudspot_aliyun_sandbox.ossrequests import RIGHTS, OssRequest, parse_request
from cloudspot_aliyun_sandbox.osssignatures import Signature, check_signature, read_signature

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

MAX_PART_NUMBER = 10_000
MAX_PAGE = 1000
_CHUNKED = frozenset({"AppendObject", "PutObject", "UploadPart"})
_Answer = tuple[int, dict[str, str], bytes]


class StrictOss:
    """The service, reached through any host name, in path style. Thread-safe.

    ``secrets`` maps keys to their secrets; ``roles`` knows the keys of machines. ``buckets`` holds all
    contents, which tests may read. Access to ``foreign_buckets`` (of another account) is denied, and so is
    any access for which ``is_granted`` returns False.
    """

    def _forbids(self, request: OssRequest) -> bool:
        return _forbids(request) and "creates-twice" not in self._faults.contrary

    def __init__(
        self,
        *,
        faults: Faults,
        secrets: Mapping[str, str],
        roles: RoleKeys | None = None,
        is_granted: Callable[[str, str, str], bool] = lambda _key, _right, _resource: True,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.buckets: dict[str, HeldBucket] = {}
        self.foreign_buckets: set[str] = set()
        self.domains: dict[str, str] = {}
        """The bucket to which each domain is bound."""
        self.is_public_endpoint_forbidden = False
        """Whether the account opened OSS after 2025-03-20: without a domain, only buckets' settings work."""
        self._faults = faults
        self._secrets = secrets
        self._roles = roles
        self._is_granted = is_granted
        self._now = now
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = parse_request(environ, self.domains)
        code: str | None = None
        try:
            status, headers, body = self._answer(request)
        except OssRefusal as refusal:
            code = refusal.code
            host = f"{request.bucket}.oss-{request.region or 'cn'}.aliyuncs.com".lstrip(".")
            status, body = refusal.status, refusal.body(host)
            headers = {"Content-Type": "application/xml", **refusal.headers}
            if status == HTTPStatus.NOT_MODIFIED:
                body = b""
            elif request.method == "HEAD":
                headers["x-oss-err"] = base64.b64encode(body).decode("ascii")
        self._record(request, code)
        headers = {"x-oss-request-id": REQUEST_ID, "Content-Length": str(len(body)), **headers}
        start_response(f"{status} {HTTPStatus(status).phrase}", list(headers.items()))
        return [] if request.method == "HEAD" else [body]

    # --- one request ------------------------------------------------------------------------------

    def _answer(self, request: OssRequest) -> _Answer:
        request.body = _read_body(request)
        self._authenticate(request)
        injected = self._faults.take(request.action)
        if injected is not None and not injected.happens:
            raise OssRefusal(injected.status, injected.code, injected.message)
        self._check_request(request)
        with self._lock:
            answer = self._act(request)
        if injected is not None:
            raise OssRefusal(injected.status, injected.code, injected.message)
        return answer

    def _authenticate(self, request: OssRequest) -> None:
        signature = read_signature(request)
        if signature is None:
            raise OssRefusal(
                403, "AccessDenied", "You have no right to access this object because of bucket acl."
            )
        request.region, request.access_key = signature.region, signature.access_key
        secret = self._secrets.get(signature.access_key)
        if secret is None or signature.access_key in self._faults.rejected_keys:
            raise OssRefusal(
                403,
                "InvalidAccessKeyId",
                "The OSS Access Key Id you provided does not exist in our records.",
                details={"OSSAccessKeyId": signature.access_key},
            )
        self._check_token(signature)
        check_signature(request, signature, secret, now=self._now())

    def _check_token(self, signature: Signature) -> None:
        key = signature.access_key
        is_role = self._roles is not None and self._roles.is_role_key(key)
        wanted = self._roles.token_of(key) if self._roles is not None and is_role else ""
        if signature.token != wanted:
            raise OssRefusal(403, "InvalidSecurityToken", "The security token you provided is invalid.")
        if key in self._faults.expired_keys or (
            self._roles is not None and is_role and self._roles.expires_at(key) <= self._now()
        ):
            raise OssRefusal(403, "SecurityTokenExpired", "The security token you provided has expired.")

    def _check_request(self, request: OssRequest) -> None:
        if not request.action:
            raise OssRefusal(
                405, "MethodNotAllowed", "The specified method is not allowed against this resource."
            )
        for name in CONDITIONS:
            if name in request.headers and request.method in {"PUT", "POST"}:
                raise OssRefusal(
                    501,
                    "NotImplemented",
                    "A header you provided implies functionality that is not implemented.",
                    details={"Header": name},
                )
        if request.query.get("encoding-type", "") not in {"", "url"}:
            raise OssRefusal(400, "InvalidArgument", "Invalid Encoding Method specified in Request.")
        unknown = request.unknown()
        if unknown is not None:
            raise OssRefusal(400, "InvalidArgument", f"unknown parameter or header: {unknown}")
        is_denied = self._faults.is_denied(RIGHTS[request.action], request.access_key)
        named = f"acs:oss:*:*:{request.bucket}" + (f"/{request.key}" if request.key else "")
        is_granted = self._is_granted(request.access_key, RIGHTS[request.action], named)
        if request.bucket in self.foreign_buckets or is_denied or not is_granted:
            raise OssRefusal(403, "AccessDenied", "You have no right to access this object.")
        if request.key and (len(request.key.encode()) > MAX_KEY_BYTES or request.key.startswith(("/", "\\"))):
            raise OssRefusal(400, "InvalidObjectName", "The specified object is not valid.")
        _check_digest(request)

    def _act(self, request: OssRequest) -> _Answer:
        if request.action == "ListBuckets":
            return _xml(ossxml.buckets(self.buckets.values()))
        if request.action == "PutBucket":
            return self._put_bucket(request)
        bucket = self.buckets.get(request.bucket)
        if bucket is None:
            raise OssRefusal(
                404,
                "NoSuchBucket",
                "The specified bucket does not exist.",
                details={"BucketName": request.bucket},
            )
        if request.region and request.region != bucket.region:
            # In reality, each region has its own endpoint; here, the signature shows which region is meant.
            raise OssRefusal(
                403,
                "AccessDenied",
                "The bucket you are attempting to access must be addressed using the specified endpoint. "
                "Please send all future requests to this endpoint.",
                details={"Bucket": bucket.name, "Endpoint": f"oss-{bucket.region}.aliyuncs.com"},
            )
        is_public = "Bucket" not in request.action and _host_of(request) not in self.domains
        if self.is_public_endpoint_forbidden and is_public:
            raise OssRefusal(
                400,
                "PublicEndpointForbidden",
                "Public endpoint is forbidden for this user, please use a custom domain.",
                details={"EC": "0048-00000401"},
            )
        handler: Callable[[OssRequest, HeldBucket], _Answer] = getattr(self, _METHODS[request.action])
        return handler(request, bucket)

    # --- buckets ----------------------------------------------------------------------------------

    def _put_bucket(self, request: OssRequest) -> _Answer:
        if NAME.fullmatch(request.bucket) is None:
            raise OssRefusal(400, "InvalidBucketName", "The specified bucket is not valid.")
        if request.bucket in self.buckets:
            raise OssRefusal(409, "BucketAlreadyExists", "The requested bucket name is not available.")
        acl = request.headers.get("x-oss-acl", "private")
        if acl not in {"private", "public-read", "public-read-write"}:
            raise OssRefusal(400, "InvalidArgument", "no such bucket access control exists")
        self.buckets[request.bucket] = HeldBucket(
            request.bucket, request.region or "cn-hangzhou", self._now(), acl=acl
        )
        return 200, {}, b""

    def _delete_bucket(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        if bucket.objects or bucket.uploads:
            raise OssRefusal(409, "BucketNotEmpty", "The bucket you tried to delete is not empty.")
        del self.buckets[bucket.name]
        return 204, {}, b""

    def _bucket_info(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        return _xml(ossxml.bucket_info(bucket))

    def _versioning(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        if request.method == "GET":
            return _xml(ossxml.versioning(bucket))
        bucket.versioning = ossxml.read(request.body).findtext("Status") or ""
        return 200, {}, b""

    def _lifecycle(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        if request.method == "PUT":
            ossxml.read(request.body)
            bucket.lifecycle = request.body
            return 200, {}, b""
        if not bucket.lifecycle:
            raise OssRefusal(404, "NoSuchLifecycle", "No Row found in Lifecycle Table.")
        return _xml(bucket.lifecycle)

    def _encryption(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        found = ossxml.read(request.body).find(".//SSEAlgorithm")
        bucket.encryption = "" if found is None else found.text or ""
        return 200, {}, b""

    def _policy(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        if request.method == "PUT":
            bucket.policy = request.body
            return 200, {}, b""
        if not bucket.policy:
            raise OssRefusal(404, "NoSuchBucketPolicy", "The bucket policy does not exist.")
        return 200, {"Content-Type": "application/json"}, bucket.policy

    def _list(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        if request.query.get("list-type", "2") != "2":
            raise OssRefusal(400, "InvalidArgument", "Argument list-type must be 2.")
        return _xml(ossxml.listing(bucket, request.query, _limit(request, "max-keys", 100)))

    def _list_uploads(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        return _xml(ossxml.uploads(bucket, request.query.get("prefix", "")))

    def _delete_many(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        if "content-md5" not in request.headers:
            raise OssRefusal(400, "InvalidArgument", "Missing Some Required Arguments.")
        keys, is_quiet = ossxml.keys_to_delete(request.body)
        if not 1 <= len(keys) <= MAX_PAGE:
            raise OssRefusal(400, "MalformedXML", "The XML you provided was not well-formed.")
        for key in keys:
            bucket.objects.pop(key, None)
        return _xml(ossxml.deleted(() if is_quiet else keys, request.query))

    # --- objects ----------------------------------------------------------------------------------

    def _put(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        stored = bucket.write(
            request.key,
            Stored(
                request.body, etag_of(request.body), "Normal", self._now(), _type_of(request), request.meta
            ),
            forbid_overwrite=self._forbids(request),
        )
        return 200, _written(stored), b""

    def _get(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        stored = _find(bucket, request.key)
        check_conditions(request, stored)
        headers = {
            "Accept-Ranges": "bytes",
            "Content-Type": request.query.get("response-content-type", stored.content_type),
            "Last-Modified": format_datetime(stored.modified_at.astimezone(timezone.utc), usegmt=True),
            "x-oss-object-type": stored.kind,
            "x-oss-storage-class": "Standard",
            **stored.meta,
            **_written(stored),
        }
        if headers["Content-Type"].startswith("text/html") and _host_of(request) not in self.domains:
            # OSS user guide, "How to ensure an object is previewed when you access it" (checked 2026-11).
            headers |= {"x-oss-force-download": "true", "Content-Disposition": "attachment"}
        if stored.kind == "Appendable":
            headers["x-oss-next-append-position"] = str(len(stored.data))
        if request.action == "GetObjectMeta":
            headers = {name: headers[name] for name in ("ETag", "Last-Modified")}
        if request.method == "HEAD":
            return 200, {**headers, "Content-Length": str(len(stored.data))}, b""
        size = len(stored.data)
        asked = request.headers.get("range")
        is_standard = request.headers.get("x-oss-range-behavior") == "standard"
        found = range_of(asked, size, is_standard=is_standard) if asked else None
        if found is None:
            return 200, headers, stored.data
        start, end = found
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return 206, headers, stored.data[start:end]

    def _copy(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        if RIGHTS["GetObject"] in self._faults.denied:
            raise OssRefusal(403, "AccessDenied", "You have no right to access this object.")
        name, _, key = unquote(request.headers["x-oss-copy-source"]).removeprefix("/").partition("/")
        origin = self.buckets.get(name)
        if origin is None or origin.region != bucket.region or name in self.foreign_buckets:
            raise OssRefusal(403, "AccessDenied", "Target object does not reside in the same data center.")
        source = _find(origin, key)
        directive = request.headers.get("x-oss-metadata-directive", "COPY")
        if directive not in {"COPY", "REPLACE"}:
            raise OssRefusal(400, "InvalidArgument", "x-oss-metadata-directive must be COPY or REPLACE.")
        kept = source.content_type, source.meta
        described = kept if directive == "COPY" else (_type_of(request), request.meta)
        copy = Stored(source.data, source.etag, "Normal", self._now(), *described)
        stored = bucket.write(request.key, copy, forbid_overwrite=self._forbids(request))
        status, headers, body = _xml(ossxml.copied(stored))
        return status, {**_written(stored), **headers}, body

    def _delete(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        bucket.objects.pop(request.key, None)
        return 204, {}, b""

    def _append(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        position = request.query.get("position", "")
        if not position.isdigit():
            raise OssRefusal(400, "InvalidArgument", "The argument position must be a non-negative integer.")
        stored = bucket.append(
            request.key,
            int(position),
            request.body,
            now=self._now(),
            content_type=_type_of(request),
            meta=request.meta,
        )
        return 200, {**_written(stored), "x-oss-next-append-position": str(len(stored.data))}, b""

    # --- uploads in parts -------------------------------------------------------------------------

    def _begin(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        upload_id = randomness.token_hex(16).upper()
        bucket.uploads[upload_id] = Multipart(request.key, _type_of(request), request.meta, self._now())
        return _xml(ossxml.initiated(bucket.name, request.key, upload_id, request.query))

    def _list_parts(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        upload, limit = _upload_of(request, bucket), _limit(request, "max-parts", MAX_PAGE)
        if not (request.query.get("part-number-marker") or "0").isdigit():
            raise OssRefusal(400, "InvalidArgument", "part-number-marker must be an integer.")
        return _xml(ossxml.uploaded_parts(bucket.name, request.key, upload, request.query, limit))

    def _part(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        upload = _upload_of(request, bucket)
        number = request.query.get("partNumber", "")
        if not number.isdigit() or not 1 <= int(number) <= MAX_PART_NUMBER:
            raise OssRefusal(
                400, "InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive."
            )
        upload.parts[int(number)] = request.body
        part = Stored(request.body, etag_of(request.body), "Normal", self._now(), "", {})
        return 200, _written(part), b""

    def _complete(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        upload = _upload_of(request, bucket)
        listed = ossxml.parts(request.body)
        stored = bucket.write(
            request.key,
            bucket.joined(upload, listed, now=self._now()),
            forbid_overwrite=self._forbids(request),
        )
        del bucket.uploads[request.query["uploadId"]]
        status, headers, body = _xml(ossxml.completed(bucket.name, request.key, stored.etag, request.query))
        return status, {**_written(stored), **headers}, body

    def _abort(self, request: OssRequest, bucket: HeldBucket) -> _Answer:
        _upload_of(request, bucket)
        del bucket.uploads[request.query["uploadId"]]
        return 204, {}, b""

    def _record(self, request: OssRequest, code: str | None) -> None:
        parameters = {"Bucket": request.bucket, "Key": request.key, **request.query}
        for name in ("x-oss-forbid-overwrite", "x-oss-range-behavior", "range", "content-md5"):
            if name in request.headers:
                parameters[name] = request.headers[name]
        self._faults.record(
            Call(
                "oss", request.action or request.method, parameters, request.region, code, request.access_key
            )
        )


_METHODS: Mapping[str, str] = {
    "AbortMultipartUpload": "_abort",
    "AppendObject": "_append",
    "CompleteMultipartUpload": "_complete",
    "CopyObject": "_copy",
    "DeleteBucket": "_delete_bucket",
    "DeleteMultipleObjects": "_delete_many",
    "DeleteObject": "_delete",
    "GetBucketInfo": "_bucket_info",
    "GetBucketLifecycle": "_lifecycle",
    "GetBucketPolicy": "_policy",
    "PutBucketEncryption": "_encryption",
    "PutBucketPolicy": "_policy",
    "GetBucketVersioning": "_versioning",
    "GetObject": "_get",
    "GetObjectMeta": "_get",
    "HeadObject": "_get",
    "InitiateMultipartUpload": "_begin",
    "ListMultipartUploads": "_list_uploads",
    "ListObjects": "_list",
    "ListObjectsV2": "_list",
    "ListParts": "_list_parts",
    "PutBucketLifecycle": "_lifecycle",
    "PutBucketVersioning": "_versioning",
    "PutObject": "_put",
    "UploadPart": "_part",
}


def _read_body(request: OssRequest) -> bytes:
    length = request.headers.get("content-length")
    if length is None:
        if request.method in {"PUT", "POST"} and "transfer-encoding" not in request.headers:
            raise OssRefusal(411, "MissingContentLength", "You must provide the Content-Length HTTP header.")
        if "transfer-encoding" not in request.headers:
            return b""
        if request.action not in _CHUNKED or not request.environ.get("wsgi.input_terminated"):
            raise OssRefusal(501, "NotImplemented", "this emulation takes no chunked body here")
    body: bytes = request.environ["wsgi.input"].read(-1 if length is None else int(length))
    return body


def _limit(request: OssRequest, name: str, default: int) -> int:
    text = request.query.get(name) or str(default)
    if not text.isdigit() or not 1 <= int(text) <= MAX_PAGE:
        raise OssRefusal(400, "InvalidArgument", f"Argument {name} must be an integer between 1 and 1000.")
    return int(text)


def _check_digest(request: OssRequest) -> None:
    stated = request.headers.get("content-md5")
    if stated is None:
        return
    digest = base64.b64encode(bytes.fromhex(etag_of(request.body))).decode("ascii")
    if stated != digest:
        raise OssRefusal(400, "InvalidDigest", "The Content-MD5 you specified was invalid.")


def _host_of(request: OssRequest) -> str:
    return str(request.environ.get("HTTP_HOST", "")).partition(":")[0]


def _forbids(request: OssRequest) -> bool:
    value = request.headers.get("x-oss-forbid-overwrite", "false")
    if value not in {"true", "false"}:
        raise OssRefusal(400, "InvalidArgument", "x-oss-forbid-overwrite must be true or false.")
    return value == "true"


def _type_of(request: OssRequest) -> str:
    return request.headers.get("content-type", "application/octet-stream")


def _find(bucket: HeldBucket, key: str) -> Stored:
    found = bucket.objects.get(key)
    if found is None:
        raise OssRefusal(404, "NoSuchKey", "The specified key does not exist.", details={"Key": key})
    return found


def _upload_of(request: OssRequest, bucket: HeldBucket) -> Multipart:
    upload = bucket.uploads.get(request.query["uploadId"])
    if upload is None or upload.key != request.key:
        raise OssRefusal(
            404,
            "NoSuchUpload",
            "The specified upload does not exist. The upload ID may be invalid, or the upload may have been "
            "aborted or completed.",
            details={"UploadId": request.query["uploadId"]},
        )
    return upload


def _written(stored: Stored) -> dict[str, str]:
    headers = {"ETag": f'"{stored.etag}"', "x-oss-hash-crc64ecma": str(stored.crc)}
    if stored.version_id:
        headers["x-oss-version-id"] = stored.version_id
    return headers


def _xml(body: bytes) -> _Answer:
    return 200, {"Content-Type": "application/xml"}, body
