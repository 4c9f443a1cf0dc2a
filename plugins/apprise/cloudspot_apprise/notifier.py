"""The notifier ``apprise``: any service that apprise knows, by its URL."""

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
        """Return whether apprise itself would not show all of the URL."""
        service = _service(url)
        return bool(service.url(privacy=True) != service.url(privacy=False))

    def send(self, url: str, message: Message) -> None:
        """Send the message; the reason of a failure is an answer's status, as all else may show the URL."""
        import apprise

        sender = apprise.Apprise()
        sender.add(_service(url))
        statuses: list[str] = []
        _heard.set(statuses)
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


_heard: ContextVar[list[str]] = ContextVar("heard")
"""What this message has heard; apprise sends in threads of its own, in the context of its caller."""


class _Statuses(logging.Handler):
    """Keeps the HTTP statuses in what apprise logs."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of a status."""
        statuses = _heard.get(None)
        if statuses is not None:
            statuses += re.findall(r"\berror=([1-5]\d\d)\b", record.getMessage())


_STATUSES = _Statuses(logging.WARNING)


def _service(url: str) -> Any:
    """Return apprise's service for the URL.

    Raises:
        SpecError: apprise does not know it; or a parameter could name a file of this computer, as those do by
            which some services take keys and templates. The URL is the bucket's word.
    """
    import apprise

    parameters, shorter = url.partition("?")[2], None
    while shorter != parameters:
        parameters, shorter = unquote(parameters), parameters
    if re.search(r"[/\\]|file:", parameters):
        raise SpecError("has a parameter with a slash, which could name a file of this computer")
    # Apprise would keep tokens in the user's home.
    asset = apprise.AppriseAsset(app_id="cloudspot", storage_mode="memory")
    service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None:
        raise SpecError("is not a URL that apprise knows, or lacks a part that its service needs")
    return service
