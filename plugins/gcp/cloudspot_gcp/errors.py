"""Translates the errors of Google's SDKs: the class says what to do next, and the message is one line."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import google.auth.exceptions as auth
import requests
import urllib3.exceptions
from google.api_core import exceptions as api
from google.protobuf import json_format

from cloudspot.errors import AuthError, CloudspotError, TransientError
from cloudspot.plugin.answers import UNREADABLE
from cloudspot.plugin.sdkerrors import NO_CODES, Codes, SdkErrors

NOT_ENABLED = frozenset({"accessNotConfigured", "SERVICE_DISABLED"})
_NO_BILLING = frozenset(
    {"accountDisabled", "billingNotEnabled", "BILLING_DISABLED", "UserProjectAccountProblem"}
)
UNUSABLE = NOT_ENABLED | _NO_BILLING
"""The codes of errors that no permission can fix: the API is off, or the project has no billing."""
_REQUEST_LINE = re.compile(r"^[A-Z]+ https?://\S+: ")
"""The text that google-api-core puts before Google's message."""
_LOG_IN = "run `gcloud auth application-default login`"


def error_of(answer: requests.Response) -> api.GoogleAPICallError:
    """Return the SDK's error for an answer, even if its body cannot be read."""
    try:
        error = api.from_http_response(answer)
        ERRORS.code_of(error)  # this reads more of the body, and so may fail
        return error
    except UNREADABLE:
        return api.from_http_status(answer.status_code, "the answer cannot be read", response=answer)


_UNREAD = (requests.exceptions.JSONDecodeError, requests.exceptions.InvalidJSONError, json_format.Error)


class _GoogleErrors(SdkErrors):
    """The errors of Google's SDKs.

    Codes are, for example, ``notFound``, ``SERVICE_DISABLED`` or ``NOT_FOUND``.
    """

    cloud = "Google"
    raised = (
        api.GoogleAPIError,
        auth.GoogleAuthError,
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        http.client.HTTPException,
        ConnectionError,
        json_format.Error,
    )
    secrets = re.compile(
        r"X-Goog-(?:Signature|Credential)=[^&\s\"']+"
        r"|\b(?:access_token|refresh_token|upload_id|id_token|assertion)=[^&\s\"']+"
        r"|\bBearer\s+[^\s\"']+"
        r"|\bya29\.[^\s\"']+"
        r"|-----BEGIN[^-]*PRIVATE KEY-----.*?(?:-----END[^-]*PRIVATE KEY-----|$)",
        re.IGNORECASE | re.DOTALL,
    )
    throttled = frozenset(
        {"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED"}
    )

    def translation(self, error: BaseException, what: str, codes: Codes = NO_CODES) -> CloudspotError:
        if isinstance(error, api.RetryError):
            if isinstance(error.cause, self.raised):
                return self.translation(error.cause, what, codes)
            return TransientError(f"{what}: no answer in time")
        if isinstance(error, api.GoogleAPICallError):
            return self.refusal(error, what, codes)
        if isinstance(error, auth.GoogleAuthError):
            return self._no_credentials(error, what)
        if isinstance(error, api.GoogleAPIError):
            return CloudspotError(f"{what}: {self.one_line(str(error))}")
        if isinstance(error, _UNREAD):
            return TransientError(f"{what}: the answer cannot be read")  # The answer may be a proxy's page.
        if isinstance(error, (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema)):
            return CloudspotError(f"{what}: {self.one_line(str(error))}")
        return TransientError(f"{what}: {self._unreached(error)}")

    def code_of(self, error: BaseException) -> str:
        if not isinstance(error, api.GoogleAPICallError):
            return ""
        if error.reason:  # from an ErrorInfo, which has the most specific code
            return str(error.reason)
        for one in error.errors:
            if isinstance(one, Mapping) and one.get("reason"):
                return str(one["reason"])
        status = getattr(error.grpc_status_code, "name", None)
        return str(status or int(error.code or 0) or "")  # before Python 3.11, str(HTTPStatus) is a name

    def status_of(self, error: BaseException) -> int:
        return int(error.code or 0) if isinstance(error, api.GoogleAPICallError) else 0

    def message_of(self, error: BaseException) -> str:
        return self.one_line(_REQUEST_LINE.sub("", str(getattr(error, "message", None) or "")))

    def refusal(self, error: BaseException, what: str, codes: Codes = NO_CODES) -> CloudspotError:
        code, shown = self.code_of(error), self.shown(error)
        if code not in codes:
            if code in NOT_ENABLED:
                run = f"gcloud services enable {self._service(error)}"
                return AuthError(f"{what}: the API is not enabled; run: {run} ({code})")
            if code in _NO_BILLING:
                return AuthError(f"{what}: the project has no working billing account: {shown}")
            if self.status_of(error) == HTTPStatus.UNAUTHORIZED:
                return AuthError(f"{what}: Google does not accept the credentials: {shown}; {_LOG_IN}")
        return super().refusal(error, what, codes)

    def _service(self, error: BaseException) -> str:
        """Return the service that an error is about, in the form of ``gcloud services enable``."""
        for detail in getattr(error, "details", ()):
            metadata: Any = getattr(detail, "metadata", None) or (
                detail.get("metadata") if isinstance(detail, Mapping) else None
            )
            if metadata and metadata.get("service"):
                return str(metadata["service"])
        found = re.search(r"\b([a-z]+\.googleapis\.com)\b", self.message_of(error))
        return found[1] if found else "compute.googleapis.com storage.googleapis.com logging.googleapis.com"

    def _no_credentials(self, error: auth.GoogleAuthError, what: str) -> CloudspotError:
        text = self.one_line(_message_of(error))
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
            return TransientError(f"{what}: no token: {self._unreached(cause)}")
        return AuthError(f"{what}: cannot get Google credentials: {text}")

    def _unreached(self, error: BaseException) -> str:
        """Return a message with the host that did not answer, not the URL, which may be signed and secret."""
        request = getattr(error, "request", None)
        host = urlsplit(str(getattr(request, "url", "") or "")).netloc.rpartition("@")[2]
        return f"{f'no answer from {host}' if host else 'the connection broke'}: {self.innermost(error)}"


def _message_of(error: BaseException) -> str:
    """Return the message of a google-auth error, which may wrap another error and contain responses."""
    first = error.args[0] if error.args else None
    if isinstance(first, auth.GoogleAuthError):
        return _message_of(first)
    return first if isinstance(first, str) else str(error)


def _is_passing(error: auth.RefreshError) -> bool:
    """Return whether a machine's metadata server failed, which google-auth reports as an expired login."""
    cause = error.args[0] if error.args else None
    if not isinstance(cause, auth.TransportError):
        return False
    status = getattr(cause.args[-1], "status", 0) if cause.args else 0
    return not HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR or status == 429


ERRORS = _GoogleErrors()
