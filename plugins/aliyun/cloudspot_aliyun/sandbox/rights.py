"""Which rights a recorded request took: to be compared with what a policy grants.

Source: RAM authorization of ECS, VPC and RAM (checked 2026-11): a right is called as its action, but for
those that pass a role on.
"""

from __future__ import annotations

from typing import Final

from cloudspot.testing.faults import Call

FREE: Final = frozenset({"sts:GetCallerIdentity"})
"""What everybody may do."""


def rights_of(call: Call) -> frozenset[str]:
    """Return the rights that the call of the control plane took, such as ``ecs:RunInstances``."""
    # The right to delete several has the name of the call that deletes one.
    action = "DeleteInstance" if call.action == "DeleteInstances" else call.action
    rights = {f"{call.service}:{action}"}
    if "RamRoleName" in call.parameters:
        rights.add("ram:PassRole")
    if call.action == "RunInstances" and any(name.startswith("Tag.") for name in call.parameters):
        rights.add("ecs:TagResources")
    return frozenset(rights - FREE)
