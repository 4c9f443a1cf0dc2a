"""Find providers by name and object stores by URL scheme; import a plugin only when it is used.

Plugins are found by the entry points and hooks of :mod:`cloudspot.hookspecs`, and so are the built-in ones,
whose names nobody can take. A broken plugin hides no other.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import pluggy

import cloudspot
from cloudspot import hookspecs
from cloudspot.errors import CloudspotError, PluginError, SpecError
from cloudspot.interfaces import CAPABILITY_METHODS, Notifier, ObjectStore, Provider
from cloudspot.jobfile.spec import POLICIES, JobSpec, decode_options
from cloudspot.jobfile.tables import convert
from cloudspot.model import Capability
from cloudspot.plugin.installed import COMMAND_GROUP, Declared, from_distributions, reason_of

R = TypeVar("R")

_opened: Final[weakref.WeakSet[ObjectStore]] = weakref.WeakSet()

_BUILT_IN: Final = {
    hookspecs.PROVIDER_GROUP: {"local": "cloudspot.local.plugin"},
    hookspecs.STORE_GROUP: {"file": "cloudspot.local.plugin"},
    hookspecs.SANDBOX_GROUP: {},
    hookspecs.POLICY_GROUP: {},
    hookspecs.NOTIFIER_GROUP: {},
    COMMAND_GROUP: {},
}


@dataclass(frozen=True)
class ProviderEntry:
    """An installed provider, working or broken."""

    name: str
    distribution: str
    version: str
    error: str | None
    """Why it cannot be used; None if it can."""


def provider_class(name: str) -> type[Provider]:
    """Import the provider's plugin and return its class.

    Raises:
        PluginError: no such provider is installed (the message says what to run), or it is broken.
    """
    return _provider_class(_find(hookspecs.PROVIDER_GROUP, name, _provider_missing))


def open_provider(name: str, spec: JobSpec | None, configured: Mapping[str, Any] | None = None) -> Provider:
    """Return the provider with the options of the job's ``[providers.NAME]``, without I/O.

    Without a job, options have their defaults. ``configured`` has options of this computer's user, for those
    that the job leaves out.

    Raises:
        PluginError: as ``provider_class``.
        SpecError: an option is wrong.
    """
    class_ = provider_class(name)
    options: msgspec.Struct
    if spec is None:
        options = convert({**(configured or {})}, class_.options_type, at=("providers", name))
    else:
        if configured:
            table = {**configured, **spec.providers.get(name, {})}
            spec = msgspec.structs.replace(spec, providers={**spec.providers, name: table})
        if spec.run.image is not None and Capability.CONTAINERS not in class_.capabilities:
            raise SpecError(
                f'run.image: machines of the provider "{name}" run no containers; the table providers.{name} '
                "says which image they have"
            )
        options = decode_options(spec, name, class_.options_type)
    return _called(f'provider "{name}"', lambda: class_(options), may_raise=CloudspotError)


def with_driver_options(spec: JobSpec, name: str, options: Mapping[str, Any]) -> JobSpec:
    """Return the job file with these values of the provider's ``driver_options``, and no others.

    Raises:
        PluginError: as ``provider_class``.
    """
    named = provider_class(name).driver_options
    table = {option: value for option, value in spec.providers.get(name, {}).items() if option not in named}
    if name not in spec.providers and not options:
        return spec
    return msgspec.structs.replace(spec, providers={**spec.providers, name: {**table, **options}})


def open_store(url: str) -> ObjectStore:
    """Open the object store at the URL, without I/O.

    Raises:
        SpecError: it is not a URL, or the plugin refuses it.
        PluginError: no plugin for its scheme is installed, or it is broken.
    """
    match = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", url)
    if match is None:
        raise SpecError(f'store "{url}" is not a URL; expected one such as file:///absolute/path')
    scheme = match[1].lower()
    declared = _find(hookspecs.STORE_GROUP, scheme, _store_missing)
    call = _hooks(declared).cloudspot_object_store
    store = _called(f"store plugin {declared}", lambda: call(url=url), may_raise=CloudspotError)
    if not isinstance(store, ObjectStore):
        # Show neither the URL nor what came back: both may hold credentials.
        found = type(store).__name__
        raise PluginError(
            f"store plugin {declared} is broken: for {scheme}:// it returned a {found}, not an ObjectStore"
        )
    _opened.add(store)
    return store


def close_stores() -> None:
    """Close what ``open_store`` has opened and somebody still has; nothing depends on how that goes."""
    for store in tuple(_opened):
        with suppress(CloudspotError):
            store.close()


def open_job_store(url: str, store_id: str | None = None) -> ObjectStore:
    """Open the store of jobs at the URL, without I/O, and hold it to its id: see ``ObjectStore.hold_to``.

    Use ``open_store`` for the places of inputs, and where the first job of a new store is submitted.

    Raises:
        SpecError: as for ``open_store``.
        PluginError: as for ``open_store``.
    """
    store = open_store(url)
    store.hold_to(store_id)
    return store


def plugin_distributions(provider: str, *store_urls: str) -> tuple[str, ...]:
    """Return the distributions, besides cloudspot, that a node of this provider needs for these stores.

    Raises:
        PluginError: one of them is not installed.
    """
    schemes = dict.fromkeys(url.partition("://")[0].lower() for url in store_urls)
    found = (
        _find(hookspecs.PROVIDER_GROUP, provider, _provider_missing),
        *(_find(hookspecs.STORE_GROUP, scheme, _store_missing) for scheme in schemes),
    )
    return tuple(dict.fromkeys(one.distribution for one in found if one.distribution != "cloudspot"))


def distribution_of(name: str) -> tuple[str, str]:
    """Return name and version of the distribution with the provider of that name, or else the store scheme.

    Raises:
        PluginError: there is neither, or it cannot be used.
    """
    group = hookspecs.PROVIDER_GROUP
    if name not in provider_names() and name in store_schemes():
        group = hookspecs.STORE_GROUP
    declared = _find(group, name, _provider_missing)
    _hooks(declared)
    return declared.distribution, declared.version


def driver_distributions(provider: str, *store_urls: str) -> tuple[str, ...]:
    """Return those, and what else a driver of any job may need: notifiers and market policies.

    Raises:
        PluginError: the provider or a store's plugin is not installed.
    """
    groups = (hookspecs.NOTIFIER_GROUP, hookspecs.POLICY_GROUP)
    others = (declared.distribution for group in groups for declared in _all_declared(group))
    found = dict.fromkeys((*plugin_distributions(provider, *store_urls), *others))
    return tuple(one for one in found if one != "cloudspot")


def provider_names() -> tuple[str, ...]:
    """Return the names of all installed providers, without importing them."""
    return tuple(dict.fromkeys(declared.name for declared in _all_declared(hookspecs.PROVIDER_GROUP)))


def store_schemes() -> tuple[str, ...]:
    """Return the URL schemes that installed plugins open, sorted, without importing them."""
    return tuple(sorted({declared.name for declared in _all_declared(hookspecs.STORE_GROUP)}))


def sandbox_class(name: str, base: type[R]) -> type[R]:
    """Import the plugin and return the class that emulates its cloud, a subclass of ``base``.

    Raises:
        PluginError: no such sandbox is installed (the message says what to run), or it is broken.
    """
    declared = _find(hookspecs.SANDBOX_GROUP, name, _sandbox_missing)
    call = _hooks(declared).cloudspot_sandbox
    class_ = _called(f"sandbox {declared}", lambda: call(name=name), may_raise=CloudspotError)
    return _checked(f"sandbox {declared}", "cloudspot_sandbox", class_, base, name)


def sandbox_names() -> tuple[str, ...]:
    """Return the names of all installed sandboxes, without importing them."""
    return tuple(dict.fromkeys(declared.name for declared in _all_declared(hookspecs.SANDBOX_GROUP)))


def policy_class(name: str, base: type[R]) -> type[R]:
    """Import the plugin and return its market policy of that name, a subclass of ``base``.

    Raises:
        PluginError: no such policy is installed, or it is broken.
    """
    declared = _find(hookspecs.POLICY_GROUP, name, _policy_missing)
    call = _hooks(declared).cloudspot_market_policy
    what = f"market policy {declared}"
    return _checked(what, "cloudspot_market_policy", _called(what, lambda: call(name=name)), base, name)


def policy_names() -> tuple[str, ...]:
    """Return the names of the market policies that installed plugins bring, without importing them."""
    return tuple(dict.fromkeys(declared.name for declared in _all_declared(hookspecs.POLICY_GROUP)))


def notifier_class(name: str) -> type[Notifier]:
    """Import the plugin and return its notifier of that name.

    Raises:
        PluginError: no such notifier is installed (the message says what to run), or it is broken.
    """
    declared = _find(hookspecs.NOTIFIER_GROUP, name, _notifier_missing)
    call = _hooks(declared).cloudspot_notifier
    what = f"notifier {declared}"
    return _checked(what, "cloudspot_notifier", _called(what, lambda: call(name=name)), Notifier, name)  # type: ignore[type-abstract]


def plugin_command(name: str, base: type[R]) -> R:
    """Import the plugin and return its command of that name, an instance of ``base``.

    Raises:
        PluginError: no such command is installed, or its plugin is broken.
    """
    declared = _find(COMMAND_GROUP, name, lambda name: f'no command "{name}" is installed')
    call, what = _hooks(declared).cloudspot_command, f"command {declared}"
    command = _called(what, lambda: call(name=name))
    if not isinstance(command, base):
        fault = f"its hook cloudspot_command returned {command!r}, not a {base.__module__}.{base.__name__}"
        raise PluginError(f"{what} is broken: {fault}")
    return command


def list_providers() -> tuple[ProviderEntry, ...]:
    """Return all installed providers, the built-in ones first; imports each to see whether it works."""
    entries = []
    for declared in _all_declared(hookspecs.PROVIDER_GROUP):
        error = declared.error
        if error is None:
            try:
                _provider_class(declared)
            except PluginError as broken:
                error = str(broken)
        entries.append(ProviderEntry(declared.name, declared.distribution, declared.version, error))
    return tuple(entries)


def comes_with_cloudspot(name: str) -> bool:
    """Return whether cloudspot's own metadata has an extra that brings the plugin of that name."""
    from importlib import metadata

    try:
        requires = metadata.requires("cloudspot") or []
    except metadata.PackageNotFoundError:
        return False
    pattern = rf"""cloudspot[-_.]{re.escape(name)}\b.*;.*\bextra\s*==\s*["']{re.escape(name)}["']"""
    return any(re.match(pattern, line) for line in requires)


def _find(group: str, name: str, missing: Callable[[str], str]) -> Declared:
    if name in _BUILT_IN[group]:
        # Nobody can take its place, so skip the search of the installed distributions: it takes longer than
        # everything else in `ps` with few jobs.
        return _built_in(group, name)
    # A usable plugin comes before those that only claim its name.
    named = [declared for declared in _all_declared(group) if declared.name == name]
    if not named:
        raise PluginError(missing(name))
    usable = [declared for declared in named if declared.error is None]
    if not usable:
        raise PluginError(f"plugin {named[0]}: {named[0].error}")
    return usable[0]


def _all_declared(group: str) -> tuple[Declared, ...]:
    """Return the plugins of a group: the built-in ones, then the others by name."""
    built_in = tuple(_built_in(group, name) for name in _BUILT_IN[group])
    others = sorted(from_distributions(group), key=lambda other: (other.name, other.distribution))
    return (*built_in, *(_judged(other, group, others) for other in others))


def _built_in(group: str, name: str) -> Declared:
    load = partial(importlib.import_module, _BUILT_IN[group][name])
    return Declared(name, "cloudspot", cloudspot.__version__, load)


def _judged(plugin: Declared, group: str, others: list[Declared]) -> Declared:
    """Return the plugin, with the error that follows from its name alone, if any."""
    error = plugin.error
    rivals = [other.distribution for other in others if other.name == plugin.name and other is not plugin]
    if plugin.name in _BUILT_IN[group]:
        error = f'"{plugin.name}" is built in and cannot be replaced; uninstall {plugin.distribution}'
    elif rivals and error is None:
        # Neither wins: which is found first depends on the order of directories.
        both = " and ".join(sorted({plugin.distribution, *rivals}))
        error = f'{both} both bring "{plugin.name}"; uninstall one of them'
    return replace(plugin, error=error)


def _provider_class(declared: Declared) -> type[Provider]:
    """Import a plugin and return its provider class, checked."""
    what = f"provider {declared}"
    call = _hooks(declared).cloudspot_provider
    found = _called(what, lambda: call(name=declared.name))
    class_: type[Provider] = _checked(what, "cloudspot_provider", found, Provider, declared.name)  # type: ignore[type-abstract]
    options = getattr(class_, "options_type", None)
    if not (isinstance(options, type) and issubclass(options, msgspec.Struct)):
        raise PluginError(f"{what} is broken: {class_.__name__}.options_type is not a msgspec.Struct")
    for capability, method in CAPABILITY_METHODS.items():
        if capability in class_.capabilities and getattr(class_, method) is getattr(Provider, method):
            fault = f"{class_.__name__} declares {capability.value!r}, and lacks {method}"
            raise PluginError(f"{what} is broken: {fault}")
    class_.made_by = f"{declared.distribution} {declared.version}".rstrip()
    return class_


def _checked(what: str, hook: str, class_: Any, base: type[R], name: str) -> type[R]:
    """Return what a hook returned if it is a complete subclass of the base with the plugin's name."""
    if not (isinstance(class_, type) and issubclass(class_, base)):
        fault = f"its hook {hook} returned {class_!r}, not a subclass of {base.__name__}"
    elif inspect.isabstract(class_):
        fault = f"{class_.__name__} lacks {', '.join(sorted(getattr(class_, '__abstractmethods__', ())))}"
    elif getattr(class_, "name", None) != name:
        fault = f'{class_.__name__}.name is {getattr(class_, "name", None)!r}, not "{name}"'
    else:
        return class_
    raise PluginError(f"{what} is broken: {fault}")


def _hooks(declared: Declared) -> Any:
    """Import a plugin and return its hooks, in a plugin manager of its own: no other plugin answers."""
    module = _called(f"plugin {declared}", declared.load)
    # Before its hooks are looked at: those of a later version may be unknown here.
    _check_api_version(declared, module)
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)

    def register() -> None:
        manager.register(module)
        manager.check_pending()

    _called(f"plugin {declared}", register)
    return manager.hook


def _check_api_version(declared: Declared, module: object) -> None:
    """Refuse a plugin that was written for other interfaces than these."""
    version = getattr(module, "cloudspot_api_version", 2)
    if not isinstance(version, int) or version < 1:
        raise PluginError(f"plugin {declared} is broken: cloudspot_api_version = {version!r} is no version")
    if version != hookspecs.API_VERSION:
        what = "cloudspot" if version > hookspecs.API_VERSION else declared.distribution
        raise PluginError(
            f"plugin {declared} is written for version {version} of cloudspot's interfaces, and cloudspot "
            f"{cloudspot.__version__} has version {hookspecs.API_VERSION}; upgrade {what}"
        )


def _called(
    what: str, call: Callable[[], R], *, may_raise: type[Exception] | tuple[type[Exception], ...] = ()
) -> R:
    """Return what the plugin's code returns; an error it may not raise becomes a PluginError."""
    try:
        return call()
    except may_raise:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what} is broken: {reason_of(error)}") from error


def _provider_missing(name: str) -> str:
    return _missing("provider", name, provider_names(), f"plugins/{name}")


def _sandbox_missing(name: str) -> str:
    if name == "local":
        return 'provider "local" needs no sandbox: run the command as it is'
    return _missing("sandbox", name, sandbox_names(), f"plugins/{name} plugins/{name}-sandbox")


def _policy_missing(name: str) -> str:
    return _missing("market policy", name, (*POLICIES, *policy_names()), f"plugins/{name}")


def _notifier_missing(name: str) -> str:
    known = [declared.name for declared in _all_declared(hookspecs.NOTIFIER_GROUP)]
    return _missing("notifier", name, known, f"plugins/{name}")


def _missing(kind: str, name: str, known: Sequence[str], paths: str) -> str:
    """Return that a plugin is missing, and how to get it if it comes with cloudspot.

    A distribution that nobody has published is not named: whoever registered its name would be run.
    """
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        advice = f'did you mean "{near[0]}"?'
    elif comes_with_cloudspot(name):
        advice = f"run, in a copy of cloudspot's source: pip install {paths}"
    else:
        advice = f"there are {', '.join(known) or 'none'}"
    return f'no {kind} "{name}" is installed; {advice}'


def _store_missing(scheme: str) -> str:
    known = ", ".join(f"{known}://" for known in store_schemes())
    return f"no installed plugin opens {scheme}:// URLs (there are {known}); install the plugin of that store"
