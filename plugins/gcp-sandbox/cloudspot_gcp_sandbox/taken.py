"""The IAM permissions that a recorded request needed, and their resources, to compare with the docs.

Sources: Cloud Storage documentation, "IAM permissions for JSON methods"; Cloud Logging, "Access control
with IAM"; for Compute Engine see :mod:`~cloudspot_gcp_sandbox.rights`.
"""

from __future__ import annotations

from typing import Final

from cloudspot.emulation.api_faults import Call
from cloudspot_gcp_sandbox import guardedapi, rights

_STORAGE: Final = {
    "resumable.put": "storage.objects.create",
    "resumable.cancel": "storage.objects.create",
    "signed.get": "storage.objects.get",
    "storage.buckets.insert": "storage.buckets.create",
    "storage.buckets.patch": "storage.buckets.update",
    "storage.objects.insert": "storage.objects.create",
    "storage.objects.patch": "storage.objects.update",
}
_LOGGING: Final = {
    "logging.entries.list": "logging.logEntries.list",
    "logging.entries.write": "logging.logEntries.create",
    "logging.projects.logs.delete": "logging.logs.delete",
    "logging.projects.logs.list": "logging.logs.list",
}
_GUARDED: Final = frozenset({"cloudfunctions", "cloudresourcemanager", "cloudscheduler", "iam", "run"})
_FREE: Final = frozenset({"signed.put", "storage.buckets.testIamPermissions"})


def rights_of(call: Call) -> frozenset[str]:
    """Return the permissions that the call needed, such as ``storage.objects.create``."""
    if call.action in _FREE | rights.FREE:
        return frozenset()
    if call.service == "storage":
        return frozenset({_STORAGE.get(call.action, call.action)})
    if call.service == "logging":
        return frozenset({_LOGGING.get(call.action, call.action)})
    if call.service == "iamcredentials":
        return frozenset({"iam.serviceAccounts.signBlob"})
    if call.service in _GUARDED and call.action.startswith(call.service):
        return frozenset(guardedapi.rights_of(call.action, call.parameters))
    return rights.rights_of(call)


def resource_of(call: Call) -> str:
    """Return the resource's name in the form of IAM's conditions, or ``*`` if it has none."""
    if call.service == "compute":
        return rights.resource_of(call)
    bucket = call.parameters.get("bucket")
    if call.service != "storage" or not bucket:
        return "*"
    name = call.parameters.get("object") or call.parameters.get("name")
    return f"projects/_/buckets/{bucket}" + (f"/objects/{name}" if name else "")
