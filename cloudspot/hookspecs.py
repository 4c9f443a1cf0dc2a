"""The pluggy hooks that a plugin module implements.

A distribution names its plugin module in entry-point groups::

    [project.entry-points."cloudspot.providers"]   # provider name -> plugin module
    aws = "cloudspot_aws"
    [project.entry-points."cloudspot.stores"]      # URL scheme -> plugin module
    s3 = "cloudspot_aws"
    [project.entry-points."cloudspot.sandboxes"]   # provider name -> plugin module, where it can be emulated
    aws = "cloudspot_aws"

cloudspot imports the module only when that provider or scheme is used, and registers it with
pluggy. The module must import quickly: SDKs are imported by the classes when first used.
"""

from __future__ import annotations

import pluggy

from cloudspot.interfaces import ObjectStore, Provider

PROJECT_NAME = "cloudspot"
PROVIDER_GROUP = "cloudspot.providers"
STORE_GROUP = "cloudspot.stores"
SANDBOX_GROUP = "cloudspot.sandboxes"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec(firstresult=True)
def cloudspot_provider(name: str) -> type[Provider] | None:
    """Return the provider class of that name, or None when it is not this plugin's."""


@hookspec(firstresult=True)
def cloudspot_object_store(url: str) -> ObjectStore | None:
    """Open the object store at ``url``, or return None when the scheme is not this plugin's.

    Opening does no I/O; a wrong URL raises SpecError, everything else at first use.
    """


@hookspec(firstresult=True)
def cloudspot_sandbox(name: str) -> type[object] | None:
    """Return the class that emulates the cloud of that name, or None when it is not this plugin's.

    It is a :class:`cloudspot.emulation.cloud.EmulatedCloud`.
    Where a library that only the emulation needs is missing, it raises PluginError, and the message
    says what to run.
    """
