"""Translates an SDK's errors into cloudspot's: the class says what to do next; the message is one line.

Whatever asks a cloud raises AuthError if there are no good credentials or a right is missing, and
TransientError if nobody answers; plugins' docstrings name only what else is raised.
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
"""What a service's own error codes mean, as error classes."""
Result = TypeVar("Result")

MAX_MESSAGE: Final = 400
NO_CODES: Final[Codes] = MappingProxyType({})
_URL: Final = re.compile(r"https?://[^\s\"']+|url: /\S+")


class SdkErrors(ABC):
    """The translation for one cloud; a subclass names the codes and reads the SDK's exceptions."""

    cloud: ClassVar[str]
    """As people call it in a message."""
    raised: ClassVar[tuple[type[Exception], ...]]
    """All that a request of the SDK's may raise for what is not a bug of ours."""
    secrets: ClassVar[re.Pattern[str]]
    """What must not reach a message."""
    expired: ClassVar[frozenset[str]] = frozenset()
    renewal: ClassVar[str] = "renew them"
    """What to do about expired credentials."""
    skewed: ClassVar[frozenset[str]] = frozenset()
    """Codes that say that this machine's clock is wrong."""
    bad_keys: ClassVar[frozenset[str]] = frozenset()
    denied: ClassVar[frozenset[str]] = frozenset()
    """Codes that say that good credentials lack a right."""
    throttled: ClassVar[frozenset[str]] = frozenset()
    """Codes that say that the service did nothing: even a create-only request may be made again."""
    passing: ClassVar[frozenset[str]] = frozenset()
    """Codes of failures that pass; statuses of 500 and more count as such without a code."""

    @contextmanager
    def translated(self, what: str, codes: Codes = NO_CODES) -> Iterator[None]:
        """Raise the SDK's errors as cloudspot's, with ``what`` before the reason.

        ``codes`` comes first. A code that nobody names is a CloudspotError if the request was refused, and a
        TransientError if the service failed.
        """
        try:
            yield
        except self.raised as error:
            raise self.translation(error, what, codes) from error
        except RecursionError as error:  # an answer that is nested too deeply to be decoded
            raise unreadable(what) from error

    @abstractmethod
    def translation(self, error: BaseException, what: str, codes: Codes = NO_CODES) -> CloudspotError:
        """Return the error that ``translated`` raises for one of the SDK's; the message begins with ``what``.

        A subclass tells three cases apart. An answer that is an error: return ``self.refusal(error, what,
        codes)``, which asks ``code_of``, ``status_of`` and ``message_of``. No credentials, or some that the
        SDK itself finds to be bad: an AuthError that says where they come from. No answer (no connection, a
        time limit, a body that breaks off): a TransientError with ``self.innermost(error)``.
        """

    @abstractmethod
    def code_of(self, error: BaseException) -> str:
        """Return the service's code of an error; "": it gave none, or did not answer."""

    @abstractmethod
    def status_of(self, error: BaseException) -> int:
        """Return the HTTP status of an answer that is an error; 0: there was no answer."""

    @abstractmethod
    def message_of(self, error: BaseException) -> str:
        """Return what the service said, as one line without secrets; "": nothing."""

    def shown(self, error: BaseException) -> str:
        """Return what the service said, with its code."""
        said = self.message_of(error) or f"HTTP status {self.status_of(error)}"
        code = self.code_of(error)
        return f"{said} ({code})" if code else said

    def is_denied(self, code: str, status: int) -> bool:
        """Return whether a refusal says that a right is missing."""
        return code in self.denied or status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}

    def is_throttled(self, error: BaseException) -> bool:
        """Return whether the service says that it did nothing, for lack of time."""
        return self.code_of(error) in self.throttled

    def unless_throttled(self, call: Callable[[], Result]) -> Result:
        """Return what ``call`` returns; it is made again if the service throttled it, which did nothing."""
        return retry(call, kind=Exception, when=self.is_throttled, waits=THROTTLE_WAITS, sleep=time.sleep)

    def one_line(self, text: str) -> str:
        """Return the text as one line without secrets."""
        line = " ".join(self.secrets.sub("...", text).split())
        return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 3] + "..."

    def refusal(self, error: BaseException, what: str, codes: Codes = NO_CODES) -> CloudspotError:
        """Return the error for an answer of the service."""
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
        """Return the reason that names what happened, such as "Connection refused" or "timed out".

        Without URLs, which may be signed.
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
    """Return the text with its URLs left out: they may be signed."""
    return _URL.sub("...", text)


class UnknownRole(ProvisionError):
    """A launch was refused since there is no such role for its machines, or since it is seconds old."""


def launch_refusal(
    found: CloudspotError, *, option: str | None, role_option: str, quota_advice: str
) -> CloudspotError:
    """Return what a refused launch means to the controller.

    A refusal without a meaning of its own is a ProvisionError: this very request will never succeed. It
    names the ``option`` that is to blame, such as ``providers.NAME.image``, if that is known. If that is
    ``role_option``, which names the machines' role, it is an UnknownRole.
    """
    if isinstance(found, QuotaError):
        return QuotaError(f"{found}; {quota_advice}")
    if type(found) not in {CloudspotError, ProvisionError}:
        return found
    if option == role_option:
        return UnknownRole(f"{option}: {found}")
    return ProvisionError(str(found) if option is None else f"{option}: {found}")
