"""Reads a bucket's objects with botocore's signer, HTTP session and error parser, but not its client.

For each read, the client would spend half a millisecond of processor time on building the request and parsing
the response, which is as much as all other work for an object of 250 kB.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

import botocore.exceptions
import fastcrc
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest, AWSResponse
from botocore.parsers import RestXMLParser
from botocore.response import StreamingBody

from cloudspot.decoding import whole_number

MAX_ERROR_BYTES = 1 << 20
"""An error is a short document; if a server or a proxy sends a longer body, reading stops here."""
_SUMS: Mapping[str, Callable[[memoryview], bytes]] = {
    "crc32": lambda data: fastcrc.crc32.iso_hdlc(data).to_bytes(4, "big"),
    "crc32c": lambda data: fastcrc.crc32.iscsi(data).to_bytes(4, "big"),
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
"""S3's whole-object checksums that can be computed here; S3 has others, such as CRC-64/NVME."""


class Answer(NamedTuple):
    """A successful response, with a 2xx status."""

    status: int
    headers: Mapping[str, str]
    num_bytes: int | None
    """None if the response does not state it."""
    body: StreamingBody


class S3Reads:
    """Reads one bucket's objects with a client's endpoint and credentials. Thread-safe."""

    def __init__(self, client: Any, session: Any, bucket: str) -> None:
        """Take the client and the botocore session that made it; do no I/O except for credentials."""
        # An unsent request shows the client's settings: path or host style, FIPS, dual stack, scope.
        self._base, headers = _unsent(client, bucket)
        scope = re.search(r"Credential=\S+/\d{8}/([^/]+)/([^/]+)/aws4_request", headers["Authorization"])
        assert scope is not None, "botocore signs by version 4"
        self._region, self._service = scope.groups()
        self._credentials = session.get_credentials()
        self._headers = {"User-Agent": headers["User-Agent"]}
        self._context = {"client_config": client.meta.config}
        self._http = client._endpoint.http_session  # noqa: SLF001 - its connections, timeouts, proxies and CA

    def get(self, name: str, headers: Mapping[str, str]) -> Answer:
        """Send the request for an object; the body is read later.

        Raises:
            botocore.exceptions.ClientError: in the same cases as the client's ``get_object``, and for a
                redirect to another region, which is not followed: ``connect`` has found the bucket's region.
            botocore.exceptions.BotoCoreError: there is no answer, or there are no credentials any more.
        """
        request = AWSRequest("GET", self._url(name), headers={**self._headers, **headers})
        request.context.update(self._context)
        S3SigV4Auth(*self._signer()).add_auth(request)
        prepared = request.prepare()
        prepared.stream_output = True
        answer = self._http.send(prepared)
        num_bytes = whole_number(answer.headers.get("Content-Length"))
        body = StreamingBody(answer.raw, num_bytes)
        if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            response = {
                "status_code": answer.status_code,
                "headers": answer.headers,
                "body": body.read(MAX_ERROR_BYTES),
            }
            raise botocore.exceptions.ClientError(RestXMLParser().parse(response, None), "GetObject")
        return Answer(answer.status_code, answer.headers, num_bytes, body)

    @property
    def are_temporary(self) -> bool:
        """Whether the current credentials are temporary: only these have a token."""
        return bool(self._credentials.get_frozen_credentials().token)

    @property
    def credentials_end(self) -> datetime | None:
        """When the current credentials expire; None if they never do or botocore does not know."""
        found = getattr(self._credentials, "_expiry_time", None)  # botocore has no public name for it
        return found if isinstance(found, datetime) else None

    def signed_url(self, name: str, seconds: int, *, media_type: str | None = None) -> str:
        """Return a URL that reads the object for ``seconds``, at the endpoint of the bucket's region.

        The response has the content type ``media_type``, if it is given.

        The client's ``generate_presigned_url`` names the global endpoint, which answers 400 for buckets in
        regions launched since March 2019. Sources: S3 user guide, "Virtual hosting of general purpose
        buckets", and boto3's issue 3015 (checked 2026-11).
        """
        url = self._url(name)
        if media_type is not None:
            url += f"?response-content-type={quote(media_type, safe='')}"
        request = AWSRequest("GET", url)
        S3SigV4QueryAuth(*self._signer(), expires=seconds).add_auth(request)
        return str(request.url)

    def _url(self, name: str) -> str:
        return self._base + quote(name, safe="/~")

    def _signer(self) -> tuple[Any, str, str]:
        return self._credentials.get_frozen_credentials(), self._service, self._region


def _unsent(client: Any, bucket: str) -> tuple[str, Mapping[str, str]]:
    """Return the URL, without the key, and the headers that the client would use to read objects."""
    requests: list[AWSPreparedRequest] = []
    key = secrets.token_hex(16)  # distinguishes this request from others of the shared client

    def answer(request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
        if not request.url.endswith(f"/{key}"):
            return None
        requests.append(request)
        return AWSResponse(request.url, HTTPStatus.OK, {}, io.BytesIO())

    client.meta.events.register("before-send.s3.GetObject", answer)
    try:
        client.get_object(Bucket=bucket, Key=key)
    finally:
        client.meta.events.unregister("before-send.s3.GetObject", answer)
    (request,) = requests
    headers = {
        name: value.decode("ascii") if isinstance(value, bytes) else str(value)
        for name, value in request.headers.items()
    }
    return request.url.removesuffix(key), headers


def verify(headers: Mapping[str, str], data: memoryview) -> None:
    """Compare a whole object with the checksum that came with it, if S3 sent one of the whole object.

    Raises:
        botocore.exceptions.FlexibleChecksumError: the checksums differ.
    """
    for name, compute in _SUMS.items():
        checksum = headers.get(f"x-amz-checksum-{name}")
        # A checksum that ends in a number of parts covers the parts' checksums, not the object.
        if checksum and "-" not in checksum and base64.b64encode(compute(data)).decode("ascii") != checksum:
            raise botocore.exceptions.FlexibleChecksumError(error_msg=f"the {name} is not {checksum}")
