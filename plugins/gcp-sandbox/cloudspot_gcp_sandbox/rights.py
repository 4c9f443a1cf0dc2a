"""The IAM permissions that a recorded Compute Engine request needed, for comparison with a role's.

Source: Compute Engine documentation, "IAM permissions" by API method, and "Create VMs in bulk", "Required
roles"; from memory where these omit a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cloudspot.emulation.api_faults import Call

FREE: Final = frozenset(
    {
        "cloudbilling.services.skus.list",
        "cloudresourcemanager.projects.testIamPermissions",
    }
)
"""The methods that every authenticated caller may call."""
_RIGHTS: Final[Mapping[str, tuple[str, ...]]] = {
    "compute.instances.aggregatedList": ("compute.instances.list",),
    "compute.disks.aggregatedList": ("compute.disks.list",),
    "compute.disks.insert": ("compute.disks.create",),
    "compute.firewalls.insert": ("compute.firewalls.create", "compute.networks.updatePolicy"),
    "compute.firewalls.delete": ("compute.firewalls.delete", "compute.networks.updatePolicy"),
    "compute.networks.insert": ("compute.networks.create",),
    "compute.instances.delete": ("compute.instances.delete",),
    "compute.instances.simulateMaintenanceEvent": ("compute.instances.simulateMaintenanceEvent",),
    "compute.globalOperations.aggregatedList": (
        "compute.globalOperations.list",
        "compute.zoneOperations.list",
    ),
    "compute.zoneOperations.wait": ("compute.zoneOperations.get",),
    "compute.regionOperations.wait": ("compute.regionOperations.get",),
    "compute.globalOperations.wait": ("compute.globalOperations.get",),
    "compute.images.getFromFamily": ("compute.images.getFromFamily",),
    "compute.machineTypes.aggregatedList": ("compute.machineTypes.list",),
    "compute.acceleratorTypes.aggregatedList": ("compute.acceleratorTypes.list",),
    "compute.resourcePolicies.aggregatedList": ("compute.resourcePolicies.list",),
    "compute.resourcePolicies.insert": ("compute.resourcePolicies.create",),
}
_LAUNCHES: Final = frozenset(
    {"compute.instances.insert", "compute.instances.bulkInsert", "compute.regionInstances.bulkInsert"}
)


def rights_of(call: Call) -> frozenset[str]:
    """Return the permissions that a call to Compute Engine needed, such as ``compute.instances.create``."""
    if call.service != "compute" or call.action in FREE:
        return frozenset()
    if call.action in _LAUNCHES:
        return frozenset(_launch_rights(call.parameters))
    if call.action == "compute.images.insert":
        return frozenset(_image_rights(call.parameters))
    return frozenset(_RIGHTS.get(call.action, (call.action,)))


def is_granted_to_machines(right: str, resource: str) -> bool:
    """Return whether docs/gcp.md's condition grants a permission on a resource to the machines' account."""
    name = resource.partition("/instances/")[2]
    return right == "compute.instances.delete" and name.startswith("cs-")


def resource_of(call: Call) -> str:
    """Return the name of a call's instance in the form of IAM's conditions, or ``*`` without one."""
    parameters = call.parameters
    if call.service != "compute" or not {"project", "zone", "instance"} <= parameters.keys():
        return "*"
    return "projects/{project}/zones/{zone}/instances/{instance}".format_map(parameters)


def _image_rights(parameters: Mapping[str, Any]) -> set[str]:
    body = parameters.get("body", {})
    found = {"compute.images.create"}
    found |= {"compute.images.setLabels"} if body.get("labels") else set()
    found |= {"compute.disks.useReadOnly"} if body.get("sourceDisk") else set()
    return found


def _launch_rights(parameters: Mapping[str, Any]) -> set[str]:
    body = parameters.get("body", {})
    properties = body.get("instanceProperties", body)
    rights = {"compute.instances.create", "compute.disks.create"}
    rights |= {"compute.instances.setMetadata"} if properties.get("metadata") else set()
    if properties.get("labels"):
        rights |= {"compute.instances.setLabels"}
    if any(one.get("initializeParams", {}).get("labels") for one in properties.get("disks", ())):
        rights |= {"compute.disks.setLabels"}
    # Everybody may use the images of Google's projects.
    own = f"projects/{parameters.get('project')}/"
    sources = [one.get("initializeParams", {}).get("sourceImage", "") for one in properties.get("disks", ())]
    if any(own in source for source in sources):
        rights |= {"compute.images.useReadOnly"}
    if properties.get("tags"):
        rights |= {"compute.instances.setTags"}
    if properties.get("serviceAccounts"):
        rights |= {"compute.instances.setServiceAccount", "iam.serviceAccounts.actAs"}
    if properties.get("resourcePolicies"):
        rights |= {"compute.resourcePolicies.use"}
    for interface in properties.get("networkInterfaces", ()):
        rights |= {"compute.subnetworks.use"}
        if interface.get("accessConfigs"):
            rights |= {"compute.subnetworks.useExternalIp"}
    return rights
