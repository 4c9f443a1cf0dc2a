"""cloudspot on Amazon Web Services. Importing this imports no SDK; the service modules do, when used."""

from __future__ import annotations

import importlib.util

from cloudspot.errors import PluginError
from cloudspot.hookspecs import hookimpl
from cloudspot.interfaces import ObjectStore, Provider


@hookimpl
def cloudspot_provider(name: str) -> type[Provider] | None:
    """Return the provider ``aws``."""
    if name != "aws":
        return None
    from cloudspot_aws.provider import AwsProvider

    return AwsProvider


@hookimpl
def cloudspot_object_store(url: str) -> ObjectStore | None:
    """Open ``s3://bucket/prefix``."""
    if not url.lower().startswith("s3://"):
        return None
    from cloudspot_aws.s3 import S3Store

    return S3Store(url)


@hookimpl
def cloudspot_sandbox(name: str) -> type[object] | None:
    """Return the emulated AWS.

    Raises:
        PluginError: what only the emulation needs is not installed.
    """
    if name != "aws":
        return None
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise PluginError('the emulated AWS needs moto; run: pip install "cloudspot-aws[sandbox]"')
    from cloudspot_aws.sandbox.cloud import EmulatedAws

    return EmulatedAws
