"""``[notify]``: the events that send messages, the URLs that receive them, and the quiet hours."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from datetime import datetime, timezone, tzinfo
from typing import Annotated, Final
from zoneinfo import ZoneInfo

import msgspec

from cloudspot.errors import SpecError
from cloudspot.jobfile.rules import SCHEME, VARIABLE, text_like

_NAME: Final = rf"\$\{{(?!CLOUDSPOT_){VARIABLE}\}}"
_NotifyUrl = Annotated[
    str,
    text_like(  # No message shows a URL, because it may contain a password.
        rf"{_NAME}|{SCHEME}://(?:[^$]|\$(?!\{{)|{_NAME})+",
        'expected a URL such as "json://host/path", or "${NAME}" for a variable with a URL or a part of it',
    ),
]
_TIME: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_Hours = Annotated[str, text_like(f"{_TIME}-{_TIME}", 'expected hours such as "22:00-07:00", got "{}"')]
_SECRET: Final = re.compile(rf"\$\{{({VARIABLE})\}}")


class NewsKind(str, enum.Enum):
    """The kinds of news about a job, from least to most serious."""

    COST = "cost"
    """The cost so far, once a day."""
    RELAUNCHED = "relaunched"
    """A machine has come up to replace others or to join them."""
    RECLAIMED = "reclaimed"
    """A machine has received a notice that it will be reclaimed, or was reclaimed without one."""
    STALLED = "stalled"
    """The training was stuck and is restarted; or nothing has trained for half an hour, because machines or
    their heartbeats are missing; or the job is suspended."""
    CAPPED = "capped"
    """The job has reached a limit, such as ``max_cost`` or ``idle_after``: it saves and stops."""
    FINISHED = "finished"
    """The job has succeeded or was stopped."""
    FAILED = "failed"
    """The job has failed."""


URGENT: Final = frozenset({NewsKind.CAPPED, NewsKind.FAILED, NewsKind.FINISHED})
"""The news that quiet hours do not delay. Once the job has ended, no driver would send this news later."""


class NotifySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[notify]``: who receives messages about the job.

    The default is the same table in the user's config file.
    """

    urls: tuple[_NotifyUrl, ...] = ()
    """The recipients, as URLs of apprise such as ``"slack://..."``. ``${NAME}`` stands for that variable's
    value in your environment when the job is submitted; it may be part of the URL, or the whole URL. The
    value is stored like ``run.secrets``, but not passed to the training."""
    events: tuple[NewsKind, ...] = tuple(kind for kind in NewsKind if kind is not NewsKind.COST)
    """The events that send a message; with an empty list, none does."""
    quiet: _Hours | None = None
    """The hours during which only ``capped`` and the end of the job send messages, such as ``"22:00-07:00"``.
    Other events are sent in one message after these hours, or at the end of the job."""
    timezone: str | None = None
    """The time zone of ``quiet`` and of the times in messages, such as ``"Europe/Berlin"``. The default is
    UTC, which is also used if the driver does not recognise the zone."""
    through: str = "apprise"
    """The notifier that sends the messages; notifiers are plugins."""

    @property
    def is_wanted(self) -> bool:
        """Whether there are both events and recipients."""
        return bool(self.urls and self.events)

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Return the names of the secrets in the URLs, each once."""
        return tuple(dict.fromkeys(name for url in self.urls for name in secrets_in(url)))

    @property
    def zone(self) -> tzinfo:
        """Return the time zone."""
        try:
            return timezone.utc if self.timezone is None else ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            return timezone.utc

    def is_quiet(self, now: datetime) -> bool:
        """Return whether ``now`` is within the quiet hours."""
        if self.quiet is None:
            return False
        begin, _, end = self.quiet.partition("-")
        clock = f"{now.astimezone(self.zone):%H:%M}"
        return begin <= clock < end if begin <= end else not end <= clock < begin

    def resolved(self, secrets: Mapping[str, str]) -> dict[str, str]:
        """Return the URLs with their secrets filled in, each under a name that may be shown.

        Raises:
            SpecError: a secret is missing; the message names it.
        """
        missing = [name for name in self.secret_names if name not in secrets]
        if missing:
            raise SpecError(f"notify.urls: {', '.join(missing)} is not among the job's secrets")
        return {
            f"urls[{i}] ({re.split('(?<=://)', url)[0]})": _SECRET.sub(lambda found: secrets[found[1]], url)
            for i, url in enumerate(self.urls)
        }


def secrets_in(url: str) -> list[str]:
    """Return the names of the secrets in a URL."""
    return _SECRET.findall(url)
