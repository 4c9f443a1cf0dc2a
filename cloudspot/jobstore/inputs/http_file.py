"""Read a file from a web server in ranges, with only the standard library."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import Request, build_opener

import cloudspot
from cloudspot.decoding import LATEST, whole_number
from cloudspot.errors import AuthError, CloudspotError, ObjectMissing, TransientError
from cloudspot.host.paced_http import UnreadRedirects
from cloudspot.host.public_addresses import AddressRefused, handlers

PIECE_BYTES = 1 << 20
TIMEOUT_SECONDS = 30.0
"""The longest time that a server may stay silent."""
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")
_MISSING = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


@dataclass(frozen=True)
class HttpHead:
    """The metadata of the whole file, from the headers of an answer."""

    size: int | None
    """The size in bytes, or None if the server does not state it."""
    version: str
    """The entity tag or, failing that, the time of the last change; empty if neither is known."""
    seconds: int
    """The time of the last change, in seconds since 1970; 0 if unknown."""
    has_ranges: bool


class HttpFile:
    """A file at a URL. Thread-safe. No message shows the query of the URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown = urlunsplit(urlsplit(url)._replace(query="", fragment=""))
        self._opener = build_opener(_SafeRedirects(), *handlers(urlsplit(url).hostname or ""))

    def head(self) -> HttpHead:
        """Request the first byte, because servers may answer HEAD differently; errors as in ``opened``."""
        with self.opened((0, 1)) as (head, _):
            return head

    @contextmanager
    def opened(self, span: tuple[int, int] | None) -> Iterator[tuple[HttpHead, Iterator[bytes]]]:
        """Request the file or a range of it; lend its metadata and its bytes, in pieces.

        ``span`` is an offset and a length, or None for the whole file. A server without range requests sends
        the whole file anyway, as ``HttpHead.has_ranges`` shows.

        Raises:
            ObjectMissing: the server has no such file.
            AuthError: the server requires credentials.
            TransientError: the server failed or the connection broke, possibly while pieces are read.
            CloudspotError: the server returns another error.
        """
        headers = {"User-Agent": f"cloudspot/{cloudspot.__version__}", "Accept-Encoding": "identity"}
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[0] + span[1] - 1}"
        try:
            answer = self._opener.open(Request(self.url, headers=headers), timeout=TIMEOUT_SECONDS)  # noqa: S310 - the job file allows only http and https
        except HTTPError as error:
            with error:
                if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or span != (0, 1):
                    raise self._error(error) from error
                head = HttpHead(0, _version(error.headers), _seconds(error.headers), has_ranges=False)
            yield head, iter(())
            return
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None)
            if isinstance(reason, AddressRefused):
                raise CloudspotError(f"{self.shown} redirects, but {reason}") from error
            raise self._broken(error) from error
        except ValueError as error:  # an invalid host name, or unbalanced brackets
            raise CloudspotError(f"{self.shown} redirects to an invalid URL") from error
        with answer:
            yield self._read_head(answer, span), self._pieces(answer)

    def _read_head(self, answer: http.client.HTTPResponse, span: tuple[int, int] | None) -> HttpHead:
        headers = answer.headers
        if headers.get("Content-Encoding", "identity") != "identity":
            raise CloudspotError(
                f"{self.shown}: the server sends the file only compressed; copy the file to a store"
            )
        if answer.status == HTTPStatus.PARTIAL_CONTENT and span is not None:
            match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
            first, last, size = (None, None, None) if match is None else map(whole_number, match.groups())
            if size is None or last is None or (first, last + 1) != (span[0], min(sum(span), size)):
                raise CloudspotError(
                    f"{self.shown}: the server did not send the requested range; copy the file to a store"
                )
            return HttpHead(size, _version(headers), _seconds(headers), has_ranges=True)
        if span is not None and span[0] > 0:
            raise CloudspotError(
                f"{self.shown}: the server does not support range requests; copy the file to a store"
            )
        length = headers.get("Content-Length")
        size = whole_number(length)
        if length is not None and size is None:
            raise CloudspotError(f"{self.shown}: the server sent an invalid Content-Length: {length[:40]}")
        return HttpHead(size, _version(headers), _seconds(headers), has_ranges=False)

    def _pieces(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while piece := answer.read(PIECE_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> TransientError:
        return TransientError(f"{self.shown} cannot be read: {getattr(error, 'reason', None) or error}")

    def _error(self, error: HTTPError) -> CloudspotError:
        text = f"{self.shown} answered {error.code} {str(error.reason)[:200]}"
        if error.code in _MISSING:
            return ObjectMissing(text)
        if error.code in _DENIED:
            return AuthError(f"{text}; a web server's file must be readable without credentials")
        if error.code in _PASSING or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return TransientError(text)
        return CloudspotError(text)


class _SafeRedirects(UnreadRedirects):
    """Follows redirects, but never from https to another scheme; ``handlers`` checks the addresses."""

    def redirect_request(
        self,
        req: Request,
        fp: object,
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme != "https" and (req.type == "https" or scheme != "http"):
            raise CloudspotError(f"{req.host} redirects to {scheme}://, and such redirects are not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _version(headers: Message) -> str:
    return str(headers.get("ETag") or headers.get("Last-Modified") or "")


def _seconds(headers: Message) -> int:
    try:
        seconds = int(parsedate_to_datetime(headers.get("Last-Modified", "")).timestamp())
    except (TypeError, ValueError, OverflowError):
        return 0
    return min(max(0, seconds), int(LATEST.timestamp()))
