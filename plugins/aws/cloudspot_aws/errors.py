"""Translates botocore's errors: the class says what to do next, and the message is one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from json import JSONDecodeError
from typing import Any
from urllib.parse import urlsplit

import botocore.exceptions as boto
from botocore.parsers import ResponseParserError

from cloudspot.errors import AuthError, CloudspotError, SpecError, TransientError
from cloudspot.plugin.sdkerrors import NO_CODES, Codes, SdkErrors


class _AwsErrors(SdkErrors):
    """botocore's errors. The error of a HEAD request has only its status as its code, such as ``404``."""

    cloud = "AWS"
    raised = (boto.ClientError, boto.BotoCoreError, ResponseParserError)
    secrets = re.compile(
        r"X-Amz-(?:Signature|Credential|Security-Token)=[^&\s\"']+"
        r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"
        r"|Encoded authorization failure message:.*",
        re.IGNORECASE | re.DOTALL,
    )
    expired = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
    renewal = "log in again or renew them"
    skewed = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture"})
    bad_keys = frozenset(
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
    denied = frozenset(
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
    throttled = frozenset(
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
    passing = frozenset(
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

    def translation(self, error: BaseException, what: str, codes: Codes = NO_CODES) -> CloudspotError:
        if isinstance(error, ResponseParserError):  # the answer is, for example, a proxy's page
            return TransientError(f"{what}: the answer cannot be read")
        if isinstance(error, boto.ClientError):
            return self.refusal(error, what, codes)
        return self._failure(error, what)

    def code_of(self, error: BaseException) -> str:
        return str(_part(error, "Error").get("Code", ""))

    def status_of(self, error: BaseException) -> int:
        return int(_part(error, "ResponseMetadata").get("HTTPStatusCode", 0))

    def message_of(self, error: BaseException) -> str:
        return self.one_line(str(_part(error, "Error").get("Message", "")))

    def _failure(self, error: BaseException, what: str) -> CloudspotError:
        if isinstance(error, (boto.NoCredentialsError, boto.PartialCredentialsError)):
            return AuthError(
                f"{what}: no AWS credentials found; run `aws configure`, set AWS_PROFILE, or give the "
                "machine a role"
            )
        if isinstance(error, (boto.CredentialRetrievalError, boto.SSOError, boto.TokenRetrievalError)):
            why = self.one_line(str(error))
            if why.endswith(":"):
                why += " it failed and printed nothing on standard error; to see more, run it yourself"
            return AuthError(f"{what}: cannot get AWS credentials: {why}")
        if isinstance(error, (boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError)):
            # The URL may be signed, so only its host is shown.
            url = str(error.kwargs.get("endpoint_url") or "")
            host = urlsplit(url).netloc.rpartition("@")[2]
            reason = self.innermost(error.kwargs.get("error") or error)
            where = f"no answer from {host}" if host else "the connection broke"
            return TransientError(f"{what}: {where}: {reason}")
        if isinstance(error, boto.FlexibleChecksumError):
            return TransientError(f"{what}: the bytes were damaged in transit (their checksum differs)")
        if isinstance(error, (boto.NoRegionError, boto.ProfileNotFound, boto.ParamValidationError)):
            return SpecError(f"{what}: {self.one_line(str(error))}")
        if isinstance(error, (OSError, JSONDecodeError)):
            why = str(error.strerror) if isinstance(error, OSError) else "its output is not JSON"
            return AuthError(f"{what}: the profile's credential_process gives no AWS credentials: {why}")
        return CloudspotError(f"{what}: {self.one_line(str(error))}")


def _part(error: BaseException, name: str) -> Mapping[str, Any]:
    found = error.response.get(name) if isinstance(error, boto.ClientError) else None
    return found if isinstance(found, Mapping) else {}


@contextmanager
def ignored(*codes: str) -> Iterator[None]:
    """Suppress errors with one of these codes, which mean that there is nothing to do."""
    try:
        yield
    except boto.ClientError as error:
        if ERRORS.code_of(error) not in codes:
            raise


ERRORS = _AwsErrors()
