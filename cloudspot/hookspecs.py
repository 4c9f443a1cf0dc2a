"""The pluggy hooks that a plugin module implements, and the entry points that name the module.

A distribution declares what its plugin provides::

    [project.entry-points."cloudspot.providers"]   # by provider name
    acme = "cloudspot_acme"
    [project.entry-points."cloudspot.stores"]      # by URL scheme
    acme-blob = "cloudspot_acme"
    [project.entry-points."cloudspot.sandboxes"]   # by provider name, where the cloud can be emulated
    acme = "cloudspot_acme_sandbox"
    [project.entry-points."cloudspot.policies"]    # by the name in spot.policy
    acme-thrifty = "cloudspot_acme"
    [project.entry-points."cloudspot.notifiers"]   # by the name in notify.through
    acme-pager = "cloudspot_acme"
    [project.entry-points."cloudspot.trackers"]    # by the name in run.trackers
    acme-board = "cloudspot_acme"
    [project.entry-points."cloudspot.tasks"]       # by the name in the job's records
    acme-page = "cloudspot_acme"
    [project.entry-points."cloudspot.commands"]    # by the name after `cloudspot`
    acme-report = "cloudspot_acme"

cloudspot imports the module only when a name that it declares is used, and registers it with pluggy. The
import must be quick, so the module's classes import SDKs when they first use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

from cloudspot.interfaces import DriverTask, Notifier, ObjectStore, Provider, Tracker

if TYPE_CHECKING:
    import click

API_VERSION = 2
"""The version of cloudspot's interfaces and hooks; version 1 was never released. A plugin's module may state
the version it was written for, as ``cloudspot_api_version = 2`` (the default). Any other version is refused.
"""

PROJECT_NAME = "cloudspot"
PROVIDER_GROUP = "cloudspot.providers"
STORE_GROUP = "cloudspot.stores"
SANDBOX_GROUP = "cloudspot.sandboxes"
SANDBOX_VARIABLE = "CLOUDSPOT_SANDBOX"
"""The variable that names the sandbox in which a command runs."""
POLICY_GROUP = "cloudspot.policies"
NOTIFIER_GROUP = "cloudspot.notifiers"
TRACKER_GROUP = "cloudspot.trackers"
TASK_GROUP = "cloudspot.tasks"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec(firstresult=True)
def cloudspot_provider(name: str) -> type[Provider] | None:
    """Return the provider class of that name, or None if this plugin has none."""


@hookspec(firstresult=True)
def cloudspot_object_store(url: str) -> ObjectStore | None:
    """Open the object store at ``url``, or return None if this plugin does not know the scheme.

    Opening does no I/O. A malformed URL raises SpecError; all other problems are found at first use.
    """


@hookspec(firstresult=True)
def cloudspot_sandbox(name: str) -> type[object] | None:
    """Return the :class:`cloudspot.emulation.cloud.EmulatedCloud` of that name, or None if there is none.

    If a library that only the emulation needs is missing, raise PluginError with the command that installs
    it.
    """


@hookspec(firstresult=True)
def cloudspot_market_policy(name: str) -> type[object] | None:
    """Return the subclass of :class:`cloudspot.market.plugin_policy.PluginPolicy` of that name, or None."""


@hookspec(firstresult=True)
def cloudspot_notifier(name: str) -> type[Notifier] | None:
    """Return the notifier class of that name, or None. Cloudspot calls the class without arguments."""


@hookspec(firstresult=True)
def cloudspot_tracker(name: str) -> type[Tracker] | None:
    """Return the tracker class of that name, or None. Cloudspot calls the class without arguments."""


@hookspec(firstresult=True)
def cloudspot_driver_task(name: str) -> type[DriverTask] | None:
    """Return the driver task class of that name, or None. Cloudspot calls the class without arguments."""


@hookspec(firstresult=True)
def cloudspot_command(name: str) -> click.Command | None:
    """Return the command ``cloudspot NAME``, or None if this plugin has no command of that name.

    cloudspot's own commands take precedence. A CloudspotError that the command raises is printed as one line,
    and its ``exit_code`` ends the process; cloudspot adds ``--debug`` to the command. docs/plugin-kits.md has
    an example.
    """
