"""A local machine's metadata service over HTTP, and its client on the machine.

::

    GET /identity      {"instance_id", "rank", "address", ..., "job_id", "launch"}
    GET /tags/<name>   the announced value as text; 404 before it is announced
    GET /notice        {"deadline", "action"}; 404 while there is none

As in the clouds, requests without the header are refused, so that an outsider's URL in a training's data
cannot reach the service through the training.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import ClassVar, TypeVar

import msgspec

from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import PreemptionSource
from cloudspot.local.metadataservice import Answer, MetadataService, Request, StandingNotice
from cloudspot.model import ANNOUNCED, NodeIdentity, PreemptionNotice

METADATA = "CLOUDSPOT_LOCAL_METADATA"
"""The environment variable with the service's URL, on a machine."""
HEADER = "Metadata-Flavor"
HEADER_VALUE = "cloudspot-local"

_T = TypeVar("_T")


class LocalMetadata(MetadataService):
    """What the supervisor of a local machine serves."""

    server_version: ClassVar[str] = HEADER_VALUE

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        if request.method != "GET":
            return Answer(501, b"there is only GET here\n")
        if request.headers.get(HEADER.lower()) != HEADER_VALUE:
            return Answer(403, f"the header {HEADER}: {HEADER_VALUE} is missing\n".encode())
        found = self._find(request.path)
        if found is None:
            return Answer(404, b"there is nothing here\n")
        content_type, body = found
        return Answer(200, body, content_type)

    def _find(self, path: str) -> tuple[str, bytes] | None:
        """Return the content type and body for a path, or None for 404."""
        if path == "/identity":
            return "application/json", json.dumps(self.view.facts).encode()
        if path == "/notice":
            notice = self.view.notice
            return None if notice is None else ("application/json", msgspec.json.encode(notice))
        prefix, _, name = path.rpartition("/")
        if prefix == "/tags":
            value = self.view.tags.get(urllib.parse.unquote(name))
            return None if value is None else ("text/plain; charset=utf-8", value.encode())
        return None


class LocalPreemptionSource(PreemptionSource):
    """Reads the notice from the machine's own metadata service."""

    poll_seconds: ClassVar[float] = 0.2

    def __init__(self, *, notice_seconds: float) -> None:
        self.notice_seconds = notice_seconds

    def poll(self) -> PreemptionNotice | None:
        """Return the standing notice, or None."""
        notice = _fetch_json("/notice", StandingNotice)
        if notice is None:
            return None
        return PreemptionNotice(deadline=notice.deadline, action=notice.action, source="local-metadata")


def read_identity() -> NodeIdentity:
    """Return who this machine is, by its metadata service.

    Raises:
        TransientError: the service does not answer, or with something else.
        CloudspotError: this process does not run on a local machine.
    """
    identity = _fetch_json("/identity", NodeIdentity)
    if identity is None:
        raise TransientError("the metadata service has no identity yet")
    return identity


def read_announced() -> dict[str, str]:
    """Return what has been announced to this machine so far.

    Raises:
        TransientError: the service does not answer.
        CloudspotError: this process does not run on a local machine.
    """
    found = {name: fetch(f"/tags/{name}") for name in ANNOUNCED}
    return {name: value.decode() for name, value in found.items() if value is not None}


def _fetch_json(path: str, kind: type[_T]) -> _T | None:
    body = fetch(path)
    try:
        value: _T | None = None if body is None else decode(body, kind)
        return value
    except msgspec.DecodeError as error:  # a malformed text, or another value
        raise TransientError(f"the metadata service sent a malformed answer to {path}: {error}") from error


def fetch(path: str, *, timeout_seconds: float = 5.0) -> bytes | None:
    """Return what the metadata service answers for the path, or None if it has nothing.

    Raises:
        TransientError: the service does not answer.
        CloudspotError: this process does not run on a local machine.
    """
    url = os.environ.get(METADATA)
    if not url:
        raise CloudspotError(f"{METADATA} is not set: this process is not on a machine of provider 'local'")
    request = urllib.request.Request(url + path, headers={HEADER: HEADER_VALUE})  # noqa: S310 # http, on loopback
    try:
        with _opener().open(request, timeout=timeout_seconds) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404:
                return None
            raise TransientError(f"the metadata service answered {error.code} to {path}") from error
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts; an answer that breaks off
        raise TransientError(f"the metadata service does not answer: {error}") from error


def _opener() -> urllib.request.OpenerDirector:
    # Never through a proxy that the environment names.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
