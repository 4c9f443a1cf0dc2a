"""``[notify]``: which events a job tells, to which URLs, and when."""

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
    text_like(  # No message shows a URL, which may hold a password.
        rf"{_NAME}|{SCHEME}://(?:[^$]|\$(?!\{{)|{_NAME})+",
        'expected a URL such as "json://host/path", or "${NAME}", a variable that holds one, or a part of it',
    ),
]
_TIME: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_Hours = Annotated[str, text_like(f"{_TIME}-{_TIME}", 'expected hours such as "22:00-07:00", got "{}"')]
_SECRET: Final = re.compile(rf"\$\{{({VARIABLE})\}}")


class NewsKind(str, enum.Enum):
    """What a job can tell, the gravest last."""

    COST = "cost"
    """Once a day: what has been spent so far."""
    RELAUNCHED = "relaunched"
    """A machine has come up that was bought in the place of others, or besides them."""
    RECLAIMED = "reclaimed"
    """A machine has a notice that it will be taken, or was taken without one."""
    STALLED = "stalled"
    """The training was stuck and begins again; or nothing has trained for half an hour, for want of machines
    or as nothing is heard of them; or the job is suspended."""
    CAPPED = "capped"
    """A limit that ends a job is reached, ``idle_after`` among them: the job saves and stops."""
    FINISHED = "finished"
    """The job has ended: it has succeeded, or was stopped."""
    FAILED = "failed"
    """The job has failed."""


URGENT: Final = frozenset({NewsKind.CAPPED, NewsKind.FAILED, NewsKind.FINISHED})
"""What quiet hours do not hold back. After the end of a job nobody drives it who could tell it later."""


class NotifySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[notify]``: whom the job tells of what happens to it. Left out: as the user's config file says."""

    urls: tuple[_NotifyUrl, ...] = ()
    """Where messages go, such as ``"slack://..."``: URLs of apprise. ``${NAME}`` stands for the variable of
    that name in your environment when the job is submitted, kept like ``run.secrets``, but not given to the
    training; it may be a part of the URL, or all of it."""
    events: tuple[NewsKind, ...] = tuple(kind for kind in NewsKind if kind is not NewsKind.COST)
    """The events that send a message; an empty list sends none."""
    quiet: _Hours | None = None
    """Hours in which only ``capped`` and the end of the job are told, such as ``"22:00-07:00"``. What else
    happens is told in one message after them, or at the end of the job."""
    timezone: str | None = None
    """The zone of ``quiet`` and of the times in messages, such as ``"Europe/Berlin"``. If left out, or
    unknown where the job is driven: UTC."""
    through: str = "apprise"
    """The notifier that sends the messages; plugins bring them."""

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to tell, and anybody to tell it."""
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
        """Return whether it is one of the quiet hours."""
        if self.quiet is None:
            return False
        begin, _, end = self.quiet.partition("-")
        clock = f"{now.astimezone(self.zone):%H:%M}"
        return begin <= clock < end if begin <= end else not end <= clock < begin

    def resolved(self, secrets: Mapping[str, str]) -> dict[str, str]:
        """Return the URLs with the secrets in them, each by a name that may be shown.

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
    """Return the names of the secrets that a URL takes."""
    return _SECRET.findall(url)
