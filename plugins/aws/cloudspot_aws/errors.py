"""botocore's errors as cloudspot's: the class says what the caller does, the message is one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import botocore.exceptions as boto
from botocore.parsers import ResponseParserError

from cloudspot.errors import AuthError, CloudspotError, SpecError, TransientError

Codes = Mapping[str, type[CloudspotError]]

SDK_ERRORS = (boto.ClientError, boto.BotoCoreError, ResponseParserError)
"""All that a request of botocore's may raise for what is not a bug of ours."""
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_SKEWED = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture"})
_BAD_KEYS = frozenset(
    {
        "AuthFailure",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "InvalidToken",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
DENIED = frozenset(
    {
        "403",
        "AccessDenied",
        "AccessDeniedException",
        "AccountProblem",
        "AllAccessDisabled",
        "Forbidden",
        "NotSignedUp",
        "OptInRequired",
        "SubscriptionRequiredException",
        "UnauthorizedOperation",
    }
)
"""The credentials are good and lack the right."""
THROTTLED = frozenset(
    {
        "429",
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    }
)
"""The service did nothing: the request may be made again, a create-only one too."""
_PASSING = frozenset(
    {
        "BadDigest",
        "IncompleteBody",
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Unavailable",
        "XAmzContentSHA256Mismatch",
    }
)
_SECRET = re.compile(
    r"X-Amz-(?:Signature|Credential|Security-Token)=[^&\s\"']+"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"
    r"|Encoded authorization failure message:.*",
    re.IGNORECASE | re.DOTALL,
)
_MAX_MESSAGE = 400


@contextmanager
def translated(what: str, codes: Codes = MappingProxyType({})) -> Iterator[None]:
    """Raise botocore's errors as cloudspot's, with ``what`` before the reason.

    ``codes`` names what a service's own error codes mean; they come first. A code that nobody names is
    a CloudspotError if the request was refused, and a TransientError where the service failed.
    """
    try:
        yield
    except SDK_ERRORS as error:
        raise translation(error, what, codes) from error


def translation(error: Exception, what: str, codes: Codes = MappingProxyType({})) -> CloudspotError:
    """Return the error that ``translated`` raises for botocore's."""
    if isinstance(error, ResponseParserError):  # such as a proxy's page in place of the answer
        return TransientError(f"{what}: the answer cannot be read")
    if isinstance(error, boto.ClientError):
        return _refusal(error, what, codes)
    return _failure(error, what)


def error_code(error: BaseException) -> str:
    """Return AWS's code of an error, such as ``SlowDown``; a HEAD has only its status, such as ``404``."""
    if not isinstance(error, boto.ClientError):
        return ""
    return str(_of(error, "Error").get("Code", ""))


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an answer that is an error; 0 where there was none."""
    if not isinstance(error, boto.ClientError):
        return 0
    return int(_of(error, "ResponseMetadata").get("HTTPStatusCode", 0))


def one_line(text: str) -> str:
    """Return the text as one line without secrets."""
    line = " ".join(_SECRET.sub("...", text).split())
    return line if len(line) <= _MAX_MESSAGE else line[: _MAX_MESSAGE - 3] + "..."


def _refusal(error: boto.ClientError, what: str, codes: Codes) -> CloudspotError:
    code, status = error_code(error), status_of(error)
    said = one_line(str(_of(error, "Error").get("Message", ""))) or f"HTTP status {status}"
    if code in codes:
        return codes[code](f"{what}: {said} ({code})")
    if code in _EXPIRED:
        return AuthError(f"{what}: the AWS credentials have expired; log in again or renew them")
    if code in _SKEWED:
        return AuthError(f"{what}: this machine's clock differs too much from AWS's; set it ({code})")
    if code in _BAD_KEYS:
        return AuthError(f"{what}: AWS does not accept the credentials: {said} ({code})")
    if code in DENIED:
        return AuthError(f"{what}: access denied: {said} ({code})")
    if code in THROTTLED or status == HTTPStatus.TOO_MANY_REQUESTS:
        return TransientError(f"{what}: AWS throttles the requests: {said} ({code})")
    if code in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return TransientError(f"{what}: AWS failed: {said} ({code})")
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return AuthError(f"{what}: access denied: {said} ({code})")
    return CloudspotError(f"{what}: AWS refuses: {said} ({code})")


def _failure(error: boto.BotoCoreError, what: str) -> CloudspotError:
    """Return the error for what happened on this side or on the way."""
    if isinstance(error, (boto.NoCredentialsError, boto.PartialCredentialsError)):
        return AuthError(
            f"{what}: no AWS credentials found; run `aws configure`, set AWS_PROFILE, or give the "
            "machine a role"
        )
    if isinstance(error, (boto.CredentialRetrievalError, boto.SSOError, boto.TokenRetrievalError)):
        return AuthError(f"{what}: the AWS credentials cannot be had: {one_line(str(error))}")
    if isinstance(error, (boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError)):
        return TransientError(f"{what}: {_unreached(error)}")
    if isinstance(error, (boto.NoRegionError, boto.ProfileNotFound, boto.ParamValidationError)):
        return SpecError(f"{what}: {one_line(str(error))}")
    return CloudspotError(f"{what}: {one_line(str(error))}")


def _unreached(error: boto.BotoCoreError) -> str:
    """Say where nobody answered; the URL may be a signed one, its host is none."""
    url = str(error.kwargs.get("endpoint_url") or "")
    host = urlsplit(url).netloc.rpartition("@")[2]
    # The innermost reason names what happened: "Connection refused", "timed out".
    cause: object = error.kwargs.get("error") or error
    while isinstance(getattr(cause, "reason", None), BaseException):
        cause = cause.reason  # type: ignore[attr-defined]
    reason = one_line(re.sub(r"https?://[^\s\"']+", "...", str(cause))) or type(cause).__name__
    return f"no answer from {host}: {reason}" if host else f"the connection broke: {reason}"


def _of(error: boto.ClientError, part: str) -> Mapping[str, Any]:
    found = error.response.get(part)
    return found if isinstance(found, Mapping) else {}
