"""The errors a user or a caller can meet; each class says what the caller does next."""

from __future__ import annotations

import re
from typing import ClassVar, Final

MAX_MESSAGE: Final = 4000
"""The most characters of a message: it may quote a name from outside, which may have any length."""


class CloudspotError(Exception):
    """Base of all errors that the command line shows as one line.

    The message names the field or resource, what was found and what to do next; it never holds a credential
    or a signed URL. Any other exception is a bug of ours and keeps its traceback.
    """

    exit_code: ClassVar[int] = 1
    """The exit status of ``cloudspot`` when this error ends a command."""

    def __init__(self, *args: object) -> None:
        """Take the message; the middle of one that is longer than ``MAX_MESSAGE`` is left out."""
        super().__init__(*(_shortened(one) if isinstance(one, str) else one for one in args))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1005]} ... {text[-1000:]}"


_QUERY: Final = re.compile(r"\?[^\s?\"']*=[^\s\"']*")
_LOGIN: Final = re.compile(r"://[^\s/@\"']+@")


def reason_of(error: BaseException) -> str:
    """Return an error that is not ours on one line, without the queries and log-ins of URLs that it quotes.

    A signed URL has its signature in the query.
    """
    text = _LOGIN.sub("://...@", _QUERY.sub("?...", " ".join(str(error).split())))
    return _shortened(f"{type(error).__name__}: {text}")


class SpecError(CloudspotError):
    """The job file or a command-line option is wrong: the user corrects it; nothing was launched."""

    exit_code = 2


class StoreMissing(SpecError):
    """The store's bucket does not exist, in the words of its service: the user creates or corrects it."""


class PluginError(CloudspotError):
    """A provider plugin is missing or broken: the user installs or repairs it."""

    exit_code = 3


class PluginFault(PluginError):
    """A plugin's call failed as its interface does not allow; its next one may succeed."""


class AuthError(CloudspotError):
    """Credentials are missing, have expired or lack a right: stop, since nothing else will work either."""

    exit_code = 4


class JobNotFound(CloudspotError):
    """The store holds no job of that id."""

    exit_code = 5


class JobExists(CloudspotError):
    """A job of that id is already in the store: choose another name."""

    exit_code = 2


class JobResumed(CloudspotError):
    """The job was resumed since its driver read what was submitted: open it anew."""


class NotAdopted(CloudspotError):
    """The job would run on the driver's own computer, but comes from elsewhere: adopt it, or leave it."""


class ProvisionError(CloudspotError):
    """A launch failed for good and left no machine: close this launch."""


class CapacityError(ProvisionError):
    """The offer has no capacity now: try the next offer."""


class QuotaError(ProvisionError):
    """The account has reached a limit: tell the user and try elsewhere."""


class TransientError(CloudspotError):
    """The outcome is unknown or the service is unwell: back off and try again."""

    exit_code = 7


class OverdueError(TransientError):
    """A plugin's call was cut off at its time limit, which it would soon reach again: the pass goes on."""


class StoreRefused(CloudspotError):
    """The object store breaks a promise that cloudspot relies on: use another."""

    exit_code = 6


class ObjectExists(CloudspotError):
    """A create-only put found the key taken, by another writer or by our own earlier try: read it back."""


class ObjectMissing(CloudspotError):
    """No object has this key."""


class UnforeseenError(CloudspotError):
    """A bug of ours met one of several jobs or providers: the others are served all the same."""


def as_cloudspot_error(error: Exception) -> CloudspotError:
    """Return the error, or one that stands for it: the cause of an UnforeseenError has the traceback."""
    if isinstance(error, CloudspotError):
        return error
    unforeseen = UnforeseenError(f"a bug of cloudspot: {reason_of(error)}; --debug shows where")
    unforeseen.__cause__ = error
    return unforeseen


class CorruptData(CloudspotError):
    """Stored bytes differ from their recorded checksum or break their format: use an older copy."""

    exit_code = 8


class BundleError(CloudspotError):
    """The code bundle cannot be made, or is not safe to extract."""

    exit_code = 2
