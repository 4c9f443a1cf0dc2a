"""Translate an SDK's errors into cloudspot's: the class states what to do next, and the message is one line.

All calls to a cloud raise AuthError if credentials are invalid or a permission is missing, and TransientError
if the cloud does not answer. The docstrings of plugins name only other errors.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import ClassVar, Final, TypeVar

from cloudspot.calls.retrying import THROTTLE_WAITS, retry
from cloudspot.errors import AuthError, CloudspotError, ProvisionError, QuotaError, TransientError
from cloudspot.plugin.answers import unreadable

Codes = Mapping[str, type[CloudspotError]]
"""The error class for each of a service's error codes."""
Result = TypeVar("Result")

MAX_MESSAGE: Final = 400
NO_CODES: Final[Codes] = MappingProxyType({})
_URL: Final = re.compile(r"https?://[^\s\"']+|url: /\S+")


class SdkErrors(ABC):
    """The translation for one cloud; a subclass lists the codes and reads the SDK's exceptions."""

    cloud: ClassVar[str]
    """How messages name the cloud."""
    raised: ClassVar[tuple[type[Exception], ...]]
    """All errors that a request through the SDK may raise even if our code has no bug."""
    secrets: ClassVar[re.Pattern[str]]
    """The pattern of text that must not reach a message."""
    expired: ClassVar[frozenset[str]] = frozenset()
    """Error codes for expired credentials."""
    renewal: ClassVar[str] = "renew them"
    """The advice about expired credentials."""
    skewed: ClassVar[frozenset[str]] = frozenset()
    """Error codes which mean that this machine's clock is wrong."""
    bad_keys: ClassVar[frozenset[str]] = frozenset()
    """Error codes for credentials that are not accepted."""
    denied: ClassVar[frozenset[str]] = frozenset()
    """Error codes for credentials that are valid but lack a permission."""
    throttled: ClassVar[frozenset[str]] = frozenset()
    """Error codes which mean that the service did nothing, so that even a create-only request may be
    repeated."""
    passing: ClassVar[frozenset[str]] = frozenset()
    """Error codes of transient failures; statuses from 500 on count as transient even without a code."""

    @contextmanager
    def translated(self, what: str, codes: Codes = NO_CODES) -> Iterator[None]:
        """Raise the SDK's errors as cloudspot's, with messages that begin with ``what``.

        ``codes`` takes precedence. An unknown code becomes a CloudspotError if the request was refused, and a
        TransientError if the service failed.
        """
        try:
            yield
        except self.raised as error:
            raise self.translation(error, what, codes) from error
        except RecursionError as error:  # the answer is nested too deeply to be decoded
            raise unreadable(what) from error

    @abstractmethod
    def translation(self, error: BaseException, what: str, codes: Codes = NO_CODES) -> CloudspotError:
        """Return the error that ``translated`` raises for an SDK's error; the message begins with ``what``.

        A subclass distinguishes three cases. If the service answered with an error, return
        ``self.refusal(error, what, codes)``, which calls ``code_of``, ``status_of`` and ``message_of``.
        If there are no credentials, or the SDK rejects them, return an AuthError that names their source.
        If there was no answer (no connection, a timeout, an incomplete body), return a TransientError with
        ``self.innermost(error)``.
        """

    @abstractmethod
    def code_of(self, error: BaseException) -> str:
        """Return the service's code for an error, or "" if there is none."""

    @abstractmethod
    def status_of(self, error: BaseException) -> int:
        """Return the HTTP status of an error answer, or 0 if there was no answer."""

    @abstractmethod
    def message_of(self, error: BaseException) -> str:
        """Return the service's message as one line without secrets, or "" if there is no message."""

    def shown(self, error: BaseException) -> str:
        """Return the service's message together with its code."""
        message = self.message_of(error) or f"HTTP status {self.status_of(error)}"
        code = self.code_of(error)
        return f"{message} ({code})" if code else message

    def is_denied(self, code: str, status: int) -> bool:
        """Return whether a refusal means that a permission is missing."""
        return code in self.denied or status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}

    def is_throttled(self, error: BaseException) -> bool:
        """Return whether the service throttled the request and did nothing."""
        return self.code_of(error) in self.throttled

    def unless_throttled(self, call: Callable[[], Result]) -> Result:
        """Return the result of ``call``, repeating it if the service throttled it."""
        return retry(call, kind=Exception, when=self.is_throttled, waits=THROTTLE_WAITS, sleep=time.sleep)

    def one_line(self, text: str) -> str:
        """Return the text as one line without secrets."""
        line = " ".join(self.secrets.sub("...", text).split())
        return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 3] + "..."

    def refusal(self, error: BaseException, what: str, codes: Codes = NO_CODES) -> CloudspotError:
        """Return the error that corresponds to a service's error answer."""
        code, status, shown = self.code_of(error), self.status_of(error), self.shown(error)
        if code in codes:
            return codes[code](f"{what}: {shown}")
        if code in self.expired:
            return AuthError(f"{what}: the {self.cloud} credentials have expired; {self.renewal}")
        if code in self.skewed:
            return AuthError(
                f"{what}: this machine's clock differs too much from {self.cloud}'s; set it ({code})"
            )
        if code in self.bad_keys:
            return AuthError(f"{what}: {self.cloud} does not accept the credentials: {shown}")
        if self.is_throttled(error) or status == HTTPStatus.TOO_MANY_REQUESTS:
            return TransientError(f"{what}: {self.cloud} throttles the requests: {shown}")
        has_failed = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT
        if code in self.passing or (has_failed and code not in self.denied):
            return TransientError(f"{what}: {self.cloud} failed: {shown}")
        if self.is_denied(code, status):
            return AuthError(f"{what}: access denied: {shown}")
        return CloudspotError(f"{what}: {self.cloud} refuses: {shown}")

    def innermost(self, error: object) -> str:
        """Return the innermost reason of an error, such as "Connection refused" or "timed out".

        The reason contains no URLs, because they may be signed.
        """
        cause = error
        while True:
            inner = getattr(cause, "reason", None)
            if not isinstance(inner, BaseException):
                args = reversed(getattr(cause, "args", ()))
                inner = next((one for one in args if isinstance(one, BaseException)), None)
            if inner is None:
                return self.one_line(without_urls(str(cause))) or type(cause).__name__
            cause = inner


def without_urls(text: str) -> str:
    """Return the text without its URLs, which may be signed."""
    return _URL.sub("...", text)


class UnknownRole(ProvisionError):
    """A launch was refused because its machines' role does not exist or is only seconds old."""


def launch_refusal(
    found: CloudspotError, *, option: str | None, role_option: str, quota_advice: str
) -> CloudspotError:
    """Return the error that the controller gets for a refused launch.

    A refusal without a more specific class becomes a ProvisionError: this request will never succeed. Its
    message names the ``option`` at fault, such as ``providers.NAME.image``, if it is known. If that option is
    ``role_option``, which names the machines' role, the error is an UnknownRole.
    """
    if isinstance(found, QuotaError):
        return QuotaError(f"{found}; {quota_advice}")
    if type(found) not in {CloudspotError, ProvisionError}:
        return found
    if option == role_option:
        return UnknownRole(f"{option}: {found}")
    return ProvisionError(str(found) if option is None else f"{option}: {found}")
