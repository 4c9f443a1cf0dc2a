"""The pluggy hooks that a plugin module implements.

A distribution names its plugin module in two entry-point groups::

    [project.entry-points."cloudspot.providers"]   # provider name -> plugin module
    aws = "cloudspot_aws"
    [project.entry-points."cloudspot.stores"]      # URL scheme -> plugin module
    s3 = "cloudspot_aws"

cloudspot imports the module only when that provider or scheme is used, and registers it with
pluggy. The module must import quickly: SDKs are imported by the classes when first used.
"""

from __future__ import annotations

import pluggy

from cloudspot.interfaces import ObjectStore, Provider

PROJECT_NAME = "cloudspot"
PROVIDER_GROUP = "cloudspot.providers"
STORE_GROUP = "cloudspot.stores"

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
