"""The credentials of the emulated Alibaba Cloud's RAM roles, in STS's format."""

from __future__ import annotations

from typing import ClassVar

from cloudspot.emulation import role_credentials


class RoleKeys(role_credentials.RoleKeys):
    """Keys such as ``STS.N...``, which are useless without their security token."""

    prefix: ClassVar[str] = "STS.N"
    token_prefix: ClassVar[str] = "CAIS"  # noqa: S105 # what all such tokens begin with
