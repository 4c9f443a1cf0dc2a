"""The errors that a user or a caller can meet; each class states what the caller does next."""

from __future__ import annotations

import re
from typing import ClassVar, Final

MAX_MESSAGE: Final = 4000
"""The maximum length of a message, in characters. A message may quote foreign names of any length."""


class CloudspotError(Exception):
    """The base of all errors that the command line shows as one line.

    The message names the field or resource, what was found and what to do next; it never contains a
    credential or a signed URL. Any other exception is a bug in cloudspot and keeps its traceback.
    """

    exit_code: ClassVar[int] = 1
    """The exit status of ``cloudspot`` when this error ends a command."""

    def __init__(self, *args: object) -> None:
        """Take the message; if it is longer than ``MAX_MESSAGE``, omit its middle."""
        super().__init__(*(_shortened(one) if isinstance(one, str) else one for one in args))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1005]} ... {text[-1000:]}"


_QUERY: Final = re.compile(r"\?[^\s?\"']*=[^\s\"']*")
_LOGIN: Final = re.compile(r"://[^\s/@\"']+@")


def reason_of(error: BaseException) -> str:
    """Return the text of a foreign error on one line, with the query and login of each URL removed.

    A signed URL has its signature in the query.
    """
    text = _LOGIN.sub("://...@", _QUERY.sub("?...", " ".join(str(error).split())))
    return _shortened(f"{type(error).__name__}: {text}")


class SpecError(CloudspotError):
    """The job file or a command-line option is wrong: the user corrects it; nothing was launched."""

    exit_code = 2


class StoreMissing(SpecError):
    """The store's bucket does not exist (the message quotes the service): the user creates or corrects it."""


class PluginError(CloudspotError):
    """A provider plugin is missing or broken: the user installs or repairs it."""

    exit_code = 3


class PluginFault(PluginError):
    """A plugin's call failed in a way that its interface does not allow; later calls may succeed."""


class AuthError(CloudspotError):
    """Credentials are missing, expired or lack a permission: stop, because nothing else will work either."""

    exit_code = 4


class JobNotFound(CloudspotError):
    """The store holds no job with that id."""

    exit_code = 5


class JobExists(CloudspotError):
    """A job with that id is already in the store: choose another name."""

    exit_code = 2


class JobResumed(CloudspotError):
    """The job was resumed after its driver read the submission: open the job again."""


class NotAdopted(CloudspotError):
    """The job would run on the driver's own computer, but was submitted elsewhere: adopt it or skip it."""


class ProvisionError(CloudspotError):
    """A launch failed permanently and left no machine: close this launch."""


class CapacityError(ProvisionError):
    """The offer has no capacity now: try the next offer."""


class QuotaError(ProvisionError):
    """The account has reached a limit: inform the user and try elsewhere."""


class TransientError(CloudspotError):
    """The outcome is unknown or the service is unavailable: back off and try again."""

    exit_code = 7


class OverdueError(TransientError):
    """A plugin's call was cut off at its time limit.

    A retry would take just as long, so the pass continues without one.
    """


class StoreRefused(CloudspotError):
    """The object store breaks a promise that cloudspot relies on: use another store."""

    exit_code = 6


class ObjectExists(CloudspotError):
    """A create-only put found that the key exists, perhaps from its own earlier attempt: read it back."""


class ObjectMissing(CloudspotError):
    """The store has no object with this key."""


class UnforeseenError(CloudspotError):
    """A bug in cloudspot affected one of several jobs or providers; the others continue."""


def as_cloudspot_error(error: Exception) -> CloudspotError:
    """Return the error if it is a CloudspotError, else an UnforeseenError whose cause has the traceback."""
    if isinstance(error, CloudspotError):
        return error
    unforeseen = UnforeseenError(f"a bug in cloudspot: {reason_of(error)}; --debug shows where")
    unforeseen.__cause__ = error
    return unforeseen


class CorruptData(CloudspotError):
    """Stored bytes differ from their recorded checksum or break their format: use an older copy."""

    exit_code = 8


class BundleError(CloudspotError):
    """The code bundle cannot be made, or is not safe to extract."""

    exit_code = 2
