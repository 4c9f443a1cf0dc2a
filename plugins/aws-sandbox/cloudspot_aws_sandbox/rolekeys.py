"""The credentials of the emulated AWS's roles, in AWS's format."""

from __future__ import annotations

from typing import ClassVar

from cloudspot.emulation import role_credentials


class RoleKeys(role_credentials.RoleKeys):
    """Keys such as ``ASIA...``, of twenty characters."""

    prefix: ClassVar[str] = "ASIA"
    token_prefix: ClassVar[str] = "IQoJb3JpZ2luX2Vj"  # noqa: S105 # the prefix of such tokens
