"""Translates the SDKs' errors: the class says what to do next, and the message is one line.

Sources: "Common error codes" of ECS's API reference, "Error responses" of OSS (checked 2026-11); OSS's own
throttling codes are from memory of the docs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar
from xml.etree.ElementTree import ParseError

import oss2.exceptions as oss
import requests
import urllib3
from aliyunsdkcore.acs_exception.exceptions import ClientException, ServerException

from cloudspot.errors import CloudspotError, SpecError, TransientError
from cloudspot.plugin.sdkerrors import NO_CODES, Codes, SdkErrors, without_urls

Result = TypeVar("Result")
_NETWORK = frozenset({"SDK.HttpError", "SDK.ServerUnreachable"})


class _AliyunErrors(SdkErrors):
    """The SDKs' errors. Codes are those of the services, such as ``OperationDenied.NoStock``."""

    cloud = "Alibaba Cloud"
    raised = (
        oss.OssError,
        ServerException,
        ClientException,
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        ParseError,
    )
    secrets = re.compile(
        r"(?:x-oss-(?:signature|credential|security-token)|security-token|OSSAccessKeyId|Signature)=[^&\s\"']+"
        r"|\b(?:LTAI|STS\.)[A-Za-z0-9]{8,}",
        re.IGNORECASE,
    )
    expired = frozenset({"InvalidSecurityToken.Expired", "SecurityTokenExpired"})
    skewed = frozenset(
        {"InvalidTimeStamp.Expired", "InvalidTimeStamp.Format", "RequestTimeTooSkewed", "SignatureNonceUsed"}
    )
    bad_keys = frozenset(
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
    denied = frozenset(
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
    throttled = frozenset(
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
    passing = frozenset(
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

    def translation(self, error: BaseException, what: str, codes: Codes = NO_CODES) -> CloudspotError:
        if isinstance(error, ServerException) or (isinstance(error, oss.OssError) and error.status > 0):
            return self.refusal(error, what, codes)
        return self._failure(error, what)

    def code_of(self, error: BaseException) -> str:
        if isinstance(error, ServerException):
            return str(error.get_error_code() or "")
        return str(error.code or "") if isinstance(error, oss.OssError) else ""

    def message_of(self, error: BaseException) -> str:
        if isinstance(error, ServerException):
            return self.one_line(str(error.get_error_msg() or ""))
        return self.one_line(str(error.message or "")) if isinstance(error, oss.OssError) else ""

    def status_of(self, error: BaseException) -> int:
        if isinstance(error, ServerException):
            return int(error.get_http_status() or 0)
        return max(0, int(error.status)) if isinstance(error, oss.OssError) else 0

    def is_denied(self, code: str, status: int) -> bool:
        # ECS answers with status 403 for many other reasons, so the error code, if any, decides.
        if not code:
            return status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
        return code in self.denied or code.startswith(("Forbidden.", "NoPermission."))

    def is_throttled(self, error: BaseException) -> bool:
        return super().is_throttled(error) or self.code_of(error).startswith("Throttling")

    def _failure(self, error: BaseException, what: str) -> CloudspotError:
        if isinstance(error, ClientException):
            message = str(error.get_error_msg())
            if error.get_error_code() in _NETWORK:
                return TransientError(f"{what}: no answer from {self._unreached(message)}")
            return SpecError(f"{what}: {self.one_line(without_urls(message))} ({error.get_error_code()})")
        if isinstance(error, oss.RequestError):
            return TransientError(f"{what}: no answer from OSS: {self.innermost(error.exception)}")
        if isinstance(error, (requests.RequestException, urllib3.exceptions.HTTPError)):
            return TransientError(f"{what}: the connection broke: {self.innermost(error)}")
        if isinstance(error, oss.InconsistentError):
            return TransientError(
                f"{what}: the bytes were damaged in transit: {self.one_line(str(error.body))}"
            )
        if isinstance(error, ParseError):
            return TransientError(f"{what}: the answer cannot be read")
        message = str(getattr(error, "body", error))
        return CloudspotError(f"{what}: {self.one_line(without_urls(message))}")

    def _unreached(self, message: str) -> str:
        """Return the host and the reason from the SDK's message about a broken connection."""
        host = re.search(r"host='([^']+)'", message)
        reason = message.rpartition("Caused by")[2].rpartition(": ")[2] if "Caused by" in message else message
        reason = reason.rpartition("): ")[2].strip("'\")")
        return f"{host[1] if host else 'Alibaba Cloud'}: {self.one_line(without_urls(reason))}"


ERRORS = _AliyunErrors()


def unless(what: str, call: Callable[[], Result], refused: str) -> Result | None:
    """Return the call's result, or None if its error code is ``refused`` or begins with that and a dot.

    Raises:
        CloudspotError: the class says what to do; the message begins with ``what``.
    """
    try:
        return ERRORS.unless_throttled(call)
    except ERRORS.raised as error:
        code = ERRORS.code_of(error)
        if refused and (code == refused or code.startswith(f"{refused}.")):
            return None
        raise ERRORS.translation(error, what) from error
