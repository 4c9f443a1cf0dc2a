"""The user's config file: stores by name, notifications, and options of this computer."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from cloudspot.cli.invocation import ChosenStore
from cloudspot.errors import SpecError
from cloudspot.interfaces import Provider
from cloudspot.jobfile.notify import NotifySpec
from cloudspot.jobfile.rules import Url, text_like
from cloudspot.jobfile.spec import JobSpec, spec_from_json
from cloudspot.jobfile.tables import FieldError, convert
from cloudspot.jobfile.toml import apply_override, read_toml
from cloudspot.registry import open_provider, provider_class

CONFIG_VARIABLE = "CLOUDSPOT_CONFIG"


_StoreName = Annotated[str, text_like("(?!.*://).+", '"{}": the name of a store must be a word, not a URL')]


class _DefaultUrl(msgspec.Struct, frozen=True):
    default_store: Url


class UserConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``config.toml``: the user's stores, notifications, and options of this computer."""

    default_store: str | None = None
    """The store to use if nothing else names one: a name from ``[stores]``, or a URL."""
    stores: dict[_StoreName, Url] = msgspec.field(default_factory=dict)
    """URLs under names of your choice, which ``--store`` and ``CLOUDSPOT_STORE`` also accept."""
    notify: NotifySpec = NotifySpec()
    """``[notify]`` as in [the job file](job-file.md), for jobs whose job file has no such table. It becomes
    part of the job when you submit one."""
    providers: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """``[providers.NAME]``: options of a provider, for your job files that do not set them. They become part
    of the job, except for options that name a resource of this computer, such as a kubeconfig: these also
    apply to stored jobs that you drive."""


def config_path() -> Path | None:
    """Return the path of the config file, which may not exist.

    It is ``$CLOUDSPOT_CONFIG`` or, by default, ``cloudspot/config.toml`` under ``$XDG_CONFIG_HOME`` or
    ``~/.config``; None if none of these is set or known.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG base directory specification requires that relative paths be ignored.
    if Path(base).is_absolute():
        return Path(base) / "cloudspot" / "config.toml"
    try:
        return Path.home() / ".config" / "cloudspot" / "config.toml"
    except RuntimeError:
        return None


def load_config() -> UserConfig:
    """Read and check the config file; if there is none, every field has its default.

    Raises:
        SpecError: the file is malformed (the message names the line or the field), or CLOUDSPOT_CONFIG
            names a file that does not exist.
    """
    path = config_path()
    if path is None or not (os.environ.get(CONFIG_VARIABLE) or os.path.lexists(path)):
        return UserConfig()
    raw = read_toml(path)
    try:
        config = convert(raw, UserConfig)
        if config.default_store is not None and config.default_store not in config.stores:
            convert({"default_store": config.default_store}, _DefaultUrl)
    except FieldError as error:
        raise SpecError(f"{path}: {error}") from None
    return config


def named_store(text: str, origin: str) -> ChosenStore:
    """Return the store that ``text`` names, by URL or by its name in the config file, or raise SpecError."""
    if "://" in text:
        return ChosenStore(text, origin)
    stores = load_config().stores
    if text in stores:
        return ChosenStore(stores[text], f"{origin}, by {config_path()}")
    near = difflib.get_close_matches(text, stores, n=1)
    known = f"the stores there: {', '.join(stores)}" if stores else "no stores are defined there"
    advice = f'did you mean "{near[0]}"?' if near else known
    raise SpecError(
        f'{origin}: "{text}" is neither a URL such as file:///data/jobs '
        f"nor a store in {config_path()}; {advice}"
    )


def configured_options(name: str) -> Mapping[str, Any]:
    """Return the provider's options for this computer in the config file, for any stored job.

    These are the provider's ``driver_options``. Raises the same errors as ``load_config``.

    Raises:
        PluginError: the provider cannot be used.
    """
    options = load_config().providers.get(name, {})
    named = provider_class(name).driver_options if options else ()
    return {option: value for option, value in options.items() if option in named}


def with_configured(spec: JobSpec, name: str) -> JobSpec:
    """Return the user's own job file, extended with the options in the config file.

    Options for this computer are omitted, because a job does not store them. Raises the same errors as
    ``load_config``.
    """
    options = load_config().providers.get(name, {})
    if not options:
        return spec
    named = provider_class(name).driver_options
    added = {option: value for option, value in options.items() if option not in named}
    table = {**added, **spec.providers.get(name, {})}
    return msgspec.structs.replace(spec, providers={**spec.providers, name: table})


def open_configured(name: str, spec: JobSpec | None) -> Provider:
    """Open the provider for the user's own job file, or without one, with the options in the config file.

    Raises the same errors as ``registry.open_provider`` and ``load_config``.
    """
    return open_provider(name, spec, load_config().providers.get(name, {}))


def open_overridden(name: str, overrides: Sequence[str]) -> Provider:
    """Open the provider without a job, with the options of ``--set providers.NAME.OPTION=VALUE``.

    Raises the same errors as ``open_configured``.
    """
    raw: dict[str, Any] = {"name": "none", "run": {"command": ["true"]}}
    for one in overrides:
        apply_override(raw, one, JobSpec)
    return open_configured(name, spec_from_json(raw))


def default_store() -> ChosenStore | None:
    """Return the default store in the config file, or None; raises the same errors as ``load_config``."""
    config = load_config()
    if config.default_store is None:
        return None
    url = config.stores.get(config.default_store, config.default_store)
    return ChosenStore(url, f"default_store in {config_path()}")
