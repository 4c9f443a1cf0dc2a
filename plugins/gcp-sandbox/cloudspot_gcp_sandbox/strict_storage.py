"""An emulated Cloud Storage, as strict as the real one: its JSON API, and reading by signed URLs.

Every request is checked against Google's discovery document, every condition is checked in one step with
the write that it guards, and checksums are compared and returned. Faults are injected by rules
(:mod:`cloudspot.emulation.api_faults`), and every request is recorded.

Source: Cloud Storage JSON API reference (checked 2026-11 by its discovery document); the refusals' wording is
from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from xml.sax.saxutils import escape

from cloudspot.emulation.api_faults import Call, Faults, Injected
from cloudspot_gcp_sandbox import partial
from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.discovery import Matched, api
from cloudspot_gcp_sandbox.guardedapi import NO_GRANTS, Grants
from cloudspot_gcp_sandbox.identities import Identities
from cloudspot_gcp_sandbox.media import media
from cloudspot_gcp_sandbox.objects import Buckets
from cloudspot_gcp_sandbox.resumable import Sessions
from cloudspot_gcp_sandbox.signedurls import check_signed, is_signed
from cloudspot_gcp_sandbox.storagemethods import Asked, StorageMethods
from cloudspot_gcp_sandbox.wsgi import Reply, Request, parse_json

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

_PATHS = ("/storage/v1/", "/upload/storage/v1/", "/resumable/upload/storage/v1/", "/download/storage/v1/")
_RIGHTS = {
    "storage.buckets.getIamPolicy": "storage.buckets.getIamPolicy",
    "storage.buckets.insert": "storage.buckets.create",
    "storage.buckets.patch": "storage.buckets.update",
    "storage.objects.insert": "storage.objects.create",
    "storage.objects.patch": "storage.objects.update",
}
"""The permission that a method needs, if it is not named after the method."""


class StrictStorage:
    """WSGI middleware; requests to other services reach ``app`` unchanged. Thread-safe.

    ``buckets`` holds the contents, and ``sessions`` the uploads in progress. Contents larger than a MiB are
    stored in ``directory``, if it is given.
    """

    def __init__(
        self,
        app: WSGIApplication | None = None,
        *,
        faults: Faults,
        identities: Identities,
        directory: Path | None = None,
        grants: Grants = NO_GRANTS,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.buckets = Buckets(directory=directory, now=now)
        self.sessions = Sessions()
        self.foreign_buckets: set[str] = set()
        """The buckets of another project, to which access is denied."""
        self._app = app
        self._faults = faults
        self._identities = identities
        self._grants = grants
        self._now = now
        self._api = api("storage.v1")
        self._methods = StorageMethods(self.buckets, self.sessions, faults)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = Request.of(environ)
        if is_signed(request) and not request.path.startswith(_PATHS):
            return self._answer_signed(request).send(start_response)
        if not request.path.startswith(_PATHS):
            if self._app is None:
                return Reply.refusal(ApiError(404, "notFound", "Not Found")).send(start_response)
            return self._app(environ, start_response)
        return self._answer(request).send(start_response)

    # --- one request ------------------------------------------------------------------------------

    def _answer(self, request: Request) -> Reply:
        action, caller, parameters = "unknown", "", dict[str, Any]()
        code = None
        try:
            if "upload_id" in request.query:
                action = {"PUT": "resumable.put", "DELETE": "resumable.cancel"}.get(request.method, "unknown")
                parameters = {"content-range": request.header("content-range")}
                injected = self._take_fault(action)
                reply = self._methods.session_request(request)
            else:
                caller = self._identities.authenticate(request)
                body = self._json_body(request)
                matched = self._api.check(request.method, request.path, request.query, body)
                action = matched.method_id
                parameters = {**matched.path, **matched.query}
                injected = self._take_fault(action)
                self._authorize(matched, caller)
                reply = self._partial(matched, self._methods.answer(Asked(request, matched, body)))
            if injected is not None:
                raise ApiError(injected.status, injected.code, injected.message)
        except ApiError as error:
            code, reply = error.reason, Reply.refusal(error)
            if request.query.get("alt") == ["media"]:  # For content, the error is plain text.
                reply = Reply(
                    error.status, {"Content-Type": "text/html; charset=UTF-8"}, error.message.encode()
                )
        self._faults.record(Call("storage", action, parameters, "", code, caller))
        return _with_links_here(request, reply)

    def _json_body(self, request: Request) -> Any:
        if request.path.startswith("/upload/") or request.path.startswith("/resumable/"):
            return None
        return request.read_json()

    def _take_fault(self, action: str) -> Injected | None:
        injected = self._faults.take(action)
        if injected is not None and not injected.happens:
            raise ApiError(injected.status, injected.code, injected.message)
        return injected

    def _authorize(self, matched: Matched, caller: str) -> None:
        method, path = matched.method_id, matched.path
        wanted = [_RIGHTS.get(method, method)]
        if method == "storage.objects.get" and not self._is_there(path["bucket"], path["object"]):
            wanted.append("storage.objects.list")  # Without it, callers must not learn what is missing.
        is_strangers = path.get("bucket") in self.foreign_buckets
        for right in wanted:
            where = f"projects/_/buckets/{path.get('bucket', '')}"
            if (
                is_strangers
                or self._faults.is_denied(right, caller)
                or self._grants.lacks(caller, right, where)
            ):
                resource = "object" if "object" in right else "bucket"
                raise ApiError(
                    403,
                    "forbidden",
                    f"{caller} does not have {right} access to the Google Cloud Storage {resource}. "
                    f"Permission '{right}' denied on resource (or it may not exist).",
                )

    def _is_there(self, bucket: str, name: str) -> bool:
        return name in self.buckets.get(bucket).live

    def _partial(self, matched: Matched, reply: Reply) -> Reply:
        if reply.headers.get("Content-Type", "").startswith("application/json") and "alt" not in {
            name for name, value in matched.query.items() if value == "media"
        }:
            answer = parse_json(bytes(reply.body))
            self._api.check_answer(matched.method_id, answer)
            if "fields" in matched.query:
                return Reply.json(partial.select(answer, matched.query["fields"]), status=reply.status)
        return reply

    # --- signed URLs ------------------------------------------------------------------------------

    def _answer_signed(self, request: Request) -> Reply:
        """Answer a read by a signed URL in the form of the XML API."""
        bucket, _, name = unquote(request.path.lstrip("/")).partition("/")
        caller, code = "", None
        try:
            if request.method not in {"GET", "HEAD"}:
                raise ApiError(
                    501, "NotImplemented", "The emulated Storage supports signed URLs only for reading."
                )
            caller = check_signed(request, self._identities, now=self._now())
            reply = media(request, self.buckets.find(bucket, name))
        except ApiError as error:
            code = error.reason
            text = f"<Error><Code>{escape(code)}</Code><Message>{escape(error.message)}</Message></Error>"
            body = f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode()
            reply = Reply(error.status, {"Content-Type": "application/xml; charset=UTF-8"}, body)
        parameters = {"bucket": bucket, "object": name}
        self._faults.record(Call("storage", "signed.get", parameters, "", code, caller))
        return reply


def _with_links_here(request: Request, reply: Reply) -> Reply:
    """Return the response with media links to this server, because the SDK follows them with its token."""
    if not reply.headers.get("Content-Type", "").startswith("application/json"):
        return reply
    here = f"{request.environ['wsgi.url_scheme']}://{request.header('host')}/download/"
    return replace(
        reply, body=bytes(reply.body).replace(b"https://storage.googleapis.com/download/", here.encode())
    )
