"""cloudspot's messages through apprise.

Importing the package imports no apprise; the notifier does so when it is used.
"""

from __future__ import annotations

from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import Notifier

cloudspot_api_version = 2


@hookimpl
def cloudspot_notifier(name: str) -> type[Notifier] | None:
    """Return the notifier ``apprise``."""
    if name != "apprise":
        return None
    from cloudspot_apprise.notifier import AppriseNotifier

    return AppriseNotifier
