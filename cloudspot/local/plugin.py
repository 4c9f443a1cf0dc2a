"""The built-in plugin: the provider ``local`` and object stores at ``file://``."""

from __future__ import annotations

from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import ObjectStore, Provider


@hookimpl
def cloudspot_provider(name: str) -> type[Provider] | None:
    """Return the local provider."""
    if name != "local":
        return None
    from cloudspot.local.provider import LocalProvider

    return LocalProvider


@hookimpl
def cloudspot_object_store(url: str) -> ObjectStore | None:
    """Open a directory of this host as an object store."""
    if not url.startswith("file:"):
        return None
    from cloudspot.local.filestore import FileStore

    return FileStore(url)
