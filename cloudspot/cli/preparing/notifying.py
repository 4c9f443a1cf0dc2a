"""The notifications of a job that is submitted here, checked before the job exists."""

from __future__ import annotations

from collections.abc import Mapping
from zoneinfo import ZoneInfo

import msgspec

from cloudspot.cli.config import load_config
from cloudspot.cli.screen import output
from cloudspot.errors import SpecError
from cloudspot.jobfile.notify import NotifySpec
from cloudspot.jobfile.spec import JobSpec
from cloudspot.registry import open_notifier


def with_notify(spec: JobSpec) -> JobSpec:
    """Return the job file, with the ``[notify]`` of the user's config file if it has none of its own."""
    if spec.notify != NotifySpec():
        return spec
    return msgspec.structs.replace(spec, notify=load_config().notify)


def check_messages(notify: NotifySpec, environ: Mapping[str, str]) -> None:
    """Check that messages can be sent, as far as possible without sending one.

    Warn about a URL that contains a plain-text credential. URLs with secrets that are not in ``environ`` are
    not checked.

    Raises:
        PluginError: the notifier is missing or broken.
        SpecError: the time zone or a URL is not recognised.
    """
    if not notify.is_wanted:
        return
    notifier = open_notifier(notify.through)
    if notify.timezone is not None:
        try:
            ZoneInfo(notify.timezone)
        except (KeyError, ValueError, OSError):
            raise SpecError(f'notify.timezone: "{notify.timezone}" is not a time zone known here') from None
    if not environ.keys() >= set(notify.secret_names):
        return
    for (name, url), written in zip(notify.resolved(environ).items(), notify.urls, strict=True):
        try:
            holds_credential = notifier.holds_credential(url)
        except SpecError as error:
            raise SpecError(f"notify.{name} {error}") from None
        if holds_credential and "${" not in written:
            output.warn(
                f"notify.{name} holds a credential, which anyone could read in the store; "
                "put it, or the whole URL, into a variable and write ${NAME}"
            )
