"""The SDKs' errors as cloudspot's: the class says what the caller does, the message is one line.

Sources: "Common error codes" of ECS's API reference, "Error responses" of OSS (checked 2026-11); OSS's
codes of its own throttling are from memory of the docs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType

import oss2.exceptions as oss
import requests
import urllib3
from aliyunsdkcore.acs_exception.exceptions import ClientException, ServerException

from cloudspot.errors import AuthError, CloudspotError, SpecError, TransientError

Codes = Mapping[str, type[CloudspotError]]

SDK_ERRORS = (
    oss.OssError,
    ServerException,
    ClientException,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
)
"""All that a request of the SDKs' may raise for what is not a bug of ours."""
EXPIRED = frozenset({"InvalidSecurityToken.Expired", "SecurityTokenExpired"})
"""A temporary key has ended: the service did nothing."""
_SKEWED = frozenset(
    {"InvalidTimeStamp.Expired", "InvalidTimeStamp.Format", "RequestTimeTooSkewed", "SignatureNonceUsed"}
)
_BAD_KEYS = frozenset(
    {
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidAccessKeyId.Inactive",
        "InvalidAccessKeyId.NotFound",
        "InvalidAccessKeySecret",
        "InvalidSecurityToken",
        "InvalidSecurityToken.Malformed",
        "InvalidSecurityToken.MismatchWithAccessKey",
        "MissingSecurityToken",
        "SignatureDoesNotMatch",
    }
)
DENIED = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "Forbidden",
        "Forbidden.RAM",
        "Forbidden.SubUser",
        "NoPermission",
        "UserDisable",
    }
)
"""The credentials are good and lack the right, or the account may not."""
THROTTLED = frozenset(
    {
        "DownloadTrafficRateLimitExceeded",
        "QpsLimitExceeded",
        "ServiceUnavailable.Throttling",
        "SlowDown",
        "Throttling",
        "Throttling.Api",
        "Throttling.User",
        "TotalQpsLimitExceeded",
        "TotalTrafficRateLimitExceeded",
        "UploadTrafficRateLimitExceeded",
    }
)
"""The service did nothing: the request may be made again, a create-only one too."""
_PASSING = frozenset(
    {
        "InternalError",
        "InvalidDigest",
        "LastTokenProcessing",
        "RequestTimeout",
        "ServiceUnavailable",
        "SystemBusy",
        "UnknownError",
    }
)
_NETWORK = frozenset({"SDK.HttpError", "SDK.ServerUnreachable"})
_SECRET = re.compile(
    r"(?:x-oss-(?:signature|credential|security-token)|security-token|OSSAccessKeyId|Signature)=[^&\s\"']+"
    r"|\b(?:LTAI|STS\.)[A-Za-z0-9]{8,}",
    re.IGNORECASE,
)
_MAX_MESSAGE = 400


@contextmanager
def translated(what: str, codes: Codes = MappingProxyType({})) -> Iterator[None]:
    """Raise the SDKs' errors as cloudspot's, with ``what`` before the reason.

    ``codes`` names what a service's own error codes mean; they come first. A code that nobody names is
    a CloudspotError if the request was refused, and a TransientError where the service failed.
    """
    try:
        yield
    except SDK_ERRORS as error:
        raise translation(error, what, codes) from error


def translation(error: Exception, what: str, codes: Codes = MappingProxyType({})) -> CloudspotError:
    """Return the error that ``translated`` raises for an SDK's."""
    if isinstance(error, ServerException) or (isinstance(error, oss.OssError) and error.status > 0):
        return _refusal(error, what, codes)
    return _failure(error, what)


def error_code(error: BaseException) -> str:
    """Return the service's code of an error, such as ``OperationDenied.NoStock``; empty: it said none."""
    if isinstance(error, ServerException):
        return str(error.get_error_code() or "")
    return str(error.code or "") if isinstance(error, oss.OssError) else ""


def error_message(error: BaseException) -> str:
    """Return what the service said of an error, as one line without secrets."""
    if isinstance(error, ServerException):
        return one_line(str(error.get_error_msg() or ""))
    return one_line(str(error.message or "")) if isinstance(error, oss.OssError) else ""


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an answer that is an error; 0 where there was none."""
    if isinstance(error, ServerException):
        return int(error.get_http_status() or 0)
    return max(0, int(error.status)) if isinstance(error, oss.OssError) else 0


def one_line(text: str) -> str:
    """Return the text as one line without secrets."""
    line = " ".join(_SECRET.sub("...", text).split())
    return line if len(line) <= _MAX_MESSAGE else line[: _MAX_MESSAGE - 3] + "..."


def _refusal(error: Exception, what: str, codes: Codes) -> CloudspotError:
    code, status = error_code(error), status_of(error)
    said = error_message(error) or f"HTTP status {status}"
    shown = f"{said} ({code})" if code else said
    if code in codes:
        return codes[code](f"{what}: {shown}")
    if code in EXPIRED:
        return AuthError(f"{what}: the Alibaba Cloud credentials have expired; renew them")
    if code in _SKEWED:
        return AuthError(
            f"{what}: this machine's clock differs too much from Alibaba Cloud's; set it ({code})"
        )
    if code in _BAD_KEYS:
        return AuthError(f"{what}: Alibaba Cloud does not accept the credentials: {shown}")
    if code in DENIED or code.startswith(("Forbidden.", "NoPermission.")):
        return AuthError(f"{what}: access denied: {shown}")
    if code in THROTTLED or code.startswith("Throttling") or status == HTTPStatus.TOO_MANY_REQUESTS:
        return TransientError(f"{what}: Alibaba Cloud throttles the requests: {shown}")
    if code in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return TransientError(f"{what}: Alibaba Cloud failed: {shown}")
    if not code and status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return AuthError(f"{what}: access denied: {shown}")
    return CloudspotError(f"{what}: Alibaba Cloud refuses: {shown}")


def _failure(error: Exception, what: str) -> CloudspotError:
    """Return the error for what happened on this side or on the way."""
    if isinstance(error, ClientException):
        said = one_line(_without_urls(str(error.get_error_msg())))
        if error.get_error_code() in _NETWORK:
            return TransientError(f"{what}: no answer from {_unreached(str(error.get_error_msg()))}")
        return SpecError(f"{what}: {said} ({error.get_error_code()})")
    if isinstance(error, oss.RequestError):
        return TransientError(f"{what}: no answer from OSS: {_innermost(error.exception)}")
    if isinstance(error, (requests.RequestException, urllib3.exceptions.HTTPError)):
        return TransientError(f"{what}: the connection broke: {_innermost(error)}")
    if isinstance(error, oss.InconsistentError):
        return TransientError(f"{what}: the bytes arrived changed: {one_line(str(error.body))}")
    return CloudspotError(f"{what}: {one_line(_without_urls(str(getattr(error, 'body', error))))}")


def _unreached(said: str) -> str:
    """Return host and reason from what the SDK says of a broken connection: errors in errors."""
    host = re.search(r"host='([^']+)'", said)
    reason = said.rpartition("Caused by")[2].rpartition(": ")[2] if "Caused by" in said else said
    reason = reason.rpartition("): ")[2].strip("'\")")
    return f"{host[1] if host else 'Alibaba Cloud'}: {one_line(_without_urls(reason))}"


def _innermost(error: BaseException) -> str:
    """Return the reason that names what happened: "Connection refused", "timed out"."""
    cause: object = error
    while True:
        inner = getattr(cause, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in getattr(cause, "args", ()) if isinstance(arg, BaseException)), None)
        if inner is None:
            return one_line(_without_urls(str(cause))) or type(cause).__name__
        cause = inner


def _without_urls(text: str) -> str:
    """Return the text without URLs, which may be signed ones."""
    return re.sub(r"https?://[^\s\"']+|url: /\S+", "...", text)
