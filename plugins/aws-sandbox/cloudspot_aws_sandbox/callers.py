"""Checks callers' keys and signatures, and refuses invalid ones with each service's own wording.

Source: "Common Errors" of the EC2, STS, CloudWatch Logs and EventBridge Scheduler API references, "Error
responses" of S3's (checked 2026-11). From memory: EC2 answers AuthFailure to a wrong signature, and JSON
services answer with 400 or 403 as here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final

from cloudspot.emulation.api_faults import Faults
from cloudspot_aws_sandbox.query import ApiError
from cloudspot_aws_sandbox.sigv4 import check_signature, read_signature, sha256_hex

QUERY_SERVICES: Final = frozenset({"iam", "sts"})
REST_SERVICES: Final = frozenset({"fis", "scheduler"})
"""The services that name the call in the path; other JSON services name it in a header."""


class Reason(Enum):
    """The reasons for refusing a caller."""

    EXPIRED = auto()
    """The key has expired."""
    UNKNOWN_KEY = auto()
    WRONG_TOKEN = auto()
    """The key belongs to a role, and its session token is missing or wrong."""
    WRONG_SIGNATURE = auto()
    WRONG_TIME = auto()
    """The request's time differs from the server's by more than a quarter of an hour."""
    UNSIGNED = auto()


_TOKEN: Final = "The security token included in the request is"  # noqa: S105 # no token
_NOT_VALIDATED: Final = ("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
_MISMATCH: Final = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
    "Access Key and signing method. Consult the service documentation for details."
)
_TIME: Final = "Signature expired: its date is more than 15 minutes from the current time"
_EC2: Final = {
    Reason.EXPIRED: ("RequestExpired", "Request has expired.", 400),
    Reason.UNKNOWN_KEY: _NOT_VALIDATED,
    Reason.WRONG_TOKEN: _NOT_VALIDATED,
    Reason.WRONG_SIGNATURE: _NOT_VALIDATED,
    Reason.WRONG_TIME: ("RequestExpired", "Request has expired.", 400),
    Reason.UNSIGNED: ("MissingAuthenticationToken", "Request is missing Authentication Token", 403),
}
_S3: Final = {
    Reason.EXPIRED: ("ExpiredToken", "The provided token has expired.", 400),
    Reason.WRONG_TOKEN: ("InvalidToken", "The provided token is malformed or otherwise invalid.", 400),
}
_QUERY: Final = {
    Reason.EXPIRED: ("ExpiredToken", f"{_TOKEN} expired", 403),
    Reason.UNKNOWN_KEY: ("InvalidClientTokenId", f"{_TOKEN} invalid.", 403),
    Reason.WRONG_TOKEN: ("InvalidClientTokenId", f"{_TOKEN} invalid.", 403),
    Reason.WRONG_SIGNATURE: ("SignatureDoesNotMatch", _MISMATCH, 403),
    Reason.WRONG_TIME: ("SignatureDoesNotMatch", _TIME, 403),
    Reason.UNSIGNED: ("MissingAuthenticationToken", "Request is missing Authentication Token", 403),
}
_JSON: Final = {
    Reason.EXPIRED: ("ExpiredTokenException", f"{_TOKEN} expired", 400),
    Reason.UNKNOWN_KEY: ("UnrecognizedClientException", f"{_TOKEN} invalid.", 400),
    Reason.WRONG_TOKEN: ("UnrecognizedClientException", f"{_TOKEN} invalid.", 400),
    Reason.WRONG_SIGNATURE: ("InvalidSignatureException", _MISMATCH, 400),
    Reason.WRONG_TIME: ("InvalidSignatureException", _TIME, 400),
    Reason.UNSIGNED: ("MissingAuthenticationTokenException", "Missing Authentication Token", 400),
}


def refusal(service: str, reason: Reason) -> ApiError:
    """Return the service's error for a caller that is refused for this reason."""
    if service == "ec2":
        code, message, status = _EC2[reason]
    elif service == "s3":
        code, message, status = _S3[reason]
    elif service in QUERY_SERVICES:
        code, message, status = _QUERY[reason]
    else:
        code, message, status = _JSON[reason]
        if service in REST_SERVICES:
            status = 403
    return ApiError(code, message, status=status)


def authenticate(
    environ: Mapping[str, Any],
    body: bytes,
    service: str,
    *,
    secrets: Mapping[str, str],
    faults: Faults,
    now: Callable[[], datetime],
) -> tuple[str, str]:
    """Verify the request's signature, and return its region and its key. S3 has its own check.

    Raises:
        ApiError: the signature is refused, with the service's wording.
    """
    try:
        signature = read_signature(environ)
    except ApiError:
        raise refusal(service, Reason.WRONG_SIGNATURE) from None
    if signature is None:
        raise refusal(service, Reason.UNSIGNED)
    if signature.service != service:
        raise refusal(service, Reason.WRONG_SIGNATURE)
    if signature.access_key in faults.expired_keys:
        raise refusal(service, Reason.EXPIRED)
    secret = secrets.get(signature.access_key)
    if secret is None or signature.access_key in faults.rejected_keys:
        raise refusal(service, Reason.UNKNOWN_KEY)
    try:
        check_signature(environ, signature, secret, now=now(), payload_hash=sha256_hex(body))
    except ApiError as error:
        is_late = error.code == "RequestTimeTooSkewed"
        reason = Reason.WRONG_TIME if is_late else Reason.WRONG_SIGNATURE
        raise refusal(service, reason) from None
    return signature.region, signature.access_key
