"""The credentials that RAM roles of the emulated Alibaba Cloud get, in STS's looks."""

from __future__ import annotations

from typing import ClassVar

from cloudspot.emulation import role_credentials


class RoleKeys(role_credentials.RoleKeys):
    """Keys such as ``STS.N...``, which are of no use without their security token."""

    prefix: ClassVar[str] = "STS.N"
    token_prefix: ClassVar[str] = "CAIS"  # noqa: S105 # what all such tokens begin with
