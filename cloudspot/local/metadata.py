"""A local machine's metadata service over HTTP, and its client on the machine.

::

    GET /identity      {"instance_id", "rank", "address", ..., "job_id", "launch"}
    GET /tags/<name>   the announced value as text; 404 before it is announced
    GET /notice        {"deadline", "action"}; 404 while there is none

As in the clouds, requests without the header are refused, so that a URL in a training's data, which an
outsider may have written, cannot reach the service through the training.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
from typing import ClassVar, TypeVar

import msgspec

from cloudspot.decoding import decode
from cloudspot.errors import CloudspotError, TransientError
from cloudspot.interfaces import PreemptionSource
from cloudspot.local.metadataservice import Answer, MetadataService, Request, StandingNotice
from cloudspot.model import PreemptionNotice
from cloudspot.plugin.metadataclient import ask_metadata

METADATA = "CLOUDSPOT_LOCAL_METADATA"
"""The environment variable that holds the service's URL on a machine."""
HEADER = "Metadata-Flavor"
HEADER_VALUE = "cloudspot-local"
_TIMEOUT_SECONDS = 5.0

_T = TypeVar("_T")


class LocalMetadata(MetadataService):
    """The metadata service of a local machine, which its supervisor runs."""

    server_version: ClassVar[str] = HEADER_VALUE

    def answer(self, request: Request) -> Answer:
        if request.method != "GET":
            return Answer(501, b"only GET is supported here\n")
        if request.headers.get(HEADER.lower()) != HEADER_VALUE:
            return Answer(403, f"the header {HEADER}: {HEADER_VALUE} is missing\n".encode())
        if request.path == "/identity":
            return Answer(200, json.dumps(self.view.facts).encode(), "application/json")
        notice = self.view.notice
        if request.path == "/notice" and notice is not None:
            return Answer(200, msgspec.json.encode(notice), "application/json")
        prefix, _, name = request.path.rpartition("/")
        value = self.view.tags.get(urllib.parse.unquote(name))
        if prefix == "/tags" and value is not None:
            return Answer(200, value.encode(), "text/plain; charset=utf-8")
        return Answer(404, b"there is nothing here\n")


class LocalPreemptionSource(PreemptionSource):
    """Reads the notice from the machine's own metadata service."""

    poll_seconds: ClassVar[float] = 0.2

    def __init__(self, *, notice_seconds: float) -> None:
        self.notice_seconds = notice_seconds

    def poll(self) -> PreemptionNotice | None:
        notice = fetch_json("/notice", StandingNotice)
        if notice is None:
            return None
        return PreemptionNotice(
            deadline=notice.deadline,
            deadline_monotonic=notice.deadline_monotonic,
            action=notice.action,
            source="local-metadata",
        )


def fetch_json(path: str, kind: type[_T]) -> _T | None:
    """Return the response for the path as a ``kind``, or None if the metadata service has nothing there.

    Raises:
        TransientError: the service does not answer, or its response is malformed.
        CloudspotError: this process does not run on a local machine.
    """
    body = fetch(path)
    try:
        value: _T | None = None if body is None else decode(body, kind)
        return value
    except msgspec.DecodeError as error:  # malformed JSON, or a value of another type
        raise TransientError(f"the metadata service sent a malformed answer to {path}: {error}") from error


def fetch(path: str) -> str | None:
    """Return the metadata service's response for the path, or None if it has nothing there.

    Raises:
        TransientError: the service does not answer.
        CloudspotError: this process does not run on a local machine.
    """
    url = os.environ.get(METADATA)
    if not url:
        raise CloudspotError(f"{METADATA} is not set: this process is not on a machine of provider 'local'")
    try:
        return ask_metadata(url + path, {HEADER: HEADER_VALUE}, timeout=_TIMEOUT_SECONDS)[0]
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404:
                return None
            raise TransientError(f"the metadata service answered {error.code} to {path}") from error
