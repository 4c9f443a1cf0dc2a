"""The errors of Google's SDKs as cloudspot's: the class says what the caller does; the message is a line."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import google.auth.exceptions as auth
import requests
import urllib3.exceptions
from google.api_core import exceptions as api

from cloudspot.errors import AuthError, CloudspotError, TransientError

Codes = Mapping[str, type[CloudspotError]]

SDK_ERRORS = (
    api.GoogleAPIError,
    auth.GoogleAuthError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    ConnectionError,
)
"""All that a request to Google may raise for what is not a bug of ours."""
THROTTLED = frozenset(
    {"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED"}
)
"""The service did nothing: the request may be made again, a create-only one too."""
_NOT_ENABLED = frozenset({"accessNotConfigured", "SERVICE_DISABLED"})
_NO_BILLING = frozenset(
    {"accountDisabled", "billingNotEnabled", "BILLING_DISABLED", "UserProjectAccountProblem"}
)
UNUSABLE = _NOT_ENABLED | _NO_BILLING
"""No right that is granted helps: the API is off, or the project has no billing."""
_SECRET = re.compile(
    r"X-Goog-(?:Signature|Credential)=[^&\s\"']+"
    r"|\b(?:access_token|refresh_token|upload_id|id_token|assertion)=[^&\s\"']+"
    r"|\bBearer\s+[^\s\"']+"
    r"|\bya29\.[^\s\"']+"
    r"|-----BEGIN[^-]*PRIVATE KEY-----.*?(?:-----END[^-]*PRIVATE KEY-----|$)",
    re.IGNORECASE | re.DOTALL,
)
_REQUEST_LINE = re.compile(r"^[A-Z]+ https?://\S+: ")
"""What google-api-core puts before the words of Google."""
_MAX_MESSAGE = 400
_LOG_IN = "run `gcloud auth application-default login`"


@contextmanager
def translated(what: str, codes: Codes = MappingProxyType({})) -> Iterator[None]:
    """Raise the SDKs' errors as cloudspot's, with ``what`` before the reason.

    ``codes`` names what a service's own reasons mean (see :func:`error_code`); they come first. A reason
    that nobody names is a CloudspotError if the request was refused, and a TransientError where the service
    failed.
    """
    try:
        yield
    except SDK_ERRORS as error:
        raise translation(error, what, codes) from error


def translation(error: Exception, what: str, codes: Codes = MappingProxyType({})) -> CloudspotError:
    """Return the error that ``translated`` raises for the SDK's."""
    if isinstance(error, api.RetryError):
        cause = error.cause
        if isinstance(cause, SDK_ERRORS):
            return translation(cause, what, codes)
        return TransientError(f"{what}: no answer in time")
    if isinstance(error, api.GoogleAPICallError):
        return _refusal(error, what, codes)
    if isinstance(error, auth.GoogleAuthError):
        return _no_credentials(error, what)
    if isinstance(error, api.GoogleAPIError):
        return CloudspotError(f"{what}: {one_line(str(error))}")
    if isinstance(error, (requests.exceptions.JSONDecodeError, requests.exceptions.InvalidJSONError)):
        return TransientError(f"{what}: the answer cannot be read")  # Such as a proxy's page in its place.
    if isinstance(error, (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema)):
        return CloudspotError(f"{what}: {one_line(str(error))}")
    return TransientError(f"{what}: {_unreached(error)}")


def error_code(error: BaseException) -> str:
    """Return Google's word for an error, such as ``notFound``, ``SERVICE_DISABLED`` or ``quotaExceeded``.

    The reason of the error's details where there are such, else that of its first error, else the name of its
    status, such as ``NOT_FOUND``; "" where there was no answer.
    """
    if not isinstance(error, api.GoogleAPICallError):
        return ""
    if error.reason:  # Of an ErrorInfo: the finest.
        return str(error.reason)
    for one in error.errors:
        if isinstance(one, Mapping) and one.get("reason"):
            return str(one["reason"])
    status = getattr(error.grpc_status_code, "name", None)
    return str(status or error.code or "")


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an answer that is an error; 0 where there was none."""
    return int(error.code or 0) if isinstance(error, api.GoogleAPICallError) else 0


def message_of(error: api.GoogleAPICallError) -> str:
    """Return what Google said, as one line without secrets."""
    return one_line(_REQUEST_LINE.sub("", str(error.message or ""))) or f"HTTP status {error.code}"


def one_line(text: str) -> str:
    """Return the text as one line without secrets."""
    line = " ".join(_SECRET.sub("...", text).split())
    return line if len(line) <= _MAX_MESSAGE else line[: _MAX_MESSAGE - 3] + "..."


def _refusal(error: api.GoogleAPICallError, what: str, codes: Codes) -> CloudspotError:
    code, status, said = error_code(error), status_of(error), message_of(error)
    if code in codes:
        return codes[code](f"{what}: {said} ({code})")
    if code in THROTTLED or status == HTTPStatus.TOO_MANY_REQUESTS:
        return TransientError(f"{what}: Google throttles the requests: {said} ({code})")
    if code in _NOT_ENABLED:
        service = _service(error)
        return AuthError(f"{what}: the API is not enabled; run: gcloud services enable {service} ({code})")
    if code in _NO_BILLING:
        return AuthError(f"{what}: the project has no billing account that serves: {said} ({code})")
    if status == HTTPStatus.UNAUTHORIZED:
        return AuthError(f"{what}: Google does not accept the credentials: {said}; {_LOG_IN} ({code})")
    if status == HTTPStatus.FORBIDDEN:
        return AuthError(f"{what}: access denied: {said} ({code})")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT:
        return TransientError(f"{what}: Google failed: {said} ({code})")
    return CloudspotError(f"{what}: Google refuses: {said} ({code})")


def _service(error: api.GoogleAPICallError) -> str:
    """Return the service that an error speaks of, as ``gcloud services enable`` takes it."""
    for detail in error.details:
        metadata: Any = getattr(detail, "metadata", None) or (
            detail.get("metadata") if isinstance(detail, Mapping) else None
        )
        if metadata and metadata.get("service"):
            return str(metadata["service"])
    found = re.search(r"\b([a-z]+\.googleapis\.com)\b", message_of(error))
    return found[1] if found else "compute.googleapis.com storage.googleapis.com logging.googleapis.com"


def _no_credentials(error: auth.GoogleAuthError, what: str) -> CloudspotError:
    """Return the error for credentials that are not there, or cannot be renewed."""
    text = one_line(_words(error))
    if isinstance(error, auth.DefaultCredentialsError):
        if "were not found" in text:
            return AuthError(
                f"{what}: no Google credentials found; {_LOG_IN}, set GOOGLE_APPLICATION_CREDENTIALS, or "
                "give the machine a service account"
            )
        return AuthError(f"{what}: the Google credentials cannot be read: {text}")
    if isinstance(error, auth.RefreshError):
        if "invalid_grant" in text or "Reauthentication" in text:
            return AuthError(f"{what}: the Google credentials have expired or were revoked; {_LOG_IN}")
        if error.retryable or _is_passing(error):
            return TransientError(f"{what}: the Google credentials cannot be renewed now: {text}")
        return AuthError(f"{what}: the Google credentials cannot be renewed: {text}")
    if isinstance(error, auth.TransportError):
        cause = error.args[0] if error.args and isinstance(error.args[0], BaseException) else error
        return TransientError(f"{what}: no token: {_unreached(cause)}")
    return AuthError(f"{what}: the Google credentials cannot be had: {text}")


def _words(error: BaseException) -> str:
    """Return what a google-auth error says: others may lie within, and answers beside the words."""
    first = error.args[0] if error.args else None
    if isinstance(first, auth.GoogleAuthError):
        return _words(first)
    return first if isinstance(first, str) else str(error)


def _is_passing(error: auth.RefreshError) -> bool:
    """Say whether a machine's metadata server failed, which google-auth tells like an ended login."""
    cause = error.args[0] if error.args else None
    if not isinstance(cause, auth.TransportError):
        return False
    status = getattr(cause.args[-1], "status", 0) if cause.args else 0
    return not HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR or status == 429


def _unreached(error: BaseException) -> str:
    """Say where nobody answered; the URL may be a signed one, its host is none."""
    request = getattr(error, "request", None)
    host = urlsplit(str(getattr(request, "url", "") or "")).netloc.rpartition("@")[2]
    # The innermost reason names what happened: "Connection refused", "timed out".
    cause: object = error
    while True:
        inner = getattr(cause, "reason", None)
        args = getattr(cause, "args", ())
        if not isinstance(inner, BaseException):
            inner = next((one for one in reversed(args) if isinstance(one, BaseException)), None)
        if inner is None:
            break
        cause = inner
    reason = one_line(re.sub(r"https?://[^\s\"']+", "...", str(cause))) or type(cause).__name__
    return f"no answer from {host}: {reason}" if host else f"the connection broke: {reason}"
