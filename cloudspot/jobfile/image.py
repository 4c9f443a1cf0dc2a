"""The container image of a job: the parts of its name, and the login with which it is pulled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from cloudspot.interfaces import Provider
from cloudspot.jobfile.rules import Variable, text_like
from cloudspot.model import Capability, RegistryLogin

HUB: Final = "registry-1.docker.io"
"""The registry of Docker Hub."""


class ImageLogin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``run.image_login``: the login for the registry of a private image."""

    user: Annotated[str, text_like("[^:]+", "must be a name without a colon")]
    """The user's name, without a colon."""
    secret: Variable
    """The name in ``run.secrets`` that holds the password."""


def image_parts(image: str) -> tuple[str, str, str]:
    """Return the registry, the name and the tag, according to Docker's rules."""
    first, slash, rest = image.partition("/")
    is_registry = slash and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, rest) if is_registry else (HUB, image)
    name, _, tag = path.partition(":")
    if registry in {HUB, "docker.io", "index.docker.io"}:
        registry, name = HUB, name if "/" in name else f"library/{name}"
    return registry, name, tag or "latest"


def login_key(registry: str) -> str:
    """Return the key under which Docker stores the login for a registry."""
    return "https://index.docker.io/v1/" if registry == HUB else registry


def find_login(
    registry: str, named: ImageLogin | None, provider: Provider, secret: Callable[[str], str]
) -> RegistryLogin | None:
    """Return the login that the job names, or else the provider's own; None if neither exists.

    ``secret`` returns the value of one of the job's secrets. Errors of ``secret`` and of the provider are
    raised unchanged.
    """
    if named is None:
        has_one = Capability.REGISTRY in provider.capabilities
        return provider.registry_login(registry) if has_one else None
    origin = f"the user {named.user} of run.image_login"
    return RegistryLogin(user=named.user, password=secret(named.secret), origin=origin)
