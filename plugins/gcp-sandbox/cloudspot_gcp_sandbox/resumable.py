"""Resumable uploads to the emulated Cloud Storage, in sessions of pieces that may break off.

Source: Cloud Storage, "Resumable uploads" and "Perform resumable uploads" (checked 2026-11); for checking the
    conditions at the end of an upload, not at its start: googleapis/google-cloud-java#201.
"""

from __future__ import annotations

import re
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.objects import StoredObject, crc32c_of
from cloudspot_gcp_sandbox.wsgi import Reply, Request

UNIT_BYTES = 256 << 10
"""The size of every piece but the last is a multiple of this size, and so is the part that is kept of a
broken piece.
"""
_PIECE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_QUESTION = re.compile(r"bytes \*/(\d+|\*)")

Finish = Callable[["Session"], StoredObject]
"""Makes the object of a complete upload; raises ApiError if the object is refused."""


@dataclass
class Session:
    """One upload."""

    id: str
    bucket: str
    name: str
    fields: Mapping[str, Any]
    conditions: Mapping[str, Any]
    declared_bytes: int | None
    """The size from ``X-Upload-Content-Length``."""
    data: bytearray = field(default_factory=bytearray)
    """The bytes that were received and kept."""
    answer: Reply | None = None
    """The response that ended the upload; a later query gets the same response."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Sessions:
    """The uploads in progress. Thread-safe."""

    def __init__(self) -> None:
        self.breaks: list[int] = []
        """For each of the next pieces, the number of bytes that are read before the connection breaks."""
        self._sessions: dict[str, Session] = {}

    def begin(
        self,
        bucket: str,
        name: str,
        *,
        fields: Mapping[str, Any],
        conditions: Mapping[str, Any],
        declared_bytes: int | None,
    ) -> Session:
        """Return a new session."""
        session = Session(secrets.token_urlsafe(64), bucket, name, fields, conditions, declared_bytes)
        self._sessions[session.id] = session
        return session

    def pending(self, bucket: str) -> list[Session]:
        """Return the uploads into the bucket that have not ended."""
        found = [session for session in self._sessions.values() if session.bucket == bucket]
        return [session for session in found if session.answer is None]

    def find(self, upload_id: str) -> Session:
        """Return the session.

        Raises:
            ApiError: 404, the session does not exist, or was cancelled.
        """
        if upload_id not in self._sessions:
            raise ApiError(404, "notFound", "Not Found")
        return self._sessions[upload_id]

    def cancel(self, upload_id: str) -> Reply:
        """Drop a session and its data."""
        self.find(upload_id)
        del self._sessions[upload_id]
        return Reply(499)

    def take(self, request: Request, session: Session, finish: Finish) -> Reply:
        """Answer a PUT: a piece, the whole content, or a query of the upload's position."""
        with session.lock:
            length = request.header("content-length")
            if length is None:
                raise ApiError(411, "lengthRequired", "PUT requests require a Content-Length header.")
            asked = _QUESTION.fullmatch(request.header("content-range") or "")
            if session.answer is not None:
                request.read()
                return session.answer
            if asked is None:
                return self._take_piece(request, session, int(length), finish)
            if int(length) != 0:
                raise _bad_range("a request for the status of an upload must not have a body")
            if asked[1] != "*" and int(asked[1]) == len(session.data):
                return self._end(request, session, finish)  # The object is, for example, empty.
            return _incomplete(session)

    def _take_piece(self, request: Request, session: Session, length: int, finish: Finish) -> Reply:
        total: int | None
        text = request.header("content-range")
        if text is None:
            first, last, total = 0, length - 1, length
        else:
            piece = _PIECE.fullmatch(text)
            if piece is None:
                raise _bad_range(f"Failed to parse Content-Range header: {text}")
            first, last = int(piece[1]), int(piece[2])
            total = None if piece[3] == "*" else int(piece[3])
            if last - first + 1 != length or (total is not None and last >= total):
                raise _bad_range(f"{text} does not match a body of {length} bytes")
        is_last = total is not None and last + 1 == total
        if not is_last and length % UNIT_BYTES:
            raise _bad_range(f"a piece that is not the last must be a multiple of {UNIT_BYTES} bytes")
        if first > len(session.data):
            raise _bad_range(f"the upload is at {len(session.data)}, but the piece begins at {first}")
        self._receive(request, session, first, length)
        if session.declared_bytes is not None and len(session.data) > session.declared_bytes:
            raise ApiError(400, "invalid", "More bytes came than X-Upload-Content-Length said.")
        return self._end(request, session, finish) if is_last else _incomplete(session)

    def _receive(self, request: Request, session: Session, first: int, length: int) -> None:
        """Read the body and keep it; if it breaks off, keep only whole units."""
        stream = request.environ["wsgi.input"]
        break_at = self.breaks.pop(0) if self.breaks else None
        wanted = length if break_at is None else min(break_at, length)
        try:
            body: bytes = stream.read(wanted)
        except ConnectionError:
            body = b""
        known = len(session.data) - first  # Skip the bytes that were received before.
        session.data += body[known:]
        if break_at is not None or len(body) < length:
            del session.data[len(session.data) - len(session.data) % UNIT_BYTES :]
            connection: socket.socket = request.environ["werkzeug.socket"]
            connection.shutdown(socket.SHUT_RDWR)
            stream.read()  # Otherwise the rest of the buffer would be taken for the next request.
            raise ConnectionAbortedError("the upload was interrupted")

    def _end(self, request: Request, session: Session, finish: Finish) -> Reply:
        if session.declared_bytes not in {None, len(session.data)}:
            raise ApiError(400, "invalid", "Fewer bytes came than X-Upload-Content-Length said.")
        check_hashes(request.header("x-goog-hash"), session.data)
        try:
            stored = finish(session)
        except ApiError as error:
            session.answer = Reply.refusal(error)
        else:
            session.answer = Reply.json(stored.resource(session.bucket))
        session.data = bytearray()
        return session.answer


def check_hashes(header: str | None, data: bytes | bytearray) -> None:
    """Compare the content with the checksums in ``x-goog-hash``.

    Raises:
        ApiError: 400, the content differs, or the header cannot be read.
    """
    for one in (header or "").split(","):
        kind, _, text = one.strip().partition("=")
        if kind == "crc32c":
            check_crc32c(text, data)
        elif kind not in {"", "md5"}:
            raise ApiError(400, "invalid", f"Invalid x-goog-hash: {header}")


def check_crc32c(text: str, data: bytes | bytearray) -> None:
    """Compare the content with its CRC32C in base64.

    Raises:
        ApiError: 400, the content differs.
    """
    found = crc32c_of(data)
    if text != found:
        raise ApiError(
            400, "invalid", f'Provided CRC32C "{text}" doesn\'t match calculated CRC32C "{found}".'
        )


def _incomplete(session: Session) -> Reply:
    if not session.data:
        return Reply(308)
    return Reply(308, {"Range": f"bytes=0-{len(session.data) - 1}"})


def _bad_range(message: str) -> ApiError:
    return ApiError(400, "badRequest", f"Invalid request. {message}")
