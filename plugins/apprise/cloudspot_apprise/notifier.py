"""The notifier ``apprise``: any service that apprise supports, by its URL."""

from __future__ import annotations

import logging
import re
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

from cloudspot.errors import CloudspotError, SpecError
from cloudspot.interfaces import Notifier
from cloudspot.model import Message


class AppriseNotifier(Notifier):
    """Hands each message to apprise, which tries once and gives up after some seconds."""

    name = "apprise"

    def holds_credential(self, url: str) -> bool:
        """Return whether apprise itself would hide a part of the URL."""
        service = _service(url)
        return bool(service.url(privacy=True) != service.url(privacy=False))

    def send(self, url: str, message: Message) -> None:
        """Send the message; a failure's reason is an HTTP status, as any other text may show the URL."""
        import apprise

        sender = apprise.Apprise()
        sender.add(_service(url))
        statuses: list[str] = []
        _statuses.set(statuses)
        log = logging.getLogger("apprise")
        if _STATUSES not in log.handlers:
            log.addHandler(_STATUSES)
        is_accepted = sender.notify(
            title=message.title,
            body=message.body,
            notify_type=apprise.NotifyType(message.severity.value),
            body_format=apprise.NotifyFormat.TEXT,
        )
        if not is_accepted:
            why = f"answered {statuses[-1]}" if statuses else "could not be reached, or did not accept it"
            raise CloudspotError(why)


_statuses: ContextVar[list[str]] = ContextVar("heard")
"""The statuses in response to this message; apprise sends in threads of its own, in its caller's context."""


class _Statuses(logging.Handler):
    """Collects the HTTP statuses in apprise's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Note the statuses in a record."""
        statuses = _statuses.get(None)
        if statuses is not None:
            statuses += re.findall(r"\berror=([1-5]\d\d)\b", record.getMessage())


_STATUSES = _Statuses(logging.WARNING)


def _service(url: str) -> Any:
    """Return apprise's service for the URL.

    Raises:
        SpecError: apprise does not support the URL; or a parameter could name a file of this computer, as do
            those in which some services take keys and templates. The URL comes from the bucket, so it is not
            trusted.
    """
    import apprise

    parameters, shorter = url.partition("?")[2], None
    while shorter != parameters:
        parameters, shorter = unquote(parameters), parameters
    if re.search(r"[/\\]|file:", parameters):
        raise SpecError("has a parameter with a slash, which could name a file of this computer")
    # Otherwise, apprise would keep tokens in the user's home directory.
    asset = apprise.AppriseAsset(app_id="cloudspot", storage_mode="memory")
    service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None:
        raise SpecError("is not a URL that apprise knows, or lacks a part that its service needs")
    return service
