"""Find plugins by name and object stores by URL scheme; import a plugin only when it is used.

Plugins, including the built-in ones, are found by the entry points and hooks of :mod:`cloudspot.hookspecs`.
No plugin can take the name of a built-in one. A broken plugin does not affect the others. The results of
hooks are checked here, and guarded from then on (:mod:`cloudspot.calls.guard`).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import pluggy

import cloudspot
from cloudspot import hookspecs
from cloudspot.calls.guard import LOAD, Guard, Guarded, attribute_fault
from cloudspot.errors import CloudspotError, PluginError, SpecError
from cloudspot.host.left_calls import LeftAloneError, call_within
from cloudspot.interfaces import CAPABILITY_METHODS, DriverTask, Notifier, ObjectStore, Provider, Tracker
from cloudspot.jobfile.spec import POLICIES, TRACKERS, JobSpec, decode_options
from cloudspot.jobfile.tables import convert
from cloudspot.model import Capability
from cloudspot.plugin.installed import COMMAND_GROUP, Declared, from_distributions

R = TypeVar("R")
G = TypeVar("G", bound=Guarded)

_opened: Final[weakref.WeakSet[ObjectStore]] = weakref.WeakSet()


@dataclass(frozen=True)
class Kind:
    """One kind of plugin, such as providers."""

    noun: str
    """The name of the kind in messages."""
    group: str
    """The entry point group that names the modules."""
    hook: str
    """The function in the module that returns the class or object."""
    built_in: Mapping[str, str] = field(default_factory=dict)
    """The modules of the built-in plugins, by name."""
    known: tuple[str, ...] = ()
    """Names that need no plugin."""
    together: Mapping[str, str] = field(default_factory=dict)
    """The extra that installs a plugin, for names that share one distribution; otherwise the name is the
    extra."""
    paths: str = "plugins/{name}"
    """The plugin's directory in a copy of cloudspot's source."""
    hides_text: bool = False
    """Whether error texts of the plugin may contain secrets."""


_LOCAL: Final = "cloudspot.local.plugin"
PROVIDER: Final = Kind("provider", hookspecs.PROVIDER_GROUP, "cloudspot_provider", {"local": _LOCAL})
STORE: Final = Kind("store plugin", hookspecs.STORE_GROUP, "cloudspot_object_store", {"file": _LOCAL})
SANDBOX: Final = Kind(
    "sandbox", hookspecs.SANDBOX_GROUP, "cloudspot_sandbox", paths="plugins/{name} plugins/{name}-sandbox"
)
POLICY: Final = Kind("market policy", hookspecs.POLICY_GROUP, "cloudspot_market_policy", known=POLICIES)
NOTIFIER: Final = Kind("notifier", hookspecs.NOTIFIER_GROUP, "cloudspot_notifier", hides_text=True)
TRACKER: Final = Kind(
    "tracker", hookspecs.TRACKER_GROUP, "cloudspot_tracker", together=dict.fromkeys(TRACKERS, "trackers")
)
TASK: Final = Kind(
    "driver task", hookspecs.TASK_GROUP, "cloudspot_driver_task", together={"shared-page": "ui"}
)
COMMAND: Final = Kind(
    "command",
    COMMAND_GROUP,
    "cloudspot_command",
    together={
        **dict.fromkeys(("prove", "replay"), "prove"),
        **dict.fromkeys(("report", "share", "tensorboard", "top", "ui", "unshare"), "ui"),
    },
)

LISTED_SECONDS: Final = 5.0
"""How long the import of a plugin may take when all plugins are listed, so that none can block the list."""


@dataclass(frozen=True)
class ProviderEntry:
    """An installed provider, working or broken."""

    name: str
    distribution: str
    version: str
    error: str | None
    """Why the provider cannot be used; None if it can."""


def provider_class(name: str) -> type[Provider]:
    """Import the provider's plugin and return its class.

    Raises:
        PluginError: no such provider is installed (the message gives the command to run), or it is broken.
    """
    return _class_of(PROVIDER, _find(PROVIDER, name), Provider)  # type: ignore[type-abstract]


def open_provider(name: str, spec: JobSpec | None, configured: Mapping[str, Any] | None = None) -> Provider:
    """Return the provider with the options in the job's ``[providers.NAME]``, without I/O.

    Without a job, options have their defaults. ``configured`` holds the options set by this computer's user;
    they apply where the job sets none.

    Raises:
        PluginError: see ``provider_class``.
        SpecError: an option is wrong.
    """
    declared = _find(PROVIDER, name)
    class_ = _class_of(PROVIDER, declared, Provider)  # type: ignore[type-abstract]
    if spec is not None and configured:
        table = {**configured, **spec.providers.get(name, {})}
        spec = msgspec.structs.replace(spec, providers={**spec.providers, name: table})
    if spec is not None and spec.run.image is not None and Capability.CONTAINERS not in class_.capabilities:
        raise SpecError(
            f'run.image: machines of the provider "{name}" cannot run containers; set their '
            f"own image in the table providers.{name}"
        )

    def make() -> Provider:
        if spec is not None:
            return class_(decode_options(spec, name, class_.options_type))
        return class_(convert({**(configured or {})}, class_.options_type, at=("providers", name)))

    return _made(PROVIDER, declared, make, Provider)


def with_driver_options(spec: JobSpec, name: str, options: Mapping[str, Any]) -> JobSpec:
    """Return the job file with its values for the provider's ``driver_options`` replaced by these.

    Raises:
        PluginError: see ``provider_class``.
    """
    named = provider_class(name).driver_options
    table = {option: value for option, value in spec.providers.get(name, {}).items() if option not in named}
    if name not in spec.providers and not options:
        return spec
    return msgspec.structs.replace(spec, providers={**spec.providers, name: {**table, **options}})


def open_store(url: str) -> ObjectStore:
    """Open the object store at the URL, without I/O.

    Raises:
        SpecError: the URL is malformed, or the plugin refuses it.
        PluginError: no plugin for its scheme is installed, or it is broken.
    """
    match = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", url)
    if match is None:
        raise SpecError(f'store "{url}" is not a URL; expected one such as file:///absolute/path')
    declared = _find(STORE, match[1].lower())
    guard = _guard_of(STORE, declared)
    store = _hooked(STORE, declared, ObjectStore, url=url)  # type: ignore[type-abstract]
    _opened.add(guard.enter(store, ObjectStore))
    return store


def close_stores() -> None:
    """Close the stores opened by ``open_store`` that are still referenced; ignore errors."""
    for store in tuple(_opened):
        with suppress(CloudspotError):
            store.close()


def open_job_store(url: str, store_id: str | None = None) -> ObjectStore:
    """Open the store of jobs at the URL, without I/O, and bind it to its id: see ``ObjectStore.hold_to``.

    Use ``open_store`` for the URLs of inputs, and when submitting the first job of a new store.

    Raises:
        SpecError: see ``open_store``.
        PluginError: see ``open_store``.
    """
    store = open_store(url)
    store.hold_to(store_id)
    return store


def sandbox_class(name: str, base: type[R]) -> type[R]:
    """Import the plugin and return the class that emulates its cloud, a subclass of ``base``.

    Raises:
        PluginError: no such sandbox is installed (the message gives the command to run), or it is broken.
    """
    return _class_of(SANDBOX, _find(SANDBOX, name), base)


def policy_maker(name: str, base: type[G]) -> Callable[[Callable[[type[G]], G]], G]:
    """Import the plugin and return a function that creates its market policy, a subclass of ``base``.

    Raises:
        PluginError: no such policy is installed, or it is broken.
    """
    declared = _find(POLICY, name)
    class_ = _class_of(POLICY, declared, base)
    return lambda make: _made(POLICY, declared, partial(make, class_), base)


def open_notifier(name: str) -> Notifier:
    """Import the plugin and return its notifier of that name.

    Raises:
        PluginError: no such notifier is installed (the message gives the command to run), or it is broken.
    """
    declared = _find(NOTIFIER, name)
    return _made(NOTIFIER, declared, _class_of(NOTIFIER, declared, Notifier), Notifier)  # type: ignore[type-abstract]


def open_tracker(name: str) -> Tracker:
    """Import the plugin and return its tracker of that name.

    Raises:
        PluginError: no such tracker is installed (the message gives the command to run), or it is broken.
    """
    declared = _find(TRACKER, name)
    return _made(TRACKER, declared, _class_of(TRACKER, declared, Tracker), Tracker)  # type: ignore[type-abstract]


def open_driver_task(name: str) -> DriverTask:
    """Import the plugin and return a new driver task of that name.

    Raises:
        PluginError: no such task is installed (the message gives the command to run), or it is broken.
    """
    declared = _find(TASK, name)
    return _made(TASK, declared, _class_of(TASK, declared, DriverTask), DriverTask)  # type: ignore[type-abstract]


def plugin_command(name: str, base: type[R]) -> R:
    """Import the plugin and return its command of that name, an instance of ``base``.

    Raises:
        PluginError: no such command is installed, or its plugin is broken.
    """
    declared = _find(COMMAND, name)
    return _hooked(COMMAND, declared, base, name=name)


def plugin_distributions(provider: str, *store_urls: str, trackers: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the distributions, besides cloudspot, that a node needs for these stores and trackers.

    Raises:
        PluginError: one of them is not installed.
    """
    schemes = dict.fromkeys(url.partition("://")[0].lower() for url in store_urls)
    found = (
        _find(PROVIDER, provider),
        *(_find(STORE, scheme) for scheme in schemes),
        *(_find(TRACKER, name) for name in trackers),
    )
    return tuple(dict.fromkeys(one.distribution for one in found if one.distribution != "cloudspot"))


def driver_distributions(provider: str, *store_urls: str, trackers: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the ``plugin_distributions`` and all installed notifiers, market policies and tasks.

    Raises:
        PluginError: the provider or a store's plugin is not installed.
    """
    kinds = NOTIFIER, POLICY, TASK
    others = (declared.distribution for kind in kinds for declared in _all_declared(kind))
    found = dict.fromkeys((*plugin_distributions(provider, *store_urls, trackers=trackers), *others))
    return tuple(one for one in found if one != "cloudspot")


def distribution_of(name: str) -> tuple[str, str]:
    """Return the name and version of the distribution with that provider or, failing that, store scheme.

    Raises:
        PluginError: there is no such plugin, or the plugin cannot be used.
    """
    kind = STORE if name not in provider_names() and name in store_schemes() else PROVIDER
    declared = _find(kind, name)
    _hook(kind, declared)
    return declared.distribution, declared.version


def provider_names() -> tuple[str, ...]:
    """Return the names of all installed providers, without importing them."""
    return _names(PROVIDER)


def sandbox_names() -> tuple[str, ...]:
    """Return the names of all installed sandboxes, without importing them."""
    return _names(SANDBOX)


def store_schemes() -> tuple[str, ...]:
    """Return the URL schemes that installed plugins can open, sorted, without importing them."""
    return tuple(sorted(_names(STORE)))


def policy_names() -> tuple[str, ...]:
    """Return the names of the market policies in installed plugins, without importing them."""
    return _names(POLICY)


def list_providers() -> tuple[ProviderEntry, ...]:
    """Return all installed providers, the built-in ones first; import each to see whether it works.

    A provider whose import takes longer than ``LISTED_SECONDS`` is listed as broken.
    """
    return tuple(
        ProviderEntry(one.name, one.distribution, one.version, one.error or _fault_of(one))
        for one in _all_declared(PROVIDER)
    )


def _fault_of(declared: Declared) -> str | None:
    """Return why the provider cannot be used, or None if it can."""
    guard = _guard_of(PROVIDER, declared)
    try:
        call_within(LISTED_SECONDS, lambda: _class_of(PROVIDER, declared, Provider), owner=guard)  # type: ignore[type-abstract]
    except LeftAloneError:
        return str(guard.broken(f"importing it takes longer than {LISTED_SECONDS:g} s"))
    except CloudspotError as error:
        return str(error)
    return None


def has_extra(name: str) -> bool:
    """Return whether an extra in cloudspot's own metadata installs the plugin of that name."""
    from importlib import metadata

    try:
        requires = metadata.requires("cloudspot") or []
    except metadata.PackageNotFoundError:
        return False
    pattern = rf"""cloudspot[-_.]{re.escape(name)}\b.*;.*\bextra\s*==\s*["']{re.escape(name)}["']"""
    return any(re.match(pattern, line) for line in requires)


# --- which plugin has a name, without imports -------------------------------------------------------


def _find(kind: Kind, name: str) -> Declared:
    if name in kind.built_in:
        # No plugin can take its name, so skip the search of the installed distributions. That search takes
        # longer than everything else that `ps` does for a few jobs.
        return _built_in(kind, name)
    # Prefer a usable plugin to one that only claims the name.
    named = [declared for declared in _all_declared(kind) if declared.name == name]
    if not named:
        raise PluginError(_missing(kind, name))
    usable = [declared for declared in named if declared.error is None]
    if not usable:
        raise PluginError(f"{kind.noun} {named[0]}: {named[0].error}")
    return usable[0]


def _names(kind: Kind) -> tuple[str, ...]:
    return tuple(dict.fromkeys(declared.name for declared in _all_declared(kind)))


def _all_declared(kind: Kind) -> tuple[Declared, ...]:
    """Return the plugins of one kind: first the built-in ones, then the others by name."""
    built_in = tuple(_built_in(kind, name) for name in kind.built_in)
    others = sorted(from_distributions(kind.group), key=lambda other: (other.name, other.distribution))
    return (*built_in, *(_judged(other, kind, others) for other in others))


def _built_in(kind: Kind, name: str) -> Declared:
    module = kind.built_in[name]
    return Declared(
        name, "cloudspot", cloudspot.__version__, module, partial(importlib.import_module, module)
    )


def _judged(plugin: Declared, kind: Kind, others: list[Declared]) -> Declared:
    """Return the plugin, with an error if its name makes it unusable."""
    error = plugin.error
    rivals = [other.distribution for other in others if other.name == plugin.name and other is not plugin]
    if plugin.name in kind.built_in:
        error = f'"{plugin.name}" is built in and cannot be replaced; uninstall {plugin.distribution}'
    elif rivals and error is None:
        # Neither is used: otherwise the order of directories would decide between them.
        both = " and ".join(sorted({plugin.distribution, *rivals}))
        error = f'{both} both provide "{plugin.name}"; uninstall one of them'
    return replace(plugin, error=error)


def _missing(kind: Kind, name: str) -> str:
    """Return a message about the missing plugin, with the command that installs it if cloudspot has one.

    Never suggest a name that is not published: anyone who registered it could run code here.
    """
    if kind is STORE:
        schemes = ", ".join(f"{known}://" for known in store_schemes())
        advice = "install the plugin of that store"
        return f"no installed plugin opens {name}:// URLs, only {schemes}; {advice}"
    if kind is SANDBOX and name in PROVIDER.built_in:
        return f'provider "{name}" needs no sandbox: run the command as it is'
    known = tuple(dict.fromkeys((*kind.known, *kind.together, *_names(kind))))
    extra = kind.together.get(name, name)
    near = () if name in kind.together else difflib.get_close_matches(name, known, n=1)
    if near:
        advice = f'did you mean "{near[0]}"?'
    elif has_extra(extra):
        advice = f"run, in a copy of cloudspot's source: pip install {kind.paths.format(name=extra)}"
    else:
        advice = f"the known ones are {', '.join(known) or 'none'}"
    return f'no {kind.noun} "{name}" is installed; {advice}'


# --- checks of a plugin's module and hook ---------------------------------------------------------


_guards: Final[dict[str, Guard]] = {}


def _guard_of(kind: Kind, declared: Declared) -> Guard:
    """Return the plugin's guard, always the same object, because it counts the calls that hang."""
    plugin_name = f"{kind.noun} {declared}"
    # A sandbox is forked from this process, which must have no other threads at that time.
    is_cut_off = declared.distribution != "cloudspot" and kind is not SANDBOX
    return _guards.setdefault(
        plugin_name, Guard(plugin_name, is_cut_off=is_cut_off, hides_text=kind.hides_text)
    )


def _class_of(kind: Kind, declared: Declared, base: type[R]) -> type[R]:
    """Import a plugin, check the class that its hook returns, and return that class."""
    class_ = _hooked(kind, declared, type, name=declared.name)
    if not issubclass(class_, base):
        fault: str | None = f"{class_.__name__} is not a subclass of {base.__name__}"
    elif inspect.isabstract(class_):
        fault = f"{class_.__name__} lacks {', '.join(sorted(getattr(class_, '__abstractmethods__', ())))}"
    elif (name := getattr(class_, "name", None)) != declared.name:
        fault = f'{class_.__name__}.name is {name!r}, not "{declared.name}" as in its entry point'
    else:
        fault = attribute_fault(class_, base) if issubclass(base, Guarded) else None
        if fault is None and issubclass(class_, Provider):
            fault = _capability_fault(class_)
            class_.made_by = f"{declared.distribution} {declared.version}".rstrip()
    if fault is not None:
        raise _guard_of(kind, declared).broken(fault)
    return class_


def _capability_fault(class_: type[Provider]) -> str | None:
    for capability, method in CAPABILITY_METHODS.items():
        if capability in class_.capabilities and getattr(class_, method) is getattr(Provider, method):
            return f"{class_.__name__} declares {capability.value!r} but lacks {method}"
    return None


def _made(kind: Kind, declared: Declared, make: Callable[[], G], interface: type[Guarded]) -> G:
    """Return the object that ``make`` creates from the plugin's class, guarded from now on."""
    guard = _guard_of(kind, declared)
    return guard.enter(guard.run("making it", LOAD, make), interface)


def _hooked(kind: Kind, declared: Declared, wanted: type[R], **about: str) -> R:
    """Return the result of the plugin's hook if it has the right type."""
    guard, hook = _guard_of(kind, declared), _hook(kind, declared)
    found = guard.run(f"its hook {kind.hook}", LOAD, lambda: hook(**about))
    if isinstance(found, wanted):
        return found
    # Show no value: the value for a store may contain credentials.
    if found is None:
        fault = f'its hook {kind.hook} returned None for "{declared.name}"'
    elif wanted is type:
        fault = f"its hook {kind.hook} returned an instance of {type(found).__name__}, not the class itself"
    else:
        name = f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
        fault = f"its hook {kind.hook} returned {name}, not an instance of {wanted.__name__}"
    raise guard.broken(fault)


def _hook(kind: Kind, declared: Declared) -> Callable[..., object]:
    """Import a plugin and return its hook, from a plugin manager that contains no other plugin."""
    guard = _guard_of(kind, declared)
    module = guard.run("its module", LOAD, partial(_imported, declared))
    if not inspect.ismodule(module):
        name = declared.module.partition(":")[0]
        raise guard.broken(f"its entry point names {declared.module}; it must name the module alone: {name}")
    # Check this before the hooks: another version's hooks may be unknown here.
    _check_api_version(declared, module)
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    ours = [name for name in vars(hookspecs) if name.startswith("cloudspot_")]
    for name in (name for name, one in vars(module).items() if hasattr(one, _IMPLEMENTS)):
        if name not in ours:
            near = difflib.get_close_matches(name, ours, n=1)
            raise guard.broken(f"it has no hook {name}" + (f"; did you mean {near[0]}?" if near else ""))
    try:
        manager.register(module)
    except pluggy.PluginValidationError as error:
        raise guard.broken(f"its hooks have wrong arguments: {str(error).splitlines()[-1]}") from error
    hook = getattr(manager.hook, kind.hook)
    if not hook.get_hookimpls():
        fault = "is not marked with @hookimpl" if hasattr(module, kind.hook) else "is missing"
        raise guard.broken(f"the hook {kind.hook} in its module {module.__name__} {fault}")
    found: Callable[..., object] = hook
    return found


_IMPLEMENTS: Final = f"{hookspecs.PROJECT_NAME}_impl"
"""The attribute with which pluggy marks a hook's implementation."""


def _imported(declared: Declared) -> object:
    try:
        return declared.load()
    except CloudspotError as error:
        raise RuntimeError(str(error)) from error  # a bug: nothing was called yet
    except ModuleNotFoundError as error:
        module = declared.module.partition(":")[0]
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise PluginError(
                f"plugin {declared} is broken: its entry point names the missing module {module}"
            ) from error
        raise


def _check_api_version(declared: Declared, module: object) -> None:
    """Refuse a plugin that was written for another version of the interfaces."""
    version = getattr(module, "cloudspot_api_version", 2)
    if not isinstance(version, int) or version < 1:
        raise PluginError(f"plugin {declared} is broken: cloudspot_api_version {version!r} is not a version")
    if version != hookspecs.API_VERSION:
        outdated = "cloudspot" if version > hookspecs.API_VERSION else declared.distribution
        raise PluginError(
            f"plugin {declared} is written for version {version} of cloudspot's interfaces, but cloudspot "
            f"{cloudspot.__version__} has version {hookspecs.API_VERSION}; upgrade {outdated}"
        )
