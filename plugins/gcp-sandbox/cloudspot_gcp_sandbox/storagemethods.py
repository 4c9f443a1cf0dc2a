"""The methods of an emulated Cloud Storage, with their responses to allowed requests."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from cloudspot.emulation.api_faults import Faults
from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.discovery import Matched, api
from cloudspot_gcp_sandbox.media import media, read_multipart
from cloudspot_gcp_sandbox.objects import Buckets, StoredObject, check_conditions, check_object_name
from cloudspot_gcp_sandbox.resumable import Session, Sessions, check_crc32c, check_hashes
from cloudspot_gcp_sandbox.wsgi import Reply, Request, parse_json

MAX_PAGE = 1000
MAX_METADATA_BYTES = 8 << 10
_WRITABLE = frozenset(
    {
        *("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType"),
        *("crc32c", "customTime", "eventBasedHold", "md5Hash", "metadata", "name", "bucket", "acl"),
        *("storageClass", "temporaryHold", "contexts"),
    }
)
"""The fields that an object's writer may set; other fields are ignored when sent."""


@dataclass(frozen=True)
class Asked:
    """A request with its matched method."""

    request: Request
    matched: Matched
    body: Any
    """The body's JSON value, or None if there is no body."""

    @property
    def method_id(self) -> str:
        """Return the method's name."""
        return self.matched.method_id

    @property
    def path(self) -> Mapping[str, str]:
        """Return the parameters in the path."""
        return self.matched.path

    @property
    def query(self) -> Mapping[str, Any]:
        """Return the parameters in the query."""
        return self.matched.query

    @property
    def fields(self) -> dict[str, Any]:
        """Return the body's fields."""
        return dict(self.body) if isinstance(self.body, dict) else {}


class StorageMethods:
    """Storage's JSON API. Thread-safe."""

    def __init__(self, buckets: Buckets, sessions: Sessions, faults: Faults) -> None:
        self._buckets = buckets
        self._sessions = sessions
        self._faults = faults
        self._api = api("storage.v1")

    def answer(self, asked: Asked) -> Reply:
        """Answer a request that the discovery document allows and its caller may make.

        Raises:
            ApiError: the request is refused.
        """
        answer = {
            "storage.buckets.delete": self._delete_bucket,
            "storage.buckets.get": self._get_bucket,
            "storage.buckets.insert": self._make_bucket,
            "storage.buckets.list": self._list_buckets,
            "storage.buckets.patch": self._patch_bucket,
            "storage.buckets.testIamPermissions": self._test_rights,
            "storage.objects.copy": self._copy,
            "storage.objects.delete": self._delete,
            "storage.objects.get": self._get,
            "storage.objects.insert": self._insert,
            "storage.objects.list": self._list,
            "storage.objects.patch": self._patch,
            "storage.objects.rewrite": self._copy,
        }.get(asked.method_id)
        if answer is None:
            raise ApiError(501, "notImplemented", f"The emulated Storage does not support {asked.method_id}.")
        return answer(asked)

    # --- buckets ----------------------------------------------------------------------------------

    def _make_bucket(self, asked: Asked) -> Reply:
        body = asked.fields
        if "name" not in body:
            raise ApiError(400, "required", "Required")
        fields = {name: value for name, value in body.items() if name != "name"}
        bucket = self._buckets.make(body["name"], project=asked.query["project"], fields=fields)
        return Reply.json(bucket.resource())

    def _get_bucket(self, asked: Asked) -> Reply:
        return Reply.json(self._buckets.get(asked.path["bucket"]).resource())

    def _list_buckets(self, asked: Asked) -> Reply:
        prefix = asked.query.get("prefix", "")
        found = self._buckets.of_project(asked.query["project"])
        items = [bucket.resource() for bucket in found if bucket.name.startswith(prefix)]
        return Reply.json({"kind": "storage#buckets", "items": items})

    def _patch_bucket(self, asked: Asked) -> Reply:
        return Reply.json(self._buckets.change(asked.path["bucket"], asked.fields).resource())

    def _delete_bucket(self, asked: Asked) -> Reply:
        self._buckets.remove(asked.path["bucket"])
        return Reply(204)

    def _test_rights(self, asked: Asked) -> Reply:
        self._buckets.get(asked.path["bucket"])
        held = [right for right in asked.query["permissions"] if right not in self._faults.denied]
        return Reply.json({"kind": "storage#testIamPermissionsResponse", "permissions": held})

    # --- objects ----------------------------------------------------------------------------------

    def _insert(self, asked: Asked) -> Reply:
        if not asked.matched.is_upload:
            raise ApiError(400, "badRequest", "Upload requests must be made by the upload URL.")
        bucket, kind = asked.path["bucket"], asked.query.get("uploadType")
        self._buckets.get(bucket)
        if kind == "media":
            body = asked.request.read()
            content_type = asked.request.header("content-type")
            fields = {"contentType": content_type} if content_type else {}
            check_hashes(asked.request.header("x-goog-hash"), body)
            return Reply.json(self._store(bucket, fields, body, asked.query).resource(bucket))
        if kind == "multipart":
            fields, body = read_multipart(asked.request)
            return Reply.json(self._store(bucket, fields, body, asked.query).resource(bucket))
        if kind == "resumable":
            return self._begin(asked, bucket)
        raise ApiError(400, "invalidParameter", f"Invalid upload request: uploadType {kind}")

    def _store(
        self, bucket: str, fields: Mapping[str, Any], data: bytes | bytearray, query: Mapping[str, Any]
    ) -> StoredObject:
        self._api.check_value("Object", fields)
        if fields.get("crc32c") is not None:
            check_crc32c(fields["crc32c"], data)
        name = query.get("name", fields.get("name", ""))
        if (
            sum(len(key) + len(value) for key, value in (fields.get("metadata") or {}).items())
            > MAX_METADATA_BYTES
        ):
            raise ApiError(400, "invalid", "Your metadata headers exceed the maximum allowed metadata size.")
        existing = self._buckets.get(bucket).live.get(name)
        if existing is not None and "storage.objects.delete" in self._faults.denied:
            check_conditions(existing, query)
            raise ApiError(  # Replacing an object needs permission to delete it.
                403,
                "forbidden",
                "The caller does not have storage.objects.delete access to the Google Cloud Storage object.",
            )
        kept = {
            key: value
            for key, value in fields.items()
            if key in _WRITABLE - {"name", "bucket", "crc32c", "md5Hash"} and value is not None
        }
        return self._buckets.put(bucket, name, data, fields=kept, conditions=query)

    def _begin(self, asked: Asked, bucket: str) -> Reply:
        body = asked.request.read()
        fields = parse_json(body) if body else {}
        self._api.check_value("Object", fields)
        content_type = asked.request.header("x-upload-content-type")
        if content_type and "contentType" not in fields:
            fields = {**fields, "contentType": content_type}
        name = asked.query.get("name", fields.get("name", ""))
        check_object_name(name)
        declared = asked.request.header("x-upload-content-length")
        session = self._sessions.begin(
            bucket,
            name,
            fields=fields,
            conditions=asked.query,
            declared_bytes=None if declared is None else int(declared),
        )
        here = f"{asked.request.environ['wsgi.url_scheme']}://{asked.request.header('host')}"
        query = f"uploadType=resumable&name={quote(name, safe='')}&upload_id={session.id}"
        return Reply(
            200,
            {
                "Location": f"{here}/upload/storage/v1/b/{bucket}/o?{query}",
                "X-GUploader-UploadID": session.id,
                "Content-Type": "text/plain; charset=utf-8",
            },
        )

    def session_request(self, request: Request) -> Reply:
        """Answer a request to an upload's own URL, which is its only credential."""
        upload_id = request.query["upload_id"][0]
        if request.method == "DELETE":
            return self._sessions.cancel(upload_id)
        if request.method != "PUT":
            raise ApiError(400, "badRequest", "An upload's URL takes PUT and DELETE.")

        def finish(session: Session) -> StoredObject:
            query = {"name": session.name, **session.conditions}
            return self._store(session.bucket, session.fields, session.data, query)

        return self._sessions.take(request, self._sessions.find(upload_id), finish)

    def _get(self, asked: Asked) -> Reply:
        bucket, query = asked.path["bucket"], asked.query
        stored = self._buckets.find(bucket, asked.path["object"], generation=query.get("generation"))
        check_conditions(stored, query)
        if query.get("alt") == "media":
            return media(asked.request, stored)
        return Reply.json(stored.resource(bucket))

    def _list(self, asked: Asked) -> Reply:
        query, bucket = asked.query, asked.path["bucket"]
        unknown = {"matchGlob", "filter", "softDeleted"} & query.keys()
        if unknown:
            raise ApiError(
                501, "notImplemented", f"The emulated Storage does not support listing by {unknown}."
            )
        limit = min(query.get("maxResults", MAX_PAGE) or MAX_PAGE, MAX_PAGE)
        after = _page_start(query.get("pageToken"))
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        last = token = None
        for stored in self._buckets.names(bucket, versions=query.get("versions", False)):
            name, prefix = stored.name, query.get("prefix", "")
            if not name.startswith(prefix) or not _is_between(name, query):
                continue
            delimiter = query.get("delimiter")
            head, separator, _rest = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            shown = prefix + head + separator if separator else name
            mark = f"{shown}\0{'' if separator else stored.generation}"
            if mark == last or (after is not None and mark.encode() <= after.encode()):
                continue
            if len(items) + len(prefixes) == limit:
                token = base64.urlsafe_b64encode((last or "").encode()).decode()
                break
            last = mark
            if separator:
                prefixes.append(shown)
            else:
                items.append(stored.resource(bucket))
        answer: dict[str, Any] = {"kind": "storage#objects"}
        answer |= {"items": items} if items else {}
        answer |= {"prefixes": prefixes} if prefixes else {}
        return Reply.json(answer | ({"nextPageToken": token} if token else {}))

    def _delete(self, asked: Asked) -> Reply:
        self._buckets.delete(asked.path["bucket"], asked.path["object"], asked.query)
        return Reply(204)

    def _patch(self, asked: Asked) -> Reply:
        bucket, fields = asked.path["bucket"], asked.fields
        changes = {name: value for name, value in fields.items() if name in _WRITABLE}
        stored = self._buckets.patch(bucket, asked.path["object"], changes, asked.query)
        return Reply.json(stored.resource(bucket))

    def _copy(self, asked: Asked) -> Reply:
        path = asked.path
        source = self._buckets.find(path["sourceBucket"], path["sourceObject"])
        query = {**asked.query, "name": path["destinationObject"]}
        fields = {**source.fields, **asked.fields}
        stored = self._store(path["destinationBucket"], fields, source.read(), query)
        resource = stored.resource(path["destinationBucket"])
        if asked.method_id == "storage.objects.copy":
            return Reply.json(resource)
        return Reply.json(
            {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": str(stored.size),
                "objectSize": str(stored.size),
                "done": True,
                "resource": resource,
            }
        )


def _is_between(name: str, query: Mapping[str, Any]) -> bool:
    start, end = query.get("startOffset", ""), query.get("endOffset")
    return name.encode() >= start.encode() and (end is None or name.encode() < end.encode())


def _page_start(token: str | None) -> str | None:
    if token is None:
        return None
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise ApiError(400, "invalid", "Invalid argument.") from error
